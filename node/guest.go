package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/shim/wire"
	"github.com/caisson-sandbox/caisson/transcript"
)

// Guest implements Node.
func (n *Local) Guest(_ context.Context, id caisson.SandboxID, epoch uint64) (caisson.Guest, error) {
	b := n.box(id, false)
	if b == nil {
		return nil, caisson.E(caisson.NotFound, "reach sandbox", string(id), "the node has nothing of it", nil)
	}
	if err := b.fresh("reach sandbox", epoch); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return &guest{box: b, shim: b.shim}, nil
}

// guest is the inside of one life of a sandbox. Without a shim only ended commands can be read.
type guest struct {
	box  *box
	shim *shimClient // nil when the life is over
}

func (g *guest) up(op string) (*shimClient, error) {
	if g.shim == nil {
		st := g.box.peek()
		return nil, caisson.E(caisson.Conflict, op, string(g.box.id), "the sandbox is not running"+because(st), nil)
	}
	return g.shim, nil
}

func because(st Status) string {
	if st.Reason == "" {
		return ""
	}
	return ": it ended (" + st.Reason + ")"
}

func (g *guest) logDir() string { return filepath.Join(g.box.dir, wire.CommandsDir) }

// recorded reports whether the record on disk is ours to read: no shim writes it.
func (g *guest) recorded(err error) bool {
	return g.shim == nil || caisson.Is(err, caisson.Unavailable) && len(g.box.n.shims(g.box.id)) == 0
}

func (g *guest) request(spec caisson.CommandSpec) *connect.Request[wire.StartRequest] {
	s := &wire.Spec{
		Shell: []byte(spec.Shell), Cwd: []byte(spec.Cwd), Env: spec.Env, User: spec.User, Stdin: spec.Stdin,
		TimeoutMillis: (spec.Timeout + time.Millisecond - 1).Milliseconds(),
	}
	for _, a := range spec.Argv {
		s.Argv = append(s.Argv, []byte(a))
	}
	if spec.TTY != nil {
		s.Tty = &wire.TtySize{Rows: uint32(spec.TTY.Rows), Cols: uint32(spec.TTY.Cols)}
	}
	return connect.NewRequest(&wire.StartRequest{Id: string(caisson.NewCommandID()), Spec: s})
}

func (g *guest) StartCommand(ctx context.Context, spec caisson.CommandSpec) (caisson.Command, error) {
	c, err := g.up("start command")
	if err != nil {
		return caisson.Command{}, err
	}
	res, err := c.commands.Start(ctx, g.request(spec))
	if err != nil {
		return caisson.Command{}, decode("start command", string(g.box.id), err)
	}
	return commandOf(res.Msg.Command), nil
}

func (g *guest) Run(ctx context.Context, spec caisson.CommandSpec) (caisson.Command, caisson.EventStream, error) {
	c, err := g.up("run command")
	if err != nil {
		return caisson.Command{}, nil, err
	}
	req := g.request(spec)
	return g.stream(ctx, req.Msg.Id, func(ctx context.Context) (*connect.ServerStreamForClient[wire.OutputResponse], error) {
		return c.commands.Run(ctx, req)
	})
}

// stream opens a stream of events whose first message is the command.
func (g *guest) stream(ctx context.Context, id string, open func(context.Context) (*connect.ServerStreamForClient[wire.OutputResponse], error)) (caisson.Command, caisson.EventStream, error) {
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it ends with Close
	stop := context.AfterFunc(ctx, cancel)
	st, err := open(sctx)
	if err == nil && !st.Receive() {
		if err = st.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
	}
	if err == nil && st.Msg().Command == nil {
		err = errors.New("the first message is not the command")
	}
	stop()
	if err != nil {
		if st != nil {
			cancel()
			st.Close()
		}
		cancel()
		return caisson.Command{}, nil, decode("run command", id, err)
	}
	es := &eventStream{guest: g, id: caisson.CommandID(id), st: st, cancel: cancel}
	return commandOf(st.Msg().Command), es, nil
}

// eventStream reads events that the shim sends. When the shim is lost the rest comes from the record on disk.
type eventStream struct {
	guest  *guest
	id     caisson.CommandID
	cancel context.CancelFunc

	st     *connect.ServerStreamForClient[wire.OutputResponse]
	events []*wire.Event
	last   uint64
	record caisson.EventStream

	close sync.Once
}

func (e *eventStream) Close() error {
	e.close.Do(func() {
		e.cancel()
		e.st.Close()
		if e.record != nil {
			e.record.Close()
		}
	})
	return nil
}

func (e *eventStream) Next(ctx context.Context) (caisson.CommandEvent, error) {
	if e.record != nil {
		return e.record.Next(ctx)
	}
	stop := context.AfterFunc(ctx, e.cancel)
	defer stop()
	for len(e.events) == 0 {
		if e.st.Receive() {
			e.events = e.st.Msg().Events
			continue
		}
		if ctx.Err() != nil {
			return caisson.CommandEvent{}, context.Cause(ctx)
		}
		err := e.st.Err()
		if err == nil {
			return caisson.CommandEvent{}, io.EOF
		}
		err = decode("follow command", string(e.id), err)
		if !e.lost(ctx) {
			return caisson.CommandEvent{}, err
		}
		rec, rerr := transcript.OpenReader(e.guest.logDir(), e.id, e.last+1)
		if rerr != nil {
			return caisson.CommandEvent{}, caisson.E(caisson.Unavailable, "follow command", string(e.id), "the sandbox is gone and the command's record cannot be read", errors.Join(err, rerr))
		}
		e.record = rec
		return rec.Next(ctx)
	}
	w := e.events[0]
	e.events = e.events[1:]
	e.last = w.Seq
	return eventOf(w), nil
}

// lost waits a little for the shim's process to be gone: a stream may break just before.
func (e *eventStream) lost(ctx context.Context) bool {
	for range 50 {
		if len(e.guest.box.n.shims(e.guest.box.id)) == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

func (g *guest) Commands(ctx context.Context) ([]caisson.Command, error) {
	const op = "list commands"
	var err error
	if g.shim != nil {
		res, rerr := g.shim.commands.List(ctx, connect.NewRequest(&wire.ListRequest{}))
		if rerr == nil {
			var all []caisson.Command
			for _, c := range res.Msg.Commands {
				all = append(all, commandOf(c))
			}
			return all, nil
		}
		err = decode(op, string(g.box.id), rerr)
	}
	if g.recorded(err) {
		return transcript.List(g.logDir())
	}
	return nil, err
}

func (g *guest) Command(ctx context.Context, id caisson.CommandID) (caisson.Command, error) {
	const op = "get command"
	if !id.Valid() {
		return caisson.Command{}, caisson.E(caisson.NotFound, op, string(id), "there is no such command", nil)
	}
	var err error
	if g.shim != nil {
		res, rerr := g.shim.commands.Get(ctx, connect.NewRequest(&wire.GetRequest{Id: string(id)}))
		if rerr == nil {
			return commandOf(res.Msg.Command), nil
		}
		err = decode(op, string(id), rerr)
	}
	if !g.recorded(err) {
		return caisson.Command{}, err
	}
	all, err := transcript.List(g.logDir())
	for _, c := range all {
		if c.ID == id {
			return c, nil
		}
	}
	if err == nil {
		err = caisson.E(caisson.NotFound, op, string(id), "there is no such command", nil)
	}
	return caisson.Command{}, err
}

func (g *guest) Output(ctx context.Context, id caisson.CommandID, from uint64, follow bool) (caisson.EventStream, error) {
	if !id.Valid() {
		return nil, caisson.E(caisson.NotFound, "read output", string(id), "there is no such command", nil)
	}
	var err error
	if g.shim != nil {
		_, es, serr := g.stream(ctx, string(id), func(ctx context.Context) (*connect.ServerStreamForClient[wire.OutputResponse], error) {
			return g.shim.commands.Output(ctx, connect.NewRequest(&wire.OutputRequest{Id: string(id), From: from, Follow: follow}))
		})
		if serr == nil {
			if from > 0 {
				es.(*eventStream).last = from - 1
			}
			return es, nil
		}
		err = serr
	}
	if g.recorded(err) {
		return transcript.OpenReader(g.logDir(), id, from)
	}
	return nil, err
}

func (g *guest) Stdin(ctx context.Context, id caisson.CommandID, r io.Reader, closeAfter bool) error {
	const op = "write stdin"
	c, err := g.up(op)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st := c.commands.Stdin(ctx)
	first := &wire.StdinRequest{Id: string(id)}
	buf := make([]byte, 64<<10)
	for sendErr := st.Send(first); sendErr == nil; {
		n, err := r.Read(buf)
		if n > 0 {
			sendErr = st.Send(&wire.StdinRequest{Data: buf[:n]})
		}
		if errors.Is(err, io.EOF) {
			if closeAfter {
				st.Send(&wire.StdinRequest{Close: true})
			}
			break
		}
		if err != nil {
			cancel()
			st.CloseAndReceive()
			return caisson.E(caisson.KindOf(err), op, string(id), "the input could not be read", err)
		}
	}
	if _, err := st.CloseAndReceive(); err != nil {
		return decode(op, string(id), err)
	}
	return nil
}

// signalNumber reads "SIGTERM", "TERM" or "15".
func signalNumber(s string) (int32, error) {
	if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= 64 {
		return int32(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n > 0 {
		return int32(n), nil
	}
	return 0, caisson.E(caisson.Invalid, "signal command", "", fmt.Sprintf("%.20q is no signal", s), nil).WithHint(`write "SIGTERM", "TERM" or "15"`)
}

func (g *guest) Signal(ctx context.Context, id caisson.CommandID, signal string) error {
	c, err := g.up("signal command")
	if err != nil {
		return err
	}
	n, err := signalNumber(signal)
	if err != nil {
		return err
	}
	_, err = c.commands.Signal(ctx, connect.NewRequest(&wire.SignalRequest{Id: string(id), Signal: n}))
	return decode("signal command", string(id), err)
}

func (g *guest) Resize(ctx context.Context, id caisson.CommandID, size caisson.TTYSize) error {
	c, err := g.up("resize terminal")
	if err != nil {
		return err
	}
	_, err = c.commands.Resize(ctx, connect.NewRequest(&wire.ResizeRequest{Id: string(id), Size: &wire.TtySize{Rows: uint32(size.Rows), Cols: uint32(size.Cols)}}))
	return decode("resize terminal", string(id), err)
}

func (g *guest) Metrics(ctx context.Context) (caisson.GuestMetrics, error) {
	c, err := g.up("read metrics")
	if err != nil {
		return caisson.GuestMetrics{}, err
	}
	res, err := c.shim.Metrics(ctx, connect.NewRequest(&wire.MetricsRequest{}))
	if err != nil {
		return caisson.GuestMetrics{}, decode("read metrics", string(g.box.id), err)
	}
	m := res.Msg
	return caisson.GuestMetrics{
		Time: time.Now(), CPUSeconds: m.CpuSeconds, MemoryUsed: m.MemoryUsed, MemoryTotal: m.MemoryTotal, DiskUsed: m.DiskUsed,
		DiskTotal: m.DiskTotal, Processes: int(m.Processes), HostMemoryPSS: m.HostMemoryPss, LastSpawn: time.Duration(m.SpawnNanos),
	}, nil
}

func commandOf(w *wire.Command) caisson.Command {
	c := caisson.Command{ID: caisson.CommandID(w.Id), StartedAt: time.Unix(0, w.StartedUnixNano), PID: int(w.Pid), LastSeq: w.LastSeq, Exit: exitOf(w.Exit)}
	if w.EndedUnixNano != 0 {
		c.EndedAt = time.Unix(0, w.EndedUnixNano)
	}
	if s := w.Spec; s != nil {
		c.Spec = caisson.CommandSpec{
			Shell: string(s.Shell), Cwd: string(s.Cwd), Env: s.Env, User: s.User, Stdin: s.Stdin, Timeout: time.Duration(s.TimeoutMillis) * time.Millisecond,
		}
		for _, a := range s.Argv {
			c.Spec.Argv = append(c.Spec.Argv, string(a))
		}
		if s.Tty != nil {
			c.Spec.TTY = &caisson.TTYSize{Rows: uint16(s.Tty.Rows), Cols: uint16(s.Tty.Cols)}
		}
	}
	return c
}

func exitOf(w *wire.Exit) *caisson.CommandExit {
	if w == nil {
		return nil
	}
	return &caisson.CommandExit{Code: int(w.Code), Signal: w.Signal, Reason: caisson.ExitReason(w.Reason), Error: w.Error}
}

func eventOf(w *wire.Event) caisson.CommandEvent {
	return caisson.CommandEvent{
		Seq: w.Seq, Time: time.Unix(0, w.TimeUnixNano), Type: caisson.EventType(w.Type), PID: int(w.Pid), Data: w.Data, From: w.From, To: w.To, Exit: exitOf(w.Exit),
	}
}
