package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson"
	guestwire "github.com/caisson-sandbox/caisson/guest/wire"
	"github.com/caisson-sandbox/caisson/internal/unixsock"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

const (
	dialLimit  = 5 * time.Second
	idleLimit  = 30 * time.Second // of a connection that nothing uses
	maxMessage = 4 << 20          // bytes of one message of a shim
)

// shimClient speaks to one shim, over HTTP/1.1: each call has a connection for itself, so none waits for another, and
// output crosses no multiplexer.
type shimClient struct {
	path      string
	transport *http.Transport
	shim      wire.ShimClient
	commands  wire.CommandsClient
	files     guestwire.FilesClient
}

func newShimClient(path string) *shimClient {
	c := &shimClient{path: path}
	c.transport = &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: idleLimit,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialLimit)
			defer cancel()
			return unixsock.Dial(ctx, path)
		},
	}
	opts := []connect.ClientOption{connect.WithReadMaxBytes(maxMessage), connect.WithAcceptCompression("gzip", nil, nil)}
	const base = "http://shim"
	hc := &http.Client{Transport: c.transport}
	c.shim = wire.NewShimClient(hc, base, opts...)
	c.commands = wire.NewCommandsClient(hc, base, opts...)
	c.files = guestwire.NewFilesClient(hc, base, opts...)
	return c
}

func (c *shimClient) close() { c.transport.CloseIdleConnections() }

func (c *shimClient) hello(ctx context.Context, id caisson.SandboxID, epoch uint64) (*wire.Status, error) {
	res, err := c.shim.Hello(ctx, connect.NewRequest(&wire.HelloRequest{Sandbox: string(id), Epoch: epoch, Protocol: wire.Protocol}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Status, nil
}

// dial connects to a port of the guest through the shim.
func (c *shimClient) dial(ctx context.Context, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := unixsock.Dial(ctx, c.path)
	if err != nil {
		return nil, caisson.E(caisson.Unavailable, "reach port", fmt.Sprint(port), "the sandbox's shim cannot be reached", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	_, err = fmt.Fprintf(conn, "GET /dial?port=%d HTTP/1.1\r\nHost: shim\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", port, wire.DialProtocol)
	var res *http.Response
	br := bufio.NewReader(conn)
	if err == nil {
		res, err = http.ReadResponse(br, nil)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, caisson.E(caisson.Unavailable, "reach port", fmt.Sprint(port), "the sandbox's shim did not answer", err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
		conn.Close()
		return nil, caisson.E(caisson.Unavailable, "reach port", fmt.Sprint(port), "nothing in the sandbox listens on this port", errors.New(strings.TrimSpace(string(b)))).
			WithHint("start the program that should listen, or check its port")
	}
	return &buffered{Conn: conn, r: br}, nil
}

// buffered gives back what was read ahead.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

func (b *buffered) CloseWrite() error {
	if cw, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

var kinds = map[connect.Code]caisson.Kind{
	connect.CodeInvalidArgument: caisson.Invalid, connect.CodeOutOfRange: caisson.Invalid, connect.CodePermissionDenied: caisson.Denied,
	connect.CodeUnauthenticated: caisson.Denied, connect.CodeNotFound: caisson.NotFound, connect.CodeFailedPrecondition: caisson.Conflict,
	connect.CodeAlreadyExists: caisson.Conflict, connect.CodeAborted: caisson.Conflict, connect.CodeResourceExhausted: caisson.Exhausted,
	connect.CodeUnimplemented: caisson.Unsupported, connect.CodeUnavailable: caisson.Unavailable, connect.CodeDeadlineExceeded: caisson.Timeout,
	connect.CodeCanceled: caisson.Canceled, connect.CodeInternal: caisson.Internal,
}

// decode makes our error of what a call to a shim gave.
func decode(op, subject string, err error) error {
	if err == nil {
		return nil
	}
	var own *caisson.Error
	if errors.As(err, &own) {
		if own.Op == "" {
			c := *own
			c.Op, c.Subject = op, subject
			return &c
		}
		return err
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return caisson.E(caisson.KindOf(err), op, subject, "the node failed", err)
	}
	kind, ok := kinds[ce.Code()]
	if !ok {
		kind = caisson.Internal
	}
	hint := ce.Meta().Get(wire.HintHeader)
	if !connect.IsWireError(err) && (kind == caisson.Unavailable || kind == caisson.Internal || !ok) {
		return caisson.E(caisson.Unavailable, op, subject, "the sandbox's shim cannot be reached", err).WithHint("look at the sandbox's state; it may have ended")
	}
	if kind == caisson.Internal {
		return caisson.E(kind, op, subject, "the sandbox's shim failed", err)
	}
	return caisson.E(kind, op, subject, ce.Message(), nil).WithHint(hint)
}
