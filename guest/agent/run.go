package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"

	"github.com/caisson-sandbox/caisson/guest/wire"
)

type processService struct{ a *Agent }

// Run starts or attaches, then streams events until the exit has been sent.
func (s processService) Run(ctx context.Context, r *connect.Request[wire.RunRequest], st *connect.ServerStream[wire.RunResponse]) error {
	var p *process
	var after uint64
	var err error
	switch w := r.Msg.What.(type) {
	case *wire.RunRequest_Start:
		if w.Start.Id == "" || len(w.Start.Id) > maxID {
			return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("a process needs an id of 1 to %d bytes", maxID))
		}
		p, err = s.a.procs.start(w.Start)
		switch {
		case errors.Is(err, errExists):
			return connect.NewError(connect.CodeAlreadyExists, err)
		case err != nil:
			return connect.NewError(connect.CodeResourceExhausted, err)
		}
	case *wire.RunRequest_Attach:
		var ok bool
		if p, ok = s.a.procs.get(w.Attach.Id); !ok {
			return noProcess(w.Attach.Id)
		}
		after = w.Attach.After
		if p.ack(after) { // the acknowledgements of a stream that was lost may be lost too
			s.a.procs.drop(p)
			return noProcess(w.Attach.Id)
		}
	default:
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the request starts or attaches"))
	}
	ticket := p.take()
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.change.Broadcast()
	})
	defer stop()
	for {
		events := p.after(ctx, ticket, after)
		if events == nil {
			return connect.NewError(connect.CodeAborted, errors.New("another stream took over"))
		}
		if err := st.Send(&wire.RunResponse{Events: events}); err != nil {
			return err
		}
		last := events[len(events)-1]
		after = last.Seq
		if last.GetExit() != nil {
			return nil
		}
	}
}

// Ack drops what the host has.
func (s processService) Ack(_ context.Context, r *connect.Request[wire.AckRequest]) (*connect.Response[wire.AckResponse], error) {
	if p, ok := s.a.procs.get(r.Msg.Id); ok && p.ack(r.Msg.Seq) {
		s.a.procs.drop(p)
	}
	return connect.NewResponse(&wire.AckResponse{}), nil
}

func noProcess(id string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("no process %s: it never started, or it has ended", id))
}

// Stdin writes what comes to the process, blocking as the process does.
func (s processService) Stdin(_ context.Context, st *connect.ClientStream[wire.StdinRequest]) (*connect.Response[wire.StdinResponse], error) {
	if !st.Receive() {
		return nil, orUnexpected(st.Err())
	}
	p, ok := s.a.procs.get(st.Msg().Id)
	if !ok {
		return nil, noProcess(st.Msg().Id)
	}
	type outcome struct {
		n   int64
		err error
	}
	done := make(chan outcome, 1)
	go func() { // ends with the stream, which ends with this call
		var o outcome
		defer func() { done <- o }()
		defer guard("stdin")
		for {
			var k int
			k, o.err = p.writeStdin(st.Msg().Data, st.Msg().Close)
			o.n += int64(k)
			if o.err != nil {
				o.err = connect.NewError(connect.CodeFailedPrecondition, o.err)
				return
			}
			if !st.Receive() {
				if err := st.Err(); err != nil && !errors.Is(err, io.EOF) {
					o.err = err
				}
				return
			}
		}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, o.err
		}
		return connect.NewResponse(&wire.StdinResponse{Written: o.n}), nil
	case <-p.gone:
		// What was written in time may still have got its answer.
		select {
		case o := <-done:
			if o.err == nil {
				return connect.NewResponse(&wire.StdinResponse{Written: o.n}), nil
			}
		case <-time.After(stdinGrace):
		}
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has ended and reads no more input"))
	}
}

// stdinGrace is how long a writer whose process has ended may take to close its stream in good order.
const stdinGrace = 100 * time.Millisecond

const endOfTransmission = 4 // ^D ends a terminal's input

func (p *process) writeStdin(b []byte, closeAfter bool) (int, error) {
	p.stdinMu.Lock()
	f := p.stdin
	p.stdinMu.Unlock()
	if f == nil {
		if len(b) == 0 {
			return 0, nil
		}
		return 0, errors.New("stdin is closed")
	}
	n, err := f.Write(b) // a close from supervise makes this return
	if err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EIO) {
			err = errors.New("the process reads no more input")
		}
		return n, err
	}
	if closeAfter {
		if p.tty != nil {
			f.Write([]byte{endOfTransmission})
		} else {
			p.closeStdin()
		}
	}
	return n, nil
}

func (s processService) Signal(_ context.Context, r *connect.Request[wire.SignalRequest]) (*connect.Response[wire.SignalResponse], error) {
	p, ok := s.a.procs.get(r.Msg.Id)
	if !ok {
		return nil, noProcess(r.Msg.Id)
	}
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if ended {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has ended"))
	}
	if p.pid <= 0 || r.Msg.Signal < 1 || r.Msg.Signal > 64 {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("no signal %d", r.Msg.Signal))
	}
	if err := syscall.Kill(-p.pid, syscall.Signal(r.Msg.Signal)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&wire.SignalResponse{}), nil
}

func (s processService) Resize(_ context.Context, r *connect.Request[wire.ResizeRequest]) (*connect.Response[wire.ResizeResponse], error) {
	p, ok := s.a.procs.get(r.Msg.Id)
	if !ok {
		return nil, noProcess(r.Msg.Id)
	}
	if p.tty == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal"))
	}
	size := r.Msg.Size
	if size == nil || size.Rows > 1<<15 || size.Cols > 1<<15 {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("bad size"))
	}
	if err := pty.Setsize(p.tty, &pty.Winsize{Rows: uint16(size.Rows), Cols: uint16(size.Cols)}); err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("the terminal is gone: %w", err))
	}
	return connect.NewResponse(&wire.ResizeResponse{}), nil
}
