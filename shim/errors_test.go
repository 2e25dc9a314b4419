package shim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/guest/dial"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

var kinds = []caisson.Kind{
	caisson.Invalid, caisson.Denied, caisson.NotFound, caisson.Conflict, caisson.Exhausted, caisson.Unsupported, caisson.Unavailable,
	caisson.Timeout, caisson.Canceled, caisson.Internal,
}

// TestEncode: each kind has a code of its own that gives the kind back, with its message and hint. That the node reads
// it the same way is node's TestKindsCrossTheWire.
func TestEncode(t *testing.T) {
	seen := map[connect.Code]caisson.Kind{}
	for _, k := range kinds {
		err := encode(fmt.Errorf("around: %w", caisson.E(k, "op", "subject", "the message", errors.New("the cause")).WithHint("the hint")))
		var ce *connect.Error
		if !errors.As(err, &ce) {
			t.Fatalf("%s became %T", k, err)
		}
		if other, ok := seen[ce.Code()]; ok {
			t.Errorf("%s and %s have the same code", k, other)
		}
		seen[ce.Code()] = k
		if got := dial.KindOf(ce.Code()); got != k {
			t.Errorf("%s came back as %s", k, got)
		}
		shown := k == caisson.Internal || k == caisson.Unavailable // the node logs these; the others are for the user
		if !strings.HasPrefix(ce.Message(), "the message") || strings.Contains(ce.Message(), "the cause") != shown {
			t.Errorf("%s says %q", k, ce.Message())
		}
		if got := ce.Meta().Get(wire.HintHeader); got != "the hint" {
			t.Errorf("the hint of %s is %q", k, got)
		}
	}
}

// TestEncodeOthers: errors that are not ours have the kind caisson.KindOf gives them, and what is for the wire stays.
func TestEncodeOthers(t *testing.T) {
	if err := encode(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	ready := connect.NewError(connect.CodeAborted, errors.New("x"))
	for _, c := range []struct {
		err  error
		code connect.Code
	}{
		{context.DeadlineExceeded, connect.CodeDeadlineExceeded}, {context.Canceled, connect.CodeCanceled},
		{errors.New("anything"), connect.CodeInternal}, {ready, connect.CodeAborted}, {fmt.Errorf("around: %w", ready), connect.CodeAborted},
		{caisson.E("a kind to come", "", "", "x", nil), connect.CodeInternal},
		{fromAgent("op", "x", connect.NewError(connect.CodeNotFound, errors.New("x"))), connect.CodeNotFound},
		{fromAgent("op", "x", connect.NewError(connect.CodeUnauthenticated, errors.New("x"))), connect.CodePermissionDenied},
		{fromAgent("op", "x", errors.New("broken pipe")), connect.CodeInternal},
	} {
		if got := connect.CodeOf(encode(c.err)); got != c.code {
			t.Errorf("%v became %s, want %s", c.err, got, c.code)
		}
	}
}

// TestCodesAreKinds: no code is given twice, whatever is added to the table.
func TestCodesAreKinds(t *testing.T) {
	all := slices.Sorted(maps.Values(codes))
	if n := len(slices.Compact(all)); n != len(codes) {
		t.Errorf("%d kinds share %d codes", len(codes), n)
	}
}

// TestConvert: what a command is crosses the wire whole; a command that runs has no end.
func TestConvert(t *testing.T) {
	start := time.Unix(1_700_000_000, 123)
	for _, c := range []caisson.Command{
		{ID: "a", Spec: caisson.CommandSpec{Argv: []string{"x", "", "\xff"}, Env: map[string]string{"A": "1"}, Cwd: "/w\xff", User: "u:g", Stdin: true, Timeout: 1500 * time.Millisecond, TTY: &caisson.TTYSize{Rows: 24, Cols: 65535}}, StartedAt: start, PID: 7, LastSeq: 9},
		{ID: "b", Spec: caisson.CommandSpec{Shell: "echo"}, StartedAt: start, EndedAt: start.Add(1), Exit: &caisson.CommandExit{Code: 137, Signal: "SIGKILL", Reason: caisson.ReasonTimeout, Error: "e"}},
	} {
		w := commandOf(c)
		if diff := cmp.Diff(c.Spec, specOf(w.Spec)); diff != "" {
			t.Errorf("%s: %s", c.ID, diff)
		}
		if w.Id != string(c.ID) || w.StartedUnixNano != start.UnixNano() || w.Pid != int64(c.PID) || w.LastSeq != c.LastSeq {
			t.Errorf("%s became %v", c.ID, w)
		}
		if (w.EndedUnixNano != 0) != !c.EndedAt.IsZero() || (w.Exit != nil) != (c.Exit != nil) {
			t.Errorf("%s ended as %v", c.ID, w)
		}
		if x := c.Exit; x != nil && (int(w.Exit.Code) != x.Code || w.Exit.Signal != x.Signal || w.Exit.Reason != string(x.Reason) || w.Exit.Error != x.Error) {
			t.Errorf("the exit %v became %v", x, w.Exit)
		}
		e := eventOf(&caisson.CommandEvent{Seq: 5, Time: start, Type: "exit", Exit: c.Exit, Data: []byte{0, 255}, From: 1, To: 2, PID: 3})
		if e.Seq != 5 || e.TimeUnixNano != start.UnixNano() || string(e.Data) != "\x00\xff" || e.From != 1 || e.To != 2 || e.Pid != 3 || (e.Exit != nil) != (c.Exit != nil) {
			t.Errorf("an event became %v", e)
		}
	}
}
