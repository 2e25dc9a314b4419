package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mounts makes the file systems that programs expect. What is there already, or cannot be had, is left alone.
func mounts() {
	// The machine may put a memory file system over an empty /tmp; files there belong on the disk.
	var st unix.Statfs_t
	if unix.Statfs("/tmp", &st) == nil && st.Type == unix.TMPFS_MAGIC {
		unix.Unmount("/tmp", 0)
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{"/proc", 0o555}, {"/sys", 0o555}, {"/dev", 0o755}, {"/run", 0o755}, {"/tmp", 0o1777}, {"/var/tmp", 0o1777}} {
		if os.MkdirAll(d.path, d.mode) == nil && d.mode&0o1000 != 0 {
			unix.Chmod(d.path, uint32(d.mode))
		}
	}
	shm := "mode=1777"
	var mem unix.Sysinfo_t
	if unix.Sysinfo(&mem) == nil && mem.Totalram > 0 { // half of the memory is Linux's default, which gVisor does not have
		shm += fmt.Sprintf(",size=%d", mem.Totalram*uint64(mem.Unit)/2)
	}
	for _, m := range []struct{ source, target, kind, data string }{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"devtmpfs", "/dev", "devtmpfs", ""},
		{"devpts", "/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620,gid=5"},
		{"shm", "/dev/shm", "tmpfs", shm},
	} {
		if mounted(m.target) {
			continue
		}
		os.MkdirAll(m.target, 0o755)
		unix.Mount(m.source, m.target, m.kind, unix.MS_NOSUID, m.data)
	}
	for link, target := range map[string]string{
		"/dev/ptmx": "pts/ptmx", "/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if _, err := os.Lstat(link); err != nil {
			os.Symlink(target, link)
		}
	}
}

// mounted tells a mount point by its device number, which differs from its parent's.
func mounted(path string) bool {
	var a, b unix.Stat_t
	if unix.Lstat(path, &a) != nil || unix.Lstat(path+"/..", &b) != nil {
		return false
	}
	return a.Dev != b.Dev
}
