package caller

import (
	_ "unsafe" // go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
)

//go:generate go run ./precompile precompiled_amd64.go

//go:linkname precompiledPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var precompiledPrograms map[string]precompiledseccomp.Program

// loadPrecompiled puts our compiled seccomp filter where the library looks for one. A filter for other options or
// another version is never found under its key, and the library then compiles its own.
func loadPrecompiled() {
	if precompiledName == "" {
		return
	}
	filter.ListPrecompiled() // the library resets the map on first use
	precompiledPrograms[precompiledName] = precompiledseccomp.Program{
		Name: precompiledName, Bytecode32: precompiledCode, VarOffsets: precompiledVars,
	}
}
