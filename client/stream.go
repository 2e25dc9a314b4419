package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

func unsigned(n uint64) string { return strconv.FormatUint(n, 10) }

// watched is a response body that counts as lost when it is silent for too long while it is read.
type watched struct {
	c      *Client
	ctx    context.Context // of the caller
	body   io.ReadCloser
	cancel context.CancelFunc
	timer  *time.Timer
}

// open sends a request for a stream. It ends with ctx or close.
func (c *Client) open(ctx context.Context, k call) (*watched, http.Header, error) {
	sctx, cancel := context.WithCancel(ctx)
	w := &watched{c: c, ctx: ctx, cancel: cancel}
	w.timer = time.AfterFunc(time.Hour, cancel)
	w.timer.Stop()
	res, err := c.send(sctx, k)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	w.body = res.Body
	return w, res.Header, nil
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.c.idle)
	n, err := w.body.Read(p)
	w.timer.Stop()
	return n, err
}

func (w *watched) close() error {
	w.cancel()
	w.timer.Stop()
	return w.body.Close()
}

// lines is a stream of JSON objects, one a line.
type lines[T any] struct {
	*watched
	d *json.Decoder
}

func openLines[T any](ctx context.Context, c *Client, k call) (*lines[T], error) {
	w, _, err := c.open(ctx, k.accepts(v1.MediaNDJSON))
	if err != nil {
		return nil, err
	}
	return &lines[T]{w, json.NewDecoder(bufio.NewReaderSize(w, 64<<10))}, nil
}

// next gives io.EOF at the end between two objects.
func (l *lines[T]) next() (v T, err error) {
	if err = l.d.Decode(&v); err != nil && err != io.EOF {
		err = l.c.broken(l.ctx, err)
	}
	return v, err
}

// Stream is one connection's command events. Next and Close may be called from different goroutines; Next from one alone.
type Stream struct {
	// Command is the command's id.
	Command string
	w       *watched
	r       *v1.FrameReader
}

func (c *Client) openStream(ctx context.Context, k call, command string) (*Stream, error) {
	w, h, err := c.open(ctx, k.accepts(v1.MediaEvents))
	if err != nil {
		return nil, err
	}
	if id := h.Get(v1.HeaderCommand); id != "" {
		command = id
	}
	return &Stream{Command: command, w: w, r: v1.NewFrameReader(bufio.NewReaderSize(w, 256<<10))}, nil
}

// Next gives the next event, pings and errors of the stream included; its Data is good until the next call. io.EOF is an
// end between two events.
func (s *Stream) Next(context.Context) (v1.CommandEvent, error) {
	e, err := s.r.Next()
	if err != nil && err != io.EOF {
		err = s.w.c.broken(s.w.ctx, err)
	}
	return e, err
}

// Close ends the stream, not the command.
func (s *Stream) Close() error { return s.w.close() }

// Output replays a command's events from a number on (0 and 1: the start) and, with follow, goes on until the exit. It is
// one connection; Follow is one that is re-attached.
func (c *Client) Output(ctx context.Context, sandbox, command string, from uint64, follow bool) (*Stream, error) {
	q := query("follow", flag(follow))
	if from > 0 {
		q.Set("from", unsigned(from))
	}
	return c.openStream(ctx, get("sandboxes", sandbox, "commands", command, "output").with(q), command)
}

// source is a Stream or an Attachment.
type source interface {
	Next(context.Context) (v1.CommandEvent, error)
	Close() error
}

// Follower gives a command's events over as many connections as it takes. Next is for one goroutine; Close for any, once.
type Follower struct {
	// Command is the command's id.
	Command string

	c      *Client
	ctx    context.Context
	cancel context.CancelFunc
	open   func(ctx context.Context, from uint64) (source, error)
	last   uint64
	follow bool
	src    source
	done   bool
	try    patience
}

func (c *Client) follower(ctx context.Context, command string, from uint64, open func(context.Context, uint64) (source, error)) *Follower {
	f := &Follower{Command: command, c: c, open: open, follow: true, try: patience{limit: c.o.Patience}}
	f.ctx, f.cancel = context.WithCancel(ctx)
	if from > 0 {
		f.last = from - 1
	}
	return f
}

// Run starts a command and follows it. It fails if the command could not be started, or if it is not known whether it was.
// Ending the follower does not end the command.
func (c *Client) Run(ctx context.Context, sandbox string, cmd v1.CommandCreate) (*Follower, error) {
	cmd.Detach = false
	f := c.Follow(ctx, sandbox, "", 0)
	s, err := c.openStream(f.ctx, post(cmd, "sandboxes", sandbox, "commands"), "")
	if err != nil {
		f.cancel()
		return nil, err
	}
	f.src, f.Command = s, s.Command
	return f, nil
}

// Follow gives a command's events from a number on (0 and 1: the start) until its exit.
func (c *Client) Follow(ctx context.Context, sandbox, command string, from uint64) *Follower {
	f := c.follower(ctx, command, from, nil)
	f.open = func(ctx context.Context, from uint64) (source, error) {
		return c.Output(ctx, sandbox, f.Command, from, f.follow)
	}
	return f
}

// Replay is Follow that ends with what there is now; after a loss it goes on as Follow does.
func (c *Client) Replay(ctx context.Context, sandbox, command string, from uint64) *Follower {
	f := c.Follow(ctx, sandbox, command, from)
	f.follow = false
	return f
}

// Close ends the follower, not the command.
func (f *Follower) Close() error { f.cancel(); return nil }

// Last is the number of the last event given.
func (f *Follower) Last() uint64 { return f.last }

// Next gives the next event, never a ping or an error; its Data is good until the next call. After the exit it gives io.EOF.
func (f *Follower) Next() (v1.CommandEvent, error) {
	for !f.done {
		e, err := f.step()
		if err == nil && e.Type == "" {
			continue
		}
		if err != nil || e.Type == v1.EventExit {
			f.done = true
		}
		if f.done && f.src != nil {
			f.src.Close()
			f.src = nil
		}
		return e, err
	}
	return v1.CommandEvent{}, io.EOF
}

// step gives one event, an error that ends everything, or neither.
func (f *Follower) step() (none v1.CommandEvent, err error) {
	if f.src == nil {
		src, err := f.open(f.ctx, f.last+1)
		if err != nil {
			return none, f.lost(err)
		}
		f.src = src
	}
	e, err := f.src.Next(f.ctx)
	switch {
	case errors.Is(err, io.EOF) && !f.follow:
		return none, io.EOF
	case errors.Is(err, io.EOF):
		return none, f.lost(f.c.broken(f.ctx, errors.New("the stream ended before the command")))
	case err != nil:
		return none, f.lost(err)
	case e.Type == v1.EventError:
		if e.Error == nil {
			e.Error = &v1.Problem{Code: codeInternal, Title: "Internal error", Detail: "the stream ended and did not say why"}
		}
		return none, f.lost(e.Error)
	}
	f.try.progress()
	if e.Type == v1.EventPing || e.Seq <= f.last {
		return none, nil
	}
	f.last = e.Seq
	return e, nil
}

// lost drops the connection and waits, or returns the error when another try would not help.
func (f *Follower) lost(err error) error {
	if f.src != nil {
		f.src.Close()
		f.src = nil
	}
	if f.ctx.Err() != nil {
		return f.ctx.Err()
	}
	if !again(err) {
		return err
	}
	if f.try.first() && f.c.o.OnLost != nil {
		f.c.o.OnLost(err)
	}
	return f.try.pause(f.ctx, err)
}

// again reports whether the server may answer otherwise a moment later.
func again(err error) bool {
	var p *v1.Problem
	if !errors.As(err, &p) {
		return false
	}
	switch p.Code {
	case codeUnavailable, codeCanceled, codeTimeout, codeExhausted:
		return true
	}
	return false
}

// patience paces the tries after a loss: 50 ms at first, 2 s at last.
type patience struct {
	limit time.Duration
	since time.Time // of the first loss without progress after it
	wait  time.Duration
}

func (p *patience) progress() {
	if p.wait != 0 {
		p.since, p.wait = time.Time{}, 0
	}
}

func (p *patience) first() bool { return p.wait == 0 }

// pause waits for the next try; when the time for tries is up it returns the error that led here.
func (p *patience) pause(ctx context.Context, cause error) error {
	const shortest, longest = 50 * time.Millisecond, 2 * time.Second
	now := time.Now()
	if p.wait == 0 {
		p.since, p.wait = now, shortest
	} else if now.Sub(p.since) > p.limit {
		return cause
	}
	t := time.NewTimer(p.wait)
	defer t.Stop()
	p.wait = min(2*p.wait, longest)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// EventFollower gives the server's events as they happen, over as many connections as it takes.
type EventFollower struct {
	c   *Client
	ctx context.Context
	f   EventFilter
	s   *lines[v1.Event]
	try patience
}

// FollowEvents gives the events after f.After and goes on until ctx ends.
func (c *Client) FollowEvents(ctx context.Context, f EventFilter) *EventFollower {
	f.Limit = 0
	return &EventFollower{c: c, ctx: ctx, f: f, try: patience{limit: c.o.Patience}}
}

// Next gives the next event.
func (f *EventFollower) Next() (v1.Event, error) {
	for {
		e, err := f.step()
		if err == nil {
			f.try.progress()
			if e.Type == "ping" || e.Seq <= f.f.After {
				continue
			}
			f.f.After = e.Seq
			return e, nil
		}
		if f.s != nil {
			f.s.close()
			f.s = nil
		}
		if f.ctx.Err() != nil {
			return e, f.ctx.Err()
		}
		if !again(err) {
			return e, err
		}
		if f.try.first() && f.c.o.OnLost != nil {
			f.c.o.OnLost(err)
		}
		if err := f.try.pause(f.ctx, err); err != nil {
			return e, err
		}
	}
}

func (f *EventFollower) step() (v1.Event, error) {
	if f.s == nil {
		q := f.f.query()
		q.Set("follow", "true")
		s, err := openLines[v1.Event](f.ctx, f.c, get("events").with(q))
		if err != nil {
			return v1.Event{}, err
		}
		f.s = s
	}
	e, err := f.s.next()
	switch {
	case err == io.EOF:
		return e, f.c.broken(f.ctx, errors.New("the stream ended"))
	case err == nil && e.Type == "error" && e.Error != nil:
		return e, e.Error
	}
	return e, err
}
