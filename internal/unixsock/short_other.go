//go:build !linux

package unixsock

func short(path string) (string, func(), error) { return path, func() {}, nil }
