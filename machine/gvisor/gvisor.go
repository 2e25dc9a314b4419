// Package gvisor is the driver that needs nothing of the host: each machine is a gVisor sentry, a Linux kernel in user
// space behind seccomp, with no capability and no file but its own (see the descriptor audit in the tests).
//
// The driver does not link gVisor. It starts the executable caisson-sentry, which makes one library call and ends, and
// which the library starts again as the sentry. The sentry then becomes a child of the driver's process (a child
// subreaper from the first Start on), so that its real exit status is known. A pipe held by the driver is the sentry's lifeline:
// when the driver's process ends, the sentry exits.
//
// The writable layer lives in the sentry, its pages in an unlinked file of the machine's directory: [machine.DiskMachine].
// SaveDisk writes it out as gVisor's filesystem checkpoint, which only the same gVisor version reads.
package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/machine/gvisor/wire"
)

// Version is the gVisor release the sentry is built from; a test holds it to go.mod.
const Version = "20260905.0"

// callTimeout bounds one call of the sentry executable when the context has no deadline.
const callTimeout = 60 * time.Second

// Config of the driver.
type Config struct {
	Sentry string // path of the caisson-sentry executable, mode 0755
}

// Driver makes gVisor machines.
type Driver struct{ sentry string }

// New makes the driver.
func New(c Config) *Driver { return &Driver{sentry: c.Sentry} }

// subreaper makes this process the parent of the sentries it starts, whose caller ends before them.
var subreaper = sync.OnceFunc(func() {
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // fails on no kernel that can run gVisor
})

// Info implements machine.Driver.
func (d *Driver) Info() machine.Info {
	return machine.Info{
		Name: "gvisor", Version: Version, Isolation: caisson.IsolationUserKernel,
		Link: machine.LinkIP, Disk: machine.DiskMachine, Unprivileged: true,
	}
}

// Check implements machine.Driver: the executable is there and, for an ordinary user, so are user namespaces.
func (d *Driver) Check(ctx context.Context) error {
	const op = "check gvisor"
	st, err := os.Stat(d.sentry)
	if err != nil {
		return caisson.E(caisson.Unavailable, op, d.sentry, "the sentry executable is missing", err).WithHint("run `make build`")
	}
	if st.Mode().Perm()&0o005 != 0o005 {
		return caisson.E(caisson.Unavailable, op, d.sentry, fmt.Sprintf("mode %o: the sentry runs as nobody and must be able to execute it", st.Mode().Perm()), nil).
			WithHint("chmod 0755 " + d.sentry)
	}
	if os.Geteuid() == 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Path = "/bin/true"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	if err := cmd.Run(); err != nil {
		return caisson.E(caisson.Unavailable, op, "", "this user may not make user namespaces", err).
			WithHint("run caisson as root, or outside a chroot (Linux makes no user namespace in one), or allow them: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000; on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0")
	}
	return nil
}

// Start implements machine.Driver.
func (d *Driver) Start(ctx context.Context, s machine.Spec) (machine.Machine, error) {
	const op = "start machine"
	defer s.Link.File.Close()
	subreaper()
	rd, wr, err := os.Pipe()
	if err != nil {
		return nil, caisson.E(caisson.Exhausted, op, s.ID, "no descriptors left", err)
	}
	defer rd.Close()
	console, err := openConsole(filepath.Join(s.Dir, s.Console))
	if err != nil {
		wr.Close()
		return nil, caisson.E(caisson.Exhausted, op, s.ID, "cannot open the console", err)
	}
	defer console.Close()
	req := wire.Request{
		ID: s.ID, VCPUs: s.VCPUs, MemoryMiB: s.MemoryMiB, DiskMiB: s.DiskMiB, PIDs: s.PIDs, Root: s.Root, Agent: s.Agent,
		AgentArgs: s.AgentArgs, Hostname: s.Hostname, DiskImage: s.DiskImage,
		MTU: s.Link.MTU, Address: s.Link.Address, Gateway: s.Link.Gateway, Cgroups: s.Cgroups,
	}
	oomBefore := oomKills(s.Cgroups)
	res, err := d.call(ctx, "start", s.Dir, req, s.Link.File, rd, console)
	if err != nil {
		wr.Close() // the lifeline ends whatever was started
		return nil, err
	}
	m := &sentry{driver: d, spec: s, lifeline: wr, pid: res.PID, oomBefore: oomBefore, ended: make(chan struct{})}
	if err := m.adopt(); err != nil {
		wr.Close()
		return nil, caisson.E(caisson.Internal, op, s.ID, "the sentry ended at once", err)
	}
	return m, nil
}

// call runs the executable for one library call.
func (d *Driver) call(ctx context.Context, verb, dir string, req wire.Request, files ...*os.File) (wire.Response, error) {
	op := verb + " machine"
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	in, err := json.Marshal(req)
	if err != nil {
		return wire.Response{}, caisson.E(caisson.Internal, op, req.ID, "encode request", err)
	}
	var out, diag limitedBuffer
	cmd := exec.CommandContext(ctx, d.sentry, verb)
	cmd.Dir, cmd.Env, cmd.ExtraFiles = dir, []string{"GOMAXPROCS=2", "GOTRACEBACK=single"}, files
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &diag
	cmd.WaitDelay = time.Second
	runErr := cmd.Run()
	var res wire.Response
	if err := json.Unmarshal(out.Bytes(), &res); err != nil || res.Error != "" || runErr != nil {
		if ctx.Err() != nil {
			return res, caisson.E(caisson.KindOf(context.Cause(ctx)), op, req.ID, "gave up waiting for the sentry", ctx.Err())
		}
		detail := res.Error
		if detail == "" {
			detail = strings.TrimSpace(diag.String())
		}
		return res, caisson.E(caisson.Internal, op, req.ID, "gVisor failed at "+orUnknown(res.Step), errors.Join(errors.New(detail), runErr))
	}
	return res, nil
}

func orUnknown(step string) string {
	if step == "" {
		return "an unknown step"
	}
	return `"` + step + `"`
}

// limitedBuffer keeps the first 64 KiB written to it.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := 64<<10 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// tail reads the last n bytes of a file of the machine's directory.
func tail(dir, name string, n int64) string {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > n {
		f.Seek(-n, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, n))
	return strings.TrimSpace(string(b))
}
