package caller

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// leaveChroot makes the root of this mount namespace the root of the calling thread, and locks the goroutine to it. Linux
// makes no user namespace for a process in a chroot (clone(2), EPERM), and without one a sentry would keep its user. Entering
// one's own mount namespace again sets the root to the namespace's (setns(2)); root may do that. The sentry then makes
// itself an empty root, as ever.
//
// The working directory stays. Paths of the chroot mean something else afterwards.
func leaveChroot() error {
	runtime.LockOSThread() // for good: this process ends after its one call
	wd, err := os.Open(".")
	if err != nil {
		return err
	}
	defer wd.Close()
	ns, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the thread's root: %w", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace again: %w", err)
	}
	return unix.Fchdir(int(wd.Fd()))
}
