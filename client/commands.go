package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// StartCommand starts a command and returns at once.
func (c *Client) StartCommand(ctx context.Context, sandbox string, cmd v1.CommandCreate) (out v1.Command, err error) {
	cmd.Detach = true
	_, err = c.do(ctx, post(cmd, "sandboxes", sandbox, "commands"), &out)
	return out, err
}

// Commands lists the commands of a sandbox, those that ended included, oldest first.
func (c *Client) Commands(ctx context.Context, sandbox string) ([]v1.Command, error) {
	var l v1.CommandList
	_, err := c.do(ctx, get("sandboxes", sandbox, "commands"), &l)
	return l.Commands, err
}

// Command gives one command.
func (c *Client) Command(ctx context.Context, sandbox, command string) (out v1.Command, err error) {
	_, err = c.do(ctx, get("sandboxes", sandbox, "commands", command), &out)
	return out, err
}

// Signal sends a signal ("SIGTERM", "TERM", "15") to the command's process group.
func (c *Client) Signal(ctx context.Context, sandbox, command, signal string) error {
	_, err := c.do(ctx, post(v1.Signal{Signal: signal}, "sandboxes", sandbox, "commands", command, "signal"), nil)
	return err
}

// Resize sets the size of the command's terminal.
func (c *Client) Resize(ctx context.Context, sandbox, command string, size v1.TTY) error {
	_, err := c.do(ctx, post(size, "sandboxes", sandbox, "commands", command, "resize"), nil)
	return err
}

// Stdin copies r to the command's stdin and, with closeAfter, closes it at r's end. It uses one request for as long as r
// gives something, and another when r has paused, so that input which has arrived is acknowledged and a server's restart
// during a pause is not noticed. What was under way when a connection broke may or may not have arrived: that is an error.
//
// When ctx ends Stdin returns, but a Read of r that is under way goes on until it returns by itself.
func (c *Client) Stdin(ctx context.Context, sandbox, command string, r io.Reader, closeAfter bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := &input{chunks: make(chan []byte)}
	go in.read(ctx, r) // ends when r does, or with the Read after ctx ended
	k := call{method: http.MethodPost, path: []string{"sandboxes", sandbox, "commands", command, "stdin"}, kind: v1.MediaBytes}
	for {
		var b []byte
		var more bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b, more = <-in.chunks:
		}
		if !more && in.err != nil {
			return in.err
		}
		if !more && !closeAfter {
			return nil
		}
		if !more {
			k.query = query("close", "true")
		}
		if err := c.sendInput(ctx, k, in, b); err != nil || !more {
			return err
		}
	}
}

// sendInput sends first and what follows it without a pause. It tries again while nothing was taken.
func (c *Client) sendInput(ctx context.Context, k call, in *input, first []byte) error {
	try := patience{limit: c.o.Patience}
	for {
		body := &inputBody{in: in, ctx: ctx, rest: first, closed: make(chan struct{})}
		if first != nil {
			k.body = io.Reader(body)
		}
		_, err := c.do(ctx, k, nil)
		body.Close()
		if err == nil || ctx.Err() != nil || body.taken.Load() || !again(err) {
			return err
		}
		if err := try.pause(ctx, err); err != nil {
			return err
		}
	}
}

// input is a reader as a channel, so that waiting for it can end.
type input struct {
	chunks chan []byte
	err    error // why reading ended, if not at the end; set before chunks is closed
}

func (in *input) read(ctx context.Context, r io.Reader) {
	defer close(in.chunks)
	for ctx.Err() == nil {
		b := make([]byte, 64<<10)
		n, err := r.Read(b)
		if n > 0 {
			select {
			case in.chunks <- b[:n]:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				in.err = err
			}
			return
		}
	}
}

// inputBody is one request's part of the input.
type inputBody struct {
	in     *input
	ctx    context.Context
	rest   []byte
	taken  atomic.Bool
	once   sync.Once
	closed chan struct{}
}

// Read ends the body when nothing has come for two seconds, well before the server would give up on it.
func (b *inputBody) Read(p []byte) (int, error) {
	b.taken.Store(true)
	if len(b.rest) == 0 {
		t := time.NewTimer(2 * time.Second)
		defer t.Stop()
		select {
		case <-b.closed:
			return 0, io.EOF
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		case <-t.C:
			return 0, io.EOF
		case next, ok := <-b.in.chunks:
			if !ok {
				return 0, io.EOF
			}
			b.rest = next
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *inputBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}
