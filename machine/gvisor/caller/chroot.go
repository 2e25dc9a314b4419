package caller

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson/machine/gvisor/wire"
)

// oldRoot is the environment variable by which a call that left a chroot knows where that is.
const oldRoot = "CAISSON_OLD_ROOT"

// leaveChroot runs this call again outside, if it is in a chroot and may leave it. Linux makes no user namespace for a
// process in a chroot (clone(2), EPERM), and without one a sentry would keep its user. Entering a mount namespace sets the
// root to the namespace's (setns(2)), also one's own. The sentry then makes itself an empty root, as ever. It returns when
// there is nothing to leave, or no right to.
func leaveChroot() error {
	if os.Geteuid() != 0 || os.Getenv(oldRoot) != "" {
		return nil
	}
	// This thread's root differs from the other threads' from here on; the thread of a locked goroutine is never reused.
	runtime.LockOSThread()
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	wd, err := os.Open(".")
	if err != nil {
		return err
	}
	if unix.Unshare(unix.CLONE_FS) != nil || enterMounts() != nil {
		return nil
	}
	if sameMount(root, "/") {
		return unix.Fchdir(int(wd.Fd()))
	}
	where, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", root.Fd()))
	if err != nil {
		return err
	}
	dir, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", wd.Fd()))
	if err != nil {
		return err
	}
	if err := freshProc(); err != nil {
		return err
	}
	if err := unix.Chdir(dir); err != nil { // by name: the descriptor is of the mounts before
		return err
	}
	return fmt.Errorf("run again outside the chroot: %w", unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), oldRoot+"="+where)))
}

// enterMounts enters the mount namespace that this thread is in, from its root.
func enterMounts() error {
	ns, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	defer ns.Close()
	return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)
}

// freshProc mounts a /proc for this call alone: the one outside may be that of another pid namespace.
func freshProc() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("copy the mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	return nil
}

// sameMount compares a directory with the one at path, by the mount, too: a chroot may be a bind mount of the root.
func sameMount(f *os.File, path string) bool {
	var a, b unix.Statx_t
	const want = unix.STATX_INO | unix.STATX_MNT_ID
	if unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, want, &a) != nil || unix.Statx(unix.AT_FDCWD, path, 0, want, &b) != nil {
		return true
	}
	return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor && a.Mnt_id == b.Mnt_id
}

// translate makes the paths of a request mean outside a chroot what they meant inside.
func translate(req *wire.Request) {
	where := os.Getenv(oldRoot)
	if where == "" {
		return
	}
	for _, p := range []*string{&req.Root, &req.Agent, &req.DiskImage} {
		if *p != "" {
			*p = filepath.Join(where, *p)
		}
	}
	for i, g := range req.Cgroups {
		req.Cgroups[i] = filepath.Join(where, g)
	}
}
