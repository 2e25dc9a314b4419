//go:build !amd64

package caller

const precompiledName = ""

var (
	precompiledCode []uint32
	precompiledVars map[string][]int
)
