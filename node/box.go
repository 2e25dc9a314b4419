package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

const (
	specFile   = "spec.json"
	stopGrace  = 10 * time.Second // for commands between TERM and KILL
	stopLimit  = 10 * time.Minute // for a large disk to be written out
	killLimit  = 5 * time.Second  // for a shim to answer Kill; then it is killed
	cleanLimit = 30 * time.Second // for processes and cgroups to go
)

// box is one sandbox of this node. Verbs hold work, one at a time; Delete cancels the one that runs.
type box struct {
	n   *Local
	id  caisson.SandboxID
	dir string

	work   sync.Mutex
	cancel context.CancelCauseFunc // of the verb that holds work; guarded by mu

	mu     sync.Mutex
	spec   Spec
	st     Status
	shim   *shimClient
	idle   time.Time // when the last verb ended
	follow context.CancelFunc
}

func newBox(n *Local, id caisson.SandboxID) *box {
	return &box{n: n, id: id, dir: filepath.Join(n.root, string(id)), st: Status{Sandbox: id}}
}

func (b *box) peek() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.st
}

func (b *box) memory() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec.Resources.WithDefaults().MemoryMiB
}

// begin takes the box for a verb. The context ends when Delete wants the box.
func (b *box) begin(ctx context.Context) (context.Context, func()) {
	b.work.Lock()
	ctx, cancel := context.WithCancelCause(ctx)
	b.mu.Lock()
	b.cancel = cancel
	b.mu.Unlock()
	return ctx, func() {
		b.mu.Lock()
		b.cancel, b.idle = nil, time.Now()
		b.mu.Unlock()
		cancel(nil)
		b.work.Unlock()
	}
}

// interrupt ends the verb that runs.
func (b *box) interrupt(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel != nil {
		b.cancel(why)
	}
}

func (b *box) set(edit func(*Status)) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	edit(&b.st)
	return b.st
}

// fresh refuses an epoch older than what is known.
func (b *box) fresh(op string, epoch uint64) error {
	if st := b.peek(); epoch < st.Epoch {
		return caisson.E(caisson.Conflict, op, string(b.id), fmt.Sprintf("life %d is over; the node has life %d", epoch, st.Epoch), nil)
	}
	return nil
}

// Start implements Node.
func (n *Local) Start(ctx context.Context, s Spec) (Status, []caisson.Timing, error) {
	const op = "start sandbox"
	if !s.Sandbox.Valid() || s.Epoch == 0 {
		return Status{}, nil, caisson.E(caisson.Invalid, op, string(s.Sandbox), "a spec needs an id and an epoch", nil)
	}
	b := n.box(s.Sandbox, true)
	ctx, end := b.begin(ctx)
	defer end()
	if err := b.fresh(op, s.Epoch); err != nil {
		return b.peek(), nil, err
	}
	if st := b.peek(); st.Epoch == s.Epoch && st.Phase == Up {
		return st, nil, nil
	} else if st.Epoch == s.Epoch && st.Phase != "" && st.Phase != Starting {
		return st, nil, caisson.E(caisson.Conflict, op, string(s.Sandbox), fmt.Sprintf("life %d is %s; a new start needs a new epoch", s.Epoch, st.Phase), nil)
	}
	d, err := n.driver(s.Driver)
	if err != nil {
		return Status{}, nil, err
	}
	s.Driver = d.Name
	return b.start(ctx, s)
}

func (n *Local) driver(name string) (DriverInfo, error) {
	for _, k := range n.order {
		if d := n.drivers[k]; (name == "" && d.Err == "") || k == name {
			if d.Err != "" {
				return d, caisson.E(caisson.Unsupported, "choose driver", name, "this host cannot use it: "+d.Err, nil)
			}
			return d, nil
		}
	}
	if name == "" {
		return DriverInfo{}, caisson.E(caisson.Unsupported, "choose driver", "", "no driver can be used on this host", nil).WithHint("`caisson doctor` says why")
	}
	return DriverInfo{}, caisson.E(caisson.Unsupported, "choose driver", name, "there is no such driver", nil)
}

// Stop implements Node.
func (n *Local) Stop(ctx context.Context, id caisson.SandboxID, epoch uint64) (Status, error) {
	const op = "stop sandbox"
	b := n.box(id, false)
	if b == nil {
		return Status{}, caisson.E(caisson.NotFound, op, string(id), "the node has nothing of it", nil)
	}
	ctx, end := b.begin(ctx)
	defer end()
	if err := b.fresh(op, epoch); err != nil {
		return b.peek(), err
	}
	b.mu.Lock()
	st, shim := b.st, b.shim
	b.mu.Unlock()
	if st.Phase != Up {
		b.clean(ctx)
		return b.set(func(s *Status) { s.Phase = Down }), nil
	}
	b.set(func(s *Status) { s.Phase = Stopping })
	rctx, cancel := within(ctx, stopLimit)
	defer cancel()
	stopInterrupt := context.AfterFunc(ctx, cancel)
	defer stopInterrupt()
	_, err := shim.shim.Stop(rctx, connect.NewRequest(&wire.StopRequest{GraceMillis: stopGrace.Milliseconds()}))
	if err != nil && b.answers() {
		b.set(func(s *Status) {
			if s.Phase == Stopping {
				s.Phase = Up
			}
		})
		return b.peek(), decode(op, string(id), err)
	}
	if err != nil { // the shim died while it saved
		b.clean(ctx)
		st := b.set(func(s *Status) { s.Phase, s.Reason = Ended, "shim lost" })
		return st, decode(op, string(id), err)
	}
	b.clean(ctx)
	return b.set(func(s *Status) { s.Phase, s.Reason, s.Detail = Down, "", "" }), nil
}

// answers reports whether the shim still says that its machine runs.
func (b *box) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	b.mu.Lock()
	c, epoch := b.shim, b.st.Epoch
	b.mu.Unlock()
	if c == nil {
		return false
	}
	st, err := c.hello(ctx, b.id, epoch)
	return err == nil && (st.State == "running" || st.State == "stopping")
}

// Delete implements Node.
func (n *Local) Delete(ctx context.Context, id caisson.SandboxID, epoch uint64) error {
	const op = "delete sandbox"
	if !id.Valid() {
		return caisson.E(caisson.Invalid, op, string(id), "not the id of a sandbox", nil)
	}
	b := n.box(id, false)
	if b == nil {
		b = newBox(n, id) // a directory or process may still be there
	}
	if err := b.fresh(op, epoch); err != nil {
		return err
	}
	b.interrupt(caisson.E(caisson.Canceled, op, string(id), "the sandbox is being deleted", nil))
	ctx, end := b.begin(ctx)
	defer end()
	if err := b.fresh(op, epoch); err != nil {
		return err
	}
	b.set(func(s *Status) { s.Phase = Deleted })
	b.kill(ctx)
	if err := b.clean(ctx); err != nil {
		return err
	}
	if err := removeAll(b.dir); err != nil {
		return caisson.E(caisson.Internal, op, string(id), "its directory could not be removed", err)
	}
	n.forget(b)
	return nil
}

// removeAll is os.RemoveAll, again when a process that was just killed had still made a file.
func removeAll(dir string) (err error) {
	for range 10 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// kill asks the shim to end at once.
func (b *box) kill(ctx context.Context) {
	b.mu.Lock()
	c := b.shim
	b.mu.Unlock()
	if c == nil {
		return
	}
	ctx, cancel := within(ctx, killLimit)
	defer cancel()
	if _, err := c.shim.Kill(ctx, connect.NewRequest(&wire.KillRequest{})); err != nil {
		b.n.log.Debug("shim did not answer Kill", "sandbox", b.id, "error", err)
	}
}

// clean ends every process of the sandbox and removes what is left of its life on the host but its directory. It is done
// whoever asked, and can be done again.
func (b *box) clean(ctx context.Context) error {
	b.mu.Lock()
	if b.follow != nil {
		b.follow()
		b.follow = nil
	}
	if b.shim != nil {
		b.shim.close()
		b.shim = nil
	}
	b.mu.Unlock()
	ctx, cancel := within(ctx, cleanLimit)
	defer cancel()
	if err := b.n.reap(ctx, b.id); err != nil {
		return caisson.E(caisson.Timeout, "clean up", string(b.id), "a process of the sandbox does not end", err)
	}
	if b.n.cgroups != nil {
		if err := b.n.cgroups.Remove(ctx, string(b.id)); err != nil {
			return caisson.E(caisson.Internal, "clean up", string(b.id), "its cgroup could not be removed", err)
		}
	}
	os.RemoveAll(filepath.Join(b.dir, wire.MachineDir))
	os.Remove(filepath.Join(b.dir, wire.SocketFile))
	return nil
}

// readSpec reads what the box was started with.
func readSpec(dir string) (Spec, error) {
	var s Spec
	b, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

// lastStatus is what the shim left when it ended; nil when it left nothing.
func lastStatus(dir string) *wire.Status {
	b, err := os.ReadFile(filepath.Join(dir, wire.StatusFile))
	if err != nil {
		return nil
	}
	st := &wire.Status{}
	if json.Unmarshal(b, st) != nil {
		return nil
	}
	return st
}
