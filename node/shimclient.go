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
	maxMessage = 4 << 20 // bytes of one message of a shim
)

// shimClient speaks to one shim. Streams and calls share no connection with uploads, which may stall.
type shimClient struct {
	path      string
	transport *http.Transport
	bulk      *http.Transport
	shim      wire.ShimClient
	commands  wire.CommandsClient
	stdin     wire.CommandsClient
	files     guestwire.FilesClient
}

func newShimClient(path string) *shimClient {
	c := &shimClient{path: path}
	c.transport, c.bulk = c.newTransport(), c.newTransport()
	opts := []connect.ClientOption{connect.WithReadMaxBytes(maxMessage), connect.WithAcceptCompression("gzip", nil, nil)}
	const base = "http://shim"
	ctl, blk := &http.Client{Transport: c.transport}, &http.Client{Transport: c.bulk}
	c.shim = wire.NewShimClient(ctl, base, opts...)
	c.commands = wire.NewCommandsClient(ctl, base, opts...)
	c.stdin = wire.NewCommandsClient(blk, base, opts...)
	c.files = guestwire.NewFilesClient(blk, base, opts...)
	return c
}

func (c *shimClient) newTransport() *http.Transport {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols: &p, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialLimit)
			defer cancel()
			return unixsock.Dial(ctx, c.path)
		},
		HTTP2: &http.HTTP2Config{MaxReadFrameSize: 256 << 10, MaxReceiveBufferPerStream: 1 << 20, MaxReceiveBufferPerConnection: 512 << 20},
	}
}

func (c *shimClient) close() {
	c.transport.CloseIdleConnections()
	c.bulk.CloseIdleConnections()
}

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
