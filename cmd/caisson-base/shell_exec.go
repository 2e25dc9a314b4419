package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// own marks the commands that this file adds to the interpreter; no script uses such a name.
const own = "__caisson_"

const lastPID = own + "pid" // the variable behind $!

// rewrite changes what the interpreter has no hook for: background statements become commands that start a process, $!
// becomes a variable, >| becomes >.
func (s *sh) rewrite(n syntax.Node) {
	syntax.Walk(n, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Stmt:
			if n.Background || n.Disown {
				return s.background(n)
			}
		case *syntax.ParamExp:
			if n.Param == nil {
				break
			}
			switch {
			case n.Param.Value == "!" && n.NestedParam == nil:
				n.Param.Value, n.Short = lastPID, false
			case n.Param.Value == "$" && s.ppid != "":
				n.Param.Value, n.Short = own+"shell", false
			}
		case *syntax.Redirect:
			if n.Op == syntax.RdrClob {
				n.Op = syntax.RdrOut
			}
		case *syntax.ProcSubst:
			s.subst = s.subst || n.Op == syntax.CmdOut
		}
		return true
	})
}

func lit(v string) *syntax.Word {
	return &syntax.Word{Parts: []syntax.WordPart{&syntax.Lit{Value: v}}}
}

func quoted(v string) *syntax.Word {
	return &syntax.Word{Parts: []syntax.WordPart{&syntax.SglQuoted{Value: v}}}
}

// background rewrites "stmt &" and says whether to look inside of it.
func (s *sh) background(st *syntax.Stmt) bool {
	st.Background, st.Disown = false, false
	if call, ok := st.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 && !st.Negated {
		call.Args = append([]*syntax.Word{lit(own + "bg")}, call.Args...)
		return true
	}
	var src strings.Builder
	syntax.NewPrinter().Print(&src, st)
	src.WriteByte('\n')
	// Quotes inside of src are spelled out: a single-quoted word cannot hold them, but its value can.
	st.Cmd = &syntax.CallExpr{Args: []*syntax.Word{lit(own + "bgscript"), quoted(src.String())}}
	st.Redirs, st.Negated = nil, false
	return false
}

// markTail lets the last command of a -c script replace the shell.
func markTail(st *syntax.Stmt) {
	if call, ok := st.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 && !st.Negated && call.Args[0].Lit() != own+"bg" {
		call.Args = append([]*syntax.Word{lit(own + "tail")}, call.Args...)
	}
}

// replaced are the builtins that the interpreter lacks or does not do well enough.
var replaced = map[string]bool{
	"echo": true, "printf": true, "kill": true, "wait": true, "jobs": true, "fg": true, "bg": true, "disown": true,
	"umask": true, "ulimit": true, "history": true, "bind": true, "complete": true, "compgen": true, "compopt": true,
	"enable": true, "suspend": true, "logout": true, "caller": true, "fc": true, "newgrp": true, "times": true,
}

// call runs before every simple command and replaces its arguments.
func (s *sh) call(ctx context.Context, args []string) ([]string, error) {
	hc := interp.HandlerCtx(ctx)
	r := runnerOf(hc)
	if s.traps.pending() && r == s.runner {
		return append([]string{own + "trapped"}, args...), nil
	}
	tail := false
	if args[0] == own+"tail" {
		tail, args = true, args[1:]
	}
	if r.Funcs[args[0]] != nil {
		return args, nil
	}
	for len(args) > 1 && (args[0] == "command" || args[0] == "builtin") {
		if args[1] == "-p" || args[1] == "--" {
			args = append([]string{args[0]}, args[2:]...)
			continue
		}
		if args[1] == "-V" {
			return append([]string{"type"}, args[2:]...), nil
		}
		if !replaced[args[1]] && args[1] != "exec" && args[1] != "eval" && args[1] != "trap" && args[1] != "cd" {
			return args, nil
		}
		args = args[1:]
	}
	switch name := args[0]; name {
	case "eval":
		if src, ok := s.rewritten(strings.Join(args[1:], " ")); ok {
			return []string{"eval", src}, nil
		}
	case "source", ".":
		if len(args) > 1 {
			return append([]string{args[0], sourcePrefix + args[1]}, args[2:]...), nil
		}
	case "trap":
		return s.traps.command(s, args), nil
	case "exec":
		if len(args) > 1 {
			if args[1] == "--" {
				args = append(args[:1:1], args[2:]...)
			}
			return append([]string{"exec", own + "exec"}, args[1:]...), nil
		}
	case "cd":
		for len(args) > 1 && (args[1] == "--" || args[1] == "-P" || args[1] == "-L") {
			args = append([]string{"cd"}, args[2:]...)
		}
		return args, nil
	case "read":
		if slices.ContainsFunc(args, readOption().MatchString) {
			return append([]string{own + "read"}, args[1:]...), nil
		}
	case "mapfile", "readarray":
	default:
		if replaced[name] {
			return append([]string{own + name}, args[1:]...), nil
		}
		if tail && r == s.runner && !interp.IsBuiltin(name) && !s.jobs.any() {
			return append([]string{own + "tail"}, args...), nil
		}
	}
	return args, nil
}

var readOption = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-[a-zA-Z]*[tndNu]`) })

// rewritten parses, rewrites and prints code that the interpreter is going to parse by itself.
func (s *sh) rewritten(src string) (string, bool) {
	if !strings.ContainsAny(src, "&$>") {
		return src, true
	}
	f, err := s.parse(src, "")
	if err != nil {
		return src, false
	}
	return printNode(f), true
}

func printNode(n syntax.Node) string {
	// A quoted word made by background may hold quotes: print it as the shell would write it.
	syntax.Walk(n, func(n syntax.Node) bool {
		if w, ok := n.(*syntax.Word); ok {
			for i, p := range w.Parts {
				if q, ok := p.(*syntax.SglQuoted); ok && !q.Dollar && strings.Contains(q.Value, "'") {
					w.Parts[i] = &syntax.Lit{Value: quote(q.Value)}
				}
			}
		}
		return true
	})
	var b strings.Builder
	syntax.NewPrinter().Print(&b, n)
	return b.String()
}

// sourcePrefix marks a file that "source" opens, so that open can rewrite it. A NUL is in no real path.
const sourcePrefix = "\x00source:"

func (s *sh) open(ctx context.Context, path string, flag int, perm os.FileMode) (io.ReadWriteCloser, error) {
	hc := interp.HandlerCtx(ctx)
	name, isSource := strings.CutPrefix(path, sourcePrefix)
	if !isSource {
		if path != "" && !filepath.IsAbs(path) {
			path = filepath.Join(hc.Dir, path)
		}
		if flag&os.O_CREATE != 0 {
			perm = 0o666 // the umask applies
		}
		f, err := os.OpenFile(path, flag, perm)
		if err != nil {
			return nil, &os.PathError{Op: "sh", Path: name, Err: errors.New(reason(err))}
		}
		return f, nil
	}
	file := name
	if !strings.Contains(name, "/") {
		for _, d := range filepath.SplitList(hc.Env.Get("PATH").String()) {
			if _, err := os.Stat(filepath.Join(d, name)); err == nil {
				file = filepath.Join(d, name)
				break
			}
		}
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(hc.Dir, file)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: errors.New(reason(err))}
	}
	src, _ := s.rewritten(string(b))
	return text{strings.NewReader(src)}, nil
}

// text is a file with a fixed content.
type text struct{ io.Reader }

func (text) Write([]byte) (int, error) { return 0, syscall.EBADF }
func (text) Close() error              { return nil }

// status makes an exit status the error that the interpreter wants.
func status(n int) error {
	if n == 0 {
		return nil
	}
	return interp.ExitStatus(uint8(n))
}

// exec runs every simple command that is neither a function nor a builtin of the interpreter.
func (s *sh) exec(ctx context.Context, args []string) error {
	hc := interp.HandlerCtx(ctx)
	name, isOwn := strings.CutPrefix(args[0], own)
	if isOwn {
		return s.builtin(ctx, hc, name, args[1:])
	}
	return s.runCommand(ctx, hc, args, false)
}

func (s *sh) builtin(ctx context.Context, hc interp.HandlerContext, name string, args []string) error {
	c := s.newCall(ctx, hc, name, args)
	switch name {
	case "echo":
		return s.written(ctx, hc, c.run(echo))
	case "printf":
		if len(args) >= 2 && args[0] == "-v" {
			var b strings.Builder
			c.args, c.rawOut = args[2:], &b
			st := c.run(printf)
			hc.Builtin(ctx, []string{"eval", args[1] + "=" + quote(b.String())})
			return status(st)
		}
		return s.written(ctx, hc, c.run(printf))
	case "bg":
		if len(args) == 0 || strings.HasPrefix(args[0], "%") {
			return nil
		}
		return s.startJob(ctx, hc, args)
	case "bgscript":
		return s.startScript(ctx, hc, args[0], args[0])
	case "trapped":
		for _, code := range s.traps.take() {
			if err := hc.Builtin(ctx, []string{"eval", code}); err != nil {
				if runnerOf(hc).Exited() {
					return err
				}
			}
		}
		return hc.Builtin(ctx, []string{"eval", quoteAll(args)})
	case "exec":
		return s.runCommand(ctx, hc, args, runnerOf(hc) == s.runner)
	case "tail":
		return s.runCommand(ctx, hc, args, true)
	case "kill":
		return status(s.kill(c))
	case "wait":
		return status(s.wait(c))
	case "fg":
		return status(s.wait(c))
	case "jobs":
		return status(s.jobs.list(c))
	case "read":
		return s.read(ctx, hc, args)
	case "umask":
		return status(c.run(umask))
	case "ulimit":
		return status(c.run(ulimit))
	case "times":
		return status(c.run(func(c *call) int { c.printf("0m0.000s 0m0.000s\n0m0.000s 0m0.000s\n"); return 0 }))
	case "disown", "history", "bind", "complete", "compopt", "enable", "suspend", "logout":
		return nil
	}
	return status(1)
}

// written ends a subshell whose reader is gone: a loop of echo would go on for ever.
func (s *sh) written(ctx context.Context, hc interp.HandlerContext, st int) error {
	if st == sigpipe && runnerOf(hc) != s.runner {
		return hc.Builtin(ctx, []string{"exit", strconv.Itoa(sigpipe)})
	}
	return status(st)
}

// environ is the exported environment of a handler's shell.
func environ(env expand.Environ) []string {
	vars := map[string]string{}
	for name, vr := range env.Each {
		if strings.HasPrefix(name, own) {
			continue
		}
		if vr.IsSet() && vr.Exported && vr.Kind == expand.String {
			vars[name] = vr.Str
		} else {
			delete(vars, name)
		}
	}
	list := make([]string, 0, len(vars))
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		list = append(list, name+"="+vars[name])
	}
	return list
}

func (s *sh) newCall(ctx context.Context, hc interp.HandlerContext, name string, args []string) *call {
	return &call{
		ctx: ctx, name: name, args: args, rawIn: fileOrNil(hc.Stdin), rawOut: hc.Stdout, err: hc.Stderr, dir: hc.Dir,
		environ: sync.OnceValue(func() []string { return environ(hc.Env) }),
	}
}

// runCommand runs a command from PATH: an applet here, all else as a process, or in place of this process.
func (s *sh) runCommand(ctx context.Context, hc interp.HandlerContext, args []string, replace bool) error {
	path, isSelf, err := lookPath(hc.Dir, hc.Env.Get("PATH").String(), args[0])
	if err != nil {
		st, msg := notRunnable(args[0], err)
		fmt.Fprintf(hc.Stderr, "%s: %s\n", s.name, msg)
		return status(st)
	}
	base := filepath.Base(args[0])
	f, isApplet := applets[base]
	if isApplet && isSelf && !ownProcess[base] && !follows(base, args) {
		return status(s.newCall(ctx, hc, base, args[1:]).run(f))
	}
	env := environ(hc.Env)
	if replace && !s.traps.any() {
		if err := s.replace(hc, path, args, env); errors.Is(err, syscall.ENOEXEC) {
			s.replace(hc, "/proc/self/exe", append([]string{"sh", path}, args[1:]...), env)
		}
	}
	cmd := &exec.Cmd{Path: path, Args: args, Env: env, Dir: hc.Dir, Stdin: fileOrNil(hc.Stdin), Stdout: hc.Stdout, Stderr: hc.Stderr}
	if err := startCmd(cmd); err != nil {
		st, msg := notRunnable(args[0], err)
		fmt.Fprintf(hc.Stderr, "%s: %s\n", s.name, msg)
		return status(st)
	}
	return status(exitStatus(cmd, cmd.Wait()))
}

// follows reports a tail that does not end.
func follows(name string, args []string) bool {
	return name == "tail" && slices.ContainsFunc(args, func(a string) bool { return len(a) > 1 && a[0] == '-' && strings.ContainsAny(a, "fF") })
}

// startJob starts a simple command in the background.
func (s *sh) startJob(ctx context.Context, hc interp.HandlerContext, args []string) error {
	if runnerOf(hc).Funcs[args[0]] != nil || interp.IsBuiltin(args[0]) {
		return s.startScript(ctx, hc, quoteAll(args), strings.Join(args, " "))
	}
	path, _, err := lookPath(hc.Dir, hc.Env.Get("PATH").String(), args[0])
	if err != nil {
		return s.startScript(ctx, hc, quoteAll(args), strings.Join(args, " ")) // it reports, and is a job that failed
	}
	cmd := &exec.Cmd{Path: path, Args: args, Env: environ(hc.Env), Dir: hc.Dir, Stdin: s.jobStdin(hc), Stdout: hc.Stdout, Stderr: hc.Stderr}
	return s.start(ctx, hc, cmd, strings.Join(args, " "))
}

// jobStdin is /dev/null unless the job has its own: it must not read what is meant for the shell.
func (s *sh) jobStdin(hc interp.HandlerContext) io.Reader {
	if f, ok := hc.Stdin.(*os.File); ok && f != nil && f != os.Stdin {
		return f
	}
	return nil
}

// startScript starts a child shell in the background, with the variables, functions, options and parameters of this
// one: it stands for the fork that a Go program cannot do.
func (s *sh) startScript(ctx context.Context, hc interp.HandlerContext, src, title string) error {
	r := runnerOf(hc)
	hc.Builtin(ctx, []string{"eval", own + "opts=$-"})
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("background job: %w", err)
	}
	file := os.NewFile(uintptr(fd), "script")
	defer file.Close()
	if _, err := file.WriteString(s.prelude(hc, r) + src + "\n"); err != nil {
		return fmt.Errorf("background job: %w", err)
	}
	file.Seek(0, io.SeekStart)
	shell := os.Getpid()
	if n, err := strconv.Atoi(s.ppid); err == nil {
		shell = n
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{"sh", "--", s.name}, r.Params...), Dir: hc.Dir,
		Env:   append(environ(hc.Env), stateFD+"=3", statePID+"="+strconv.Itoa(shell)),
		Stdin: s.jobStdin(hc), Stdout: hc.Stdout, Stderr: hc.Stderr, ExtraFiles: []*os.File{file},
	}
	return s.start(ctx, hc, cmd, title)
}

// prelude is code that makes another shell's state like this one's.
func (s *sh) prelude(hc interp.HandlerContext, r *interp.Runner) string {
	var b strings.Builder
	vars := map[string]expand.Variable{}
	for name, vr := range hc.Env.Each {
		vars[name] = vr
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		vr := vars[name]
		if !vr.IsSet() || !syntax.ValidName(name) || slices.Contains([]string{"UID", "EUID", "GID", "PWD", "OPTIND"}, name) {
			continue
		}
		switch vr.Kind {
		case expand.String:
			if !vr.Exported {
				fmt.Fprintf(&b, "%s=%s\n", name, quote(vr.Str))
			}
		case expand.Indexed:
			fmt.Fprintf(&b, "%s=(", name)
			for i, v := range vr.List {
				if vr.Indexes != nil {
					i = vr.Indexes[i]
				}
				fmt.Fprintf(&b, " [%d]=%s", i, quote(v))
			}
			b.WriteString(" )\n")
		case expand.Associative:
			fmt.Fprintf(&b, "declare -A %s=(", name)
			for k, v := range vr.Map {
				fmt.Fprintf(&b, " [%s]=%s", quote(k), quote(v))
			}
			b.WriteString(" )\n")
		}
		if vr.ReadOnly {
			fmt.Fprintf(&b, "readonly %s\n", name)
		}
	}
	fmt.Fprintf(&b, "%sshell=%d\n", own, os.Getpid())
	if s.ppid != "" {
		fmt.Fprintf(&b, "%sshell=%s\n", own, s.ppid)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Funcs)) {
		fmt.Fprintf(&b, "%s() %s\n", name, printNode(r.Funcs[name]))
	}
	if opts := hc.Env.Get(own + "opts"); opts.Str != "" {
		fmt.Fprintf(&b, "set -%s\n", opts.Str)
	}
	return b.String()
}

// start starts a job and sets $!.
func (s *sh) start(ctx context.Context, hc interp.HandlerContext, cmd *exec.Cmd, title string) error {
	if err := startCmd(cmd); err != nil {
		st, msg := notRunnable(cmd.Args[0], err)
		fmt.Fprintf(hc.Stderr, "%s: %s\n", s.name, msg)
		return status(st)
	}
	j := s.jobs.add(cmd, title)
	if s.interactive {
		fmt.Fprintf(hc.Stderr, "[%d] %d\n", j.number, j.pid)
	}
	hc.Builtin(ctx, []string{"eval", lastPID + "=" + strconv.Itoa(j.pid)})
	return nil
}

// job is a process in the background.
type job struct {
	number, pid int
	title       string
	done        chan struct{}
	status      int // once done
	reported    bool
}

type jobTable struct {
	mu    sync.Mutex
	procs []*job
}

func (t *jobTable) add(cmd *exec.Cmd, title string) *job {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := &job{number: len(t.procs) + 1, pid: cmd.Process.Pid, title: strings.TrimSpace(title), done: make(chan struct{})}
	t.procs = append(t.procs, j)
	go func() {
		j.status = exitStatus(cmd, cmd.Wait())
		close(j.done)
	}()
	return j
}

func (t *jobTable) all() []*job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.procs)
}

func (t *jobTable) any() bool { return len(t.all()) > 0 }

// find looks a job up by pid, %number or %%; nil if there is none.
func (t *jobTable) find(id string) *job {
	all := t.all()
	n, isNum := strings.CutPrefix(id, "%")
	if isNum && (n == "" || n == "%" || n == "+" || n == "-") {
		for i := len(all) - 1; i >= 0; i-- {
			if !all[i].ended() {
				return all[i]
			}
		}
		return nil
	}
	want, err := strconv.Atoi(n)
	for i := len(all) - 1; i >= 0; i-- {
		j := all[i]
		if err == nil && (isNum && j.number == want || !isNum && j.pid == want) || err != nil && isNum && strings.HasPrefix(j.title, n) {
			return j
		}
	}
	return nil
}

func (j *job) ended() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

func (t *jobTable) list(c *call) int {
	return c.run(func(c *call) int {
		o := c.getopt("lprs")
		for _, j := range t.all() {
			switch {
			case j.ended() && (j.reported || o.any("prs")):
			case o.has('p'):
				c.printf("%d\n", j.pid)
			case j.ended():
				j.reported = true
				c.printf("[%d]   Done(%d)                 %s\n", j.number, j.status, j.title)
			case o.has('l'):
				c.printf("[%d]   %d Running                 %s\n", j.number, j.pid, j.title)
			default:
				c.printf("[%d]   Running                 %s &\n", j.number, j.title)
			}
		}
		return 0
	})
}

func (t *jobTable) reportDone(w io.Writer) {
	for _, j := range t.all() {
		if j.ended() && !j.reported {
			j.reported = true
			fmt.Fprintf(w, "[%d]   Done(%d)                 %s\n", j.number, j.status, j.title)
		}
	}
}

// wait waits for the jobs named, or for all. A trapped signal ends it.
func (s *sh) wait(c *call) int {
	args := c.args
	next := false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		next = next || args[0] == "-n"
		args = args[1:]
	}
	var jobs []*job
	if len(args) == 0 {
		jobs = s.jobs.all()
		if c.name == "fg" && len(jobs) > 0 {
			args, jobs = []string{"%%"}, jobs[len(jobs)-1:]
		}
	} else {
		for _, a := range args {
			j := s.jobs.find(a)
			if j == nil {
				fmt.Fprintf(c.err, "%s: wait: pid %s is not a child of this shell\n", s.name, a)
				return 127
			}
			jobs = append(jobs, j)
		}
	}
	if next {
		jobs = slices.DeleteFunc(jobs, func(j *job) bool { return j.reported })
		if len(jobs) == 0 {
			return 127
		}
		for {
			for _, j := range jobs {
				if j.ended() {
					j.reported = true
					return j.status
				}
			}
			if sig := s.traps.first(); sig != 0 {
				return 128 + int(sig)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	st := 0
	for _, j := range jobs {
		select {
		case <-j.done:
			j.reported = true
			if st = j.status; len(args) == 0 {
				st = 0
			}
		case <-s.traps.arrived():
			return 128 + int(s.traps.first())
		case <-c.ctx.Done():
			return 130
		}
	}
	return st
}

// kill is the applet kill, with jobs for targets as well.
func (s *sh) kill(c *call) int {
	for i, a := range c.args {
		if strings.HasPrefix(a, "%") {
			j := s.jobs.find(a)
			if j == nil {
				fmt.Fprintf(c.err, "%s: kill: %s: no such job\n", s.name, a)
				return 1
			}
			c.args[i] = strconv.Itoa(j.pid)
		}
	}
	return c.run(kill)
}

// read is the builtin read with -t, -n, -N, -d and -u, which the interpreter lacks: it reads the text here and lets the
// builtin split it.
func (s *sh) read(ctx context.Context, hc interp.HandlerContext, args []string) error {
	c := s.newCall(ctx, hc, "read", args)
	var o *options
	if st := c.run(func(c *call) int { o = c.getopt("+rsea:p:t:n:N:d:u:i:"); return 0 }); st != 0 || o == nil {
		return status(2)
	}
	delim, limit := byte('\n'), int(o.num('n', o.num('N', 0)))
	if o.has('d') {
		delim = 0
		if d := o.str('d', ""); d != "" {
			delim = d[0]
		}
	}
	f, ok := hc.Stdin.(*os.File)
	if !ok || f == nil || o.has('u') && o.str('u', "0") != "0" {
		return status(1)
	}
	if o.has('p') {
		fmt.Fprint(hc.Stderr, o.str('p', ""))
	}
	var deadline time.Time
	if o.has('t') {
		secs, _ := strconv.ParseFloat(o.str('t', "0"), 64)
		deadline = time.Now().Add(time.Duration(secs * float64(time.Second)))
	}
	line, err := readLineFrom(deadlineReader{f, deadline}, delim, limit)
	flags := []string{"read", "-r"}
	if !o.has('r') {
		line = strings.ReplaceAll(line, "\\\n", "")
		flags = flags[:1]
	}
	if o.has('a') {
		flags = append(flags, "-a", o.str('a', ""))
	}
	if strings.Contains(line, "\n") && len(o.args) <= 1 && !o.has('a') { // several lines in one variable
		name := "REPLY"
		if len(o.args) == 1 {
			name = o.args[0]
			if ifs := hc.Env.Get("IFS"); !ifs.IsSet() || ifs.Str != "" {
				line = strings.Trim(line, " \t\n")
			}
		}
		hc.Builtin(ctx, []string{"eval", name + "=" + quote(line)})
	} else {
		hc.Builtin(ctx, []string{"eval", quoteAll(append(flags, o.args...)) + " <<< " + quote(line)})
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return status(142)
	case err != nil:
		return status(1)
	}
	return nil
}

// deadlineReader polls the file: files made blocking for a child take no deadline.
type deadlineReader struct {
	f  *os.File
	by time.Time
}

func (r deadlineReader) Read(b []byte) (int, error) {
	if !r.by.IsZero() {
		for {
			ms := int(time.Until(r.by).Milliseconds())
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(r.f.Fd()), Events: unix.POLLIN}}, max(ms, 0))
			if err == unix.EINTR && ms > 0 {
				continue
			}
			if n == 0 {
				return 0, os.ErrDeadlineExceeded
			}
			break
		}
	}
	return r.f.Read(b)
}

// trapTable holds the traps on signals; EXIT and ERR are the interpreter's.
type trapTable struct {
	mu    sync.Mutex
	code  map[syscall.Signal]string
	queue []syscall.Signal
	wake  chan struct{}
	sigs  chan os.Signal
}

func (t *trapTable) any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.code) > 0
}

func (t *trapTable) pending() bool {
	if t.sigs == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queue) > 0
}

func (t *trapTable) first() syscall.Signal {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return 0
	}
	return t.queue[0]
}

// arrived is closed once a trapped signal is in the queue.
func (t *trapTable) arrived() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wake
}

// take empties the queue.
func (t *trapTable) take() (code []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, sig := range t.queue {
		code = append(code, t.code[sig])
	}
	if len(t.queue) > 0 {
		t.queue, t.wake = nil, make(chan struct{})
	}
	return code
}

// command handles the builtin trap: it sets the traps on signals and returns the rest for the interpreter.
func (t *trapTable) command(s *sh, args []string) []string {
	rest := args[1:]
	if len(rest) > 0 && rest[0] == "--" {
		rest = rest[1:]
	}
	if len(rest) == 0 || rest[0] == "-p" || rest[0] == "-l" {
		if len(rest) > 0 && rest[0] == "-l" {
			return []string{own + "kill", "-l"}
		}
		return []string{"trap"}
	}
	code, names := rest[0], rest[1:]
	if len(names) == 0 {
		code, names = "-", rest
	}
	if src, ok := s.rewritten(code); ok && code != "-" {
		code = src
	}
	var passed []string
	for _, n := range names {
		switch up := strings.ToUpper(strings.TrimPrefix(n, "SIG")); up {
		case "EXIT", "0":
			passed = append(passed, "EXIT")
		case "ERR":
			passed = append(passed, up)
		case "DEBUG", "RETURN":
		default:
			sig, ok := signalNumber(n)
			if !ok {
				return []string{"trap", "-", n} // the interpreter reports it
			}
			t.set(sig, code)
		}
	}
	if len(passed) == 0 {
		return []string{"true"}
	}
	return append([]string{"trap", "--", code}, passed...)
}

func (t *trapTable) set(sig syscall.Signal, code string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sigs == nil {
		t.code = map[syscall.Signal]string{}
		t.sigs = make(chan os.Signal, 64)
		t.wake = make(chan struct{})
		go func() {
			for sig := range t.sigs {
				t.mu.Lock()
				t.queue = append(t.queue, sig.(syscall.Signal))
				if len(t.queue) == 1 {
					close(t.wake)
				}
				t.mu.Unlock()
			}
		}()
	}
	switch code {
	case "-":
		delete(t.code, sig)
		signal.Reset(sig)
	case "":
		t.code[sig] = ""
		signal.Ignore(sig)
	default:
		t.code[sig] = code
		signal.Notify(t.sigs, sig)
	}
}

func umask(c *call) int {
	o := c.getopt("Sp")
	if len(o.args) == 0 {
		old := syscall.Umask(0)
		syscall.Umask(old)
		c.printf("%04o\n", old)
		return 0
	}
	m, err := strconv.ParseUint(o.args[0], 8, 12)
	if err != nil {
		old := syscall.Umask(0)
		mode, ok := symbolicMode(o.args[0], uint32(0o777&^old), false)
		if !ok {
			syscall.Umask(old)
			c.die(1, "%s: invalid mode", o.args[0])
		}
		m = uint64(0o777 &^ mode)
	}
	syscall.Umask(int(m))
	return 0
}

func ulimit(c *call) int {
	res := map[byte]int{'n': unix.RLIMIT_NOFILE, 's': unix.RLIMIT_STACK, 'u': unix.RLIMIT_NPROC, 'v': unix.RLIMIT_AS, 'c': unix.RLIMIT_CORE,
		'f': unix.RLIMIT_FSIZE, 't': unix.RLIMIT_CPU, 'd': unix.RLIMIT_DATA, 'm': unix.RLIMIT_RSS, 'l': unix.RLIMIT_MEMLOCK}
	unit := map[byte]uint64{'s': 1024, 'v': 1024, 'd': 1024, 'm': 1024, 'l': 1024, 'f': 1024, 'c': 1024}
	o := c.getopt("SHansuvcftdml")
	which := byte('f')
	for b := range res {
		if o.has(b) {
			which = b
		}
	}
	show := func(b byte) string {
		var r unix.Rlimit
		unix.Getrlimit(res[b], &r)
		v := r.Cur
		if o.has('H') {
			v = r.Max
		}
		if v == unix.RLIM_INFINITY {
			return "unlimited"
		}
		return strconv.FormatUint(v/max(unit[b], 1), 10)
	}
	if o.has('a') {
		for _, b := range slices.Sorted(maps.Keys(res)) {
			c.printf("-%c: %s\n", b, show(b))
		}
		return 0
	}
	if len(o.args) == 0 {
		c.printf("%s\n", show(which))
		return 0
	}
	var r unix.Rlimit
	unix.Getrlimit(res[which], &r)
	v := uint64(unix.RLIM_INFINITY)
	if o.args[0] != "unlimited" && o.args[0] != "hard" {
		n, err := strconv.ParseUint(o.args[0], 10, 64)
		if err != nil {
			c.die(1, "%s: invalid number", o.args[0])
		}
		v = n * max(unit[which], 1)
	} else if o.args[0] == "hard" {
		v = r.Max
	}
	if !o.has('H') || o.has('S') {
		r.Cur = v
	}
	if !o.has('S') {
		r.Max = v
	}
	if err := unix.Setrlimit(res[which], &r); err != nil {
		c.die(1, "cannot modify limit: %s", reason(err))
	}
	return 0
}
