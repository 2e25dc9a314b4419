// Package machinetest holds every driver to the contract of package machine. Drivers differ by what their Info says; the
// suite makes no exception by name.
package machinetest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/machine"
)

// Config says what to test.
type Config struct {
	Driver func(*testing.T) machine.Driver
	Root   string // EROFS image of a root
	Agent  string // EROFS image with the agent
}

// patience is for what must happen soon; no test takes it when all is well.
const patience = 60 * time.Second

// Run runs the suite.
func Run(t *testing.T, c Config) {
	s := suite{c}
	t.Run("Info", s.info)
	t.Run("CloseTwice", s.closeTwice)
	t.Run("CanceledBefore", s.canceledBefore)
	t.Run("CanceledDuring", s.canceledDuring)
	t.Run("MissingImage", s.missingImage)
	t.Run("LinkEnds", s.linkEnds)
	t.Run("Killed", s.killed)
	t.Run("Stats", s.stats)
	t.Run("SaveDisk", s.saveDisk)
	t.Run("CloseDuringSave", s.closeDuringSave)
	t.Run("Many", s.many)
}

type suite struct{ Config }

// host is our end of a machine's link.
type host struct {
	*os.File
	dir string
}

// spec makes a spec with a directory and a link of its own.
func (s suite) spec(t *testing.T) (machine.Spec, *host) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{File: os.NewFile(uintptr(fds[0]), "host"), dir: t.TempDir()}
	t.Cleanup(func() { h.Close() })
	if err := os.Chmod(h.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return machine.Spec{
		ID: string(caisson.NewSandboxID()), Dir: h.dir, VCPUs: 1, MemoryMiB: 128, DiskMiB: 256, PIDs: 128, Root: s.Root, Agent: s.Agent,
		Hostname: "test", Console: "console.log",
		Link: machine.Link{File: os.NewFile(uintptr(fds[1]), "nic"), MTU: 1500, Address: "10.0.2.2/24", Gateway: "10.0.2.1"},
	}, h
}

// gone wants the machine's end of the link closed.
func (h *host) gone(t *testing.T) {
	t.Helper()
	h.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 1<<16)
	for {
		_, err := h.Read(buf)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return
		}
		if err != nil {
			t.Errorf("the machine's end of the link is still open: %v", err)
			return
		}
	}
}

func (s suite) start(t *testing.T, d machine.Driver) (machine.Machine, *host) {
	t.Helper()
	spec, h := s.spec(t)
	return s.startSpec(t, d, spec), h
}

func (s suite) startSpec(t *testing.T, d machine.Driver, spec machine.Spec) machine.Machine {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := d.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// wait is Wait with an end.
func wait(t *testing.T, m machine.Machine) machine.Exit {
	t.Helper()
	got := make(chan machine.Exit, 1)
	go func() { got <- m.Wait() }() // ends with the machine
	select {
	case x := <-got:
		return x
	case <-time.After(patience):
		t.Fatal("Wait does not return")
		return machine.Exit{}
	}
}

func (s suite) info(t *testing.T) {
	i := s.Driver(t).Info()
	if i.Name == "" || i.Version == "" || i.Isolation == "" || i.Link == "" || i.Disk == "" {
		t.Errorf("incomplete: %+v", i)
	}
}

func (s suite) closeTwice(t *testing.T) {
	m, h := s.start(t, s.Driver(t))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for range 2 {
		if x := wait(t, m); x.Reason != machine.ExitClosed {
			t.Errorf("exit is %+v, not closed", x)
		}
	}
	if err := m.Close(); err != nil {
		t.Errorf("Close of a machine that has ended: %v", err)
	}
	h.gone(t)
}

// failed wants a start to have left nothing behind.
func failed(t *testing.T, m machine.Machine, err error, h *host) {
	t.Helper()
	if err == nil {
		m.Close()
		t.Fatal("it started")
	}
	var own *caisson.Error
	if !errors.As(err, &own) {
		t.Errorf("%T is not our error: %v", err, err)
	}
	h.gone(t)
	if err := os.RemoveAll(h.dir); err != nil {
		t.Error(err)
	}
}

func (s suite) canceledBefore(t *testing.T) {
	spec, h := s.spec(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m, err := s.Driver(t).Start(ctx, spec)
	failed(t, m, err, h)
	if !caisson.Is(err, caisson.Canceled) {
		t.Errorf("kind %q: %v", caisson.KindOf(err), err)
	}
}

func (s suite) canceledDuring(t *testing.T) {
	d := s.Driver(t)
	for _, after := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
		spec, h := s.spec(t)
		ctx, cancel := context.WithTimeout(context.Background(), after)
		m, err := d.Start(ctx, spec)
		cancel()
		if err == nil { // it was quicker
			m.Close()
			h.gone(t)
			continue
		}
		failed(t, m, err, h)
	}
}

func (s suite) missingImage(t *testing.T) {
	spec, h := s.spec(t)
	spec.Root = filepath.Join(t.TempDir(), "none")
	m, err := s.Driver(t).Start(context.Background(), spec)
	failed(t, m, err, h)
}

func (s suite) linkEnds(t *testing.T) {
	m, h := s.start(t, s.Driver(t))
	h.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := h.Read(make([]byte, 1<<16)); errors.Is(err, io.EOF) {
		t.Error("the link is closed while the machine runs")
	}
	m.Close()
	h.gone(t)
}

// killed: a machine whose main process is killed from outside says so.
func (s suite) killed(t *testing.T) {
	m, h := s.start(t, s.Driver(t))
	st, err := m.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if st.PID == 0 {
		return // no process to kill
	}
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if x := wait(t, m); x.Reason != machine.ExitKilled {
		t.Errorf("exit is %+v, not killed", x)
	}
	h.gone(t)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func (s suite) stats(t *testing.T) {
	m, _ := s.start(t, s.Driver(t))
	if _, err := m.Stats(context.Background()); err != nil {
		t.Error(err)
	}
	m.Close()
	if _, err := m.Stats(context.Background()); !caisson.Is(err, caisson.Conflict) {
		t.Errorf("stats of a machine that has ended: %v", err)
	}
}

func (s suite) saveDisk(t *testing.T) {
	d := s.Driver(t)
	m, _ := s.start(t, d)
	dir := t.TempDir()
	err := m.SaveDisk(context.Background(), dir)
	if d.Info().Disk != machine.DiskMachine {
		if !caisson.Is(err, caisson.Unsupported) {
			t.Errorf("a driver whose disk is on the host: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) == 0 {
		t.Error("nothing was saved")
	}
	m.Close()
	if err := m.SaveDisk(context.Background(), t.TempDir()); !caisson.Is(err, caisson.Conflict) {
		t.Errorf("save of a machine that has ended: %v", err)
	}
	spec, _ := s.spec(t)
	spec.DiskImage = dir
	s.startSpec(t, d, spec)
}

func (s suite) closeDuringSave(t *testing.T) {
	d := s.Driver(t)
	if d.Info().Disk != machine.DiskMachine {
		return
	}
	m, h := s.start(t, d)
	done := make(chan error, 1)
	go func() { done <- m.SaveDisk(context.Background(), h.dir+"-saved") }() // waited for below
	os.Mkdir(h.dir+"-saved", 0o700)
	t.Cleanup(func() { os.RemoveAll(h.dir + "-saved") })
	time.Sleep(2 * time.Millisecond)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-done: // either: it may have been quicker
	case <-time.After(patience):
		t.Error("SaveDisk hangs on a closed machine")
	}
}

func (s suite) many(t *testing.T) {
	d := s.Driver(t)
	var wg sync.WaitGroup
	for range 4 {
		spec, h := s.spec(t)
		wg.Go(func() {
			m, err := d.Start(context.Background(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			h.gone(t)
		})
	}
	wg.Wait()
}
