package shim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/egress/netstack"
	"github.com/caisson-sandbox/caisson/guest/dial"
	guestwire "github.com/caisson-sandbox/caisson/guest/wire"
	"github.com/caisson-sandbox/caisson/internal/durable"
	"github.com/caisson-sandbox/caisson/internal/procfs"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

// shimService implements wire.ShimHandler.
type shimService struct{ *shim }

func (s shimService) Hello(_ context.Context, r *connect.Request[wire.HelloRequest]) (*connect.Response[wire.HelloResponse], error) {
	if err := s.same(r.Msg.Sandbox, r.Msg.Epoch); err != nil {
		return nil, err
	}
	if r.Msg.Protocol != wire.Protocol {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("the shim speaks protocol %d, the node %d", wire.Protocol, r.Msg.Protocol))
	}
	return connect.NewResponse(&wire.HelloResponse{Protocol: wire.Protocol, Version: s.opt.Version, Status: s.life.status()}), nil
}

func (s *shim) same(id string, epoch uint64) error {
	if id != s.cfg.Sandbox || epoch != s.cfg.Epoch {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this is the shim of %s in life %d, not of %s in life %d", s.cfg.Sandbox, s.cfg.Epoch, id, epoch))
	}
	return nil
}

// Boot makes the machine. A boot that failed ends the shim.
func (s shimService) Boot(ctx context.Context, r *connect.Request[wire.BootRequest]) (*connect.Response[wire.BootResponse], error) {
	if err := s.same(r.Msg.Sandbox, r.Msg.Epoch); err != nil {
		return nil, err
	}
	if !s.life.move(stateNew, stateBooting, nil) {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("the shim is %s", s.life.status().State))
	}
	timings, err := s.boot(ctx, r.Msg)
	if err != nil {
		s.log.Error("boot failed", "error", err)
		s.life.end("", "boot_failed", err.Error())
		defer s.end()
		return nil, encode(err)
	}
	if !s.life.move(stateBooting, stateRunning, func(st *wire.Status) { st.StartedUnixNano = time.Now().UnixNano() }) {
		return nil, encode(caisson.E(caisson.Unavailable, "boot", s.cfg.Sandbox, goneText(s.life.status()), nil))
	}
	s.log.Info("machine runs", "timings", fmt.Sprint(timings))
	return connect.NewResponse(&wire.BootResponse{Status: s.life.status(), Timings: timings}), nil
}

func (s *shim) boot(ctx context.Context, r *wire.BootRequest) (timings []*wire.Timing, err error) {
	last := time.Now()
	lap := func(name string) {
		now := time.Now()
		timings = append(timings, &wire.Timing{Name: name, Nanos: int64(now.Sub(last))})
		last = now
	}
	theirs, err := s.link()
	if err != nil {
		return nil, err
	}
	spec, err := s.spec(r, theirs)
	if err != nil {
		theirs.Close()
		return nil, err
	}
	lap("link")
	m, err := s.driver.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	s.machine.Store(&m)
	go s.watch(m) // ends with the machine, which close closes
	if len(spec.Cgroups) == 0 {
		go s.watchMemory(m, spec.MemoryMiB) // ends with the machine
	}
	lap("machine")
	s.agent = dial.New(s.stack.Dial)
	req := &guestwire.ConfigureRequest{
		Token: rand.Text() + rand.Text(), Hostname: r.Hostname, MachineId: make([]byte, 16), Entropy: make([]byte, 64),
		Env: r.Env, User: r.User, Cwd: r.Cwd, MaxProcesses: uint32(s.cfg.PIDs),
	}
	rand.Read(req.MachineId)
	rand.Read(req.Entropy)
	stop := context.AfterFunc(s.alive, s.agent.Close)
	defer stop()
	bctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopGone := context.AfterFunc(s.alive, func() { cancel(context.Cause(s.alive)) })
	defer stopGone()
	if _, err := s.agent.Configure(bctx, req); err != nil {
		if s.alive.Err() != nil {
			err = errors.Join(context.Cause(s.alive), err)
		}
		m.Close()
		return nil, fmt.Errorf("%w; console: %q", err, console())
	}
	lap("agent")
	return timings, nil
}

// link makes the private link and our network on it, and returns the machine's end.
func (s *shim) link() (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, caisson.E(caisson.Exhausted, "make link", s.cfg.Sandbox, "no descriptors left", err)
	}
	const buffer = 4 << 20
	for _, fd := range fds {
		for _, o := range [][2]int{{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}, {unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}} {
			if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], buffer) != nil {
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], buffer)
			}
		}
	}
	s.stack, err = netstack.New(netstack.Config{
		File: os.NewFile(uintptr(fds[0]), "link"), MTU: wire.LinkMTU, PrefixLen: wire.PrefixLen,
		Gateway: netip.MustParseAddr(wire.GatewayAddress), Guest: netip.MustParseAddr(wire.GuestAddress),
	})
	theirs := os.NewFile(uintptr(fds[1]), "nic")
	if err != nil {
		theirs.Close()
		return nil, err
	}
	return theirs, nil
}

func (s *shim) spec(r *wire.BootRequest, theirs *os.File) (machine.Spec, error) {
	wd, err := os.Getwd()
	if err != nil {
		return machine.Spec{}, err
	}
	dir := filepath.Join(wd, wire.MachineDir)
	if err := os.RemoveAll(dir); err != nil {
		return machine.Spec{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return machine.Spec{}, err
	}
	spec := machine.Spec{
		ID: s.cfg.Sandbox, Dir: dir, VCPUs: s.cfg.VCPUs, MemoryMiB: s.cfg.MemoryMiB, DiskMiB: s.cfg.DiskMiB, PIDs: s.cfg.PIDs,
		Root: s.cfg.Root, Agent: s.cfg.Agent, Hostname: r.Hostname, Console: filepath.Join("..", wire.ConsoleFile), Cgroups: s.cfg.Cgroups,
		Link: machine.Link{File: theirs, MTU: wire.LinkMTU, Address: fmt.Sprintf("%s/%d", wire.GuestAddress, wire.PrefixLen), Gateway: wire.GatewayAddress},
	}
	if n := lastDisk(); n != "" {
		spec.DiskImage = filepath.Join(wd, n)
	}
	return spec, nil
}

// watch tells the end of the machine.
func (s *shim) watch(m machine.Machine) {
	x := m.Wait()
	reason := map[machine.ExitReason]string{
		machine.ExitStopped: "exited", machine.ExitKilled: "killed", machine.ExitOOM: "oom", machine.ExitCrashed: "crashed", machine.ExitClosed: "stopped",
	}[x.Reason]
	s.log.Info("machine ended", "reason", x.Reason, "code", x.Code, "detail", x.Detail)
	if reason == "oom" {
		s.gone(errOOM)
	}
	s.life.end("", reason, x.Detail)
	s.gone(errors.New(goneText(s.life.status())))
	s.end()
}

// watchMemory ends a machine that takes more of the host than it may, where no cgroup bounds it: the guard inside acts
// first, and it is not a guard against the guest's root. What the machine itself needs comes on top of the guest's memory.
func (s *shim) watchMemory(m machine.Machine, limitMiB int) {
	most := int64(limitMiB)<<20*5/4 + 64<<20
	for {
		select {
		case <-s.alive.Done():
			return
		case <-time.After(memoryEvery):
		}
		ctx, cancel := context.WithTimeout(s.alive, callLimit)
		st, err := m.Stats(ctx)
		cancel()
		if err != nil || st.MemoryOwn <= most {
			continue
		}
		s.log.Warn("machine is over its memory", "memory", st.MemoryOwn, "most", most)
		s.life.end("", "oom", fmt.Sprintf("the sandbox used more than its %d MiB", limitMiB))
		s.gone(errOOM)
		if err := m.Close(); err != nil {
			s.log.Error("machine did not close", "error", err)
		}
		return
	}
}

// memoryEvery is the time between two looks at the memory of a machine without a cgroup.
const memoryEvery = 500 * time.Millisecond

// errOOM is the cause of alive's end when the machine ran out of memory.
var errOOM = errors.New("the sandbox ran out of memory")

// console is the end of what the machine printed.
func console() string {
	b, _ := os.ReadFile(wire.ConsoleFile)
	return string(b[max(0, len(b)-2000):])
}

func (s shimService) Watch(ctx context.Context, _ *connect.Request[wire.WatchRequest], st *connect.ServerStream[wire.Status]) error {
	for {
		status, change := s.life.watch()
		if err := st.Send(status); err != nil {
			return err
		}
		if status.State == stateGone {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Stop ends the commands, saves the disk and closes the machine. When the disk cannot be saved the machine goes on.
func (s shimService) Stop(ctx context.Context, r *connect.Request[wire.StopRequest]) (*connect.Response[wire.StopResponse], error) {
	if !s.life.move(stateRunning, stateStopping, nil) {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("the machine is %s", s.life.status().State))
	}
	grace := min(time.Duration(max(r.Msg.GraceMillis, 0))*time.Millisecond, time.Minute)
	if err := s.agent.Shutdown(ctx, grace); err != nil {
		s.log.Warn("the agent did not end the commands; the disk is saved as it is", "error", err)
	}
	saved := false
	if m := *s.machine.Load(); s.driver.Info().Disk == machine.DiskMachine {
		if err := saveDisk(ctx, m, s.cfg.Epoch); err != nil {
			s.life.move(stateStopping, stateRunning, nil)
			return nil, encode(err)
		}
		saved = true
	}
	s.life.end("", "stopped", "")
	s.end()
	return connect.NewResponse(&wire.StopResponse{DiskSaved: saved}), nil
}

// saveDisk writes the layer under a temporary name and renames it when it is durable.
func saveDisk(ctx context.Context, m machine.Machine, epoch uint64) error {
	name := filepath.Join(wire.DiskDir, strconv.FormatUint(epoch, 10))
	tmp := name + ".new"
	os.RemoveAll(tmp)
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return caisson.E(caisson.Exhausted, "save disk", name, "cannot make its directory", err)
	}
	old := lastDisk()
	err := m.SaveDisk(ctx, tmp)
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err == nil {
		err = durable.Dir(wire.DiskDir)
	}
	if err != nil {
		os.RemoveAll(tmp)
		return caisson.E(caisson.KindOf(err), "save disk", name, "the disk could not be written out; the sandbox goes on", err).
			WithHint("make room in the state directory and stop it again, or delete it")
	}
	if old != "" && old != name {
		os.RemoveAll(old)
	}
	return nil
}

// lastDisk is the newest saved layer, or "".
func lastDisk() string {
	entries, _ := os.ReadDir(wire.DiskDir)
	var lives []uint64
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 64); err == nil {
			lives = append(lives, n)
		}
	}
	if len(lives) == 0 {
		return ""
	}
	sort.Slice(lives, func(i, j int) bool { return lives[i] > lives[j] })
	return filepath.Join(wire.DiskDir, strconv.FormatUint(lives[0], 10))
}

func (s shimService) Kill(context.Context, *connect.Request[wire.KillRequest]) (*connect.Response[wire.KillResponse], error) {
	s.life.end("", "stopped", "")
	if m := s.machine.Load(); m != nil {
		if err := (*m).Close(); err != nil {
			return nil, encode(err)
		}
	}
	s.end()
	return connect.NewResponse(&wire.KillResponse{}), nil
}

func (s shimService) Metrics(ctx context.Context, _ *connect.Request[wire.MetricsRequest]) (*connect.Response[wire.MetricsResponse], error) {
	a, err := s.guest()
	if err != nil {
		return nil, err
	}
	var memory int64 // first: asking the guest wakes what was idle
	if st, err := (*s.machine.Load()).Stats(ctx); err == nil {
		memory = st.MemoryPSS + procfs.Memory(os.Getpid()).PSS
	}
	g, err := a.Metrics(ctx)
	if err != nil {
		return nil, encode(err)
	}
	res := &wire.MetricsResponse{
		HostMemoryPss: memory,
		CpuSeconds:    g.CpuSeconds, MemoryUsed: g.MemoryUsed, MemoryTotal: g.MemoryTotal,
		DiskUsed: g.DiskUsed, DiskTotal: g.DiskTotal, Processes: g.Processes,
	}
	if d, err := a.Ping(ctx); err == nil {
		res.SpawnNanos = max(int64(d), 0)
	}
	return connect.NewResponse(res), nil
}

// guest is the way to the agent of a machine that runs.
func (s *shim) guest() (*dial.Client, error) {
	switch st := s.life.status(); st.State {
	case stateRunning:
		return s.agent, nil
	case stateGone:
		return nil, encode(caisson.E(caisson.Unavailable, "reach guest", s.cfg.Sandbox, goneText(st), nil))
	default:
		return nil, encode(caisson.E(caisson.Conflict, "reach guest", s.cfg.Sandbox, "the sandbox is "+st.State, nil))
	}
}
