package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/guest/agent"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/machine/fake"
	"github.com/caisson-sandbox/caisson/shim"
	"github.com/caisson-sandbox/caisson/shim/wire"
	"github.com/caisson-sandbox/caisson/test/testkit"
)

// A node's shims are processes; here they are this test, under another name, with fake machines. What a machine does is
// told by its template: "good" has an agent, "no-KIND" does not start for a reason of that kind.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "caisson-shim" {
		os.Exit(m.Run())
	}
	err := shim.Run(context.Background(), os.Args[1], shim.Options{Version: "test", Driver: func(c wire.Config) (machine.Driver, error) {
		d := &fake.Driver{Guest: guestOn}
		if kind, ok := strings.CutPrefix(filepath.Base(c.Root), "no-"); ok {
			return refusing{d, caisson.Kind(kind)}, nil
		}
		return d, nil
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// refusing is a driver that makes no machine.
type refusing struct {
	*fake.Driver
	kind caisson.Kind
}

func (r refusing) Start(_ context.Context, s machine.Spec) (machine.Machine, error) {
	s.Link.File.Close()
	return nil, caisson.E(r.kind, "start machine", s.ID, "it was told to fail", errors.New("the cause")).WithHint("the hint")
}

// guestOn runs the agent on a network of its own at the machine's end of the link. It ends with the process.
func guestOn(link *os.File) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	check := func(err tcpip.Error) {
		if err != nil {
			panic(err.String())
		}
	}
	fd, err := syscall.Dup(int(link.Fd()))
	must(err)
	must(syscall.SetNonblock(fd, true))
	st := stack.New(stack.Options{NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol}, TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol}})
	ep, err := fdbased.New(&fdbased.Options{FDs: []int{fd}, MTU: wire.LinkMTU, PacketDispatchMode: fdbased.RecvMMsg, TXChecksumOffload: true, RXChecksumOffload: true})
	must(err)
	check(st.CreateNIC(1, ep))
	addr := tcpip.AddrFrom4([4]byte{10, 0, 2, 2})
	check(st.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: addr, PrefixLen: wire.PrefixLen}}, stack.AddressProperties{}))
	st.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	rpc, err := gonet.ListenTCP(st, tcpip.FullAddress{NIC: 1, Port: wire.AgentPort}, ipv4.ProtocolNumber)
	must(err)
	fwd, err := gonet.ListenTCP(st, tcpip.FullAddress{NIC: 1, Port: wire.ForwardPort}, ipv4.ProtocolNumber)
	must(err)
	root, err := os.Getwd()
	must(err)
	go agent.New(agent.Config{Version: "test", Root: root}).Serve(context.Background(), rpc, fwd) // ends with the process
}

type rig struct {
	*Local
	t   *testing.T
	cfg Config
}

// newRig opens a node of its own. At the end its sandboxes are deleted and nothing of them may be left.
func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "csn") // short, as a socket's path must be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	images := filepath.Join(dir, "images")
	if err := os.Mkdir(images, 0o700); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, cfg: Config{
		StateDir: dir, Shim: filepath.Join(dir, "caisson-shim"), Agent: filepath.Join(images, "agent"), NoCgroup: true,
		Drivers: []machine.Driver{&fake.Driver{}},
		Template: func(digest string) (string, error) {
			if digest == "none" {
				return "", caisson.E(caisson.NotFound, "find image", digest, "it does not exist", nil)
			}
			p := filepath.Join(images, digest)
			return p, os.WriteFile(p, nil, 0o600)
		},
	}}
	if err := errors.Join(os.Symlink(self, r.cfg.Shim), os.WriteFile(r.cfg.Agent, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	r.open()
	t.Cleanup(func() {
		for _, st := range r.statuses() {
			if err := r.Delete(r.context(), st.Sandbox, st.Epoch); err != nil {
				t.Error(err)
			}
		}
		r.Close()
		entries, _ := os.ReadDir(r.root)
		for _, e := range entries {
			if id := caisson.SandboxID(e.Name()); id.Valid() {
				t.Errorf("the directory of %s is left", id)
			}
			if pids := testkit.ProcessesWith("caisson-shim", filepath.Join(r.root, e.Name())); len(pids) > 0 {
				t.Errorf("the shim of %s is left", e.Name())
			}
		}
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	n, err := Open(r.context(), r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Local = n
}

func (r *rig) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) statuses() []Status {
	r.t.Helper()
	all, err := r.Statuses(r.context())
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func spec(id caisson.SandboxID, epoch uint64, template string) Spec {
	return Spec{Sandbox: id, Epoch: epoch, TemplateDigest: template, Resources: caisson.Resources{MemoryMiB: 64}}
}

// up starts a life that must begin.
func (r *rig) up(id caisson.SandboxID, epoch uint64) Status {
	r.t.Helper()
	st, _, err := r.Start(r.context(), spec(id, epoch, "good"))
	if err != nil || st.Phase != Up || st.Epoch != epoch {
		console, _ := os.ReadFile(filepath.Join(r.root, string(id), "shim.err"))
		r.t.Fatalf("life %d of %s did not begin: %v, %v\n%s", epoch, id, st, err, console)
	}
	return st
}

func (r *rig) nothingOf(id caisson.SandboxID) {
	r.t.Helper()
	if exists(filepath.Join(r.root, string(id))) {
		r.t.Error("its directory is left")
	}
	if pids := r.shims(id); len(pids) > 0 {
		r.t.Errorf("its shims %v are left", pids)
	}
	if b := r.box(id, false); b != nil {
		r.t.Errorf("the node knows it as %v", b.peek())
	}
}

const boxID = caisson.SandboxID("sb0123456789abcdefgh")

// TestKindsCrossTheWire: a machine that does not start gives the caller an error of the same kind, with its message and
// hint, and nothing is left of the sandbox.
func TestKindsCrossTheWire(t *testing.T) {
	r := newRig(t)
	for _, k := range []caisson.Kind{
		caisson.Invalid, caisson.Denied, caisson.NotFound, caisson.Conflict, caisson.Exhausted, caisson.Unsupported, caisson.Unavailable,
		caisson.Timeout, caisson.Canceled, caisson.Internal,
	} {
		t.Run(string(k), func(t *testing.T) {
			_, _, err := r.Start(r.context(), spec(boxID, 1, "no-"+string(k)))
			var e *caisson.Error
			if !errors.As(err, &e) || e.Kind != k {
				t.Fatalf("it became %v", err)
			}
			if !strings.Contains(e.Error(), "it was told to fail") || !strings.Contains(e.Op, "boot") || e.Subject != string(boxID) {
				t.Errorf("it says %q", e.Error())
			}
			if k != caisson.Internal && (e.Hint != "the hint" || strings.Contains(e.User(), "the cause") && k != caisson.Unavailable) {
				t.Errorf("the user sees %q, %q", e.User(), e.Hint)
			}
			if k == caisson.Internal && strings.Contains(e.User(), "told") {
				t.Errorf("the user sees %q", e.User())
			}
			r.nothingOf(boxID)
		})
	}
}

// TestAStartFailsEarly: at each step before the machine's, the steps before are undone.
func TestAStartFailsEarly(t *testing.T) {
	for _, c := range []struct {
		name, template string
		edit           func(*rig)
		kind           caisson.Kind
		step           string
	}{
		{"no template", "none", nil, caisson.NotFound, "shim"},
		{"no shim", "good", func(r *rig) { r.Local.cfg.Shim += "-not-here" }, caisson.Internal, "shim"},
		{"a shim that ends", "good", func(r *rig) { r.Local.cfg.Shim = "/bin/false" }, caisson.Internal, "shim"},
		{"no place", "good", func(r *rig) {
			if err := os.Remove(r.root); err != nil {
				r.t.Fatal(err)
			}
			if err := os.WriteFile(r.root, nil, 0o600); err != nil {
				r.t.Fatal(err)
			}
		}, caisson.Internal, "directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if c.edit != nil {
				c.edit(r)
			}
			_, _, err := r.Start(r.context(), spec(boxID, 1, c.template))
			var e *caisson.Error
			if !errors.As(err, &e) || e.Kind != c.kind {
				t.Errorf("the error is %v", err)
			}
			if c.kind == caisson.Internal && (e == nil || !strings.HasSuffix(e.Op, c.step)) {
				t.Errorf("%v does not name the step %s", err, c.step)
			}
			r.nothingOf(boxID)
		})
	}
}

// TestUndoInReverse: every step that was begun is undone, the last first, also after one that could not be, and when
// the caller has gone.
func TestUndoInReverse(t *testing.T) {
	r := newRig(t)
	var order []string
	var steps []step
	for _, name := range []string{"one", "two", "three"} {
		steps = append(steps, step{name: name, undo: func(ctx context.Context) error {
			order = append(order, name)
			if _, ok := ctx.Deadline(); !ok {
				t.Error("the undo has no deadline")
			}
			if ctx.Err() != nil {
				t.Error("the undo ends with its caller")
			}
			return errors.New("it was told to fail")
		}})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	newBox(r.Local, boxID).undo(ctx, steps)
	if !slices.Equal(order, []string{"three", "two", "one"}) {
		t.Errorf("undone in the order %q", order)
	}
}

// TestALaterLifeFails: a life that does not begin leaves the disk and the status of the one before, and the next begins.
func TestALaterLifeFails(t *testing.T) {
	r := newRig(t)
	r.up(boxID, 1)
	if st, err := r.Stop(r.context(), boxID, 1); err != nil || st.Phase != Down {
		t.Fatalf("%v, %v", st, err)
	}
	dir := filepath.Join(r.root, string(boxID))
	disk := filepath.Join(dir, wire.DiskDir, "1")
	if !exists(disk) {
		t.Fatal("the disk was not saved")
	}
	if st, _, err := r.Start(r.context(), spec(boxID, 2, "no-unavailable")); !caisson.Is(err, caisson.Unavailable) || st.Phase != Down || st.Epoch != 1 {
		t.Errorf("life 2: %v, %v", st, err)
	}
	if !exists(disk) || exists(filepath.Join(dir, journalFile)) || exists(filepath.Join(dir, wire.MachineDir)) || exists(filepath.Join(dir, wire.SocketFile)) {
		entries, _ := os.ReadDir(dir)
		t.Errorf("after the failure there is %v", entries)
	}
	if pids := r.shims(boxID); len(pids) > 0 {
		t.Errorf("shims %v are left", pids)
	}
	r.up(boxID, 3)
	if _, _, err := r.Start(r.context(), spec(boxID, 2, "good")); !caisson.Is(err, caisson.Conflict) {
		t.Errorf("a life that is over gave %v", err)
	}
	if st, _, err := r.Start(r.context(), spec(boxID, 3, "good")); err != nil || st.Phase != Up {
		t.Errorf("the same start again gave %v, %v", st, err)
	}
}

// TestOpenAgain: a node takes over the shims that live, and a start that a node's death interrupted is undone.
func TestOpenAgain(t *testing.T) {
	r := newRig(t)
	r.up(boxID, 1)
	r.Close()
	const half = caisson.SandboxID("sbhalfhalfhalfhalf00")
	dir := filepath.Join(r.root, string(half))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b := newBox(r.Local, half)
	if err := errors.Join(writeJSON(filepath.Join(dir, specFile), spec(half, 4, "good")), b.journal(4, "shim")); err != nil {
		t.Fatal(err)
	}
	r.open()
	got := map[caisson.SandboxID]Status{}
	for _, st := range r.statuses() {
		got[st.Sandbox] = st
	}
	if st := got[boxID]; st.Phase != Up || st.Epoch != 1 {
		t.Errorf("the one that lives is %v", st)
	}
	if st := got[half]; st.Phase != Ended || st.Reason != "start interrupted" || st.Epoch != 4 || exists(filepath.Join(dir, journalFile)) {
		t.Errorf("the one that was interrupted is %v", st)
	}
}

// TestSweep: what no record owns goes, alive or not; what a record owns, what is new, and what is no sandbox's stays.
func TestSweep(t *testing.T) {
	r := newRig(t)
	const owned, orphan, dead, fresh = caisson.SandboxID("sbowned0000000000000"), caisson.SandboxID("sborphan000000000000"), caisson.SandboxID("sbdead00000000000000"), caisson.SandboxID("sbfresh0000000000000")
	for _, id := range []caisson.SandboxID{owned, orphan, fresh} {
		r.up(id, 2)
	}
	for _, d := range []string{string(dead), "not-a-sandbox", "..data"} {
		if err := os.MkdirAll(filepath.Join(r.root, d, "sub"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(r.cfg.StateDir, "precious")
	if err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Symlink(outside, filepath.Join(r.root, string(dead), "link"))); err != nil {
		t.Fatal(err)
	}
	for _, id := range []caisson.SandboxID{owned, orphan} { // as if nobody had asked for them for long
		b := r.box(id, false)
		b.mu.Lock()
		b.idle = time.Now().Add(-2 * settled)
		b.mu.Unlock()
	}
	removed, err := r.Sweep(r.context(), map[caisson.SandboxID]uint64{owned: 2})
	slices.Sort(removed)
	if err != nil || len(removed) != 2 || !strings.HasSuffix(removed[0], string(dead)) || !strings.HasSuffix(removed[1], string(orphan)) {
		t.Errorf("removed %q, %v", removed, err)
	}
	r.nothingOf(orphan)
	r.nothingOf(dead)
	for _, id := range []caisson.SandboxID{owned, fresh} {
		if st := r.box(id, false).peek(); st.Phase != Up || len(r.shims(id)) != 1 {
			t.Errorf("%s is %v", id, st)
		}
	}
	for _, p := range []string{filepath.Join(r.root, "not-a-sandbox", "sub"), filepath.Join(r.root, "..data", "sub"), outside} {
		if !exists(p) {
			t.Errorf("%s is gone", p)
		}
	}
	if removed, err := r.Sweep(r.context(), map[caisson.SandboxID]uint64{owned: 2}); err != nil || len(removed) > 0 {
		t.Errorf("the second sweep removed %q, %v", removed, err)
	}
}
