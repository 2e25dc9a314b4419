package shim

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/caisson-sandbox/caisson/shim/wire"
)

// serveDial joins an upgraded connection to a port in the guest.
func (s *shim) serveDial(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 || r.Header.Get("Upgrade") != wire.DialProtocol {
		http.Error(w, "GET /dial?port=1…65535 with Upgrade: "+wire.DialProtocol, http.StatusBadRequest)
		return
	}
	a, err := s.guest()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	guest, err := a.DialPort(r.Context(), uint16(port))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer guest.Close()
	hj, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "dial needs HTTP/1.1", http.StatusHTTPVersionNotSupported)
		return
	}
	conn, buf, err := hj.Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+wire.DialProtocol+"\r\n\r\n")
	join(conn, buf, guest)
}

// join copies both ways until both have ended; the end of one direction is passed on.
func join(node net.Conn, nodeIn io.Reader, guest net.Conn) {
	var wg sync.WaitGroup
	half := func(c net.Conn) {
		if cw, ok := c.(interface{ CloseWrite() error }); ok {
			cw.CloseWrite()
			return
		}
		c.Close()
	}
	wg.Go(func() {
		io.Copy(guest, nodeIn)
		half(guest)
	})
	io.Copy(node, guest)
	half(node)
	wg.Wait()
}
