package gvisor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfoStatus reads si_status of a SIGCHLD siginfo: the exit code or the signal. The package unix does not name it;
// on 64-bit Linux it follows si_signo, si_errno, si_code, padding, si_pid and si_uid.
func siginfoStatus(i *unix.Siginfo) int {
	const offset = 24
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(i), offset)))
}
