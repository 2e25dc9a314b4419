package shim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/internal/unixsock"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/machine/fake"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

const patience = 15 * time.Second // for what takes no time unless it is broken

// running is a shim in this process that is ready to be booted; its driver's machines have nothing that answers.
type running struct {
	*shim
	wire.ShimClient
	ended chan error
}

func run(t *testing.T, d *fake.Driver, edit func(*wire.Config)) *running {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("image", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := wire.Config{Sandbox: "sb", Epoch: 3, Driver: "fake", Root: "image", Agent: "image", VCPUs: 1, MemoryMiB: 64, PIDs: 10}
	if edit != nil {
		edit(&cfg)
	}
	b, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(wire.ConfigFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	s, err := open(Options{Version: "test", Driver: func(wire.Config) (machine.Driver, error) { return d, nil }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", wire.SocketFile)
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(wire.SocketFile)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return unixsock.Dial(ctx, path) }}
	r := &running{shim: s, ShimClient: wire.NewShimClient(&http.Client{Transport: transport}, "http://shim"), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { r.ended <- s.serve(ctx, l) }() // waited for in finish
	t.Cleanup(func() {
		cancel()
		r.finish(t)
		transport.CloseIdleConnections()
		// Nothing of ours is left of a shim, however it ended: its log apart, which ends with the process.
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			fds := slices.DeleteFunc(descriptors(t), func(f string) bool {
				return strings.HasSuffix(f, "/"+wire.LogFile) || strings.HasPrefix(f, "anon_inode:") || slices.Contains(before, f)
			})
			busy := ours()
			if len(fds) == 0 && len(busy) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Errorf("left: descriptors %q, goroutines\n%s", fds, strings.Join(busy, "\n\n"))
				return
			}
		}
	})
	return r
}

// ours are the goroutines that a shim or its client of the agent began.
func ours() []string {
	buf := make([]byte, 1<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	return slices.DeleteFunc(all, func(g string) bool {
		return strings.Contains(g, "testing.tRunner") || !strings.Contains(g, "caisson/shim.") && !strings.Contains(g, "caisson/guest/dial.")
	})
}

func descriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("this system does not show descriptors: %v", err)
	}
	var all []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "/proc/") {
			all = append(all, to)
		}
	}
	return all
}

// finish waits for the shim's end and gives its last status.
func (r *running) finish(t *testing.T) *wire.Status {
	t.Helper()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("the shim ended with %v", err)
		}
		r.ended <- nil
	case <-time.After(patience):
		t.Fatal("the shim did not end")
	}
	st := &wire.Status{}
	b, err := os.ReadFile(wire.StatusFile)
	if err == nil {
		err = json.Unmarshal(b, st)
	}
	if err != nil || st.State != stateGone {
		t.Errorf("the last status is %q: %v", b, err)
	}
	return st
}

func (r *running) boot(t *testing.T, ctx context.Context, edit func(*wire.BootRequest)) error {
	t.Helper()
	q := &wire.BootRequest{Sandbox: "sb", Epoch: 3}
	if edit != nil {
		edit(q)
	}
	_, err := r.Boot(ctx, connect.NewRequest(q))
	if err == nil {
		t.Error("a machine without an agent was booted")
	}
	return err
}

// machineEnded checks that the machine, if one was made, is no more.
func (r *running) machineEnded(t *testing.T, want machine.ExitReason) {
	t.Helper()
	m := r.machine.Load()
	if m == nil {
		if want != "" {
			t.Error("no machine was made")
		}
		return
	}
	done := make(chan machine.Exit, 1)
	go func() { done <- (*m).Wait() }() // ends with the machine
	select {
	case x := <-done:
		if x.Reason != want {
			t.Errorf("the machine ended as %s, want %s", x.Reason, want)
		}
	case <-time.After(patience):
		t.Error("the machine goes on")
	}
}

// TestBootFails: whatever fails, the caller is told the kind, the machine is closed, the status says boot_failed and the
// shim ends by itself.
func TestBootFails(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		driver *fake.Driver
		config func(*wire.Config)
		limit  time.Duration // of the call
		code   connect.Code
		detail string
		exit   machine.ExitReason // "": no machine was made
	}{
		{"the driver", &fake.Driver{StartErr: boom}, nil, patience, connect.CodeInternal, "boom", ""},
		{"an image", &fake.Driver{}, func(c *wire.Config) { c.Root = "no such image" }, patience, connect.CodeInvalidArgument, "an image is missing", ""},
		{"the caller goes", &fake.Driver{Delay: time.Hour}, nil, 50 * time.Millisecond, connect.CodeDeadlineExceeded, "gave up", ""},
		{"no agent", &fake.Driver{}, nil, 200 * time.Millisecond, connect.CodeDeadlineExceeded, "the agent did not answer", machine.ExitClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, c.driver, c.config)
			ctx, cancel := context.WithTimeout(context.Background(), c.limit)
			defer cancel()
			if err := r.boot(t, ctx, nil); connect.CodeOf(err) != c.code {
				t.Errorf("the error is %v, want code %s", err, c.code)
			}
			st := r.finish(t)
			// Closing a machine that was made ends the life as "stopped" as well, and either may be first.
			if c.exit == "" && st.Reason != "boot_failed" || st.Reason == "boot_failed" && !strings.Contains(st.Detail, c.detail) {
				t.Errorf("the last status is %q %q", st.Reason, st.Detail)
			}
			r.machineEnded(t, c.exit)
			if _, err := os.Stat(wire.SocketFile); err == nil {
				t.Error("the socket is left")
			}
		})
	}
}

// TestBootIsNotForThisShim: a call that names another sandbox or life changes nothing, and one boot is all there is.
func TestBootIsNotForThisShim(t *testing.T) {
	r := run(t, &fake.Driver{Delay: time.Hour}, nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, edit := range []func(*wire.BootRequest){
		func(q *wire.BootRequest) { q.Sandbox = "other" }, func(q *wire.BootRequest) { q.Epoch = 2 }, func(q *wire.BootRequest) { q.Epoch = 4 },
	} {
		if err := r.boot(t, ctx, edit); connect.CodeOf(err) != connect.CodeFailedPrecondition {
			t.Errorf("the error is %v", err)
		}
	}
	if st := r.life.status(); st.State != stateNew {
		t.Fatalf("the shim is %s", st.State)
	}
	first, give := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- r.boot(t, first, nil) }() // waited for below
	for st, change := r.life.watch(); st.State != stateBooting; st, change = r.life.watch() {
		select {
		case <-change:
		case <-ctx.Done():
			t.Fatal("the boot does not begin")
		}
	}
	if err := r.boot(t, ctx, nil); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("the second boot gave %v", err)
	}
	if _, err := r.Stop(ctx, connect.NewRequest(&wire.StopRequest{})); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("a stop during the boot gave %v", err)
	}
	if _, err := r.Metrics(ctx, connect.NewRequest(&wire.MetricsRequest{})); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("metrics during the boot gave %v", err)
	}
	give()
	<-failed
	if st := r.finish(t); st.Reason != "boot_failed" {
		t.Errorf("the last status is %q", st.Reason)
	}
}

// TestKillDuringBoot: the boot ends at once and the machine with it.
func TestKillDuringBoot(t *testing.T) {
	r := run(t, &fake.Driver{}, nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- r.boot(t, ctx, nil) }() // waited for below
	for r.machine.Load() == nil {
		if ctx.Err() != nil {
			t.Fatal("no machine is made")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := r.Kill(ctx, connect.NewRequest(&wire.KillRequest{})); err != nil {
		t.Error(err)
	}
	<-failed
	if st := r.finish(t); st.Reason != "stopped" {
		t.Errorf("the last status is %q %q", st.Reason, st.Detail)
	}
	r.machineEnded(t, machine.ExitClosed)
}

// TestTheMachineEndsDuringBoot: the status says how it ended.
func TestTheMachineEndsDuringBoot(t *testing.T) {
	for _, c := range []struct {
		exit   machine.ExitReason
		reason string
	}{{machine.ExitCrashed, "crashed"}, {machine.ExitKilled, "killed"}, {machine.ExitStopped, "exited"}} {
		t.Run(c.reason, func(t *testing.T) {
			r := run(t, &fake.Driver{}, nil)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			failed := make(chan error, 1)
			go func() { failed <- r.boot(t, ctx, nil) }() // waited for below
			for r.machine.Load() == nil {
				if ctx.Err() != nil {
					t.Fatal("no machine is made")
				}
				time.Sleep(time.Millisecond)
			}
			(*r.machine.Load()).(*fake.Machine).End(machine.Exit{Reason: c.exit, Detail: "why"})
			<-failed
			if st := r.finish(t); st.Reason != c.reason || st.Detail != "why" {
				t.Errorf("the last status is %q %q", st.Reason, st.Detail)
			}
		})
	}
}

// TestOverItsMemory: without a cgroup a machine that takes too much of the host is closed, also while it boots, and the
// status says oom.
func TestOverItsMemory(t *testing.T) {
	d := &fake.Driver{}
	d.Memory.Store(1 << 40)
	r := run(t, d, nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.boot(t, ctx, nil)
	if ctx.Err() != nil {
		t.Error("the boot went on to its limit")
	}
	if st := r.finish(t); st.Reason != "oom" || !strings.Contains(st.Detail, "64 MiB") {
		t.Errorf("the last status is %q %q", st.Reason, st.Detail)
	}
	r.machineEnded(t, machine.ExitClosed)
}

// TestWatchMemory: the machine may take a quarter and 64 MiB more than its guest's memory for as long as it likes, and
// one byte more ends it.
func TestWatchMemory(t *testing.T) {
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		const most = 1280<<20 + 64<<20
		d := &fake.Driver{}
		d.Memory.Store(most)
		link, err := os.Open(image)
		if err != nil {
			t.Fatal(err)
		}
		m, err := d.Start(t.Context(), machine.Spec{Root: image, Agent: image, Link: machine.Link{File: link}})
		if err != nil {
			t.Fatal(err)
		}
		s := &shim{log: slog.New(slog.DiscardHandler), life: newLife(&wire.Status{State: stateRunning})}
		s.alive, s.gone = context.WithCancelCause(context.Background())
		go s.watchMemory(m, 1024) // ends with the machine
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := s.life.status(); st.State != stateRunning || s.alive.Err() != nil {
			t.Fatalf("the machine was ended within its limit: %v", st)
		}
		d.Memory.Add(1)
		time.Sleep(memoryEvery)
		synctest.Wait()
		if st := s.life.status(); st.State != stateGone || st.Reason != "oom" {
			t.Errorf("the status is %v", st)
		}
		if cause := context.Cause(s.alive); cause != errOOM {
			t.Errorf("what runs is told %v", cause)
		}
		if x := m.Wait(); x.Reason != machine.ExitClosed {
			t.Errorf("the machine ended as %s", x.Reason)
		}
	})
}

// TestNobodyBoots: a shim that was not booted says who it is, answers only to its own sandbox, and ends when told to.
func TestNobodyBoots(t *testing.T) {
	r := run(t, &fake.Driver{}, nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := r.Hello(ctx, connect.NewRequest(&wire.HelloRequest{Sandbox: "sb", Epoch: 3, Protocol: wire.Protocol}))
	if err != nil || res.Msg.Status.State != stateNew || res.Msg.Status.Driver != "fake" || res.Msg.Status.Isolation != string(caisson.IsolationNone) {
		t.Errorf("hello gave %v, %v", res, err)
	}
	for _, q := range []*wire.HelloRequest{{Sandbox: "sb", Epoch: 3, Protocol: wire.Protocol + 1}, {Sandbox: "sb", Epoch: 1, Protocol: wire.Protocol}, {}} {
		if _, err := r.Hello(ctx, connect.NewRequest(q)); connect.CodeOf(err) != connect.CodeFailedPrecondition {
			t.Errorf("%v: %v", q, err)
		}
	}
	if _, err := r.Kill(ctx, connect.NewRequest(&wire.KillRequest{})); err != nil {
		t.Error(err)
	}
	if st := r.finish(t); st.Reason != "stopped" {
		t.Errorf("the last status is %q", st.Reason)
	}
}
