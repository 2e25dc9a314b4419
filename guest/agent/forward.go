package agent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxForwards      = 1024
	forwardHandshake = 5 * time.Second
)

// serveForward accepts connections for ports on the guest's loopback.
func (a *Agent) serveForward(l net.Listener) {
	slots := make(chan struct{}, maxForwards)
	for {
		c, err := l.Accept()
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				continue
			}
			return
		}
		select {
		case slots <- struct{}{}:
			go func() { // ends with its connection
				defer func() { <-slots }()
				a.forward(c.(*net.TCPConn))
			}()
		default:
			io.WriteString(c, "ERR too many forwarded connections\n")
			c.Close()
		}
	}
}

// forward answers one connection: "CAISSON/1 TOKEN PORT\n", then bytes both ways.
func (a *Agent) forward(c *net.TCPConn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(forwardHandshake))
	r := bufio.NewReaderSize(io.LimitReader(c, 512), 512)
	line, err := r.ReadString('\n')
	f := strings.Fields(line)
	if err != nil || len(f) != 3 || f[0] != "CAISSON/1" || !a.authorized(f[1]) {
		io.WriteString(c, "ERR bad request\n")
		return
	}
	port, err := strconv.ParseUint(f[2], 10, 16)
	if err != nil || port == 0 {
		io.WriteString(c, "ERR bad port\n")
		return
	}
	var target net.Conn
	for _, host := range []string{"127.0.0.1", "::1"} {
		if target, err = net.DialTimeout("tcp", net.JoinHostPort(host, f[2]), forwardHandshake); err == nil {
			break
		}
	}
	if err != nil {
		fmt.Fprintf(c, "ERR nothing listens on port %d\n", port)
		return
	}
	defer target.Close()
	if _, err := io.WriteString(c, "OK\n"); err != nil {
		return
	}
	c.SetDeadline(time.Time{})
	var wg sync.WaitGroup
	wg.Go(func() {
		// The host sends nothing before OK, but what it sent early is in the reader.
		if n := r.Buffered(); n > 0 {
			early, _ := r.Peek(n)
			target.Write(early)
		}
		io.Copy(target, c)
		target.(*net.TCPConn).CloseWrite()
	})
	wg.Go(func() {
		io.Copy(c, target)
		c.CloseWrite()
	})
	wg.Wait()
}
