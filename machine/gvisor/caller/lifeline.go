package caller

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson/internal/trim"
	"github.com/caisson-sandbox/caisson/machine/gvisor/wire"
)

// lifelineSlot is the descriptor number under which a sentry finds its lifeline. It is far above those that the library
// hands over, which start at 3 and are contiguous.
const lifelineSlot = 100

// plantLifeline leaves the lifeline open, without close-on-exec, for the sentry that this process starts next. It must
// run after the library's close-on-exec sweep.
func plantLifeline() error {
	if err := unix.Dup3(wire.LifelineFD, lifelineSlot, 0); err != nil {
		return err
	}
	return unix.Close(wire.LifelineFD)
}

// watchLifeline ends the sentry when the driver's process has ended, however it ended: a machine without its shim has
// no network and no owner. The thread waits in read(2), which the sentry's seccomp filter allows, as it does exit_group.
func watchLifeline() {
	if _, err := unix.FcntlInt(lifelineSlot, unix.F_GETFD, 0); err != nil {
		return // the /proc unmounter and the sentry's stubs have none
	}
	go func() { // ends the process; nobody waits for it
		var b [1]byte
		for {
			n, _, errno := syscall.Syscall(syscall.SYS_READ, lifelineSlot, uintptr(unsafe.Pointer(&b[0])), 1)
			if errno == 0 && n > 0 { // the driver says that the machine is idle
				trim.Process()
				continue
			}
			if errno == syscall.EINTR {
				continue
			}
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, wire.ExitLifeline, 0, 0)
		}
	}()
}
