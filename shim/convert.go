package shim

import (
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

func specOf(s *wire.Spec) caisson.CommandSpec {
	c := caisson.CommandSpec{
		Shell: string(s.Shell), Cwd: string(s.Cwd), Env: s.Env, User: s.User, Stdin: s.Stdin, Timeout: time.Duration(s.TimeoutMillis) * time.Millisecond,
	}
	for _, a := range s.Argv {
		c.Argv = append(c.Argv, string(a))
	}
	if s.Tty != nil {
		c.TTY = &caisson.TTYSize{Rows: uint16(s.Tty.Rows), Cols: uint16(s.Tty.Cols)}
	}
	return c
}

func commandOf(c caisson.Command) *wire.Command {
	w := &wire.Command{
		Id: string(c.ID), StartedUnixNano: c.StartedAt.UnixNano(), Pid: int64(c.PID), LastSeq: c.LastSeq, Exit: exitWire(c.Exit),
		Spec: &wire.Spec{
			Shell: []byte(c.Spec.Shell), Cwd: []byte(c.Spec.Cwd), Env: c.Spec.Env, User: c.Spec.User, Stdin: c.Spec.Stdin,
			TimeoutMillis: c.Spec.Timeout.Milliseconds(),
		},
	}
	for _, a := range c.Spec.Argv {
		w.Spec.Argv = append(w.Spec.Argv, []byte(a))
	}
	if t := c.Spec.TTY; t != nil {
		w.Spec.Tty = &wire.TtySize{Rows: uint32(t.Rows), Cols: uint32(t.Cols)}
	}
	if !c.EndedAt.IsZero() {
		w.EndedUnixNano = c.EndedAt.UnixNano()
	}
	return w
}

func exitWire(x *caisson.CommandExit) *wire.Exit {
	if x == nil {
		return nil
	}
	return &wire.Exit{Code: int32(x.Code), Signal: x.Signal, Reason: string(x.Reason), Error: x.Error}
}

func eventOf(e *caisson.CommandEvent) *wire.Event {
	return &wire.Event{
		Seq: e.Seq, TimeUnixNano: e.Time.UnixNano(), Type: string(e.Type), Pid: int64(e.PID), Data: e.Data, From: e.From, To: e.To, Exit: exitWire(e.Exit),
	}
}
