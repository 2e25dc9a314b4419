package control

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/node"
	"github.com/caisson-sandbox/caisson/store"
	"github.com/caisson-sandbox/caisson/store/sqlite"
)

// fakeNode is a node whose sandboxes are their statuses.
type fakeNode struct {
	mu       sync.Mutex
	boxes    map[caisson.SandboxID]node.Status
	startErr error
	hang     chan struct{} // Start waits for it, or for its context
	memory   int
	changes  chan node.Status
	swept    map[caisson.SandboxID]uint64
}

func newFakeNode() *fakeNode {
	return &fakeNode{boxes: map[caisson.SandboxID]node.Status{}, memory: 4096, changes: make(chan node.Status)}
}

func (n *fakeNode) Info(context.Context) (node.Info, error) {
	return node.Info{Drivers: []node.DriverInfo{{Name: "fake", Isolation: caisson.IsolationNone}}, Default: "fake", MemoryMiB: n.memory}, nil
}

func (n *fakeNode) Start(ctx context.Context, s node.Spec) (node.Status, []caisson.Timing, error) {
	n.mu.Lock()
	hang, err := n.hang, n.startErr
	n.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return node.Status{}, nil, context.Cause(ctx)
		}
	}
	if err != nil {
		return node.Status{}, nil, err
	}
	st := node.Status{Sandbox: s.Sandbox, Epoch: s.Epoch, Phase: node.Up, Driver: "fake", DriverVersion: "1", DiskDurability: "machine"}
	n.set(st)
	return st, []caisson.Timing{{Name: "machine", Dur: time.Millisecond}}, nil
}

func (n *fakeNode) set(st node.Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.boxes[st.Sandbox] = st
}

func (n *fakeNode) get(id caisson.SandboxID) (node.Status, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	st, ok := n.boxes[id]
	return st, ok
}

func (n *fakeNode) Stop(_ context.Context, id caisson.SandboxID, epoch uint64) (node.Status, error) {
	st, ok := n.get(id)
	if !ok {
		return st, caisson.E(caisson.NotFound, "stop", string(id), "nothing", nil)
	}
	st.Phase = node.Down
	n.set(st)
	return st, nil
}

func (n *fakeNode) Delete(_ context.Context, id caisson.SandboxID, epoch uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.boxes, id)
	return nil
}

func (n *fakeNode) Guest(context.Context, caisson.SandboxID, uint64) (caisson.Guest, error) {
	return fakeGuest{}, nil
}

func (n *fakeNode) Statuses(context.Context) ([]node.Status, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []node.Status
	for _, st := range n.boxes {
		all = append(all, st)
	}
	return all, nil
}

func (n *fakeNode) Watch(context.Context) (<-chan node.Status, error) { return n.changes, nil }

func (n *fakeNode) Sweep(_ context.Context, keep map[caisson.SandboxID]uint64) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.swept = keep
	for id := range n.boxes {
		if _, ok := keep[id]; !ok {
			delete(n.boxes, id)
		}
	}
	return nil, nil
}

type fakeGuest struct{ caisson.Guest }

func (fakeGuest) Commands(context.Context) ([]caisson.Command, error) { return nil, nil }
func (fakeGuest) StartCommand(context.Context, caisson.CommandSpec) (caisson.Command, error) {
	return caisson.Command{ID: "cmd"}, nil
}

type fakeTemplates struct{}

func (fakeTemplates) List(context.Context) ([]caisson.Template, error) { return nil, nil }
func (fakeTemplates) Resolve(_ context.Context, ref string) (caisson.Template, error) {
	if ref != "base" {
		return caisson.Template{}, caisson.E(caisson.NotFound, "resolve", ref, "no such template", nil)
	}
	return caisson.Template{Name: "base:latest", Digest: "sha256:base", User: "user", Env: map[string]string{"FROM": "template", "BOTH": "template"}}, nil
}

func (fakeTemplates) Import(context.Context, string, io.Reader) (caisson.Template, error) {
	return caisson.Template{}, nil
}
func (fakeTemplates) Remove(context.Context, string) error { return nil }

type rig struct {
	*Control
	t     testing.TB
	node  *fakeNode
	store store.Store
	path  string
	stop  func()
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, node: newFakeNode(), path: filepath.Join(t.TempDir(), "caisson.db")}
	r.open()
	return r
}

// open starts a Control on the rig's records and node; a second open is a restarted server.
func (r *rig) open() {
	r.t.Helper()
	s, err := sqlite.Open(context.Background(), r.path, time.Now)
	if err != nil {
		r.t.Fatal(err)
	}
	r.store = s
	r.Control = New(Config{Store: s, Node: r.node, Templates: fakeTemplates{}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	r.node.changes = make(chan node.Status)
	changes := r.node.changes
	go func() { done <- r.Run(ctx) }() // waited for in stop
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			close(changes)
			<-done
			s.Close()
		})
	}
	r.t.Cleanup(r.stop)
	r.until("ready", func() bool { return r.Ready(ctx) == nil })
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.t.Fatalf("never: %s", what)
}

func (r *rig) make(cfg caisson.SandboxConfig) caisson.Sandbox {
	r.t.Helper()
	sb, timings, err := r.Create(context.Background(), caisson.DefaultTeam, cfg, "")
	if err != nil {
		r.t.Fatal(err)
	}
	if len(timings) == 0 {
		r.t.Error("no timings")
	}
	return sb
}

func (r *rig) state(id caisson.SandboxID) caisson.State {
	sb, err := r.Get(context.Background(), caisson.DefaultTeam, string(id))
	if err != nil {
		return ""
	}
	return sb.State
}

func TestLife(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	sb := r.make(caisson.SandboxConfig{Name: "one", Env: map[string]string{"BOTH": "mine"}})
	if sb.State != caisson.Running || sb.Epoch != 1 || sb.Driver != "fake" || sb.Config.User != "user" || sb.Config.Env["FROM"] != "template" || sb.Config.Env["BOTH"] != "mine" || sb.Config.Resources.MemoryMiB != caisson.DefaultMemoryMiB {
		t.Errorf("made %+v", sb)
	}
	if sb, err := r.Stop(ctx, caisson.DefaultTeam, "one"); err != nil || sb.State != caisson.Stopped {
		t.Errorf("stop: %v %v", sb.State, err)
	}
	g, err := r.Guest(ctx, caisson.DefaultTeam, "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Commands(ctx); err != nil {
		t.Errorf("commands of a stopped sandbox: %v", err)
	}
	if _, err := g.StartCommand(ctx, caisson.CommandSpec{}); !caisson.Is(err, caisson.Conflict) {
		t.Errorf("a command in a stopped sandbox: %v", err)
	}
	if sb, _, err := r.Start(ctx, caisson.DefaultTeam, "one"); err != nil || sb.Epoch != 2 || sb.State != caisson.Running {
		t.Errorf("start: %+v %v", sb, err)
	}
	if err := r.Delete(ctx, caisson.DefaultTeam, "one"); err != nil {
		t.Error(err)
	}
	if _, ok := r.node.get(sb.ID); ok || r.state(sb.ID) != "" {
		t.Error("something is left")
	}
	evs, _ := r.Events().List(ctx, caisson.DefaultTeam, 0, sb.ID, 100)
	var types []string
	for _, e := range evs {
		types = append(types, e.Type)
	}
	want := []string{"sandbox.created", "sandbox.running", "sandbox.stopped", "sandbox.running", "sandbox.deleted"}
	if len(types) != len(want) {
		t.Fatalf("events %v", types)
	}
	for i := range want {
		if types[i] != want[i] {
			t.Errorf("events %v", types)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		cfg  caisson.SandboxConfig
		kind caisson.Kind
	}{
		"name":      {caisson.SandboxConfig{Name: "../x"}, caisson.Invalid},
		"id":        {caisson.SandboxConfig{Name: string(caisson.NewSandboxID())}, caisson.Invalid},
		"env":       {caisson.SandboxConfig{Env: map[string]string{"A=B": ""}}, caisson.Invalid},
		"memory":    {caisson.SandboxConfig{Resources: caisson.Resources{MemoryMiB: 1}}, caisson.Invalid},
		"too much":  {caisson.SandboxConfig{Resources: caisson.Resources{MemoryMiB: 5000}}, caisson.Exhausted},
		"template":  {caisson.SandboxConfig{Template: "none"}, caisson.NotFound},
		"driver":    {caisson.SandboxConfig{Driver: "none"}, caisson.Unsupported},
		"lifetime":  {caisson.SandboxConfig{MaxLifetime: -1}, caisson.Invalid},
		"directory": {caisson.SandboxConfig{Cwd: "a\x00b"}, caisson.Invalid},
	} {
		if _, _, err := r.Create(context.Background(), caisson.DefaultTeam, c.cfg, ""); !caisson.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, _ := r.List(context.Background(), caisson.DefaultTeam, caisson.SandboxFilter{}); len(p.Sandboxes) != 0 {
		t.Errorf("left %v", p.Sandboxes)
	}
}

// TestFailedCreateLeavesNothing: no row, and the idempotency key works again.
func TestFailedCreateLeavesNothing(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	r.node.startErr = caisson.E(caisson.Internal, "start", "", "it broke", errors.New("cause"))
	if _, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{}, "key"); !caisson.Is(err, caisson.Internal) {
		t.Errorf("%v", err)
	}
	if p, _ := r.List(ctx, caisson.DefaultTeam, caisson.SandboxFilter{}); len(p.Sandboxes) != 0 {
		t.Errorf("left %v", p.Sandboxes)
	}
	r.node.startErr = nil
	first, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{}, "key")
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{}, "key")
	if err != nil || again.ID != first.ID {
		t.Errorf("%s and %s, %v", first.ID, again.ID, err)
	}
	if _, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{Name: "other"}, "key"); !caisson.Is(err, caisson.Conflict) {
		t.Errorf("another config: %v", err)
	}
}

// TestDeleteDuringCreate: delete does not wait for a start that hangs.
func TestDeleteDuringCreate(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	r.node.hang = make(chan struct{})
	failed := make(chan error, 1)
	go func() { // waited for below
		_, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{Name: "x"}, "")
		failed <- err
	}()
	r.until("the row is there", func() bool { _, err := r.Get(ctx, caisson.DefaultTeam, "x"); return err == nil })
	if err := r.Delete(ctx, caisson.DefaultTeam, "x"); err != nil {
		t.Error(err)
	}
	if err := <-failed; !caisson.Is(err, caisson.Canceled) {
		t.Errorf("create: %v", err)
	}
	if p, _ := r.List(ctx, caisson.DefaultTeam, caisson.SandboxFilter{}); len(p.Sandboxes) != 0 {
		t.Errorf("left %v", p.Sandboxes)
	}
}

// TestCallerLeaves: the work goes on.
func TestCallerLeaves(t *testing.T) {
	r := newRig(t)
	r.node.hang = make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{Name: "x"}, ""); !caisson.Is(err, caisson.Timeout) {
		t.Errorf("%v", err)
	}
	close(r.node.hang)
	r.until("it runs", func() bool {
		sb, err := r.Get(context.Background(), caisson.DefaultTeam, "x")
		return err == nil && sb.State == caisson.Running
	})
}

// TestEndedByItself: a report of the current life counts, one of an older life does not.
func TestEndedByItself(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	sb := r.make(caisson.SandboxConfig{})
	r.node.changes <- node.Status{Sandbox: sb.ID, Epoch: sb.Epoch, Phase: node.Ended, Reason: "oom"}
	r.until("failed", func() bool { return r.state(sb.ID) == caisson.Failed })
	if got, _ := r.Get(ctx, caisson.DefaultTeam, string(sb.ID)); got.Reason != "oom" {
		t.Errorf("reason %q", got.Reason)
	}
	if _, _, err := r.Start(ctx, caisson.DefaultTeam, string(sb.ID)); err != nil {
		t.Fatal(err)
	}
	r.node.changes <- node.Status{Sandbox: sb.ID, Epoch: 1, Phase: node.Ended, Reason: "late"}
	other := r.make(caisson.SandboxConfig{})
	r.node.changes <- node.Status{Sandbox: other.ID, Epoch: 1, Phase: node.Ended, Reason: "exited"}
	r.until("stopped", func() bool { return r.state(other.ID) == caisson.Stopped })
	if r.state(sb.ID) != caisson.Running {
		t.Error("a report of an older life changed the sandbox")
	}
}

// TestReconcile restarts the server on what it left.
func TestReconcile(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	runs, died, gone := r.make(caisson.SandboxConfig{}), r.make(caisson.SandboxConfig{}), r.make(caisson.SandboxConfig{})
	half := map[caisson.State]caisson.Sandbox{}
	for _, s := range []caisson.State{caisson.Creating, caisson.Stopping, caisson.Deleting, caisson.Waking} {
		sb := r.make(caisson.SandboxConfig{})
		if _, err := r.store.Sandboxes().Update(ctx, sb.ID, store.Expect{}, func(x *caisson.Sandbox) error { x.State = s; return nil }); err != nil {
			t.Fatal(err)
		}
		half[s] = sb
	}
	r.stop()
	r.node.set(node.Status{Sandbox: died.ID, Epoch: 1, Phase: node.Ended, Reason: "killed"})
	r.node.Delete(ctx, gone.ID, 1)
	orphan := caisson.NewSandboxID()
	r.node.set(node.Status{Sandbox: orphan, Epoch: 1, Phase: node.Up})
	r.node.Delete(ctx, half[caisson.Waking].ID, 1)
	r.open()
	for id, want := range map[caisson.SandboxID]caisson.State{
		runs.ID: caisson.Running, died.ID: caisson.Failed, gone.ID: caisson.Failed, half[caisson.Creating].ID: caisson.Running,
		half[caisson.Stopping].ID: caisson.Stopped, half[caisson.Deleting].ID: "", half[caisson.Waking].ID: caisson.Stopped,
	} {
		if got := r.state(id); got != want {
			t.Errorf("%s is %q, want %q", id, got, want)
		}
	}
	if _, ok := r.node.get(orphan); ok {
		t.Error("what no row owns is still there")
	}
}

func TestExpiry(t *testing.T) {
	r := newRig(t)
	sb := r.make(caisson.SandboxConfig{MaxLifetime: 50 * time.Millisecond})
	long := r.make(caisson.SandboxConfig{MaxLifetime: time.Hour})
	r.until("deleted", func() bool { return r.state(sb.ID) == "" })
	if r.state(long.ID) != caisson.Running {
		t.Error("one that has not lived its time was deleted")
	}
	soon := time.Millisecond
	if _, err := r.Update(context.Background(), caisson.DefaultTeam, string(long.ID), caisson.SandboxPatch{MaxLifetime: &soon}); err != nil {
		t.Fatal(err)
	}
	r.until("deleted", func() bool { return r.state(long.ID) == "" })
}

func TestUpdate(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	sb := r.make(caisson.SandboxConfig{Metadata: map[string]string{"a": "1", "b": "2"}})
	x, name := "3", "named"
	got, err := r.Update(ctx, caisson.DefaultTeam, string(sb.ID), caisson.SandboxPatch{Name: &name, Metadata: map[string]*string{"a": nil, "c": &x}, Revision: sb.Revision})
	if err != nil || got.Config.Name != "named" || got.Config.Metadata["c"] != "3" || got.Config.Metadata["a"] != "" || got.Config.Metadata["b"] != "2" {
		t.Errorf("%+v %v", got.Config, err)
	}
	if _, err := r.Update(ctx, caisson.DefaultTeam, string(sb.ID), caisson.SandboxPatch{Revision: sb.Revision}); !caisson.Is(err, caisson.Conflict) {
		t.Errorf("an old revision: %v", err)
	}
	if _, err := r.Get(ctx, "other", string(sb.ID)); !caisson.Is(err, caisson.NotFound) {
		t.Errorf("another team's: %v", err)
	}
}

func TestKeysExpireAndGo(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	k, text, err := r.Keys().Create(ctx, caisson.DefaultTeam, "k", []caisson.Scope{caisson.ScopeRead}, 30*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Keys().Authenticate(ctx, text)
	if err != nil || !p.Has(caisson.ScopeRead) || p.Has(caisson.ScopeWrite) || p.Team != caisson.DefaultTeam {
		t.Errorf("%+v %v", p, err)
	}
	r.until("expired", func() bool { _, err := r.Keys().Authenticate(ctx, text); return caisson.Is(err, caisson.Denied) })
	if err := r.Keys().Delete(ctx, caisson.DefaultTeam, k.ID); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "csn_x", string(make([]byte, 1000))} {
		if _, err := r.Keys().Authenticate(ctx, bad); !caisson.Is(err, caisson.Denied) {
			t.Errorf("%.10q: %v", bad, err)
		}
	}
}
