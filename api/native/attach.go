package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type attachInput struct {
	CommandPath
	From uint64 `query:"from" doc:"Number of the first event wanted; 0 and 1: the start." default:"0"`
}

// attach joins a WebSocket to a command: two loops, one for each direction, and a third that looks whether the peer lives.
func (s *server) attach(ctx context.Context, p caisson.Principal, in *attachInput, w http.ResponseWriter, r *http.Request) error {
	g, id, err := s.command(ctx, p, in.CommandPath)
	if err != nil {
		return err
	}
	c, err := g.Command(ctx, id)
	if err != nil {
		return err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		return problem(http.StatusUpgradeRequired, string(caisson.Invalid), "Upgrade required", "attach is a WebSocket", "use HTTP/1.1 and a WebSocket client")
	}
	if err := sameOrigin(r); err != nil {
		return err
	}
	es, err := g.Output(ctx, id, in.From, true)
	if err != nil {
		return err
	}
	defer es.Close()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		requestOf(ctx).note(err)
		return nil // Accept has answered
	}
	defer ws.CloseNow()
	ws.SetReadLimit(1 << 20)
	// The connection is taken from net/http, and its context with it: ours ends when a loop does.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) })
	defer stop()
	a := &attachment{s: s, ws: ws, g: g, id: id, tty: c.Spec.TTY != nil}
	var wg sync.WaitGroup
	wg.Go(func() { cancel(a.fromClient(ctx)) })
	wg.Go(func() { a.alive(ctx, cancel) })
	err = a.toClient(ctx, es)
	if err == nil {
		ws.Close(websocket.StatusNormalClosure, "exit")
	}
	cancel(err)
	ws.CloseNow()
	wg.Wait()
	return nil
}

// sameOrigin refuses pages of other origins before anything is started for them. No Origin means no browser.
func sameOrigin(r *http.Request) error {
	o := r.Header.Get("Origin")
	if o == "" {
		return nil
	}
	if _, host, ok := strings.Cut(o, "://"); ok && strings.EqualFold(host, r.Host) {
		return nil
	}
	return problem(http.StatusForbidden, string(caisson.Denied), kindTitles[caisson.Denied], "a page of another origin may not attach", "")
}

type attachment struct {
	s   *server
	ws  *websocket.Conn
	g   caisson.Guest
	id  caisson.CommandID
	tty bool
	// stuck is set while the command does not take its stdin: then frames wait, answers to pings too.
	stuck atomic.Bool
}

func (a *attachment) write(ctx context.Context, t websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, a.s.limits.Inactivity)
	defer cancel()
	return a.ws.Write(ctx, t, b)
}

func (a *attachment) send(ctx context.Context, f v1.AttachFrame) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return a.write(ctx, websocket.MessageText, b)
}

func (a *attachment) fail(ctx context.Context, err error) error {
	return a.send(ctx, v1.AttachFrame{Type: v1.EventError, Error: problemOf(ctx, err)})
}

// toClient sends events until the exit, and returns nil then.
func (a *attachment) toClient(ctx context.Context, es caisson.EventStream) error {
	bytes := a.s.metrics.streamed.WithLabelValues("attach")
	var frame []byte
	for {
		e, err := es.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if ctx.Err() == nil {
				a.fail(ctx, err) //nolint:errcheck // the socket ends either way
			}
			return err
		}
		switch e.Type {
		case caisson.EventStdout, caisson.EventStderr:
			frame = frame[:0]
			if !a.tty {
				which := byte(1)
				if e.Type == caisson.EventStderr {
					which = 2
				}
				frame = append(frame, which)
			}
			frame = append(frame, e.Data...)
			err = a.write(ctx, websocket.MessageBinary, frame)
			bytes.Add(float64(len(frame)))
		default:
			err = a.send(ctx, v1.AttachFrame{Type: string(e.Type), Seq: e.Seq, PID: e.PID, From: e.From, To: e.To, Exit: exitOut(e.Exit)})
		}
		if err != nil {
			return err
		}
	}
}

// fromClient takes frames until the socket ends. Stdin is one call to the guest for all binary frames, so that their order
// is kept; it starts with the first of them.
func (a *attachment) fromClient(ctx context.Context) error {
	var in *io.PipeWriter
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() {
		if in != nil {
			in.CloseWithError(io.EOF)
		}
	}()
	for {
		t, b, err := a.ws.Read(ctx)
		if err != nil {
			return err
		}
		if t == websocket.MessageText {
			if err := a.control(ctx, b, &in, &wg); err != nil {
				if a.fail(ctx, err) != nil {
					return err
				}
			}
			continue
		}
		if in == nil {
			var r *io.PipeReader
			r, in = io.Pipe()
			wg.Go(func() {
				err := a.g.Stdin(ctx, a.id, r, false)
				r.CloseWithError(io.ErrClosedPipe)
				if err != nil && ctx.Err() == nil {
					a.fail(ctx, err) //nolint:errcheck // a socket that fails ends in its own loop
				}
			})
		}
		a.stuck.Store(true)
		_, err = in.Write(b)
		a.stuck.Store(false)
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return err // a closed pipe was reported by the goroutine above
		}
	}
}

func (a *attachment) control(ctx context.Context, b []byte, in **io.PipeWriter, wg *sync.WaitGroup) error {
	var f v1.AttachFrame
	if err := json.Unmarshal(b, &f); err != nil {
		return invalid("attach", string(a.id), "a text frame is not JSON", `{"type":"resize","rows":24,"cols":80}`)
	}
	switch f.Type {
	case "resize":
		if f.Rows < 1 || f.Rows > 65535 || f.Cols < 1 || f.Cols > 65535 {
			return invalid("attach", string(a.id), "rows and cols are from 1 to 65535", "")
		}
		return a.g.Resize(ctx, a.id, caisson.TTYSize{Rows: uint16(f.Rows), Cols: uint16(f.Cols)})
	case "signal":
		return a.g.Signal(ctx, a.id, clip(f.Signal, 16))
	case "stdin_close":
		if *in != nil {
			(*in).Close()
			wg.Wait()
		}
		return a.g.Stdin(ctx, a.id, strings.NewReader(""), true)
	}
	return invalid("attach", string(a.id), fmt.Sprintf("%q is not a type of frame", clip(f.Type, 32)), "resize, signal and stdin_close are")
}

// alive pings the peer; one that does not answer ends the attachment.
func (a *attachment) alive(ctx context.Context, cancel context.CancelCauseFunc) {
	t := time.NewTicker(a.s.limits.Ping)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if a.stuck.Load() {
			continue
		}
		pctx, done := context.WithTimeout(ctx, a.s.limits.Inactivity)
		err := a.ws.Ping(pctx)
		done()
		if err != nil && !a.stuck.Load() {
			cancel(fmt.Errorf("the peer of the WebSocket does not answer: %w", err))
			return
		}
	}
}
