package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/internal/cgroup"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

const (
	readyLimit = 20 * time.Second // for a shim to listen
	bootLimit  = 90 * time.Second // for a machine to reach its agent

	// What the driver itself may use beside the guest's memory and processes.
	overheadMiB  = 128
	overheadPIDs = 512
)

// step is a part of a start. undo tolerates a do that never ran or did not finish.
type step struct {
	name string
	do   func(ctx context.Context) error
	undo func(ctx context.Context) error
}

// start runs the steps; after a failure it undoes those that were begun, in reverse. The journal says to a later node
// that a start was under way.
func (b *box) start(ctx context.Context, s Spec) (Status, []caisson.Timing, error) {
	first := !exists(b.dir)
	prev := b.peek()
	b.mu.Lock()
	b.spec = s
	b.st = Status{Sandbox: s.Sandbox, Epoch: s.Epoch, Phase: Starting, Driver: s.Driver}
	b.mu.Unlock()
	var timings []caisson.Timing
	var boot *wire.BootResponse
	var groups []string
	steps := []step{
		{"directory", func(ctx context.Context) error { return b.makeDir(s) }, func(context.Context) error {
			if first {
				return removeAll(b.dir)
			}
			return nil
		}},
		{"cgroup", func(context.Context) (err error) { groups, err = b.makeCgroup(s); return err }, func(ctx context.Context) error {
			if b.n.cgroups == nil {
				return nil
			}
			return b.n.cgroups.Remove(ctx, string(b.id))
		}},
		{"shim", func(ctx context.Context) error { return b.startShim(ctx, s, groups) }, func(ctx context.Context) error { return b.clean(ctx) }},
		{"boot", func(ctx context.Context) (err error) { boot, err = b.boot(ctx, s); return err }, func(ctx context.Context) error { b.kill(ctx); return nil }},
	}
	for i, st := range steps {
		begin := time.Now()
		err := b.journal(s.Epoch, st.name)
		if err == nil {
			err = st.do(ctx)
		}
		if err != nil {
			b.undo(ctx, steps[:i+1])
			b.mu.Lock()
			b.st = prev
			b.mu.Unlock()
			if first {
				b.n.forget(b)
			} else {
				b.finishJournal()
			}
			if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
				err = errors.Join(cause, err)
			}
			return prev, nil, decode("start sandbox: "+st.name, string(b.id), err)
		}
		if st.name != "boot" {
			timings = append(timings, caisson.Timing{Name: st.name, Dur: time.Since(begin)})
		}
	}
	for _, t := range boot.Timings {
		timings = append(timings, caisson.Timing{Name: t.Name, Dur: time.Duration(t.Nanos)})
	}
	b.finishJournal()
	b.up(boot.Status)
	return b.peek(), timings, nil
}

func (b *box) undo(ctx context.Context, steps []step) {
	ctx, cancel := within(ctx, cleanLimit)
	defer cancel()
	for i := len(steps) - 1; i >= 0; i-- {
		if err := steps[i].undo(ctx); err != nil {
			b.n.log.Error("undo failed; the sweeper goes on", "sandbox", b.id, "step", steps[i].name, "error", err)
		}
	}
}

const journalFile = "journal"

// journal notes that a step begins. It is for a server that was killed; a host that crashed has no processes left to undo.
func (b *box) journal(epoch uint64, step string) error {
	if step == "directory" {
		return nil // there is no place for the note yet, and a directory without a journal is no start
	}
	f, err := os.OpenFile(filepath.Join(b.dir, journalFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d %s\n", epoch, step)
	return errors.Join(err, f.Close())
}

func (b *box) finishJournal() { os.Remove(filepath.Join(b.dir, journalFile)) }

// interrupted reports whether a start was under way.
func (b *box) interrupted() bool { return exists(filepath.Join(b.dir, journalFile)) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (b *box) makeDir(s Spec) error {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return noSpace(err)
	}
	os.Remove(filepath.Join(b.dir, wire.StatusFile))
	if err := writeJSON(filepath.Join(b.dir, specFile), s); err != nil {
		return noSpace(err)
	}
	return nil
}

func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return caisson.E(caisson.Exhausted, "", "", "the disk of the state directory is full", err).WithHint("make room there, or delete sandboxes")
	}
	return err
}

func (b *box) makeCgroup(s Spec) ([]string, error) {
	if b.n.cgroups == nil {
		return nil, nil
	}
	r := s.Resources.WithDefaults()
	return b.n.cgroups.Make(string(b.id), cgroup.Limits{
		MemoryBytes: int64(r.MemoryMiB+overheadMiB) << 20, CPUs: r.VCPUs, PIDs: 2*r.PIDs + overheadPIDs,
	})
}

// startShim starts the shim and waits until it listens.
func (b *box) startShim(ctx context.Context, s Spec, groups []string) error {
	root, err := b.n.cfg.Template(s.TemplateDigest)
	if err != nil {
		return err
	}
	r := s.Resources.WithDefaults()
	cfg := wire.Config{
		Sandbox: string(b.id), Epoch: s.Epoch, Driver: s.Driver, Root: root, Agent: b.n.cfg.Agent, Sentry: b.n.cfg.Sentry,
		VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB, PIDs: r.PIDs, Cgroups: groups, LogCapBytes: b.n.cfg.LogCapBytes,
	}
	if err := writeJSON(filepath.Join(b.dir, wire.ConfigFile), cfg); err != nil {
		return noSpace(err)
	}
	rd, wr, err := os.Pipe()
	if err != nil {
		return err
	}
	defer rd.Close()
	diag, err := os.OpenFile(filepath.Join(b.dir, "shim.err"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		wr.Close()
		return noSpace(err)
	}
	cmd := exec.Command(b.n.cfg.Shim, b.dir) // its life is its own, not the context's
	cmd.Env = []string{"GOTRACEBACK=single", "GOMAXPROCS=4"}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = diag, diag, []*os.File{wr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	wr.Close()
	diag.Close()
	if err != nil {
		return fmt.Errorf("start the shim: %w", err)
	}
	go cmd.Wait() // collects the child; ends with the shim, at the latest after this process
	rd.SetReadDeadline(time.Now().Add(readyLimit))
	stop := context.AfterFunc(ctx, func() { rd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := bufio.NewReader(io.LimitReader(rd, 4096)).ReadString('\n')
	if line != "ready\n" {
		text, _ := os.ReadFile(filepath.Join(b.dir, "shim.err"))
		return fmt.Errorf("the shim did not get ready: %s", strings.TrimSpace(fmt.Sprintf("%s %v %.2000s", strings.TrimSpace(line), errOrNothing(err), text)))
	}
	b.mu.Lock()
	b.shim = newShimClient(filepath.Join(b.dir, wire.SocketFile))
	b.mu.Unlock()
	return nil
}

func errOrNothing(err error) any {
	if err == nil {
		return ""
	}
	return err
}

func (b *box) boot(ctx context.Context, s Spec) (*wire.BootResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	b.mu.Lock()
	c := b.shim
	b.mu.Unlock()
	res, err := c.shim.Boot(ctx, connect.NewRequest(&wire.BootRequest{
		Sandbox: string(s.Sandbox), Epoch: s.Epoch, Env: s.Env, Hostname: s.Hostname, User: s.User, Cwd: s.Cwd,
	}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// up notes that the machine runs and follows it.
func (b *box) up(w *wire.Status) {
	ctx, cancel := context.WithCancel(b.n.ctx)
	b.mu.Lock()
	b.st.Phase, b.st.Reason, b.st.Detail = Up, "", ""
	b.st.Driver, b.st.DriverVersion = w.Driver, w.DriverVersion
	b.st.Isolation, b.st.DiskDurability = caisson.Isolation(w.Isolation), w.DiskDurability
	b.follow = cancel
	c, epoch := b.shim, b.st.Epoch
	b.mu.Unlock()
	b.n.wg.Go(func() { b.followShim(ctx, c, epoch) })
}
