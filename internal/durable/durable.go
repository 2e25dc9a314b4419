// Package durable makes changes of a directory survive a crash of the host.
package durable

import "os"

// Dir flushes the directory itself: the names that were made, renamed or removed in it.
func Dir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
