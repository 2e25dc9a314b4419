package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// Attachment is a WebSocket to a command: its events, and its input. Next is for one goroutine; the rest for any.
type Attachment struct {
	c   *Client
	ws  *websocket.Conn
	tty bool
	seq uint64 // of the last event
}

// Attach connects to a command from an event number on (0 and 1: the start). tty is whether the command has a terminal
// (Command says so): its output then has no mark of stdout or stderr. It is one connection; FollowTerminal is re-attached.
func (c *Client) Attach(ctx context.Context, sandbox, command string, from uint64, tty bool) (*Attachment, error) {
	q := query()
	if from > 0 {
		q.Set("from", unsigned(from))
	}
	h := http.Header{}
	c.authorize(h)
	path := []string{"sandboxes", sandbox, "commands", command, "attach"}
	ws, res, err := websocket.Dial(ctx, c.url(path, q), &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: h, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		if res != nil && res.StatusCode != http.StatusSwitchingProtocols {
			return nil, problemOf(res)
		}
		return nil, c.broken(ctx, err)
	}
	ws.SetReadLimit(2 << 20)
	return &Attachment{c: c, ws: ws, tty: tty, seq: max(from, 1) - 1}, nil
}

// Next gives the next event as Stream.Next does. Output has no number on a WebSocket; since each event is one frame and
// numbers grow by one, they are counted here.
func (a *Attachment) Next(ctx context.Context) (v1.CommandEvent, error) {
	t, b, err := a.ws.Read(ctx)
	if err != nil {
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return v1.CommandEvent{}, io.EOF
		}
		return v1.CommandEvent{}, a.c.broken(ctx, err)
	}
	if t == websocket.MessageBinary {
		a.seq++
		e := v1.CommandEvent{Type: v1.EventStdout, Seq: a.seq, Time: time.Now(), Data: b}
		if a.tty {
			return e, nil
		}
		if len(b) == 0 || b[0] != 1 && b[0] != 2 {
			return e, &v1.Problem{Code: codeInternal, Title: "Internal error", Detail: "a frame of output does not say whether it is stdout or stderr"}
		}
		if b[0] == 2 {
			e.Type = v1.EventStderr
		}
		e.Data = b[1:]
		return e, nil
	}
	var f v1.AttachFrame
	if err := json.Unmarshal(b, &f); err != nil {
		return v1.CommandEvent{}, &v1.Problem{Code: codeInternal, Title: "Internal error", Detail: "a text frame is not JSON: " + err.Error()}
	}
	switch {
	case f.Seq > 0:
		a.seq = f.Seq
	case f.Type == v1.EventGap:
		a.seq = f.To
	}
	e := v1.CommandEvent{Type: f.Type, Seq: f.Seq, Time: time.Now(), PID: f.PID, From: f.From, To: f.To, Exit: f.Exit, Error: f.Error}
	if f.Type == v1.EventGap {
		e.Seq = a.seq
	}
	return e, nil
}

// Write sends stdin; more than 256 KiB goes in several frames.
func (a *Attachment) Write(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), 256<<10)
		if err := a.ws.Write(ctx, websocket.MessageBinary, b[:n]); err != nil {
			return a.c.broken(ctx, err)
		}
		b = b[n:]
	}
	return nil
}

func (a *Attachment) send(ctx context.Context, f v1.AttachFrame) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := a.ws.Write(ctx, websocket.MessageText, b); err != nil {
		return a.c.broken(ctx, err)
	}
	return nil
}

// Resize sets the terminal's size.
func (a *Attachment) Resize(ctx context.Context, size v1.TTY) error {
	return a.send(ctx, v1.AttachFrame{Type: "resize", Rows: size.Rows, Cols: size.Cols})
}

// Signal sends a signal to the process group.
func (a *Attachment) Signal(ctx context.Context, signal string) error {
	return a.send(ctx, v1.AttachFrame{Type: "signal", Signal: signal})
}

// CloseStdin ends the input, after what was written.
func (a *Attachment) CloseStdin(ctx context.Context) error {
	return a.send(ctx, v1.AttachFrame{Type: "stdin_close"})
}

// Close ends the attachment, not the command.
func (a *Attachment) Close() error { return a.ws.CloseNow() }

// Terminal is a Follower over WebSockets, with input. Input that was under way when a connection broke may be lost.
type Terminal struct {
	*Follower

	mu    sync.Mutex
	cur   *Attachment
	ready chan struct{} // closed when cur is set
	size  v1.TTY        // to be set on the next connection
}

// FollowTerminal attaches to a command with a terminal, from an event number on. Input flows while Next is being called.
func (c *Client) FollowTerminal(ctx context.Context, sandbox, command string, from uint64) *Terminal {
	t := &Terminal{ready: make(chan struct{})}
	t.Follower = c.follower(ctx, command, from, func(ctx context.Context, from uint64) (source, error) {
		a, err := c.Attach(ctx, sandbox, command, from, true)
		if err != nil {
			return nil, err
		}
		t.mu.Lock()
		size := t.size
		t.cur = a
		close(t.ready)
		t.mu.Unlock()
		if size.Rows > 0 {
			a.Resize(ctx, size) //nolint:errcheck // a connection that fails is noticed by Next
		}
		return &terminalSource{a, t}, nil
	})
	return t
}

// terminalSource takes the connection away from writers when it is closed.
type terminalSource struct {
	*Attachment
	t *Terminal
}

func (s *terminalSource) Close() error {
	s.t.mu.Lock()
	if s.t.cur == s.Attachment {
		s.t.cur, s.t.ready = nil, make(chan struct{})
	}
	s.t.mu.Unlock()
	return s.Attachment.Close()
}

// Next is Follower.Next; a refused keystroke or size does not end the session.
func (s *terminalSource) Next(ctx context.Context) (v1.CommandEvent, error) {
	e, err := s.Attachment.Next(ctx)
	if err == nil && e.Type == v1.EventError && e.Error != nil && !again(e.Error) {
		return v1.CommandEvent{Type: v1.EventPing}, nil
	}
	return e, err
}

// attachment waits for a connection.
func (t *Terminal) attachment() (*Attachment, error) {
	for {
		t.mu.Lock()
		a, ready := t.cur, t.ready
		t.mu.Unlock()
		if a != nil {
			return a, nil
		}
		select {
		case <-ready:
		case <-t.ctx.Done():
			return nil, t.ctx.Err()
		}
	}
}

// Write sends input. While there is no connection it waits for one.
func (t *Terminal) Write(b []byte) (int, error) {
	a, err := t.attachment()
	if err != nil {
		return 0, err
	}
	if err := a.Write(t.ctx, b); err != nil {
		if t.ctx.Err() == nil && again(err) {
			return len(b), nil // the next connection takes the next input
		}
		return 0, err
	}
	return len(b), nil
}

// Resize sets the terminal's size, now and after a re-attachment.
func (t *Terminal) Resize(size v1.TTY) error {
	t.mu.Lock()
	t.size = size
	a := t.cur
	t.mu.Unlock()
	if a == nil {
		return nil
	}
	return a.Resize(t.ctx, size)
}

// Signal sends a signal to the process group.
func (t *Terminal) Signal(signal string) error {
	a, err := t.attachment()
	if err != nil {
		return err
	}
	return a.Signal(t.ctx, signal)
}

// CloseStdin ends the input.
func (t *Terminal) CloseStdin() error {
	a, err := t.attachment()
	if err != nil {
		return err
	}
	return a.CloseStdin(t.ctx)
}
