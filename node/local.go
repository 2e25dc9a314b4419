package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/internal/cgroup"
	"github.com/caisson-sandbox/caisson/machine"
)

// sandboxesDir holds one directory a sandbox in the state directory.
const sandboxesDir = "sandboxes"

// Config of a Local. All fields without a default are needed.
type Config struct {
	StateDir string // absolute
	Shim     string // the caisson-shim executable
	Sentry   string // the caisson-sentry executable
	Agent    string // EROFS image of the agent
	// Template gives the EROFS image of a template's digest.
	Template func(digest string) (string, error)
	Drivers  []machine.Driver // the default first
	Log      *slog.Logger
	// NoCgroup leaves all limits to the driver, as where no cgroup may be written.
	NoCgroup bool
	// MemoryMiB that may be given to sandboxes; default: what the host or its cgroup has, less a tenth and 256 MiB.
	MemoryMiB int
	// LogCapBytes kept of one command's output; default 64 MiB.
	LogCapBytes int64
}

// Local runs sandboxes on this machine, each with a shim of its own.
type Local struct {
	cfg     Config
	root    string // StateDir/sandboxes
	log     *slog.Logger
	cgroups *cgroup.Tree // nil: none may be written, noCgroup says why
	noGroup string
	drivers map[string]DriverInfo
	order   []string

	ctx  context.Context // of the followers
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	boxes    map[caisson.SandboxID]*box
	watchers map[*watcher]struct{}
}

// Open starts the node on its state directory: it finishes or undoes what was interrupted and adopts every shim.
func Open(ctx context.Context, c Config) (*Local, error) {
	n := &Local{cfg: c, root: filepath.Join(c.StateDir, sandboxesDir), log: c.Log, boxes: map[caisson.SandboxID]*box{}, watchers: map[*watcher]struct{}{}, drivers: map[string]DriverInfo{}}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(n.root, 0o700); err != nil {
		return nil, caisson.E(caisson.Unavailable, "open node", n.root, "the state directory cannot be written", err)
	}
	n.openCgroups()
	for _, d := range c.Drivers {
		i := d.Info()
		di := DriverInfo{Name: i.Name, Version: i.Version, Isolation: i.Isolation}
		if err := d.Check(ctx); err != nil {
			di.Err = err.Error()
			var e *caisson.Error
			if errors.As(err, &e) && e.Hint != "" {
				di.Err += "; " + e.Hint
			}
		}
		n.drivers[i.Name] = di
		n.order = append(n.order, i.Name)
	}
	if n.cfg.MemoryMiB == 0 {
		n.cfg.MemoryMiB = hostMemoryMiB()
	}
	n.ctx, n.stop = context.WithCancel(context.Background())
	if err := n.adopt(ctx); err != nil {
		n.stop()
		return nil, err
	}
	return n, nil
}

func (n *Local) openCgroups() {
	if n.cfg.NoCgroup {
		n.noGroup = "switched off"
		return
	}
	sum := sha256.Sum256([]byte(n.root))
	t, err := cgroup.Open("caisson-" + hex.EncodeToString(sum[:4]))
	if err != nil {
		n.noGroup = err.Error()
		n.log.Info("no cgroup may be written: limits are kept by the driver alone", "reason", err)
		return
	}
	n.cgroups = t
}

// hostMemoryMiB is what sandboxes may have in all.
func hostMemoryMiB() int {
	total := int64(1 << 30)
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb int64
		if k, _ := fmt.Sscanf(string(b), "MemTotal: %d kB", &kb); k == 1 {
			total = kb << 10
		}
	}
	if l := cgroup.MemoryLimit(); l > 0 {
		total = min(total, l)
	}
	return int(max(total-total/10-256<<20, 64<<20) >> 20)
}

// Close lets go of the shims, which go on.
func (n *Local) Close() error {
	n.stop()
	n.wg.Wait()
	if n.cgroups != nil {
		n.cgroups.Close()
	}
	return nil
}

// Info implements Node.
func (n *Local) Info(context.Context) (Info, error) {
	i := Info{MemoryMiB: n.cfg.MemoryMiB, Cgroup: "none: " + n.noGroup}
	if n.cgroups != nil {
		i.Cgroup = n.cgroups.Version()
	}
	for _, name := range n.order {
		d := n.drivers[name]
		if i.Default == "" && d.Err == "" {
			i.Default = name
		}
		i.Drivers = append(i.Drivers, d)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.boxes {
		if st := b.peek(); st.Phase == Starting || st.Phase == Up || st.Phase == Stopping {
			i.MemoryUsedMiB += b.memory()
		}
	}
	return i, nil
}

// box finds the sandbox, or makes it.
func (n *Local) box(id caisson.SandboxID, make bool) *box {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.boxes[id]
	if b == nil && make {
		b = newBox(n, id)
		n.boxes[id] = b
	}
	return b
}

func (n *Local) forget(b *box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.boxes[b.id] == b {
		delete(n.boxes, b.id)
	}
}

func (n *Local) all() []*box {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]*box, 0, len(n.boxes))
	for _, b := range n.boxes {
		all = append(all, b)
	}
	return all
}

// Statuses implements Node.
func (n *Local) Statuses(context.Context) ([]Status, error) {
	var all []Status
	for _, b := range n.all() {
		if st := b.peek(); st.Phase != "" && st.Phase != Deleted {
			all = append(all, st)
		}
	}
	return all, nil
}

// watcher is one reader of changes; they are kept by sandbox until it takes them.
type watcher struct {
	mu      sync.Mutex
	pending map[caisson.SandboxID]Status
	wake    chan struct{}
}

// Watch implements Node.
func (n *Local) Watch(ctx context.Context) (<-chan Status, error) {
	w := &watcher{pending: map[caisson.SandboxID]Status{}, wake: make(chan struct{}, 1)}
	n.mu.Lock()
	n.watchers[w] = struct{}{}
	n.mu.Unlock()
	out := make(chan Status)
	n.wg.Go(func() {
		defer close(out)
		defer func() {
			n.mu.Lock()
			delete(n.watchers, w)
			n.mu.Unlock()
		}()
		for {
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			case <-n.ctx.Done():
				return
			}
			w.mu.Lock()
			batch := w.pending
			w.pending = map[caisson.SandboxID]Status{}
			w.mu.Unlock()
			for _, st := range batch {
				select {
				case out <- st:
				case <-ctx.Done():
					return
				case <-n.ctx.Done():
					return
				}
			}
		}
	})
	return out, nil
}

func (n *Local) publish(st Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.watchers {
		w.mu.Lock()
		w.pending[st.Sandbox] = st
		w.mu.Unlock()
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// writeJSON replaces a file of the sandbox's directory in one step.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// within bounds a piece of work that must be done whoever asked for it.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}
