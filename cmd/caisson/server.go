package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/api/native"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/bundle"
	"github.com/caisson-sandbox/caisson/control"
	"github.com/caisson-sandbox/caisson/image"
	"github.com/caisson-sandbox/caisson/ingress"
	"github.com/caisson-sandbox/caisson/internal/unixsock"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/machine/gvisor"
	"github.com/caisson-sandbox/caisson/node"
	"github.com/caisson-sandbox/caisson/store/sqlite"
)

const (
	socketName    = "caisson.sock"
	lockName      = "serve.lock"
	databaseName  = "caisson.db"
	templatesDir  = "templates"
	baseTemplate  = "base:latest"
	readyPatience = 60 * time.Second
	drainPatience = 10 * time.Second // for requests to end at a stop; sandboxes go on
)

// serveOptions say how to run a server.
type serveOptions struct {
	StateDir  string
	Listen    string // TCP address; "": the unix socket alone
	TLSCert   string // PEM files, both or neither
	TLSKey    string
	Domain    string // ports of sandboxes are reached at {port}-{id}.{domain}
	MemoryMiB int    // that sandboxes may have in all; 0: what the host has
	NoCgroup  bool   // leave limits to the driver
	Log       *slog.Logger
}

func (o serveOptions) validate() error {
	var bad []string
	if o.StateDir == "" {
		bad = append(bad, "--state-dir is empty")
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		bad = append(bad, "--tls-cert and --tls-key go together")
	}
	if o.Listen != "" {
		if _, _, err := net.SplitHostPort(o.Listen); err != nil {
			bad = append(bad, fmt.Sprintf("--listen %s: %v", o.Listen, err))
		}
	}
	if o.MemoryMiB < 0 {
		bad = append(bad, "--memory is negative")
	}
	if len(bad) > 0 {
		return caisson.E(caisson.Invalid, "serve", "", strings.Join(bad, "; "), nil)
	}
	return nil
}

// server is all of one serve, wired. What is opened later is closed earlier.
type server struct {
	opt      serveOptions
	lock     *os.File
	images   *image.Store
	node     *node.Local
	store    io.Closer
	control  *control.Control
	http     *http.Server
	cancel   context.CancelCauseFunc // of every request
	stopLoop context.CancelFunc
	wg       sync.WaitGroup
	failed   chan error // a listener or the control loop that ended by itself
	addr     string     // of the TCP listener
}

// startServer opens the state directory and serves it; it returns when requests are answered.
func startServer(ctx context.Context, o serveOptions) (_ *server, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.StateDir, err = filepath.Abs(o.StateDir); err != nil {
		return nil, err
	}
	s := &server{opt: o, failed: make(chan error, 4)}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := s.openState(); err != nil {
		return nil, err
	}
	if err := s.openRooms(ctx); err != nil {
		return nil, err
	}
	return s, s.listen()
}

// openState makes the state directory and locks it: two servers would each undo what the other does.
func (s *server) openState() error {
	const op = "open state directory"
	dir := s.opt.StateDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return caisson.E(caisson.Unavailable, op, dir, "it cannot be made", err).WithHint("choose another with --state-dir or CAISSON_STATE_DIR")
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return caisson.E(caisson.Unavailable, op, dir, "it cannot be written", err).WithHint("choose another with --state-dir or CAISSON_STATE_DIR")
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		return caisson.E(caisson.Conflict, op, dir, "another caisson serve uses it (pid "+strings.TrimSpace(string(pid))+")", nil).
			WithHint("stop that one, or give this one a directory of its own with --state-dir")
	}
	s.lock = f
	f.Truncate(0)
	_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return err
}

func (s *server) openRooms(ctx context.Context) error {
	o := s.opt
	parts, err := bundle.Unpack(o.StateDir)
	if err != nil {
		return err
	}
	if s.images, err = image.Open(filepath.Join(o.StateDir, templatesDir)); err != nil {
		return err
	}
	if err := installBase(ctx, s.images); err != nil {
		return err
	}
	drivers := []machine.Driver{gvisor.New(gvisor.Config{Sentry: parts.Sentry})}
	s.node, err = node.Open(ctx, node.Config{
		StateDir: o.StateDir, Shim: parts.Shim, Sentry: parts.Sentry, Agent: parts.Guest, Template: s.images.Path,
		Drivers: drivers, Log: o.Log, NoCgroup: o.NoCgroup, MemoryMiB: o.MemoryMiB,
	})
	if err != nil {
		return err
	}
	st, err := sqlite.Open(ctx, filepath.Join(o.StateDir, databaseName), time.Now)
	if err != nil {
		return err
	}
	s.store = st
	s.control = control.New(control.Config{Store: st, Node: s.node, Templates: s.images, Log: o.Log})
	s.images.SetInUse(s.control.TemplatesInUse)
	loop, stop := context.WithCancel(context.Background())
	s.stopLoop = stop
	s.wg.Go(func() {
		if err := s.control.Run(loop); err != nil && loop.Err() == nil {
			s.failed <- fmt.Errorf("control loop: %w", err)
		}
	})
	return s.waitReady(ctx)
}

// installBase puts the embedded template in place, so that a sandbox can be made without any network.
func installBase(ctx context.Context, images *image.Store) error {
	r, digest, _, err := bundle.Base()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = images.Install(ctx, baseTemplate, r, caisson.Template{Digest: digest})
	return err
}

func (s *server) waitReady(ctx context.Context) error {
	deadline := time.Now().Add(readyPatience)
	for {
		err := s.control.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return caisson.E(caisson.Timeout, "start server", s.opt.StateDir, "the sandboxes of the state directory were not taken over in time", err)
		}
	}
}

func (s *server) listen() error {
	o := s.opt
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler, err := native.New(native.Config{
		Sandboxes: s.control, Keys: s.control.Keys(), Events: s.control.Events(), Templates: s.images, Info: s.info, Ready: s.control.Ready,
		Stats: s.control.Stats, Log: o.Log, Registry: registry, Version: version, Domain: o.Domain,
		Ingress: ingress.New(ingress.Config{Sandboxes: s.control, Keys: s.control.Keys(), Domain: o.Domain, Log: o.Log}),
	})
	if err != nil {
		return err
	}
	base, cancel := context.WithCancelCause(context.Background())
	s.cancel = cancel
	s.http = native.Server(handler, base, native.Limits{}, o.Log)
	path := filepath.Join(o.StateDir, socketName)
	os.Remove(path)
	l, err := unixsock.Listen(path)
	if err != nil {
		return caisson.E(caisson.Unavailable, "listen", path, "the unix socket cannot be made", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	s.serve(func() error { return s.http.Serve(l) })
	if o.Listen == "" {
		return nil
	}
	tcp, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return caisson.E(caisson.Unavailable, "listen", o.Listen, "the address cannot be listened on", err)
	}
	s.addr = tcp.Addr().String()
	if o.TLSCert == "" {
		s.serve(func() error { return s.http.Serve(tcp) })
		return nil
	}
	cert, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
	if err != nil {
		return caisson.E(caisson.Invalid, "read certificate", o.TLSCert, "it cannot be used", err)
	}
	s.http.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	s.serve(func() error { return s.http.ServeTLS(tcp, "", "") })
	return nil
}

func (s *server) serve(run func() error) {
	s.wg.Go(func() {
		if err := run(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			s.failed <- err
		}
	})
}

// info describes the server for GET /v1/info.
func (s *server) info(ctx context.Context) (v1.Info, error) {
	n, err := s.node.Info(ctx)
	if err != nil {
		return v1.Info{}, err
	}
	i := v1.Info{DefaultDriver: n.Default, MemoryMiB: n.MemoryMiB, MemoryUsedMiB: n.MemoryUsedMiB, Cgroup: n.Cgroup}
	for _, d := range n.Drivers {
		if d.Name == n.Default {
			i.Isolation = string(d.Isolation)
		}
		i.Drivers = append(i.Drivers, v1.Driver{Name: d.Name, Version: d.Version, Isolation: string(d.Isolation), Available: d.Err == "", Reason: d.Err})
	}
	return i, nil
}

// Close hands over: requests end, streams tell their clients to re-attach, sandboxes go on.
func (s *server) Close() error {
	if s.cancel != nil {
		s.cancel(errors.New("the server is stopping"))
	}
	if s.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
		if s.http.Shutdown(ctx) != nil {
			s.http.Close()
		}
		cancel()
	}
	if s.stopLoop != nil {
		s.stopLoop()
	}
	s.wg.Wait()
	var err error
	if s.node != nil {
		err = s.node.Close()
	}
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	if s.lock != nil {
		os.Remove(filepath.Join(s.opt.StateDir, socketName))
		s.lock.Close()
	}
	return err
}
