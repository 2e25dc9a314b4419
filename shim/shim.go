// Package shim is the one host process of a sandbox. It owns the machine and both ends of the guest's network, keeps
// the record of what commands did, and dials into the guest. It outlives the server that started it.
//
// Life. The node writes shim.json into the sandbox's directory and starts `caisson-shim DIR`; [Run] changes into it,
// listens on shim.sock and says "ready". Boot makes the machine. The shim ends with its machine, however that ended,
// after it has written status.json and given open streams their last events; a shim that is not booted within a minute
// ends too. A shim that dies takes the machine with it (the driver's contract) and with it every way to the network.
//
// Trust. The socket is the node's. Everything that comes from the guest passes guest/dial, which believes nothing.
//
// Locks. life.mu guards the state; nothing is called with it held. Commands are goroutines of the shim's errgroup-like
// wait group and end when the machine's context does.
package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/egress/netstack"
	"github.com/caisson-sandbox/caisson/guest/dial"
	guestwire "github.com/caisson-sandbox/caisson/guest/wire"
	"github.com/caisson-sandbox/caisson/internal/trim"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/shim/wire"
	"github.com/caisson-sandbox/caisson/transcript"
)

const (
	bootWait    = time.Minute      // a shim that nobody boots ends
	farewell    = 10 * time.Second // for open streams to take their last events when the machine is gone
	maxRPC      = 4 << 20          // bytes of one message of the node
	maxCommands = 4096             // that run at once
	idleAfter   = 2 * time.Second  // without calls and output: memory that is only of use to a busy sandbox is given back
)

// Options of a shim.
type Options struct {
	Version string
	// Driver gives the driver that the configuration names.
	Driver func(wire.Config) (machine.Driver, error)
}

// shim is the process's state.
type shim struct {
	opt    Options
	cfg    wire.Config
	log    *slog.Logger
	driver machine.Driver
	record *transcript.Log
	life   *life

	// Set by Boot before the state is running, then constant.
	stack *netstack.Stack
	agent *dial.Client

	machine  atomic.Pointer[machine.Machine]
	alive    context.Context // ends, with the reason, when the machine is gone
	gone     context.CancelCauseFunc
	commands sync.WaitGroup
	running  atomic.Int64
	idle     *trim.Idle
	begun    sync.Map      // command id → chan struct{}, closed at the first event of a command that runs
	finish   chan struct{} // closed when the shim shall end
	once     sync.Once
}

// Run is the life of a shim in dir. It returns when the machine is gone and all is written down.
func Run(ctx context.Context, dir string, o Options) error {
	debug.SetGCPercent(400) // a collection every 2 MiB halves the speed of output; an idle shim gives the memory back (trim)
	if err := os.Chdir(dir); err != nil {
		return err
	}
	syscall.Umask(0o077)
	ready := os.NewFile(3, "ready")
	tell := func(err error) error {
		if ready != nil {
			text := "ready\n"
			if err != nil {
				text = err.Error() + "\n"
			}
			ready.WriteString(text)
			ready.Close()
		}
		return err
	}
	unix.CloseOnExec(3)
	s, err := open(o)
	if err != nil {
		return tell(err)
	}
	os.Remove(wire.SocketFile)
	l, err := net.Listen("unix", wire.SocketFile)
	if err != nil {
		return tell(fmt.Errorf("listen on the shim's socket: %w", err))
	}
	tell(nil)
	return s.serve(ctx, l)
}

func open(o Options) (*shim, error) {
	b, err := os.ReadFile(wire.ConfigFile)
	if err != nil {
		return nil, err
	}
	s := &shim{opt: o, finish: make(chan struct{})}
	if err := json.Unmarshal(b, &s.cfg); err != nil {
		return nil, fmt.Errorf("read %s: %w", wire.ConfigFile, err)
	}
	w, err := openLog(wire.LogFile)
	if err != nil {
		return nil, err
	}
	s.log = slog.New(slog.NewJSONHandler(w, nil)).With("sandbox", s.cfg.Sandbox, "epoch", s.cfg.Epoch)
	if s.driver, err = o.Driver(s.cfg); err != nil {
		return nil, err
	}
	s.record, err = transcript.Open(wire.CommandsDir, transcript.Options{CapBytes: s.cfg.LogCapBytes})
	if err != nil {
		return nil, err
	}
	info := s.driver.Info()
	s.life = newLife(&wire.Status{
		State: stateNew, Driver: info.Name, DriverVersion: info.Version,
		Isolation: string(info.Isolation), DiskDurability: string(info.Disk),
	})
	s.idle = trim.NewIdle(idleAfter, s.trim)
	s.alive, s.gone = context.WithCancelCause(context.Background())
	os.Remove(wire.StatusFile)
	return s, nil
}

// serve answers until the shim shall end.
func (s *shim) serve(ctx context.Context, l net.Listener) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	srv := s.server()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }() // waited for below
	idle := time.AfterFunc(bootWait, func() {
		if s.life.end(stateNew, "boot_failed", "the shim was never booted") {
			s.end()
		}
	})
	defer idle.Stop()
	s.log.Info("shim is ready", "version", s.opt.Version, "pid", os.Getpid())
	var err error
	select {
	case <-s.finish:
	case err = <-served:
	case <-ctx.Done():
		s.log.Info("shim was asked to end by a signal")
	}
	s.close(srv)
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// close ends the machine, the commands and the streams, in this order, and writes the last status.
func (s *shim) close(srv *http.Server) {
	s.life.end("", "stopped", "the shim was ended")
	if m := s.machine.Load(); m != nil {
		if err := (*m).Close(); err != nil {
			s.log.Error("machine did not close", "error", err)
		}
	}
	status := s.life.status()
	s.gone(errors.New(goneText(status)))
	s.commands.Wait()
	exit := caisson.CommandExit{Code: 137, Signal: "SIGKILL", Reason: caisson.ReasonSandboxGone, Error: goneText(status)}
	if err := s.record.Close(exit); err != nil {
		s.log.Error("command record did not close", "error", err)
	}
	if err := writeStatus(status); err != nil {
		s.log.Error("status was not written", "error", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		srv.Close()
	}
	if s.stack != nil {
		s.stack.Close()
	}
	if s.agent != nil {
		s.agent.Close()
	}
	s.log.Info("shim ends", "reason", status.Reason, "detail", status.Detail)
}

// end makes Run return. It may be called many times.
func (s *shim) end() { s.once.Do(func() { close(s.finish) }) }

func (s *shim) server() *http.Server {
	mux := http.NewServeMux()
	opts := []connect.HandlerOption{connect.WithReadMaxBytes(maxRPC), connect.WithInterceptors(calls{s})}
	mux.Handle(wire.NewShimHandler(shimService{s}, opts...))
	mux.Handle(wire.NewCommandsHandler(commandService{s}, opts...))
	mux.Handle(guestwire.NewFilesHandler(fileService{s}, opts...))
	mux.HandleFunc("GET /dial", s.serveDial)
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// trim gives back what the sandbox does not need to wait.
func (s *shim) trim() {
	if m := s.machine.Load(); m != nil {
		(*m).Trim()
	}
	trim.Process()
}

// calls surrounds every call: it is activity, and a panic of it is logged and does not end the sandbox.
type calls struct{ *shim }

func (r calls) after(procedure string, err *error) {
	r.idle.Touch()
	if p := recover(); p != nil {
		r.log.Error("call panicked", "procedure", procedure, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		*err = connect.NewError(connect.CodeInternal, errors.New("the shim failed; its log says how"))
	}
}

func (r calls) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, q connect.AnyRequest) (res connect.AnyResponse, err error) {
		r.idle.Touch()
		defer r.after(q.Spec().Procedure, &err)
		return next(ctx, q)
	}
}

func (r calls) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (r calls) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) (err error) {
		r.idle.Touch()
		defer r.after(c.Spec().Procedure, &err)
		return next(ctx, c)
	}
}
