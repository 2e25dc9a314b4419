// Package agent is process 1 of a sandbox: it starts user processes, moves files, forwards ports and reaps orphans, for
// the host side that speaks guest/wire over the private link.
//
// The agent is the one process inside that the host talks to, and root inside is the adversary: nothing here is a
// security boundary. What it promises is to keep answering while user processes use all cpu, memory and process slots.
package agent

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson/guest/wire"
)

// Protocol is the version of guest/wire that this agent speaks.
const Protocol = 1

// Config of an agent.
type Config struct {
	Version string
	Init    bool   // process 1: reap every orphan, own the machine's identity files
	Root    string // where identity files are written; "" is "/" (tests set it)
	Meminfo string // what tells of free memory; "" is /proc/meminfo for process 1, and else nothing is watched
}

// Agent serves one sandbox.
type Agent struct {
	cfg   Config
	users *users
	procs *processes

	mu    sync.Mutex
	token string
	env   map[string]string
	user  string
	cwd   string
}

// New makes an agent.
func New(cfg Config) *Agent {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	if cfg.Meminfo == "" && cfg.Init {
		cfg.Meminfo = "/proc/meminfo"
	}
	a := &Agent{cfg: cfg, users: &users{}}
	a.procs = newProcesses(a)
	return a
}

// Handler serves guest/wire.
func (a *Agent) Handler() http.Handler {
	opts := []connect.HandlerOption{connect.WithReadMaxBytes(1 << 20), connect.WithInterceptors(gate{a}),
		connect.WithCompression("gzip", nil, nil), // the link is memory of one host
		connect.WithRecover(func(_ context.Context, s connect.Spec, _ http.Header, p any) error {
			return connect.NewError(connect.CodeInternal, fmt.Errorf("%s panicked: %v\n%s", s.Procedure, p, debug.Stack()))
		})}
	mux := http.NewServeMux()
	mux.Handle(wire.NewAgentHandler(agentService{a}, opts...))
	mux.Handle(wire.NewProcessesHandler(processService{a}, opts...))
	mux.Handle(wire.NewFilesHandler(fileService{a}, opts...))
	return mux
}

// Serve answers on the two listeners until ctx ends.
func (a *Agent) Serve(ctx context.Context, rpc, forward net.Listener) error {
	srv := &http.Server{Handler: a.Handler(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	for name, task := range map[string]func(){
		"reaper":    func() { a.procs.reap(ctx) },
		"guard":     func() { a.procs.guardMemory(ctx) },
		"forwarder": func() { a.serveForward(ctx, forward) },
	} {
		tasks.Go(func() { keep(ctx, name, task) })
	}
	stop := context.AfterFunc(ctx, func() {
		forward.Close()
		srv.Close()
	})
	defer func() {
		cancel()
		stop()
		forward.Close()
		tasks.Wait()
		a.procs.forgetAll()
	}()
	err := srv.Serve(rpc)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// authorized compares a request's token. Before Configure there is none, and nothing passes.
func (a *Agent) authorized(token string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token != "" && subtle.ConstantTimeCompare([]byte(a.token), []byte(token)) == 1
}

// gate lets a call through when it carries the token, and Configure when no token is set.
type gate struct{ a *Agent }

func (g gate) check(procedure string, h http.Header) error {
	if g.a.authorized(bearer(h)) {
		return nil
	}
	if procedure == wire.AgentConfigureProcedure {
		g.a.mu.Lock()
		defer g.a.mu.Unlock()
		if g.a.token == "" {
			return nil
		}
	}
	return errToken
}

var errToken = connect.NewError(connect.CodeUnauthenticated, errors.New("wrong or missing token"))

func bearer(h http.Header) string {
	token, _ := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	return token
}

func (g gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if err := g.check(r.Spec().Procedure, r.Header()); err != nil {
			return nil, err
		}
		return next(ctx, r)
	}
}

func (g gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (g gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		if err := g.check(c.Spec().Procedure, c.RequestHeader()); err != nil {
			return err
		}
		return next(ctx, c)
	}
}

type agentService struct{ a *Agent }

// Configure claims the agent and gives the sandbox its identity. Identity files are written as far as the image lets
// them be; only the token must be set.
func (s agentService) Configure(_ context.Context, r *connect.Request[wire.ConfigureRequest]) (*connect.Response[wire.ConfigureResponse], error) {
	m := r.Msg
	if m.Protocol != Protocol {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this agent speaks protocol %d, not %d", Protocol, m.Protocol))
	}
	if len(m.Token) < 16 || len(m.Token) > 256 || strings.ContainsFunc(m.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("a token is 16 to 256 printable characters without spaces"))
	}
	a := s.a
	a.mu.Lock()
	// The gate let two first callers through when they came together: only one of them is the first.
	if a.token != "" && subtle.ConstantTimeCompare([]byte(a.token), []byte(bearer(r.Header()))) != 1 {
		a.mu.Unlock()
		return nil, errToken
	}
	a.token, a.env, a.user, a.cwd = m.Token, m.Env, m.User, m.Cwd
	a.mu.Unlock()
	if m.MaxProcesses > 0 {
		a.procs.setLimit(int(m.MaxProcesses))
	}
	if a.cfg.Init {
		a.identify(m)
	}
	return connect.NewResponse(&wire.ConfigureResponse{Protocol: Protocol, Version: a.cfg.Version}), nil
}

func (a *Agent) identify(m *wire.ConfigureRequest) {
	if m.TimeUnixNano != 0 {
		ts := unix.NsecToTimespec(m.TimeUnixNano)
		unix.ClockSettime(unix.CLOCK_REALTIME, &ts) // gVisor keeps the host's clock and refuses
	}
	if len(m.Entropy) > 0 {
		if f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0); err == nil {
			f.Write(m.Entropy)
			f.Close()
		}
	}
	etc := filepath.Join(a.cfg.Root, "etc")
	os.MkdirAll(etc, 0o755)
	if m.Hostname != "" {
		unix.Sethostname([]byte(m.Hostname))
		os.WriteFile(filepath.Join(etc, "hostname"), []byte(m.Hostname+"\n"), 0o644)
		os.WriteFile(filepath.Join(etc, "hosts"), []byte("127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 "+m.Hostname+"\n"), 0o644)
	}
	if len(m.MachineId) == 16 {
		os.WriteFile(filepath.Join(etc, "machine-id"), fmt.Appendf(nil, "%x\n", m.MachineId), 0o444)
	}
	os.Remove(filepath.Join(etc, "resolv.conf")) // often a link into a directory that is not there
	os.WriteFile(filepath.Join(etc, "resolv.conf"), []byte("nameserver 10.0.2.1\n"), 0o644)
}

func (s agentService) Ping(context.Context, *connect.Request[wire.PingRequest]) (*connect.Response[wire.PingResponse], error) {
	return connect.NewResponse(&wire.PingResponse{SpawnNanos: s.a.procs.lastSpawn.Load()}), nil
}

func (s agentService) Metrics(context.Context, *connect.Request[wire.MetricsRequest]) (*connect.Response[wire.MetricsResponse], error) {
	var r wire.MetricsResponse
	mem := readMeminfo("/proc/meminfo")
	r.MemoryTotal, r.MemoryUsed = mem.total, mem.total-mem.available
	var fs unix.Statfs_t
	if unix.Statfs(s.a.cfg.Root, &fs) == nil {
		r.DiskTotal = int64(fs.Blocks) * fs.Bsize
		r.DiskUsed = r.DiskTotal - int64(fs.Bfree)*fs.Bsize
	}
	for _, pid := range pids() {
		r.Processes++
		if st, ok := readStat(pid); ok {
			r.CpuSeconds += float64(st.ticks) / userHZ
		}
	}
	r.CpuSeconds += float64(s.a.procs.reapedTicks.Load()) / userHZ
	return connect.NewResponse(&r), nil
}

func (s agentService) Shutdown(ctx context.Context, r *connect.Request[wire.ShutdownRequest]) (*connect.Response[wire.ShutdownResponse], error) {
	s.a.Shutdown(ctx, time.Duration(r.Msg.GraceMillis)*time.Millisecond)
	return connect.NewResponse(&wire.ShutdownResponse{}), nil
}

const maxGrace = 5 * time.Minute

// Shutdown ends every user process and syncs.
func (a *Agent) Shutdown(ctx context.Context, grace time.Duration) {
	a.procs.killAll(ctx, min(max(grace, 0), maxGrace))
	unix.Sync()
}
