// Package peercred carries the user id of a unix socket's peer in the connection's context.
package peercred

import (
	"context"
	"net"
)

type key struct{}

// Peer is who is at the other end of a unix socket.
type Peer struct {
	UID uint32
	OK  bool // the kernel told; false where it cannot, and then nobody may be trusted for it
}

// ConnContext is for http.Server.ConnContext: it adds the peer of a unix socket, and leaves other connections alone.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	uid, err := peerUID(u)
	return context.WithValue(ctx, key{}, Peer{UID: uid, OK: err == nil})
}

// From gives the peer, and false when the connection is no unix socket.
func From(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(key{}).(Peer)
	return p, ok
}

// Trusted reports whether the connection is a unix socket whose peer is root or the user euid.
func Trusted(ctx context.Context, euid int) bool {
	p, ok := From(ctx)
	return ok && p.OK && (p.UID == 0 || int64(p.UID) == int64(euid))
}
