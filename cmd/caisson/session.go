package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/term"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/client"
)

// signals are those of the process, from before the command runs on. The caller stops it.
type signals struct{ c chan os.Signal }

func catchSignals() *signals {
	s := &signals{make(chan os.Signal, 16)}
	for sig := range forwarded {
		signal.Notify(s.c, sig)
	}
	if resized != nil {
		signal.Notify(s.c, resized)
	}
	return s
}

func (s *signals) stop() { signal.Stop(s.c) }

// interrupted takes what came so far, and reports whether there was a signal that ends things.
func (s *signals) interrupted() bool {
	for {
		select {
		case sig := <-s.c:
			if forwarded[sig] != "" {
				return true
			}
		default:
			return false
		}
	}
}

// session joins this process to a command.
type session struct {
	g       *globals
	c       *client.Client
	sandbox string
	stdin   bool
	tty     bool
	stamps  bool
	signals *signals // nil: the defaults of the process
	hint    string   // what to say when the command is left; "" for how to attach again
}

var errLeft = errors.New("left")

// events is a Follower or a Terminal.
type events interface {
	Next() (v1.CommandEvent, error)
}

// run starts a command and stays with it until its end. It returns what the process is to end with.
func (s *session) run(ctx context.Context, spec v1.CommandCreate) error {
	spec.Stdin = s.stdin
	if !s.tty {
		f, err := s.c.Run(ctx, s.sandbox, spec)
		if err != nil {
			return err
		}
		return s.follow(ctx, f)
	}
	size := s.size()
	spec.TTY = &size
	cmd, err := s.c.StartCommand(ctx, s.sandbox, spec)
	if err != nil {
		return err
	}
	return s.terminal(ctx, cmd.ID, 0)
}

// follow stays with a command that has no terminal.
func (s *session) follow(ctx context.Context, f *client.Follower) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	if s.stdin {
		go func() { // ends with ctx; a Read of the process's stdin ends with the process
			err := s.c.Stdin(ctx, s.sandbox, f.Command, s.g.in, true)
			if err == nil || ended(err) {
				return
			}
			select { // a command that ended tells so on the other connection
			case <-ctx.Done():
			case <-time.After(time.Second):
				fmt.Fprintf(s.g.err, "caisson: stdin was cut: %v\n", err)
			}
		}()
	}
	if s.signals != nil {
		go s.forward(ctx, cancel, f.Command, nil) // ends with ctx
	}
	exit, err := s.print(f)
	return s.result(ctx, f.Command, exit, err)
}

// ended reports whether input was refused because the command takes no more.
func ended(err error) bool {
	var p *v1.Problem
	return errors.As(err, &p) && (p.Code == "conflict" || p.Code == "not_found")
}

// terminal stays with a command that has a terminal.
func (s *session) terminal(ctx context.Context, command string, from uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := s.c.FollowTerminal(ctx, s.sandbox, command, from)
	defer t.Close()
	if fd, ok := terminal(s.g.in); ok && s.stdin {
		old, err := term.MakeRaw(fd)
		if err != nil {
			return err
		}
		defer term.Restore(fd, old)
	}
	t.Resize(s.size()) //nolint:errcheck // nothing is connected yet
	if s.stdin {
		go s.input(t, cancel) // ends with ctx; a Read of the process's stdin ends with the process
	}
	if s.signals != nil {
		go s.forward(ctx, cancel, command, t) // ends with ctx
	}
	exit, err := s.print(t)
	return s.result(ctx, command, exit, err)
}

// input copies stdin to the terminal. Ctrl-P Ctrl-Q leaves the command running.
func (s *session) input(t *client.Terminal, cancel context.CancelCauseFunc) {
	const ctrlP, ctrlQ = 0x10, 0x11
	_, keys := terminal(s.g.in)
	held := false
	buf := make([]byte, 32<<10)
	for {
		n, err := s.g.in.Read(buf)
		b := buf[:n]
		if keys && n > 0 {
			if held {
				b = append([]byte{ctrlP}, b...)
				held = false
			}
			if bytes.Contains(b, []byte{ctrlP, ctrlQ}) {
				cancel(errLeft)
				return
			}
			if b[len(b)-1] == ctrlP && len(b) == 1 {
				held, b = true, nil
			}
		}
		if len(b) > 0 {
			if _, err := t.Write(b); err != nil {
				return
			}
		}
		if err != nil {
			t.CloseStdin() //nolint:errcheck // a connection that fails is noticed by Next
			return
		}
	}
}

// forward sends the process's signals to the command. A second interrupt within two seconds leaves the command running.
func (s *session) forward(ctx context.Context, cancel context.CancelCauseFunc, command string, t *client.Terminal) {
	var last time.Time
	for {
		var sig os.Signal
		select {
		case <-ctx.Done():
			return
		case sig = <-s.signals.c:
		}
		if sig == resized {
			if t != nil {
				t.Resize(s.size()) //nolint:errcheck // the next one, or the next connection, sets it
			}
			continue
		}
		if sig == os.Interrupt {
			if time.Since(last) < 2*time.Second {
				cancel(errLeft)
				return
			}
			last = time.Now()
		}
		go func() { // ends with ctx, or sooner; not waited for so that a second interrupt is heard
			sctx, done := context.WithTimeout(ctx, 10*time.Second)
			defer done()
			if err := s.c.Signal(sctx, s.sandbox, command, forwarded[sig]); err != nil && ctx.Err() == nil && !ended(err) {
				fmt.Fprintf(s.g.err, "caisson: %s did not get through: %v\r\n", forwarded[sig], err)
			}
		}()
	}
}

func (s *session) size() v1.TTY {
	for _, f := range []any{s.g.out, s.g.in, s.g.err} {
		if fd, ok := terminal(f); ok {
			if w, h, err := term.GetSize(fd); err == nil && w > 0 && h > 0 {
				return v1.TTY{Rows: h, Cols: w}
			}
		}
	}
	return v1.TTY{Rows: 24, Cols: 80}
}

// print copies output to where it belongs until the exit. No exit and no error means that the command still runs.
func (s *session) print(f events) (*v1.Exit, error) {
	out, errw := s.g.out, s.g.err
	if s.stamps {
		out, errw = &stamped{w: out}, &stamped{w: errw}
	}
	for {
		e, err := f.Next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if s.g.json {
			b, err := e.AppendJSON(nil)
			if err == nil {
				_, err = s.g.out.Write(append(b, '\n'))
			}
			if err != nil {
				return nil, err
			}
		}
		switch {
		case e.Type == v1.EventExit:
			return e.Exit, nil
		case s.g.json:
		case e.Type == v1.EventStdout:
			err = write(out, e)
		case e.Type == v1.EventStderr:
			err = write(errw, e)
		case e.Type == v1.EventGap:
			fmt.Fprintf(s.g.err, "caisson: output of events %d to %d was dropped: it did not fit in the sandbox's log\n", e.From, e.To)
		}
		if err != nil {
			return nil, fmt.Errorf("writing output: %w", err)
		}
	}
}

func write(w io.Writer, e v1.CommandEvent) error {
	if t, ok := w.(*stamped); ok {
		t.now = e.Time
	}
	_, err := w.Write(e.Data)
	return err
}

// stamped puts the time before each line.
type stamped struct {
	w      io.Writer
	now    time.Time
	inLine bool
}

func (t *stamped) Write(b []byte) (int, error) {
	var out []byte
	for line := range bytes.SplitAfterSeq(b, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		if !t.inLine {
			out = append(t.now.UTC().AppendFormat(out, "2006-01-02T15:04:05.000000000Z07:00"), ' ')
		}
		out = append(out, line...)
		t.inLine = line[len(line)-1] != '\n'
	}
	if _, err := t.w.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// result says what the process is to end with.
func (s *session) result(ctx context.Context, command string, exit *v1.Exit, err error) error {
	if errors.Is(context.Cause(ctx), errLeft) {
		hint := s.hint
		if hint == "" {
			hint = fmt.Sprintf("it goes on; see it with: caisson logs -f %s %s", s.sandbox, command)
		}
		return &exitError{130, "left " + command + ": " + hint}
	}
	if err != nil {
		return fmt.Errorf("%w (command %s may still run: caisson logs -f %s %s)", err, command, s.sandbox, command)
	}
	return exitOf(exit)
}

// exitOf maps the end of a command to ours; a nil exit is a command that still runs.
func exitOf(e *v1.Exit) error {
	if e == nil {
		return nil
	}
	msg := ""
	if e.Error != "" {
		msg = ": " + printable(e.Error)
	}
	switch e.Reason {
	case "timeout":
		return &exitError{124, "the command's timeout passed; it was killed"}
	case "not_started":
		return &exitError{e.Code, "the command could not be started" + msg}
	case "sandbox_gone":
		return &exitError{125, "the sandbox ended before the command" + msg}
	case "canceled":
		return &exitError{125, "the command was canceled before it started"}
	case "oom":
		code := e.Code
		if code == 0 {
			code = 137
		}
		return &exitError{code, "the sandbox ran out of memory" + msg}
	}
	if e.Code == 0 {
		return nil
	}
	return &exitError{code: e.Code}
}
