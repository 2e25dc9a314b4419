package dial_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson/guest/agent"
	"github.com/caisson-sandbox/caisson/guest/dial"
	"github.com/caisson-sandbox/caisson/guest/wire"
)

const testToken = "0123456789abcdef0123456789abcdef"

// rig is an agent on loopback and its client.
type rig struct {
	*dial.Client
	agent    *agent.Agent
	rpc, fwd string

	mu    sync.Mutex
	conns []net.Conn // of the client, to be cut by tests

	sends func(data []byte) error // sees what the client sends; the connection is cut where it gives an error
}

// watched shows a test what is sent.
type watched struct {
	net.Conn
	sends func([]byte) error
}

func (w watched) Write(b []byte) (int, error) {
	if err := w.sends(b); err != nil {
		w.Close()
		return 0, err
	}
	return w.Conn.Write(b)
}

// cut closes every connection of the client.
func (r *rig) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

func (r *rig) connect(ctx context.Context, port uint16) (net.Conn, error) {
	addr := r.rpc
	if port == 2 {
		addr = r.fwd
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		r.mu.Lock()
		r.conns = append(r.conns, c)
		if r.sends != nil {
			c = watched{c, r.sends}
		}
		r.mu.Unlock()
	}
	return c, err
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// newRig starts an agent that is configured, and checks at the end that no goroutine is left.
func newRig(t testing.TB, change ...func(*agent.Config, *wire.ConfigureRequest)) *rig {
	t.Helper()
	before := runtime.NumGoroutine()
	cfg, req := agent.Config{Version: "test", Root: t.TempDir()}, &wire.ConfigureRequest{Token: testToken}
	for _, f := range change {
		f(&cfg, req)
	}
	rl, fl := listen(t), listen(t)
	r := &rig{agent: agent.New(cfg), rpc: rl.Addr().String(), fwd: fl.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.agent.Serve(ctx, rl, fl) }() // ended in the cleanup
	r.Client = dial.New(r.connect)
	t.Cleanup(func() {
		r.agent.Shutdown(context.Background(), 0)
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		r.Client.Close()
		r.cut()
		for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				buf := make([]byte, 1<<20)
				t.Errorf("goroutines leaked: %d before, %d after\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
				return
			}
		}
	})
	short, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if _, err := r.Configure(short, req); err != nil {
		t.Fatal(err)
	}
	return r
}

// result is what a command did.
type result struct {
	pid            int64
	stdout, stderr bytes.Buffer
	events         int
	exit           *wire.Exit
}

func (r *rig) run(t testing.TB, s *wire.StartProcess) *result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	res, err := r.runContext(ctx, s, nil)
	if err != nil {
		t.Fatalf("%s: %v", s.Id, err)
	}
	return res
}

func (r *rig) runContext(ctx context.Context, s *wire.StartProcess, seen func(*wire.ProcessEvent)) (*result, error) {
	var res result
	err := r.Run(ctx, s, func(e *wire.ProcessEvent) error {
		res.events++
		switch w := e.What.(type) {
		case *wire.ProcessEvent_Started:
			res.pid = w.Started.Pid
		case *wire.ProcessEvent_Stdout:
			res.stdout.Write(w.Stdout)
		case *wire.ProcessEvent_Stderr:
			res.stderr.Write(w.Stderr)
		case *wire.ProcessEvent_Exit:
			res.exit = w.Exit
		}
		if seen != nil {
			seen(e)
		}
		return nil
	})
	return &res, err
}

var ids struct {
	sync.Mutex
	n int
}

func shell(format string, args ...any) *wire.StartProcess {
	ids.Lock()
	defer ids.Unlock()
	ids.n++
	return &wire.StartProcess{Id: fmt.Sprintf("cmd%d", ids.n), Shell: fmt.Appendf(nil, format, args...)}
}

func argv(args ...string) *wire.StartProcess {
	s := shell("")
	s.Shell = nil
	for _, a := range args {
		s.Argv = append(s.Argv, []byte(a))
	}
	return s
}

func (res *result) want(t testing.TB, reason string, code int32, stdout string) {
	t.Helper()
	if res.exit == nil {
		t.Fatal("no exit event")
	}
	if res.exit.Reason != reason || res.exit.Code != code {
		t.Errorf("exit is %v, want %s %d; stderr: %s", res.exit, reason, code, res.stderr.String())
	}
	if got := res.stdout.String(); strings.ReplaceAll(got, "\r\n", "\n") != stdout {
		t.Errorf("stdout is %.200q, want %.200q", got, stdout)
	}
}
