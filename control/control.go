// Package control makes what is wanted happen: it implements the service interfaces of package caisson over the contracts
// store and node.
//
// The store's row is what is wanted and known, the node does the work. Every change of a row is a step of lifecycle.Next,
// made by compare-and-set, so that a stale report of a node can never overwrite a newer life. Verbs of one sandbox are
// made one after the other; Delete cancels the one that runs and goes before those that wait. A verb goes on when its caller
// has gone, for two minutes at most (a stop for longer), and Run waits for it.
//
// Run is the loop: it reconciles rows with the node once, then follows what the node reports, deletes what has lived its
// time, and sweeps what no row owns.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/control/lifecycle"
	"github.com/caisson-sandbox/caisson/control/schedule"
	"github.com/caisson-sandbox/caisson/node"
	"github.com/caisson-sandbox/caisson/store"
)

const (
	verbLimit   = 2 * time.Minute  // of create, start and delete
	stopLimit   = 11 * time.Minute // a stop may have to write out a large disk
	stopGrace   = 10 * time.Second // for verbs that run when the server stops; then they are canceled
	sweepEvery  = 5 * time.Minute
	eventsKept  = 7 * 24 * time.Hour
	expireBatch = 100
)

// Config of a Control. All but Clock are needed.
type Config struct {
	Store     store.Store
	Node      node.Node
	Templates caisson.Templates
	Log       *slog.Logger
	Clock     func() time.Time // default time.Now
}

// Control implements caisson.Sandboxes.
type Control struct {
	cfg   Config
	log   *slog.Logger
	store store.Store
	node  node.Node
	keys  *keys
	feed  *events

	ready chan struct{} // closed when reconciled
	over  chan struct{} // closed when no more work is taken
	rearm chan struct{} // an end of life may have changed

	ledger ledger
	// gate is held for writing while the node is swept, and for reading while the row of a new life is written, so that a
	// sweep knows every life that the node has been asked for.
	gate sync.RWMutex

	life context.Context // ends what still runs after stopGrace
	kill context.CancelFunc

	mu      sync.Mutex
	verbs   map[caisson.SandboxID]*verb
	closing bool
	work    sync.WaitGroup // grows only under mu, while not closing
}

// New makes a Control. Run must be running for it to be ready.
func New(c Config) *Control {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	k := &Control{
		cfg: c, log: c.Log, store: c.Store, node: c.Node, ready: make(chan struct{}), over: make(chan struct{}), rearm: make(chan struct{}, 1),
		verbs: map[caisson.SandboxID]*verb{}, feed: &events{store: c.Store, change: make(chan struct{})},
		ledger: ledger{mib: map[caisson.SandboxID]int{}},
	}
	k.life, k.kill = context.WithCancel(context.Background())
	k.keys = newKeys(c.Store, c.Clock)
	return k
}

// Keys is the service of API keys.
func (c *Control) Keys() caisson.Keys { return c.keys }

// Events is the log of events.
func (c *Control) Events() caisson.Events { return c.feed }

// Ready says why the rows are not reconciled with the node yet, or that the server stops; nil in between.
func (c *Control) Ready(context.Context) error {
	select {
	case <-c.over:
		return errStopping
	default:
	}
	select {
	case <-c.ready:
		return nil
	default:
		return caisson.E(caisson.Unavailable, "start", "", "the sandboxes of an earlier server are being taken over", nil).WithHint("try again in a moment")
	}
}

// Stats counts sandboxes by state.
func (c *Control) Stats(ctx context.Context) (map[caisson.State]int, error) {
	return c.store.Sandboxes().Count(ctx)
}

// TemplatesInUse gives the digests that sandboxes were made from.
func (c *Control) TemplatesInUse(ctx context.Context) (map[string]bool, error) {
	ds, err := c.store.Sandboxes().Digests(ctx)
	used := map[string]bool{}
	for _, d := range ds {
		used[d] = true
	}
	return used, err
}

var eventTypes = map[caisson.State]string{
	caisson.Running: "sandbox.running", caisson.Stopped: "sandbox.stopped", caisson.Failed: "sandbox.failed",
}

// move makes one step of the life: the row goes to the state that follows, if it is still at the epoch.
func (c *Control) move(ctx context.Context, sb caisson.Sandbox, e lifecycle.Event, edit func(*caisson.Sandbox)) (caisson.Sandbox, []lifecycle.Action, error) {
	next, actions, err := lifecycle.Next(sb.State, e)
	if err != nil {
		return sb, nil, err
	}
	if next == sb.State && edit == nil {
		return sb, actions, nil
	}
	var evs []caisson.Event
	if t := eventTypes[next]; t != "" && next != sb.State {
		evs = append(evs, caisson.Event{Type: t})
	}
	from := sb.State
	out, err := c.store.Sandboxes().Update(ctx, sb.ID, store.Expect{Epoch: sb.Epoch}, func(r *caisson.Sandbox) error {
		if r.State != from {
			return caisson.E(caisson.Conflict, string(e), string(sb.ID), fmt.Sprintf("it became %s meanwhile", r.State), nil)
		}
		r.State = next
		if edit != nil {
			edit(r)
		}
		for i := range evs {
			if r.Reason != "" {
				evs[i].Data = map[string]string{"reason": r.Reason}
			}
		}
		return nil
	}, evs...)
	if err == nil {
		c.ledger.account(out)
		c.feed.wake()
	}
	return out, actions, err
}

func spec(sb caisson.Sandbox) node.Spec {
	host := sb.Config.Name
	if host == "" {
		host = string(sb.ID)
	}
	return node.Spec{
		Sandbox: sb.ID, Epoch: sb.Epoch, Team: sb.Team, TemplateDigest: sb.TemplateDigest, Driver: sb.Driver, Resources: sb.Config.Resources,
		Hostname: host, User: sb.Config.User, Cwd: sb.Config.Cwd, Env: sb.Config.Env,
	}
}

// report takes what the node says of a life over into the row.
func report(st node.Status) func(*caisson.Sandbox) {
	return func(sb *caisson.Sandbox) {
		if st.Driver != "" {
			sb.Driver, sb.DriverVersion = st.Driver, st.DriverVersion
		}
		if st.Isolation != "" {
			sb.Isolation = st.Isolation
		}
		if st.DiskDurability != "" {
			sb.DiskDurability = st.DiskDurability
		}
	}
}

// started is report, and the begin of a life.
func (c *Control) started(st node.Status) func(*caisson.Sandbox) {
	return func(sb *caisson.Sandbox) {
		report(st)(sb)
		sb.Reason, sb.StartedAt = "", c.cfg.Clock().UTC()
	}
}

// place admits a sandbox, reserves its memory and chooses its driver; then take writes the row that has the memory.
func (c *Control) place(ctx context.Context, id caisson.SandboxID, cfg caisson.SandboxConfig, take func(schedule.Driver) error) error {
	info, err := c.node.Info(ctx)
	if err != nil {
		return err
	}
	v := schedule.View{Default: info.Default, MemoryMiB: info.MemoryMiB}
	for _, d := range info.Drivers {
		v.Drivers = append(v.Drivers, schedule.Driver{Name: d.Name, Version: d.Version, Isolation: d.Isolation, Err: d.Err})
	}
	mib := cfg.Resources.WithDefaults().MemoryMiB
	var d schedule.Driver
	err = c.ledger.reserve(id, mib, func(used int) error {
		v.MemoryUsedMiB = used
		d, err = schedule.Place(v, schedule.Request{Driver: cfg.Driver, MemoryMiB: mib})
		return err
	})
	if err != nil {
		return err
	}
	c.gate.RLock()
	defer c.gate.RUnlock()
	if err := take(d); err != nil {
		c.ledger.release(id)
		return err
	}
	return nil
}

// subject adds the sandbox to an error that names none.
func subject(op string, id string, err error) error {
	var e *caisson.Error
	if err == nil || !errors.As(err, &e) || e.Subject != "" {
		return err
	}
	k := *e
	k.Op, k.Subject = op, id
	return &k
}
