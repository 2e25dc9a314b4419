// Package dial is the host's side of guest/wire: the shim's client of the agent in its sandbox.
//
// The agent belongs to the guest and is believed nothing: every message is bounded in size, every answer is checked
// against the protocol, and a lie is an error of the one call it came in.
package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/guest/wire"
)

const (
	protocol    = 1
	agentPort   = 1
	forwardPort = 2
	maxMessage  = 1 << 20
	callTimeout = 30 * time.Second // of calls whose context has no deadline of their own

	maxHeaders = 64 << 10 // bytes of a header block of the agent
	idleConns  = 64       // kept for the next calls
	idleLimit  = 5 * time.Minute

	configureLimit = 60 * time.Second // of Configure when its context has no deadline
	firstProbe     = 25 * time.Millisecond
	lastProbe      = time.Second
)

// Dialer connects to a TCP port of the guest.
type Dialer func(ctx context.Context, port uint16) (net.Conn, error)

// Client speaks to one agent.
type Client struct {
	dial  Dialer
	token atomic.Pointer[string]

	// Each call in flight has a connection of its own, so that a stalled one holds up no other.
	transport *http.Transport
	agent     wire.AgentClient
	procs     wire.ProcessesClient
	files     wire.FilesClient

	releases sync.WaitGroup
	closed   atomic.Bool

	mu    sync.Mutex
	ready net.Conn // made by Configure for the first connection
}

// New makes a client. It connects at the first call.
func New(dial Dialer) *Client {
	c := &Client{dial: dial}
	c.transport = &http.Transport{
		MaxResponseHeaderBytes: maxHeaders, DisableCompression: true, MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleLimit,
		ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if conn := c.takeReady(nil); conn != nil {
				return conn, nil
			}
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			return dial(ctx, agentPort)
		},
	}
	opts := []connect.ClientOption{
		connect.WithReadMaxBytes(maxMessage), connect.WithInterceptors(bearer{c}),
		connect.WithAcceptCompression("gzip", nil, nil), // memory is nearer than processor time on a link inside one host
	}
	const base = "http://agent"
	hc := &http.Client{Transport: c.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c.agent = wire.NewAgentClient(hc, base, opts...)
	c.procs = wire.NewProcessesClient(hc, base, opts...)
	c.files = wire.NewFilesClient(hc, base, opts...)
	return c
}

// takeReady takes the connection that probe left, leaving next in its place.
func (c *Client) takeReady(next net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.ready
	c.ready = next
	return conn
}

// probe connects with little patience: a packet that was lost while the guest's network came up would be sent again only
// after a second. The connection is kept for the call that follows.
func (c *Client) probe(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := c.dial(ctx, agentPort)
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	if old := c.takeReady(conn); old != nil {
		old.Close()
	}
	return nil
}

// Close drops the connections that no call uses. What runs in the guest goes on.
func (c *Client) Close() {
	if conn := c.takeReady(nil); conn != nil {
		conn.Close()
	}
	c.closed.Store(true)
	c.transport.CloseIdleConnections()
	c.releases.Wait()
	c.transport.CloseIdleConnections()
}

// Files is the agent's file service.
func (c *Client) Files() wire.FilesClient { return c.files }

// bearer adds the token to every call.
type bearer struct{ c *Client }

func (b bearer) add(h http.Header) {
	if t := b.c.token.Load(); t != nil {
		h.Set("Authorization", "Bearer "+*t)
	}
}

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		b.add(r.Header())
		return next(ctx, r)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, s connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, s)
		b.add(conn.RequestHeader())
		return conn
	}
}

func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// Configure claims the agent, trying until it listens or ctx ends (60 s when ctx has no deadline). It must be the first
// call.
func (c *Client) Configure(ctx context.Context, req *wire.ConfigureRequest) (*wire.ConfigureResponse, error) {
	const op = "configure agent"
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, configureLimit)
		defer cancel()
	}
	req.Protocol = protocol
	token := req.Token
	c.token.Store(&token) // an answer may be lost, and the second try must be known as the first one's
	pause := time.Millisecond
	for patience := firstProbe; ; patience = min(2*patience, lastProbe) {
		err := c.probe(ctx, patience)
		var res *connect.Response[wire.ConfigureResponse]
		if err == nil {
			try, cancel := context.WithTimeout(ctx, 5*time.Second)
			res, err = c.agent.Configure(try, connect.NewRequest(req))
			cancel()
		}
		if err == nil && res.Msg.Protocol != protocol {
			return nil, caisson.E(caisson.Internal, op, "", fmt.Sprintf("the agent speaks protocol %d, not %d", res.Msg.Protocol, protocol), nil)
		}
		if err == nil {
			res.Msg.Version = printable(res.Msg.Version)
			return res.Msg, nil
		}
		if code := connect.CodeOf(err); code != connect.CodeUnavailable && code != connect.CodeDeadlineExceeded && code != connect.CodeUnknown {
			return nil, Error(op, "", err)
		}
		select {
		case <-ctx.Done():
			kind := caisson.Timeout
			if errors.Is(ctx.Err(), context.Canceled) {
				kind = caisson.Canceled
			}
			return nil, caisson.E(kind, op, "", "the agent did not answer", errors.Join(context.Cause(ctx), err)).
				WithHint("look at what the sandbox's machine printed on its console")
		case <-time.After(pause):
		}
		pause = min(pause*2, 5*time.Millisecond)
	}
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, callTimeout)
}

// Metrics asks what the guest uses.
func (c *Client) Metrics(ctx context.Context) (*wire.MetricsResponse, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	res, err := c.agent.Metrics(ctx, connect.NewRequest(&wire.MetricsRequest{}))
	if err != nil {
		return nil, Error("read metrics", "", err)
	}
	return res.Msg, nil
}

// Ping asks for a sign of life and the duration of the last process start inside.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	res, err := c.agent.Ping(ctx, connect.NewRequest(&wire.PingRequest{}))
	if err != nil {
		return 0, Error("ping agent", "", err)
	}
	return time.Duration(res.Msg.SpawnNanos), nil
}

// Shutdown ends every user process.
func (c *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+10*time.Second)
	defer cancel()
	_, err := c.agent.Shutdown(ctx, connect.NewRequest(&wire.ShutdownRequest{GraceMillis: grace.Milliseconds()}))
	if err != nil {
		return Error("shut down guest", "", err)
	}
	return nil
}

// Signal sends a signal to a command's process group.
func (c *Client) Signal(ctx context.Context, id string, signal int32) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if _, err := c.procs.Signal(ctx, connect.NewRequest(&wire.SignalRequest{Id: id, Signal: signal})); err != nil {
		return Error("signal command", id, err)
	}
	return nil
}

// Resize sets the size of a command's terminal.
func (c *Client) Resize(ctx context.Context, id string, rows, cols uint32) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if _, err := c.procs.Resize(ctx, connect.NewRequest(&wire.ResizeRequest{Id: id, Size: &wire.TtySize{Rows: rows, Cols: cols}})); err != nil {
		return Error("resize terminal", id, err)
	}
	return nil
}

// Stdin sends what next gives, at most 256 KiB at a time, until it returns io.EOF. It blocks as the process does, and
// notices the end of the process when it sends.
func (c *Client) Stdin(ctx context.Context, id string, next func() (data []byte, closeAfter bool, err error)) (int64, error) {
	const op = "write stdin"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st := c.procs.Stdin(ctx)
	for {
		b, end, err := next()
		if err != nil && err != io.EOF {
			cancel() // so that what follows cannot wait for the process
			st.CloseAndReceive()
			return 0, err
		}
		if err == io.EOF {
			break
		}
		if err := st.Send(&wire.StdinRequest{Id: id, Data: b, Close: end}); err != nil {
			break // the reason comes with the answer
		}
	}
	res, err := st.CloseAndReceive()
	if err != nil {
		return 0, Error(op, id, err)
	}
	return res.Msg.Written, nil
}

// DialPort connects to a port on the guest's loopback.
func (c *Client) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	const op = "reach port"
	subject := fmt.Sprint(port)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	conn, err := c.dial(ctx, forwardPort)
	if err != nil {
		return nil, caisson.E(caisson.Unavailable, op, subject, "the sandbox's agent cannot be reached", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	token := ""
	if t := c.token.Load(); t != nil {
		token = *t
	}
	_, err = fmt.Fprintf(conn, "CAISSON/1 %s %d\n", token, port)
	line := ""
	if err == nil {
		line, err = readLine(conn)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, caisson.E(caisson.Unavailable, op, subject, "the agent did not answer", err)
	}
	if line != "OK" {
		conn.Close()
		return nil, caisson.E(caisson.Unavailable, op, subject, "nothing in the sandbox listens on this port", errors.New(printable(line))).
			WithHint("start the program that should listen, or check its port")
	}
	return conn, nil
}

// readLine reads a short line byte by byte, so that nothing after it is taken.
func readLine(r io.Reader) (string, error) {
	var b [1]byte
	var line []byte
	for len(line) < 256 {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
	return "", errors.New("the answer is too long")
}

// printable makes guest text fit for logs and messages.
func printable(s string) string {
	const most = 512
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}

// Error turns what a call to the agent gave into our error.
func Error(op, subject string, err error) error {
	if err == nil {
		return nil
	}
	var own *caisson.Error
	if errors.As(err, &own) {
		return err
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return caisson.E(caisson.KindOf(err), op, subject, "the agent cannot be reached", err)
	}
	kind := KindOf(ce.Code())
	if kind == caisson.Unavailable || kind == caisson.Internal {
		return caisson.E(kind, op, subject, "the sandbox's agent failed: "+printable(ce.Message()), err)
	}
	return caisson.E(kind, op, subject, printable(ce.Message()), nil)
}

// KindOf maps the codes of the wire protocols to kinds of error.
func KindOf(c connect.Code) caisson.Kind {
	switch c {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return caisson.Invalid
	case connect.CodePermissionDenied, connect.CodeUnauthenticated:
		return caisson.Denied
	case connect.CodeNotFound:
		return caisson.NotFound
	case connect.CodeAlreadyExists, connect.CodeFailedPrecondition, connect.CodeAborted:
		return caisson.Conflict
	case connect.CodeResourceExhausted:
		return caisson.Exhausted
	case connect.CodeUnimplemented:
		return caisson.Unsupported
	case connect.CodeUnavailable:
		return caisson.Unavailable
	case connect.CodeDeadlineExceeded:
		return caisson.Timeout
	case connect.CodeCanceled:
		return caisson.Canceled
	}
	return caisson.Internal
}
