// Package caller makes gVisor's library calls for the gVisor driver, in a process of its own: the library may panic and
// keeps process-wide state, so each process makes one call and ends. The sentry it starts outlives it.
//
// The library starts the sentry by running this same executable again; [Main] tells the two apart.
//
// The shape of a machine: no gofer process. The root is an EROFS image that the sentry maps read-only; the writable
// layer above it is a tmpfs of the sentry whose pages live in one unlinked host file, so that the guest can write more
// than its memory. The agent's image is a second read-only EROFS mount.
package caller

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/caisson-sandbox/caisson/machine/gvisor/wire"
)

// gcPercent lets a busy sentry's heap grow to a few times what it holds: an idle one gives the memory back (trim).
const gcPercent = 200

// Main is the whole of caisson-sentry: it runs as the sentry when gVisor's library started it, else makes the call that
// args name. It returns the exit code.
func Main(args []string) int {
	if isSentry(args) {
		debug.SetGCPercent(gcPercent)
		watchLifeline()
		loadPrecompiled()
		cli.Run(nil, map[util.SubCommand]string{
			new(sentrycmd.Boot):   "internal",
			new(sentrycmd.Umount): "internal",
		}, nil)
		return 0 // not reached: cli.Run exits
	}
	if len(args) != 2 || (args[1] != "start" && args[1] != "save") {
		fmt.Fprintln(os.Stderr, "caisson-sentry is started by caisson-shim; it has no use of its own")
		return 2
	}
	answer := os.Stdout
	if args[1] == "start" {
		if err := leaveChroot(); err != nil {
			json.NewEncoder(answer).Encode(wire.Response{Step: "leave chroot", Error: err.Error()})
			return 1
		}
	}
	res := call(args[1])
	if err := json.NewEncoder(answer).Encode(res); err != nil || res.Error != "" {
		return 1
	}
	return 0
}

// isSentry tells the library's own starts from ours: it passes "runsc-sandbox" as argv[0], and the path of the
// executable with the word umount for the helper that unmounts /proc.
func isSentry(args []string) bool {
	if strings.HasPrefix(filepath.Base(args[0]), "runsc") {
		return true
	}
	return args[0] == "/proc/self/exe" && len(args) > 1 && args[1] == "umount"
}

func call(verb string) (res wire.Response) {
	step := "read request"
	last := time.Now()
	next := func(name string) {
		res.Steps = append(res.Steps, wire.Step{Name: step, Nanos: int64(time.Since(last))})
		step, last = name, time.Now()
	}
	defer func() {
		if p := recover(); p != nil {
			res = wire.Response{Step: step, Error: fmt.Sprintf("gVisor's library panicked: %v\n%s", p, debug.Stack())}
		}
	}()
	var req wire.Request
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		return wire.Response{Step: step, Error: err.Error()}
	}
	translate(&req)
	var err error
	if verb == "start" {
		res.PID, err = start(req, next)
	} else {
		err = save(req, next)
	}
	if err != nil {
		return wire.Response{Step: step, Error: err.Error()}
	}
	next("")
	return res
}
