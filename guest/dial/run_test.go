package dial_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/guest/agent"
	"github.com/caisson-sandbox/caisson/guest/wire"
)

func TestHowACommandEnds(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	plain := dir + "/plain"
	os.WriteFile(plain, []byte("echo a script\n"), 0o644)
	script := dir + "/script"
	os.WriteFile(script, []byte("echo no shebang $1\n"), 0o755)
	for _, c := range []struct {
		name   string
		start  *wire.StartProcess
		reason string
		code   int32
		stdout string
	}{
		{"argv", argv("echo", "a b", "c"), "exited", 0, "a b c\n"},
		{"shell", shell("echo $((1+2)); exit 7"), "exited", 7, "3\n"},
		{"signal", shell("kill -TERM $$"), "signaled", 143, ""},
		{"not found", argv("no-such-program"), "not_started", 127, ""},
		{"no such file", argv("/no/such/program"), "not_started", 127, ""},
		{"not executable", argv(plain), "not_started", 126, ""},
		{"directory", argv(dir), "not_started", 126, ""},
		{"no shebang", argv(script, "x"), "exited", 0, "no shebang x\n"},
		{"nothing", argv(""), "not_started", 127, ""},
		{"bad user", &wire.StartProcess{Id: "u", Shell: []byte("true"), User: "nobody-by-this-name"}, "not_started", 126, ""},
		{"bad cwd", &wire.StartProcess{Id: "c", Shell: []byte("true"), Cwd: []byte("/no/such/dir")}, "not_started", 126, ""},
		{"cwd", &wire.StartProcess{Id: "w", Shell: []byte("pwd"), Cwd: []byte("/usr")}, "exited", 0, "/usr\n"},
		{"env", &wire.StartProcess{Id: "e", Shell: []byte("echo $A $PATH"), Env: map[string]string{"A": "1", "PATH": "/bin"}}, "exited", 0, "1 /bin\n"},
		{"timeout", &wire.StartProcess{Id: "t", Shell: []byte("echo x; sleep 60 & sleep 60"), TimeoutMillis: 100}, "timeout", 137, "x\n"},
		{"no stdin", shell("cat"), "exited", 0, ""},
		{"session", shell("test $(ps -o sid= -p $$) = $$ || exit 1; umask"), "exited", 0, "0022\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := r.run(t, c.start)
			res.want(t, c.reason, c.code, c.stdout)
			if c.reason == "not_started" && res.exit.Error == "" {
				t.Error("no reason is given")
			}
		})
	}
}

func TestTwoHundredAtOnce(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			s := shell("echo out %d; echo err %d >&2; sleep 0.2; exit %d", i, i, i%100)
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			res, err := r.runContext(ctx, s, nil)
			if err != nil {
				t.Error(err)
				return
			}
			res.want(t, "exited", int32(i%100), fmt.Sprintf("out %d\n", i))
			if got := res.stderr.String(); got != fmt.Sprintf("err %d\n", i) {
				t.Errorf("stderr is %q", got)
			}
		})
	}
	wg.Wait()
}

func TestStreamInOrderWithBoundedMemory(t *testing.T) {
	r := newRig(t)
	size := int64(1 << 30)
	if testing.Short() {
		size = 256 << 20
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var n int64
	var most uint64
	err := r.Run(ctx, shell("yes 0123456789abcde | head -c %d", size), func(e *wire.ProcessEvent) error {
		for i, b := range e.GetStdout() {
			if at := (n + int64(i)) % 16; at == 15 && b != '\n' || at < 15 && b != "0123456789abcde"[at] {
				return fmt.Errorf("byte %d is %q", n+int64(i), b)
			}
		}
		n += int64(len(e.GetStdout()))
		if e.Seq%512 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
		return nil
	})
	if err != nil || n != size {
		t.Fatalf("%d of %d bytes: %v", n, size, err)
	}
	if most > 128<<20 {
		t.Errorf("the heap grew to %d MiB", most>>20)
	}
}

// TestLostStreams cuts the connections again and again: no byte is lost or doubled.
func TestLostStreams(t *testing.T) {
	r := newRig(t)
	stop := make(chan struct{})
	var moved atomic.Bool // an event came since the last cut: on a loaded machine one takes longer than the pause
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(30 * time.Millisecond):
				if moved.Swap(false) {
					r.cut()
				}
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	res, err := r.runContext(ctx, shell("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; sleep 0.2; yes | head -c 20000000; exit 3"),
		func(*wire.ProcessEvent) { moved.Store(true) })
	close(stop)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	want.WriteString(strings.Repeat("y\n", 10_000_000))
	res.want(t, "exited", 3, want.String())
}

// TestLostStreamsBeforeAnAcknowledgement cuts each stream before enough has come for one: the attach that follows must
// free the window, or the agent waits for the host and the host for the agent.
func TestLostStreamsBeforeAnAcknowledgement(t *testing.T) {
	r := newRig(t)
	const size = 4 << 20
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	since := 0
	res, err := r.runContext(ctx, shell("yes | head -c %d", size), func(e *wire.ProcessEvent) {
		if since += len(e.GetStdout()); since >= 100<<10 {
			since = 0
			r.cut()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	res.want(t, "exited", 0, strings.Repeat("y\n", size/2))
}

// TestLostAcknowledgements loses seven of eight, on connections of their own, while the stream lives: each must be sent
// again.
func TestLostAcknowledgements(t *testing.T) {
	r := newRig(t)
	var acks atomic.Int32
	r.mu.Lock()
	r.sends = func(b []byte) error {
		if bytes.Contains(b, []byte("Processes/Ack ")) && acks.Add(1)%8 != 0 {
			return errors.New("lost")
		}
		return nil
	}
	r.mu.Unlock()
	const size = 4 << 20
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	res, err := r.runContext(ctx, shell("yes | head -c %d", size), nil)
	if err != nil {
		t.Fatal(err)
	}
	res.want(t, "exited", 0, strings.Repeat("y\n", size/2))
	if n := acks.Load(); n < 8 {
		t.Errorf("only %d acknowledgements were seen: the test lost none", n)
	}
}

func TestBackgroundChildDoesNotHoldTheExit(t *testing.T) {
	r := newRig(t)
	res := r.run(t, shell("sleep 30 & echo $!"))
	var pid int
	fmt.Sscan(res.stdout.String(), &pid)
	if res.exit.Reason != "exited" || pid == 0 {
		t.Fatalf("%v %q", res.exit, res.stdout.String())
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the child was killed: %v", err)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	// One that never stops writing does not either.
	res = r.run(t, shell("yes & echo $! >&2"))
	fmt.Sscan(res.stderr.String(), &pid)
	syscall.Kill(pid, syscall.SIGKILL)
	if res.exit.Reason != "exited" {
		t.Fatal(res.exit)
	}
}

func TestStdin(t *testing.T) {
	r := newRig(t)
	s := shell("cat; echo end")
	s.Stdin = true
	started := make(chan struct{})
	var wg sync.WaitGroup
	const size = 8 << 20
	chunk := []byte(strings.Repeat("x", 128<<10))
	wg.Go(func() {
		<-started
		left := size
		n, err := r.Stdin(context.Background(), s.Id, func() ([]byte, bool, error) {
			if left == 0 {
				return nil, false, io.EOF
			}
			left -= len(chunk)
			return chunk, left == 0, nil
		})
		if err != nil || n != size {
			t.Errorf("wrote %d: %v", n, err)
		}
	})
	res, err := r.runContext(context.Background(), s, func(e *wire.ProcessEvent) {
		if e.GetStarted() != nil {
			close(started)
		}
	})
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	res.want(t, "exited", 0, strings.Repeat("x", size)+"end\n")
	if _, err := r.Stdin(context.Background(), s.Id, func() ([]byte, bool, error) { return []byte("x"), true, nil }); !caisson.Is(err, caisson.NotFound) && !caisson.Is(err, caisson.Conflict) {
		t.Errorf("stdin of a process that is gone: %v", err)
	}
}

// TestStdinEndsWithTheProcess: a writer that waits for more to write learns of the end when it writes.
func TestStdinEndsWithTheProcess(t *testing.T) {
	r := newRig(t)
	s := shell("read x; echo got $x")
	s.Stdin = true
	res, err := r.runContext(context.Background(), s, func(e *wire.ProcessEvent) {
		if e.GetStarted() == nil {
			return
		}
		go r.Stdin(context.Background(), s.Id, func() ([]byte, bool, error) { // ends with the process
			time.Sleep(5 * time.Millisecond)
			return []byte("hello\n"), false, nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	res.want(t, "exited", 0, "got hello\n")
}

func TestTerminal(t *testing.T) {
	r := newRig(t)
	s := shell("stty size; tty >/dev/null && echo tty; trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done")
	s.Tty = &wire.TtySize{Rows: 24, Cols: 80}
	var out string
	once := sync.OnceFunc(func() {
		if err := r.Resize(context.Background(), s.Id, 50, 132); err != nil {
			t.Error(err)
		}
	})
	res, err := r.runContext(context.Background(), s, func(e *wire.ProcessEvent) {
		if out += string(e.GetStdout()); strings.Contains(out, "ready") {
			once()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	res.want(t, "exited", 0, "24 80\ntty\nready\n50 132\n")
}

func TestTerminalEndOfFile(t *testing.T) {
	r := newRig(t)
	s := argv("cat")
	s.Tty, s.Stdin = &wire.TtySize{Rows: 24, Cols: 80}, true
	res, err := r.runContext(context.Background(), s, func(e *wire.ProcessEvent) {
		if e.GetStarted() != nil {
			sent := false
			if _, err := r.Stdin(context.Background(), s.Id, func() ([]byte, bool, error) {
				if sent {
					return nil, false, io.EOF
				}
				sent = true
				return []byte("hi\n"), true, nil
			}); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	res.want(t, "exited", 0, "hi\nhi\n")
}

func TestSignalReachesTheGroup(t *testing.T) {
	r := newRig(t)
	s := shell("sleep 60 & echo $!; wait")
	res, err := r.runContext(context.Background(), s, func(e *wire.ProcessEvent) {
		if len(e.GetStdout()) > 0 {
			if err := r.Signal(context.Background(), s.Id, int32(syscall.SIGINT)); err != nil {
				t.Error(err)
			}
			if err := r.Signal(context.Background(), s.Id, int32(syscall.SIGKILL)); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if res.exit.Signal == 0 || res.exit.Code != 128+res.exit.Signal {
		t.Errorf("exit is %v", res.exit)
	}
	if err := r.Signal(context.Background(), s.Id, 9); !caisson.Is(err, caisson.NotFound) && !caisson.Is(err, caisson.Conflict) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as others")
	}
	r := newRig(t, func(_ *agent.Config, c *wire.ConfigureRequest) {
		c.User = "nobody"
		c.Env = map[string]string{"FROM": "configure"}
	})
	r.run(t, shell("id -un; echo $USER $FROM")).want(t, "exited", 0, "nobody\nnobody configure\n")
	s := shell("id -u; id -g; echo $HOME")
	s.User = "12345:54321"
	r.run(t, s).want(t, "exited", 0, "12345\n54321\n/\n")
	s = shell("id -u; cat /proc/self/oom_score_adj")
	s.User = "root"
	r.run(t, s).want(t, "exited", 0, "0\n0\n")
}

func TestTheSameIDTwice(t *testing.T) {
	r := newRig(t)
	s := shell("sleep 30")
	_, err := r.runContext(context.Background(), s, func(e *wire.ProcessEvent) {
		if e.GetStarted() == nil {
			return
		}
		if _, err := r.runContext(context.Background(), s, nil); !caisson.Is(err, caisson.Conflict) {
			t.Errorf("the second start gave %v", err)
		}
		r.Signal(context.Background(), s.Id, 9)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestACanceledRunLeavesTheProcess(t *testing.T) {
	r := newRig(t)
	s := shell("echo a; sleep 0.3; echo b")
	ctx, cancel := context.WithCancel(context.Background())
	_, err := r.runContext(ctx, s, func(e *wire.ProcessEvent) {
		if e.GetStdout() != nil {
			cancel()
		}
	})
	if !caisson.Is(err, caisson.Canceled) {
		t.Fatalf("a canceled run gave %v", err)
	}
	boom := errors.New("boom")
	s = shell("yes")
	if err := r.Run(context.Background(), s, func(e *wire.ProcessEvent) error {
		if e.GetStdout() != nil {
			return boom
		}
		return nil
	}); !errors.Is(err, boom) {
		t.Fatalf("the taker's error became %v", err)
	}
	if err := r.Signal(context.Background(), s.Id, 9); err != nil {
		t.Error(err)
	}
}

func BenchmarkSpawn(b *testing.B) {
	r := newRig(b)
	for b.Loop() {
		if res := r.run(b, argv("true")); res.exit.Code != 0 {
			b.Fatal(res.exit)
		}
	}
	spawn, err := r.Ping(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(spawn), "spawn-ns")
}

func BenchmarkOutput(b *testing.B) {
	r := newRig(b)
	const size = 64 << 20
	b.SetBytes(size)
	for b.Loop() {
		n := 0
		if err := r.Run(context.Background(), shell("head -c %d /dev/zero", size), func(e *wire.ProcessEvent) error {
			n += len(e.GetStdout())
			return nil
		}); err != nil || n != size {
			b.Fatal(n, err)
		}
	}
}
