package dial

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/guest/wire"
)

const (
	maxOutput  = 64 << 10              // bytes of one output event
	ackEvery   = 256 << 10             // bytes of output between acknowledgements
	ackEvents  = 256                   // events between acknowledgements
	ackLimit   = 30 * time.Second      // for the agent to answer one
	ackAgain   = 10 * time.Millisecond // after a lost one, and as much longer after each that follows,
	ackPause   = time.Second           // up to this
	reattaches = 20                    // after this many lost streams and
	giveUp     = 15 * time.Second      // this long without one event between, the command is given up
)

// Run starts a process and hands its events to take, in order and each once, until the exit event. A lost stream is
// attached again. It returns an error when the agent lied, could not be reached any more, or take failed; the caller
// then decides how the command ended.
func (c *Client) Run(ctx context.Context, start *wire.StartProcess, take func(*wire.ProcessEvent) error) error {
	const op = "run command"
	var last uint64
	started := false
	progress := time.Now()
	for lost := 0; ; {
		before := last
		done, err := c.stream(ctx, start, started, &last, take)
		if done || err == nil {
			return err
		}
		var own *caisson.Error
		if errors.As(err, &own) {
			return err
		}
		code := connect.CodeOf(err)
		retry := code == connect.CodeUnavailable || code == connect.CodeUnknown || code == connect.CodeInternal || code == connect.CodeCanceled
		if cause := ctx.Err(); cause != nil {
			return caisson.E(caisson.KindOf(cause), op, start.Id, "the command was no longer followed", errors.Join(context.Cause(ctx), err))
		}
		// After a lost stream a second start may find the first one's process.
		if !retry && !(code == connect.CodeAlreadyExists && lost > 0) {
			return Error(op, start.Id, err)
		}
		if last > before {
			lost, progress = 0, time.Now()
		}
		if lost++; lost > reattaches && time.Since(progress) > giveUp {
			return Error(op, start.Id, err)
		}
		// The start may have arrived though its answer did not: attach if the process exists.
		started = started || last > 0 || code == connect.CodeAlreadyExists
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(min(lost, reattaches)) * 10 * time.Millisecond):
		}
	}
}

// stream carries one Run call; done says that it need not be tried again.
func (c *Client) stream(ctx context.Context, start *wire.StartProcess, attach bool, last *uint64, take func(*wire.ProcessEvent) error) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first := &wire.RunRequest{What: &wire.RunRequest_Start{Start: start}}
	if attach {
		first.What = &wire.RunRequest_Attach{Attach: &wire.AttachProcess{Id: start.Id, After: *last}}
	}
	st, err := c.procs.Run(ctx, connect.NewRequest(first))
	if err != nil {
		return false, err
	}
	defer func() {
		cancel() // first, or closing would wait for an agent that does not end the stream
		st.Close()
	}()
	actx, stopAcks := context.WithCancel(ctx)
	acks := acker{c: c, id: start.Id, ctx: actx, wake: make(chan uint64, 1)}
	defer func() {
		stopAcks()
		close(acks.wake)
		acks.wg.Wait()
	}()
	unacked, events := 0, 0
	for st.Receive() {
		if len(st.Msg().Events) == 0 {
			return true, lied(start.Id, errors.New("a message without events"))
		}
		for _, e := range st.Msg().Events {
			if err := check(e, *last); err != nil {
				return true, lied(start.Id, err)
			}
			*last = e.Seq
			if err := take(e); err != nil {
				return true, err
			}
			if e.GetExit() != nil {
				c.release(start.Id, e.Seq)
				return true, nil
			}
			unacked += len(e.GetStdout()) + len(e.GetStderr())
			events++
		}
		if unacked >= ackEvery || events >= ackEvents {
			unacked, events = 0, 0
			acks.send(*last)
		}
	}
	if err := st.Err(); err != nil {
		return false, err
	}
	return false, connect.NewError(connect.CodeUnavailable, errors.New("the stream ended before the exit"))
}

func lied(id string, err error) error {
	return caisson.E(caisson.Internal, "run command", id, "the sandbox's agent broke the protocol", err)
}

// acker acknowledges from a goroutine of its own, the newest number alone, so that reading goes on meanwhile.
type acker struct {
	c    *Client
	id   string
	ctx  context.Context
	wake chan uint64
	wg   sync.WaitGroup
	on   bool
}

func (a *acker) send(seq uint64) {
	if !a.on {
		a.on = true
		a.wg.Go(func() {
			for seq := range a.wake {
				a.deliver(seq)
			}
		})
	}
	select {
	case <-a.wake: // an older one that was not sent yet
	default:
	}
	a.wake <- seq
}

// deliver sends one until it arrives, a newer one takes its place or the stream ends, whose successor says by its attach
// what the host has. One that stayed lost could be the last: the agent waits for it, and the host for the agent.
func (a *acker) deliver(seq uint64) {
	for pause := ackAgain; a.c.ack(a.ctx, a.id, seq) != nil; pause = min(pause+ackAgain, ackPause) {
		select {
		case <-a.ctx.Done():
			return
		case newer, ok := <-a.wake:
			if !ok {
				return
			}
			seq = newer
		case <-time.After(pause):
		}
	}
}

func (c *Client) ack(ctx context.Context, id string, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, ackLimit)
	defer cancel()
	_, err := c.procs.Ack(ctx, connect.NewRequest(&wire.AckRequest{Id: id, Seq: seq}))
	return err
}

// release acknowledges the exit in the background: nobody waits for the agent to forget a process.
func (c *Client) release(id string, seq uint64) {
	c.releases.Go(func() {
		for range 3 {
			if c.ack(context.Background(), id, seq) == nil || c.closed.Load() {
				return
			}
		}
	})
}

var reasons = map[string]bool{"exited": true, "signaled": true, "timeout": true, "oom": true, "not_started": true}

// check holds an event to the protocol: numbered without a hole, started first and once, bounded, a known end.
func check(e *wire.ProcessEvent, last uint64) error {
	if e.Seq != last+1 {
		return fmt.Errorf("event %d follows event %d", e.Seq, last)
	}
	switch w := e.What.(type) {
	case *wire.ProcessEvent_Started:
		if last != 0 || w.Started == nil {
			return errors.New("a second start event")
		}
		if w.Started.Pid < 0 || w.Started.Pid > 1<<31 {
			return fmt.Errorf("pid %d", w.Started.Pid)
		}
		return nil
	case *wire.ProcessEvent_Stdout, *wire.ProcessEvent_Stderr:
		if n := len(e.GetStdout()) + len(e.GetStderr()); n > maxOutput {
			return fmt.Errorf("an output event of %d bytes", n)
		}
	case *wire.ProcessEvent_Exit:
		x := w.Exit
		if x == nil || !reasons[x.Reason] || x.Code < 0 || x.Code > 255 || x.Signal < 0 || x.Signal > 64 {
			return errors.New("an exit event that means nothing")
		}
		x.Error = printable(x.Error)
	default:
		return errors.New("an event of no kind")
	}
	if last == 0 {
		return errors.New("the first event is not the start")
	}
	return nil
}
