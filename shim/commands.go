package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson"
	guestwire "github.com/caisson-sandbox/caisson/guest/wire"
	"github.com/caisson-sandbox/caisson/shim/wire"
	"github.com/caisson-sandbox/caisson/transcript"
)

const (
	startWait = 30 * time.Second // how long Start waits for the agent's first event; the command goes on in any case
	callLimit = 60 * time.Second // of a call with one answer
)

// commandService implements wire.CommandsHandler.
type commandService struct{ *shim }

// begin records the command and starts it. A known id is given back as it is. first is closed at the first event.
func (s *shim) begin(r *wire.StartRequest) (w *transcript.Writer, first <-chan struct{}, err error) {
	id := caisson.CommandID(r.Id)
	if !id.Valid() || r.Spec == nil {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%.40q is not the id of a command", r.Id))
	}
	if _, err := s.guest(); err != nil {
		return nil, nil, err
	}
	if n := s.running.Add(1); n > maxCommands {
		s.running.Add(-1)
		return nil, nil, encode(caisson.E(caisson.Exhausted, "start command", s.cfg.Sandbox, fmt.Sprintf("%d commands run at once, the most there can be", maxCommands), nil).
			WithHint("wait for some to end"))
	}
	w, err = s.record.Create(caisson.Command{ID: id, Spec: specOf(r.Spec), StartedAt: time.Now()})
	if err != nil {
		s.running.Add(-1)
		return nil, nil, err
	}
	began := make(chan struct{})
	s.begun.Store(r.Id, began)
	s.commands.Add(1)
	go func() { // close waits for it
		defer s.commands.Done()
		defer s.running.Add(-1)
		defer s.begun.Delete(r.Id)
		s.run(w, r, began)
	}()
	return w, began, nil
}

// run carries a command from its start to its recorded end.
func (s *shim) run(w *transcript.Writer, r *wire.StartRequest, began chan struct{}) {
	sp := r.Spec
	start := &guestwire.StartProcess{
		Id: r.Id, Argv: sp.Argv, Shell: sp.Shell, Cwd: sp.Cwd, Env: maps.Clone(sp.Env), User: sp.User, Stdin: sp.Stdin, TimeoutMillis: sp.TimeoutMillis,
	}
	if sp.Tty != nil {
		start.Tty = &guestwire.TtySize{Rows: sp.Tty.Rows, Cols: sp.Tty.Cols}
	}
	told, ended := false, false
	tell := func() {
		if !told {
			told = true
			close(began)
		}
	}
	defer tell()
	err := s.agent.Run(s.alive, start, func(e *guestwire.ProcessEvent) error {
		ev := caisson.CommandEvent{Time: sane(e.TimeUnixNano)}
		switch x := e.What.(type) {
		case *guestwire.ProcessEvent_Started:
			ev.Type, ev.PID = caisson.EventStarted, int(x.Started.Pid)
		case *guestwire.ProcessEvent_Stdout:
			ev.Type, ev.Data = caisson.EventStdout, x.Stdout
		case *guestwire.ProcessEvent_Stderr:
			ev.Type, ev.Data = caisson.EventStderr, x.Stderr
		case *guestwire.ProcessEvent_Exit:
			ev.Type, ev.Exit, ended = caisson.EventExit, exitOf(x.Exit), true
		}
		s.idle.Touch()
		_, err := w.Append(ev)
		tell()
		return err
	})
	if ended {
		return
	}
	x := &caisson.CommandExit{Code: 137, Signal: "SIGKILL", Reason: caisson.ReasonSandboxGone, Error: goneText(s.life.status())}
	switch {
	case errors.Is(context.Cause(s.alive), errOOM):
		x.Reason, x.Error = caisson.ReasonOOM, errOOM.Error()
	case s.alive.Err() == nil:
		s.log.Error("command was lost", "command", r.Id, "error", err)
		x.Error = "the sandbox's agent gave no answer any more"
		var own *caisson.Error
		if errors.As(err, &own) {
			x.Error = own.Msg
		}
	}
	if _, err := w.Append(caisson.CommandEvent{Type: caisson.EventExit, Exit: x}); err != nil {
		s.log.Error("the end of a command was not recorded", "command", r.Id, "error", err)
	}
}

// sane takes the guest's clock when it is near ours: its root may have set it.
func sane(nanos int64) time.Time {
	now, t := time.Now(), time.Unix(0, nanos)
	if d := now.Sub(t); d > time.Minute || d < -time.Second {
		return now
	}
	return t
}

func exitOf(x *guestwire.Exit) *caisson.CommandExit {
	e := &caisson.CommandExit{Code: int(x.Code), Reason: caisson.ExitReason(x.Reason), Error: x.Error}
	if x.Signal > 0 {
		if e.Signal = unix.SignalName(unix.Signal(x.Signal)); e.Signal == "" {
			e.Signal = fmt.Sprintf("SIG%d", x.Signal)
		}
	}
	return e
}

func (s commandService) Start(ctx context.Context, r *connect.Request[wire.StartRequest]) (*connect.Response[wire.StartResponse], error) {
	w, first, err := s.begin(r.Msg)
	if caisson.Is(err, caisson.Conflict) && w == nil && s.known(r.Msg.Id) {
		c, err := s.record.Command(caisson.CommandID(r.Msg.Id))
		return connect.NewResponse(&wire.StartResponse{Command: commandOf(c)}), encode(err)
	}
	if err != nil {
		return nil, encode(err)
	}
	t := time.NewTimer(startWait)
	defer t.Stop()
	select {
	case <-first:
	case <-t.C:
	case <-ctx.Done():
	}
	return connect.NewResponse(&wire.StartResponse{Command: commandOf(w.Command())}), nil
}

func (s *shim) known(id string) bool {
	_, err := s.record.Command(caisson.CommandID(id))
	return err == nil
}

func (s commandService) Run(ctx context.Context, r *connect.Request[wire.StartRequest], st *connect.ServerStream[wire.OutputResponse]) error {
	w, _, err := s.begin(r.Msg)
	var c caisson.Command
	switch {
	case err == nil:
		c = w.Command()
	case caisson.Is(err, caisson.Conflict) && s.known(r.Msg.Id):
		if c, err = s.record.Command(caisson.CommandID(r.Msg.Id)); err != nil {
			return encode(err)
		}
	default:
		return encode(err)
	}
	if err := st.Send(&wire.OutputResponse{Command: commandOf(c)}); err != nil {
		return err
	}
	return s.send(ctx, c.ID, 1, true, st)
}

func (s commandService) Output(ctx context.Context, r *connect.Request[wire.OutputRequest], st *connect.ServerStream[wire.OutputResponse]) error {
	c, err := s.record.Command(caisson.CommandID(r.Msg.Id))
	if err != nil {
		return encode(err)
	}
	if err := st.Send(&wire.OutputResponse{Command: commandOf(c)}); err != nil {
		return err
	}
	return s.send(ctx, c.ID, r.Msg.From, r.Msg.Follow, st)
}

// send streams events as the record has them; a slow reader holds up nobody but itself.
func (s *shim) send(ctx context.Context, id caisson.CommandID, from uint64, follow bool, st *connect.ServerStream[wire.OutputResponse]) error {
	rd, err := s.record.Read(id, from, follow)
	if err != nil {
		return encode(err)
	}
	defer rd.Close()
	for {
		events, err := rd.Batch(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return encode(err)
		}
		out := &wire.OutputResponse{Events: make([]*wire.Event, len(events))}
		for i := range events {
			out.Events[i] = eventOf(&events[i])
		}
		if err := st.Send(out); err != nil {
			return err
		}
	}
}

func (s commandService) List(context.Context, *connect.Request[wire.ListRequest]) (*connect.Response[wire.ListResponse], error) {
	all, err := s.record.List()
	if err != nil {
		return nil, encode(err)
	}
	res := &wire.ListResponse{}
	for _, c := range all {
		res.Commands = append(res.Commands, commandOf(c))
	}
	return connect.NewResponse(res), nil
}

func (s commandService) Get(_ context.Context, r *connect.Request[wire.GetRequest]) (*connect.Response[wire.GetResponse], error) {
	c, err := s.record.Command(caisson.CommandID(r.Msg.Id))
	if err != nil {
		return nil, encode(err)
	}
	return connect.NewResponse(&wire.GetResponse{Command: commandOf(c)}), nil
}

// live refuses what only a running command can take. Of one that is being started it waits for the agent to know it.
func (s *shim) live(ctx context.Context, op, id string) error {
	if began, ok := s.begun.Load(id); ok {
		select {
		case <-began.(chan struct{}):
		case <-ctx.Done():
			return encode(caisson.E(caisson.KindOf(ctx.Err()), op, id, "the command was still being started", context.Cause(ctx)))
		}
	}
	c, err := s.record.Command(caisson.CommandID(id))
	if err != nil {
		return encode(err)
	}
	if c.Exit != nil {
		return encode(caisson.E(caisson.Conflict, op, id, "the command has ended", nil))
	}
	return nil
}

func (s commandService) Stdin(ctx context.Context, st *connect.ClientStream[wire.StdinRequest]) (*connect.Response[wire.StdinResponse], error) {
	a, err := s.guest()
	if err != nil {
		return nil, err
	}
	if !st.Receive() {
		if st.Err() != nil {
			return nil, st.Err()
		}
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the first message names the command"))
	}
	id := st.Msg().Id
	if err := s.live(ctx, "write stdin", id); err != nil {
		return nil, err
	}
	first := true
	n, err := a.Stdin(ctx, id, func() ([]byte, bool, error) {
		if !first && !st.Receive() {
			if st.Err() != nil {
				return nil, false, st.Err()
			}
			return nil, false, io.EOF
		}
		first = false
		return st.Msg().Data, st.Msg().Close, nil
	})
	if err != nil {
		return nil, encode(err)
	}
	return connect.NewResponse(&wire.StdinResponse{Written: n}), nil
}

func (s commandService) Signal(ctx context.Context, r *connect.Request[wire.SignalRequest]) (*connect.Response[wire.SignalResponse], error) {
	a, err := s.guest()
	if err == nil {
		err = s.live(ctx, "signal command", r.Msg.Id)
	}
	if err != nil {
		return nil, err
	}
	if err := a.Signal(ctx, r.Msg.Id, r.Msg.Signal); err != nil {
		return nil, encode(err)
	}
	return connect.NewResponse(&wire.SignalResponse{}), nil
}

func (s commandService) Resize(ctx context.Context, r *connect.Request[wire.ResizeRequest]) (*connect.Response[wire.ResizeResponse], error) {
	a, err := s.guest()
	if err == nil {
		err = s.live(ctx, "resize terminal", r.Msg.Id)
	}
	if err != nil {
		return nil, err
	}
	if err := a.Resize(ctx, r.Msg.Id, r.Msg.Size.GetRows(), r.Msg.Size.GetCols()); err != nil {
		return nil, encode(err)
	}
	return connect.NewResponse(&wire.ResizeResponse{}), nil
}
