package agent

import (
	"bufio"
	"context"
	"errors"
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
func (a *Agent) serveForward(ctx context.Context, l net.Listener) {
	slots := make(chan struct{}, maxForwards)
	var open sync.WaitGroup
	defer open.Wait()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil { // no descriptor left, for now
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case slots <- struct{}{}:
			open.Go(func() {
				defer func() { <-slots }()
				defer guard("forward")
				defer c.Close()
				stop := context.AfterFunc(ctx, func() { c.Close() })
				defer stop()
				a.forward(ctx, c)
			})
		default:
			c.SetWriteDeadline(time.Now().Add(time.Second))
			io.WriteString(c, "ERR too many forwarded connections\n")
			c.Close()
		}
	}
}

// forward answers one connection: "CAISSON/1 TOKEN PORT\n", then bytes both ways.
func (a *Agent) forward(ctx context.Context, c net.Conn) {
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
	target, err := dialLocal(ctx, c, f[2])
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
		defer guard("forward")
		// The host sends nothing before OK, but what it sent early is in the reader.
		if n := r.Buffered(); n > 0 {
			early, _ := r.Peek(n)
			target.Write(early)
		}
		pass(target, c)
	})
	pass(c, target)
	wg.Wait()
}

// dialLocal connects to a port of the guest: on its loopback, else on the address that the host reached it by.
func dialLocal(ctx context.Context, c net.Conn, port string) (target net.Conn, err error) {
	hosts := []string{"127.0.0.1", "::1"}
	if a, ok := c.LocalAddr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		hosts = append(hosts, a.IP.String())
	}
	d := net.Dialer{Deadline: time.Now().Add(forwardHandshake)}
	for _, host := range hosts {
		if target, err = d.DialContext(ctx, "tcp", net.JoinHostPort(host, port)); err == nil {
			return target, nil
		}
	}
	return nil, err
}

// pass copies one way and passes the end on. A broken connection ends both ways.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err == nil {
		if half, ok := to.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			return
		}
	}
	to.Close()
	from.Close()
}
