package main

import "golang.org/x/sys/unix"

// inMemory says whether a directory is on a file system that a restart of the host empties.
func inMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC)
}
