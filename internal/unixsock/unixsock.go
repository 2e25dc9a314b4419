// Package unixsock listens on and connects to unix sockets whose paths may be longer than the 107 bytes that a socket
// address holds: the directory is opened and the socket named through it.
package unixsock

import (
	"context"
	"net"
)

// longest is the most bytes of a path in a socket address, its NUL included (sockaddr_un on Linux 108, darwin 104).
const longest = 104

// Dial connects to the socket at path.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	name, done, err := short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	return (&net.Dialer{}).DialContext(ctx, "unix", name)
}

// Listen makes the socket at path. Closing the listener does not remove the socket where the path is long.
func Listen(path string) (net.Listener, error) {
	name, done, err := short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.Listen("unix", name)
	if err == nil && name != path {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
	}
	return l, err
}
