package transcript

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson"
)

func newLog(t *testing.T, o Options) (*Log, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(caisson.CommandExit{Reason: caisson.ReasonSandboxGone}) })
	return l, dir
}

func newCommand(t *testing.T, l *Log) (*Writer, caisson.CommandID) {
	t.Helper()
	id := caisson.NewCommandID()
	w, err := l.Create(caisson.Command{ID: id, StartedAt: time.Now(), Spec: caisson.CommandSpec{Shell: "x", Env: map[string]string{"SECRET": "value"}}})
	if err != nil {
		t.Fatal(err)
	}
	return w, id
}

func put(t testing.TB, w *Writer, e caisson.CommandEvent) uint64 {
	t.Helper()
	seq, err := w.Append(e)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func out(s string) caisson.CommandEvent {
	return caisson.CommandEvent{Type: caisson.EventStdout, Data: []byte(s)}
}

func exit(code int) caisson.CommandEvent {
	return caisson.CommandEvent{Type: caisson.EventExit, Exit: &caisson.CommandExit{Code: code, Reason: caisson.ReasonExited}}
}

// all reads a stream to its end.
func all(t *testing.T, s caisson.EventStream) []caisson.CommandEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var events []caisson.CommandEvent
	for {
		e, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
}

func TestReplayFromAnyNumber(t *testing.T) {
	l, _ := newLog(t, Options{SegmentBytes: 512})
	w, id := newCommand(t, l)
	put(t, w, caisson.CommandEvent{Type: caisson.EventStarted, PID: 7})
	for i := range 50 {
		put(t, w, out(fmt.Sprintf("line %d\n", i)))
	}
	put(t, w, exit(3))
	for _, from := range []uint64{0, 1, 2, 25, 52, 53} {
		r, err := l.Read(id, from, true)
		if err != nil {
			t.Fatal(err)
		}
		events := all(t, r)
		r.Close()
		want := uint64(max(from, 1))
		for _, e := range events {
			if e.Seq != want {
				t.Fatalf("from %d: event %d, want %d", from, e.Seq, want)
			}
			want++
		}
		if from <= 52 && (want != 53 || events[len(events)-1].Exit == nil) {
			t.Errorf("from %d: ended before %d", from, want)
		}
	}
	if _, err := w.Append(out("late")); !caisson.Is(err, caisson.Conflict) {
		t.Errorf("an event after the exit: %v", err)
	}
}

func TestFollow(t *testing.T) {
	l, _ := newLog(t, Options{SegmentBytes: 4 << 10})
	w, id := newCommand(t, l)
	const readers, n = 8, 2000
	var wg sync.WaitGroup
	for range readers {
		r, err := l.Read(id, 1, true)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer r.Close()
			var got bytes.Buffer
			for _, e := range all(t, r) {
				got.Write(e.Data)
			}
			var want bytes.Buffer
			for i := range n {
				fmt.Fprintf(&want, "%d\n", i)
			}
			if got.String() != want.String() {
				t.Errorf("a reader got %d bytes, want %d", got.Len(), want.Len())
			}
		})
	}
	for i := range n {
		put(t, w, out(fmt.Sprintf("%d\n", i)))
	}
	put(t, w, exit(0))
	wg.Wait()
}

// TestGap: what fell to the cap is told, and the newest is there.
func TestGap(t *testing.T) {
	l, _ := newLog(t, Options{SegmentBytes: 4 << 10, CapBytes: 16 << 10})
	w, id := newCommand(t, l)
	for i := range 1000 {
		put(t, w, out(fmt.Sprintf("%0100d", i)))
	}
	put(t, w, exit(0))
	r, err := l.Read(id, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	events := all(t, r)
	g := events[0]
	if g.Type != caisson.EventGap || g.From != 1 || g.Seq != g.To || g.To < 500 {
		t.Fatalf("first is %+v", g)
	}
	for i, e := range events[1:] {
		if e.Seq != g.To+1+uint64(i) {
			t.Fatalf("event %d after the gap to %d", e.Seq, g.To)
		}
	}
	if last := events[len(events)-1]; last.Exit == nil || last.Seq != 1001 {
		t.Errorf("last is %+v", last)
	}
}

// TestSlowReaderMissesNothing: a reader that lags holds back what it has not read.
func TestSlowReaderMissesNothing(t *testing.T) {
	l, _ := newLog(t, Options{SegmentBytes: 4 << 10, CapBytes: 8 << 10})
	w, id := newCommand(t, l)
	r, err := l.Read(id, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 1000 {
		put(t, w, out("0123456789"))
	}
	put(t, w, exit(0))
	for i, e := range all(t, r) {
		if e.Seq != uint64(i+1) || e.Type == caisson.EventGap {
			t.Fatalf("event %d is %+v", i+1, e)
		}
	}
}

// TestAfterACrash reads what a process left that was killed: a torn record is cut, the end is the sandbox's.
func TestAfterACrash(t *testing.T) {
	l, dir := newLog(t, Options{})
	w, id := newCommand(t, l)
	for range 10 {
		put(t, w, out("0123456789"))
	}
	r, err := l.Read(id, 1, false) // makes it write what is pending
	if err != nil {
		t.Fatal(err)
	}
	all(t, r)
	r.Close()
	crash := t.TempDir()
	if err := os.CopyFS(crash, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	segs, _ := filepath.Glob(filepath.Join(crash, string(id), "*.seg"))
	if len(segs) != 1 {
		t.Fatalf("segments %v", segs)
	}
	st, _ := os.Stat(segs[0])
	for _, cut := range []int64{0, 1, 5, 17, 30} {
		if err := os.Truncate(segs[0], st.Size()-cut); err != nil {
			t.Fatal(err)
		}
		s, err := OpenReader(crash, id, 1)
		if err != nil {
			t.Fatal(err)
		}
		events := all(t, s)
		s.Close()
		last := events[len(events)-1]
		if last.Exit == nil || last.Exit.Reason != caisson.ReasonSandboxGone {
			t.Errorf("cut %d: last is %+v", cut, last)
		}
		if n := len(events); cut == 0 && n != 11 || cut > 0 && cut < 30 && n != 10 {
			t.Errorf("cut %d: %d events", cut, n)
		}
	}
	cmds, err := List(crash)
	if err != nil || len(cmds) != 1 || cmds[0].Exit == nil {
		t.Errorf("%v %v", cmds, err)
	}
}

// TestNoSecretsOnDisk: values of the environment are not kept.
func TestNoSecretsOnDisk(t *testing.T) {
	l, dir := newLog(t, Options{})
	w, _ := newCommand(t, l)
	put(t, w, exit(0))
	filepath.Walk(dir, func(p string, st os.FileInfo, err error) error {
		if err == nil && st.Mode().IsRegular() {
			if b, _ := os.ReadFile(p); bytes.Contains(b, []byte("value")) {
				t.Errorf("%s holds a value", p)
			}
			if st.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %o", p, st.Mode().Perm())
			}
		}
		return nil
	})
}

func FuzzDecodeRecord(f *testing.F) {
	e := out("hello")
	e.Seq, e.Time = 1, time.Unix(1, 0)
	b, _ := appendRecord(nil, &e)
	f.Add(b)
	x := exit(1)
	x.Seq, x.Time = 2, time.Unix(2, 0)
	b, _ = appendRecord(b, &x)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			_, n, err := decodeRecord(b)
			if err != nil {
				return
			}
			if n <= 0 || n > len(b) {
				t.Fatalf("a record of %d in %d bytes", n, len(b))
			}
			b = b[n:]
		}
	})
}
