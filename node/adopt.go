package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/internal/procfs"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

// adopt takes over what an earlier server left: shims that live, lives that ended meanwhile, starts that were interrupted.
func (n *Local) adopt(ctx context.Context) error {
	entries, err := os.ReadDir(n.root)
	if err != nil {
		return caisson.E(caisson.Unavailable, "open node", n.root, "the state directory cannot be read", err)
	}
	var wg sync.WaitGroup
	gate := make(chan struct{}, 16)
	for _, e := range entries {
		id := caisson.SandboxID(e.Name())
		if !id.Valid() {
			continue
		}
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			n.adoptOne(ctx, n.box(id, true))
		})
	}
	wg.Wait()
	return nil
}

func (n *Local) adoptOne(ctx context.Context, b *box) {
	ctx, end := b.begin(ctx)
	defer end()
	spec, err := readSpec(b.dir)
	if err != nil || spec.Sandbox != b.id {
		n.log.Warn("a sandbox's directory has no usable spec; it can only be deleted", "sandbox", b.id, "error", err)
		b.set(func(s *Status) { s.Phase, s.Reason = Ended, "spec lost" })
		b.clean(ctx)
		return
	}
	b.mu.Lock()
	b.spec = spec
	b.st = Status{Sandbox: b.id, Epoch: spec.Epoch, Driver: spec.Driver}
	b.mu.Unlock()
	c := newShimClient(filepath.Join(b.dir, wire.SocketFile))
	st, err := b.greet(ctx, c, spec.Epoch)
	switch {
	case err == nil && st.State == "running" && !b.interrupted():
		b.mu.Lock()
		b.shim = c
		b.mu.Unlock()
		b.up(st)
		n.log.Info("sandbox adopted", "sandbox", b.id, "epoch", spec.Epoch)
		return
	case err == nil && st.State == "running":
		// The machine came up and only the note of it is missing: the caller's record decides.
		b.mu.Lock()
		b.shim = c
		b.mu.Unlock()
		b.finishJournal()
		b.up(st)
		n.log.Info("a start that a server's death interrupted was finished", "sandbox", b.id)
		return
	case err == nil && st.State == "stopping":
		b.mu.Lock()
		b.shim = c
		b.mu.Unlock()
		b.up(st) // the follower sees its end
		return
	case err == nil:
		b.mu.Lock()
		b.shim = c
		b.mu.Unlock()
		b.kill(ctx)
	}
	if b.interrupted() {
		b.clean(ctx)
		b.finishJournal()
		b.set(func(s *Status) { s.Phase, s.Reason = Ended, "start interrupted" })
		n.log.Info("a start that a server's death interrupted was undone", "sandbox", b.id)
		return
	}
	if err := b.clean(ctx); err != nil {
		n.log.Error("clean-up failed; the sweeper goes on", "sandbox", b.id, "error", err)
	}
	b.set(func(s *Status) { endOf(s, lastStatus(b.dir)) })
}

// greet asks the shim who it is. A busy shim gets several tries as long as its process lives.
func (b *box) greet(ctx context.Context, c *shimClient, epoch uint64) (*wire.Status, error) {
	for try := 0; ; try++ {
		hctx, cancel := context.WithTimeout(ctx, helloLimit)
		st, err := c.hello(hctx, b.id, epoch)
		cancel()
		if err == nil || try == 3 || len(b.n.shims(b.id)) == 0 {
			return st, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// shims lists the shim processes of a sandbox.
func (n *Local) shims(id caisson.SandboxID) []int {
	var all []int
	dir := filepath.Join(n.root, string(id))
	for _, pid := range procfs.PIDs() {
		if a := procfs.Args(pid); len(a) == 2 && a[1] == dir && filepath.Base(a[0]) == "caisson-shim" {
			all = append(all, pid)
		}
	}
	return all
}

// processes finds the sandbox each process of this node belongs to: shims by their argument, sentries and their callers
// by the id in theirs and by their working directory.
func (n *Local) processes() map[caisson.SandboxID][]int {
	all := map[caisson.SandboxID][]int{}
	for _, pid := range procfs.PIDs() {
		args := procfs.Args(pid)
		if len(args) == 0 || pid == os.Getpid() {
			continue
		}
		name := filepath.Base(args[0])
		switch {
		case name == "caisson-shim" && len(args) == 2 && filepath.Dir(args[1]) == n.root:
			all[caisson.SandboxID(filepath.Base(args[1]))] = append(all[caisson.SandboxID(filepath.Base(args[1]))], pid)
		case strings.HasPrefix(name, "runsc"), name == "caisson-sentry":
			if id := n.ownerOf(pid, args); id != "" {
				all[id] = append(all[id], pid)
			}
		}
	}
	return all
}

func (n *Local) ownerOf(pid int, args []string) caisson.SandboxID {
	if rest, ok := strings.CutPrefix(procfs.Cwd(pid), n.root+"/"); ok {
		id, _, _ := strings.Cut(rest, "/")
		return caisson.SandboxID(id)
	}
	for _, a := range args {
		if id := caisson.SandboxID(a); id.Valid() && n.box(id, false) != nil {
			return id
		}
	}
	return ""
}

// reap kills every process of the sandbox and waits until none is left.
func (n *Local) reap(ctx context.Context, id caisson.SandboxID) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		pids := n.processes()[id]
		if n.cgroups != nil {
			pids = append(pids, n.cgroups.PIDs(string(id))...)
		}
		pids = slices.DeleteFunc(pids, func(pid int) bool { return procfs.Start(pid) == "" })
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v: %w", pids, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// settled is how long a sandbox must have been left alone before the sweeper may take it for an orphan.
const settled = time.Minute

// Sweep implements Node.
func (n *Local) Sweep(ctx context.Context, keep map[caisson.SandboxID]uint64) ([]string, error) {
	var removed []string
	wanted := func(id caisson.SandboxID) bool {
		if _, ok := keep[id]; ok {
			return true
		}
		b := n.box(id, false)
		if b == nil {
			return false
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.cancel != nil || time.Since(b.idle) < settled
	}
	orphans := map[caisson.SandboxID]string{}
	entries, err := os.ReadDir(n.root)
	if err != nil {
		return nil, caisson.E(caisson.Unavailable, "sweep", n.root, "the state directory cannot be read", err)
	}
	for _, e := range entries {
		if id := caisson.SandboxID(e.Name()); id.Valid() && !wanted(id) {
			orphans[id] = "directory"
		}
	}
	for id := range n.processes() {
		if id.Valid() && !wanted(id) {
			orphans[id] = "process"
		}
	}
	if n.cgroups != nil {
		for _, name := range n.cgroups.List() {
			if id := caisson.SandboxID(name); id.Valid() && !wanted(id) {
				orphans[id] = "cgroup"
			}
		}
	}
	for id, what := range orphans {
		epoch := uint64(0)
		if b := n.box(id, false); b != nil {
			epoch = b.peek().Epoch
		}
		if err := n.Delete(ctx, id, epoch); err != nil {
			return removed, err
		}
		removed = append(removed, fmt.Sprintf("%s of %s", what, id))
	}
	return removed, nil
}
