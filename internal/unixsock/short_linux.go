package unixsock

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// short gives a path that fits; it is good until done is called.
func short(path string) (name string, done func(), err error) {
	if len(path) < longest {
		return path, func() {}, nil
	}
	const oPath = 0x200000
	d, err := os.OpenFile(filepath.Dir(path), oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), filepath.Base(path)), func() { d.Close() }, nil
}
