package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

const maxPath = 4096

// as runs fn with the rights of a user. Credentials belong to threads, so fn runs on a thread of its own that is thrown
// away; what it opens keeps the rights it was opened with.
func as(acc account, fn func() error) error {
	if os.Geteuid() != 0 || acc.uid == 0 && acc.gid == 0 {
		return fn()
	}
	res := make(chan error, 1)
	go func() { // ends with fn
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer func() {
			if p := recover(); p != nil {
				res <- fmt.Errorf("panic: %v", p)
			}
		}()
		groups := acc.groups
		if len(groups) == 0 {
			groups = []uint32{acc.gid}
		}
		if _, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
			res <- fmt.Errorf("take the rights of %s: %w", acc.name, e)
			return
		}
		if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, uintptr(acc.gid), uintptr(acc.gid), uintptr(acc.gid)); e != 0 {
			res <- fmt.Errorf("take the rights of %s: %w", acc.name, e)
			return
		}
		if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(acc.uid), uintptr(acc.uid), uintptr(acc.uid)); e != 0 {
			res <- fmt.Errorf("take the rights of %s: %w", acc.name, e)
			return
		}
		res <- fn()
	}()
	return <-res
}

// who resolves a request's user and path.
func (a *Agent) who(user string, path []byte) (account, string, error) {
	a.mu.Lock()
	if user == "" {
		user = a.user
	}
	a.mu.Unlock()
	acc, err := a.users.find(user)
	if err != nil {
		return acc, "", connect.NewError(connect.CodeInvalidArgument, err)
	}
	p, err := resolvePath(acc, path)
	return acc, p, err
}

func resolvePath(acc account, path []byte) (string, error) {
	p := string(path)
	switch {
	case p == "":
		return "", connect.NewError(connect.CodeInvalidArgument, errors.New("the path is empty"))
	case len(p) > maxPath:
		return "", connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the path is longer than %d bytes", maxPath))
	}
	for i := range len(p) {
		if p[i] == 0 {
			return "", connect.NewError(connect.CodeInvalidArgument, errors.New("the path has a zero byte"))
		}
	}
	if !filepath.IsAbs(p) {
		p = filepath.Join(acc.home, p)
	}
	return filepath.Clean(p), nil
}

// fileError gives a file system error its code and a text that names the path and the reason.
func fileError(path string, err error) error {
	if err == nil {
		return nil
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce
	}
	var errno syscall.Errno
	text := err
	if errors.As(err, &errno) {
		text = errno
	}
	code := connect.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		code = connect.CodePermissionDenied
	case errors.Is(err, syscall.ENOTEMPTY):
		code = connect.CodeFailedPrecondition
	case errors.Is(err, fs.ErrExist):
		code = connect.CodeAlreadyExists
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENOMEM):
		code = connect.CodeResourceExhausted
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.EBUSY):
		code = connect.CodeFailedPrecondition
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		code = connect.CodeInvalidArgument
	}
	return connect.NewError(code, fmt.Errorf("%s: %v", path, text))
}
