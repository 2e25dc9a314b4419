// Package fake is a driver whose machines are nothing but their bookkeeping: they hold the link, save an empty disk and
// end when told to. It keeps the contract of package machine, in microseconds, for tests of what is above it.
package fake

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/machine"
)

// Driver makes fake machines. The zero value is ready.
type Driver struct {
	Delay    time.Duration // how long Start takes
	StartErr error         // what Start fails with, after Delay
	SaveErr  error         // what SaveDisk fails with
	Memory   atomic.Int64  // what Stats gives as MemoryOwn
	// Guest, if set, is what runs at the machine's end of the link. The file is the guest's own, closed when the machine
	// ends.
	Guest func(link *os.File)
}

// Info implements machine.Driver.
func (d *Driver) Info() machine.Info {
	return machine.Info{Name: "fake", Version: "1", Isolation: caisson.IsolationNone, Link: machine.LinkIP, Disk: machine.DiskMachine, Unprivileged: true}
}

// Check implements machine.Driver.
func (d *Driver) Check(context.Context) error { return nil }

// Start implements machine.Driver.
func (d *Driver) Start(ctx context.Context, s machine.Spec) (machine.Machine, error) {
	const op = "start machine"
	fail := func(kind caisson.Kind, msg string, err error) (machine.Machine, error) {
		s.Link.File.Close()
		return nil, caisson.E(kind, op, s.ID, msg, err)
	}
	for _, image := range []string{s.Root, s.Agent} {
		if _, err := os.Stat(image); err != nil {
			return fail(caisson.Invalid, "an image is missing", err)
		}
	}
	t := time.NewTimer(d.Delay)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return fail(caisson.KindOf(context.Cause(ctx)), "gave up", context.Cause(ctx))
	case <-t.C:
	}
	if err := ctx.Err(); err != nil {
		return fail(caisson.KindOf(err), "gave up", err)
	}
	if d.StartErr != nil {
		return fail(caisson.Internal, "it was told to fail", d.StartErr)
	}
	if d.Guest != nil {
		d.Guest(s.Link.File)
	}
	return &Machine{driver: d, spec: s, began: time.Now(), ended: make(chan struct{})}, nil
}

// Machine is a fake machine.
type Machine struct {
	driver *Driver
	spec   machine.Spec
	began  time.Time

	once  sync.Once
	exit  machine.Exit
	ended chan struct{}
}

// End ends the machine as if by itself.
func (m *Machine) End(x machine.Exit) {
	m.once.Do(func() {
		m.exit = x
		m.spec.Link.File.Close()
		close(m.ended)
	})
}

func (m *Machine) alive(op string) error {
	select {
	case <-m.ended:
		return caisson.E(caisson.Conflict, op, m.spec.ID, "the machine has ended", nil)
	default:
		return nil
	}
}

// SaveDisk implements machine.Machine.
func (m *Machine) SaveDisk(_ context.Context, dir string) error {
	if err := m.alive("save disk"); err != nil {
		return err
	}
	if m.driver.SaveErr != nil {
		return caisson.E(caisson.Internal, "save disk", m.spec.ID, "it was told to fail", m.driver.SaveErr)
	}
	return os.WriteFile(filepath.Join(dir, "disk"), nil, 0o600)
}

// Trim implements machine.Machine.
func (m *Machine) Trim() {}

// Stats implements machine.Machine.
func (m *Machine) Stats(context.Context) (machine.Stats, error) {
	return machine.Stats{CPU: time.Since(m.began), MemoryOwn: m.driver.Memory.Load()}, m.alive("read stats")
}

// Wait implements machine.Machine.
func (m *Machine) Wait() machine.Exit {
	<-m.ended
	return m.exit
}

// Close implements machine.Machine.
func (m *Machine) Close() error {
	m.End(machine.Exit{Reason: machine.ExitClosed})
	return nil
}
