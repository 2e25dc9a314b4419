package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson/guest/wire"
)

const (
	maxLive     = 4096 // processes that have not been acknowledged
	maxEnded    = 4096 // processes that ended and were not acknowledged; the oldest are forgotten
	maxID       = 128  // bytes of a process's id
	outputPipe  = 256 << 10
	defaultPATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// processes holds what was started.
type processes struct {
	agent       *Agent
	lastSpawn   atomic.Int64 // ns
	reapedTicks atomic.Int64
	limit       atomic.Int64
	started     chan struct{} // a command was started: guardMemory looks again
	raised      bool          // the agent has a priority that its children must not have

	mu    sync.Mutex // also held from fork to registration, so that the reaper finds every child
	byID  map[string]*process
	byPID map[int]*process
	ended []*process // in the order of their end; some may have been acknowledged since
}

func newProcesses(a *Agent) *processes {
	return &processes{agent: a, started: make(chan struct{}, 1), byID: map[string]*process{}, byPID: map[int]*process{}, raised: a.cfg.Init && raise()}
}

// setLimit bounds the processes of users. The agent's own limit is inherited; root inside is exempt from it and is
// bounded by guardMemory's count.
func (ps *processes) setLimit(n int) {
	ps.limit.Store(int64(n))
	if ps.agent.cfg.Init {
		syscall.Setrlimit(unix.RLIMIT_NPROC, &syscall.Rlimit{Cur: uint64(n), Max: uint64(n)})
	}
}

func (ps *processes) get(id string) (*process, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, ok := ps.byID[id]
	return p, ok
}

func (ps *processes) drop(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.byID, p.id)
}

// retire notes that a process has ended, and forgets the oldest of too many that nobody acknowledged.
func (ps *processes) retire(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.ended = append(ps.ended, p)
	if len(ps.ended) <= maxEnded {
		return
	}
	kept := ps.ended[:0]
	for _, q := range ps.ended {
		if ps.byID[q.id] == q {
			kept = append(kept, q)
		}
	}
	clear(ps.ended[len(kept):])
	ps.ended = kept
	if len(kept) > maxEnded {
		oldest := kept[0]
		ps.ended = kept[1:]
		delete(ps.byID, oldest.id)
		oldest.forget()
	}
}

// forgetAll lets go of output that nobody will take any more.
func (ps *processes) forgetAll() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for id, p := range ps.byID {
		p.forget()
		delete(ps.byID, id)
	}
}

func (ps *processes) live() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return len(ps.byPID)
}

var (
	errExists = errors.New("a process with this id exists")
	errFull   = fmt.Errorf("the sandbox has %d commands that have not ended", maxLive)
)

// start runs a command. A program that cannot be executed is a process that has ended.
func (ps *processes) start(m *wire.StartProcess) (*process, error) {
	begin := time.Now()
	p := newProcess(m.Id)
	l, notStarted := ps.prepare(m)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if _, ok := ps.byID[m.Id]; ok {
		return nil, errExists
	}
	if len(ps.byPID) >= maxLive {
		return nil, errFull
	}
	var outputs []*os.File
	if notStarted == nil {
		outputs, notStarted = ps.launch(p, l, m)
	}
	ps.byID[m.Id] = p
	if notStarted != nil {
		p.ended = true
		close(p.gone)
		p.add(&wire.ProcessEvent{What: &wire.ProcessEvent_Started{Started: &wire.Started{}}}, 0)
		p.add(&wire.ProcessEvent{What: &wire.ProcessEvent_Exit{Exit: notStarted}}, 0)
		go ps.retire(p) // ends at once; ps.mu is held here
		return p, nil
	}
	ps.byPID[p.pid] = p
	select {
	case ps.started <- struct{}{}:
	default:
	}
	ps.lastSpawn.Store(int64(time.Since(begin)))
	p.add(&wire.ProcessEvent{What: &wire.ProcessEvent_Started{Started: &wire.Started{Pid: int64(p.pid)}}}, 0)
	go func() { // ends after the process
		p.supervise(outputs, time.Duration(max(m.TimeoutMillis, 0))*time.Millisecond)
		ps.retire(p)
	}()
	if !ps.agent.cfg.Init {
		go ps.wait(p.pid) // ends with the process
	}
	return p, nil
}

// launchPlan is a command made ready to execute.
type launchPlan struct {
	path string
	argv []string
	env  []string
	dir  string
	acc  account
}

func cannot(code int32, format string, args ...any) *wire.Exit {
	return &wire.Exit{Code: code, Reason: "not_started", Error: fmt.Sprintf(format, args...)}
}

// prepare resolves user, directory, environment and program. 127 is for what is not found, 126 for the rest.
func (ps *processes) prepare(m *wire.StartProcess) (l launchPlan, _ *wire.Exit) {
	a := ps.agent
	a.mu.Lock()
	user, cwd, base := a.user, a.cwd, a.env
	a.mu.Unlock()
	if m.User != "" {
		user = m.User
	}
	acc, err := a.users.find(user)
	if err != nil {
		return l, cannot(126, "%v", err)
	}
	if me := os.Geteuid(); me != 0 && int(acc.uid) != me {
		return l, cannot(126, "the agent runs as user %d and cannot start programs as %s", me, acc.name)
	}
	l.acc = acc
	l.dir = string(m.Cwd)
	if l.dir == "" {
		l.dir = cwd
	}
	if l.dir == "" {
		l.dir = acc.home
		if st, err := os.Stat(l.dir); err != nil || !st.IsDir() {
			l.dir = "/"
		}
	}
	if !filepath.IsAbs(l.dir) {
		l.dir = filepath.Join(acc.home, l.dir)
	}
	if st, err := os.Stat(l.dir); err != nil || !st.IsDir() {
		return l, cannot(126, "working directory %s: no such directory", l.dir)
	} else if !mayEnter(st, acc) {
		return l, cannot(126, "working directory %s: %s may not enter it", l.dir, acc.name)
	}
	shell := acc.shell
	if shell == "" {
		shell = "/bin/sh"
	}
	env := map[string]string{"PATH": defaultPATH, "HOME": acc.home, "USER": acc.name, "LOGNAME": acc.name, "SHELL": shell, "LANG": "C.UTF-8"}
	if m.Tty != nil {
		env["TERM"] = "xterm-256color"
	}
	for _, more := range []map[string]string{base, m.Env} {
		for k, v := range more {
			env[k] = v
		}
	}
	for k, v := range env {
		l.env = append(l.env, k+"="+v)
	}
	if len(m.Shell) > 0 {
		for _, sh := range []string{"/bin/bash", "/bin/sh"} {
			if _, err := os.Stat(sh); err == nil {
				l.path, l.argv = sh, []string{sh, "-c", string(m.Shell)}
				return l, nil
			}
		}
		return l, cannot(127, "the sandbox has neither /bin/bash nor /bin/sh")
	}
	if len(m.Argv) == 0 || len(m.Argv[0]) == 0 {
		return l, cannot(127, "no command was given")
	}
	for _, x := range m.Argv {
		l.argv = append(l.argv, string(x))
	}
	var exit *wire.Exit
	l.path, exit = lookup(l.argv[0], env["PATH"], l.dir)
	return l, exit
}

// lookup finds a program as execvp does.
func lookup(name, path, dir string) (string, *wire.Exit) {
	var denied string
	try := func(p string) bool {
		st, err := os.Stat(p)
		if err != nil {
			return false
		}
		if st.IsDir() || st.Mode()&0o111 == 0 {
			denied = p
			return false
		}
		return true
	}
	if strings.Contains(name, "/") {
		p := name
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		if try(p) {
			return p, nil
		}
		if denied != "" {
			return "", cannot(126, "%s: not executable", name)
		}
		return "", cannot(127, "%s: no such file", name)
	}
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		if p := filepath.Join(d, name); try(p) {
			return p, nil
		}
	}
	if denied != "" {
		return "", cannot(126, "%s: not executable", denied)
	}
	return "", cannot(127, "%s: command not found", name)
}

// launch makes the streams and forks. It runs under ps.mu.
func (ps *processes) launch(p *process, l launchPlan, m *wire.StartProcess) (outputs []*os.File, _ *wire.Exit) {
	attr := &syscall.ProcAttr{Dir: l.dir, Env: l.env, Sys: &syscall.SysProcAttr{Setsid: true}}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: l.acc.uid, Gid: l.acc.gid, Groups: l.acc.groups}
	}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	fail := func(err error) ([]*os.File, *wire.Exit) {
		for _, f := range outputs {
			f.Close()
		}
		p.closeStdin()
		return nil, classify(l.path, err)
	}
	if m.Tty != nil {
		master, slave, err := openTTY(m.Tty)
		if err != nil {
			return fail(err)
		}
		if os.Geteuid() == 0 {
			slave.Chown(int(l.acc.uid), int(l.acc.gid))
		}
		theirs = append(theirs, slave)
		p.tty = master
		outputs = []*os.File{master}
		fd := slave.Fd()
		attr.Files = []uintptr{fd, fd, fd}
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
		if m.Stdin {
			in, err := dupFile(master)
			if err != nil {
				return fail(err)
			}
			p.stdin = in
		}
	} else {
		in, err := os.Open("/dev/null")
		if m.Stdin {
			if err == nil {
				in.Close()
			}
			in, p.stdin, err = os.Pipe()
		}
		if err != nil {
			return fail(err)
		}
		theirs = append(theirs, in)
		for range 2 {
			r, w, err := os.Pipe()
			if err != nil {
				return fail(err)
			}
			unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, outputPipe) // best effort: fewer, larger reads
			outputs, theirs = append(outputs, r), append(theirs, w)
		}
		attr.Files = []uintptr{theirs[0].Fd(), theirs[1].Fd(), theirs[2].Fd()}
	}
	pid, err := syscall.ForkExec(l.path, l.argv, attr)
	if errors.Is(err, syscall.ENOEXEC) { // a script without "#!" belongs to the shell, as execvp has it
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"/bin/sh", l.path}, l.argv[1:]...), attr)
	}
	if err != nil {
		return fail(err)
	}
	p.pid = pid
	if ps.raised {
		lower(pid)
	}
	return outputs, nil
}

func classify(path string, err error) *wire.Exit {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return cannot(127, "%s: the program or its interpreter was not found", path)
	case errors.Is(err, syscall.E2BIG):
		return cannot(126, "%s: arguments and environment are too long", path)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return cannot(126, "%s: the sandbox has no process, memory or descriptor left: %v", path, err)
	}
	return cannot(126, "%s: %v", path, err)
}

// openTTY makes a terminal whose master can have deadlines.
func openTTY(size *wire.TtySize) (master, slave *os.File, err error) {
	m, s, err := pty.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	defer m.Close()
	pty.Setsize(m, &pty.Winsize{Rows: uint16(size.Rows), Cols: uint16(size.Cols)})
	master, err = dupFile(m)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return master, s, nil
}

// dupFile duplicates a descriptor into a file that the runtime polls.
func dupFile(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) })
	if dupErr != nil {
		return nil, dupErr
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// killAll ends everything but the agent: TERM, then KILL after grace.
func (ps *processes) killAll(ctx context.Context, grace time.Duration) {
	others := func() (n int) {
		if !ps.agent.cfg.Init {
			return ps.live()
		}
		for _, pid := range pids() {
			if st, ok := readStat(pid); ok && pid != os.Getpid() && st.state != 'Z' && !st.kernel {
				n++
			}
		}
		return n
	}
	signal := func(sig syscall.Signal) {
		if ps.agent.cfg.Init {
			syscall.Kill(-1, sig) // everything but process 1
			return
		}
		ps.mu.Lock()
		defer ps.mu.Unlock()
		for pid := range ps.byPID {
			syscall.Kill(-pid, sig)
		}
	}
	signal(syscall.SIGTERM)
	signal(syscall.SIGCONT) // a stopped process must get to see it
	deadline := time.Now().Add(grace)
	for others() > 0 && time.Now().Before(deadline) && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	for i := 0; others() > 0 && i < 200; i++ {
		signal(syscall.SIGKILL)
		time.Sleep(5 * time.Millisecond)
	}
}
