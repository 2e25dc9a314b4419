package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// sh is the one shell of this process.
type sh struct {
	runner      *interp.Runner
	name        string // $0
	ppid        string // what $$ prints instead of the pid, in a background child
	interactive bool
	tailable    bool // the last command of a -c script may replace the process
	subst       bool // >(…) was used: its end is waited for
	jobs        jobTable
	traps       trapTable
}

// stateFD is the environment variable that tells a background child where its script is.
const stateFD, statePID = "CAISSON_SH_FD", "CAISSON_SH_PID"

func shell(c *call) int {
	s := &sh{name: "sh"}
	var params []string
	var script string
	command, fromStdin, login, tracing := false, false, strings.HasPrefix(os.Args[0], "-"), false
	if len(os.Args) > 0 {
		s.name = strings.TrimPrefix(os.Args[0], "-")
	}
	args := c.args
options:
	for len(args) > 0 {
		a := args[0]
		switch {
		case a == "--" || a == "-":
			args = args[1:]
			break options
		case a == "--login":
			login = true
		case a == "--norc" || a == "--noprofile" || a == "--posix":
		case a == "--version":
			fmt.Fprintln(os.Stdout, "caisson-base sh (mvdan.cc/sh), in the language of bash")
			return 0
		case a == "-o" || a == "+o" || a == "-O" || a == "+O":
			if len(args) < 2 {
				c.die(2, "%s: option requires an argument", a)
			}
			if a[1] == 'o' {
				params = append(params, a, args[1])
			}
			args = args[1:]
		case len(a) > 1 && (a[0] == '-' || a[0] == '+') && a[1] != '-':
			for i := 1; i < len(a); i++ {
				switch b := a[i]; b {
				case 'c':
					command = true
				case 's':
					fromStdin = true
				case 'l':
					login = true
				case 'i':
					s.interactive = true
				case 'o':
					if len(args) < 2 {
						c.die(2, "-o: option requires an argument")
					}
					params = append(params, a[:1]+"o", args[1])
					args = args[1:]
				case 'm', 'h', 'B', 'p', 'v', 'b', 'k', 't', 'E', 'T', 'H', 'r', 'P':
				default:
					tracing = tracing || b == 'x'
					params = append(params, a[:1]+string(b))
				}
			}
		case strings.HasPrefix(a, "--"):
			c.die(2, "%s: invalid option", a)
		default:
			break options
		}
		args = args[1:]
	}

	var src io.Reader
	switch fd := os.Getenv(stateFD); {
	case fd != "":
		n, _ := strconv.Atoi(fd)
		b, err := io.ReadAll(os.NewFile(uintptr(n), "script"))
		if err != nil {
			c.die(126, "%v", err)
		}
		s.ppid, script, command = os.Getenv(statePID), string(b), true
		os.Unsetenv(stateFD)
		os.Unsetenv(statePID)
		if len(args) > 0 {
			s.name, args = args[0], args[1:]
		}
	case command:
		if len(args) == 0 {
			c.die(2, "-c: option requires an argument")
		}
		script, args = args[0], args[1:]
		if len(args) > 0 {
			s.name, args = args[0], args[1:]
		}
		s.tailable = !tracing && !strings.Contains(script, "trap") && !strings.Contains(script, "set -")
	case len(args) > 0 && !fromStdin:
		path := args[0]
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && !strings.Contains(path, "/") {
			if p, _, lerr := lookPath(c.wd(), os.Getenv("PATH"), path); lerr == nil {
				b, err = os.ReadFile(p)
			}
		}
		if err != nil {
			status := 127
			if !errors.Is(err, os.ErrNotExist) {
				status = 126
			}
			c.die(status, "%s: %s", path, reason(err))
		}
		if line, _, _ := strings.Cut(string(b[:min(len(b), 256)]), "\n"); strings.Contains(line, "\x00") {
			c.die(126, "%s: cannot execute binary file", path)
		}
		script, command = string(b), true
		s.name, args = path, args[1:]
	default:
		src = os.Stdin
		if term.IsTerminal(0) {
			s.interactive = true
		}
	}

	opts := []interp.RunnerOption{
		interp.Env(expand.ListEnviron(shellEnv()...)),
		interp.StdIO(os.Stdin, os.Stdout, os.Stderr),
		interp.Interactive(s.interactive),
		interp.Params(append(append(params, "--"), args...)...),
		interp.CallHandler(s.call),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return s.exec }),
		interp.OpenHandler(s.open),
	}
	if dir, err := os.Getwd(); err != nil {
		fmt.Fprintln(os.Stderr, "sh: the working directory is gone: "+err.Error())
		opts = append(opts, interp.Dir("/"))
	} else if pwd := os.Getenv("PWD"); pwd != dir && samePath(pwd, dir) {
		opts = append(opts, interp.Dir(pwd)) // keep the logical name
	}
	var err error
	if s.runner, err = interp.New(opts...); err != nil {
		c.die(2, "%v", err)
	}
	s.runner.Reset()
	if login {
		s.source("/etc/profile")
		if home := os.Getenv("HOME"); home != "" {
			s.source(home + "/.profile")
		}
	}
	var status int
	switch {
	case command:
		status = s.runScript(script)
	case s.interactive && term.IsTerminal(0):
		status = s.terminal()
	default:
		status = s.stream(src)
	}
	if s.subst {
		done := make(chan struct{})
		go func() { s.eval("wait"); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Second):
		}
	}
	return status
}

func samePath(a, b string) bool {
	if !strings.HasPrefix(a, "/") {
		return false
	}
	fa, err := os.Stat(a)
	if err != nil {
		return false
	}
	fb, err := os.Stat(b)
	return err == nil && os.SameFile(fa, fb)
}

// shellEnv is the environment with what a shell always sets.
func shellEnv() []string {
	env := os.Environ()
	has := func(name string) bool { _, ok := os.LookupEnv(name); return ok }
	if !has("PATH") {
		env = append(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	if !has("HOME") {
		env = append(env, "HOME=/")
	}
	if !has("SHLVL") {
		env = append(env, "SHLVL=1")
	}
	return env
}

func (s *sh) source(path string) {
	if b, err := os.ReadFile(path); err == nil {
		if f, err := s.parse(string(b), path); err == nil {
			s.runNodes(f.Stmts)
		}
	}
}

// eval runs code in the main runner, without its exit trap.
func (s *sh) eval(code string) {
	if f, err := s.parse(code, s.name); err == nil {
		s.runNodes(f.Stmts)
	}
}

func (s *sh) runNodes(stmts []*syntax.Stmt) {
	for _, st := range stmts {
		s.runner.Run(context.Background(), st)
		if s.runner.Exited() {
			return
		}
	}
}

func (s *sh) parse(src, name string) (*syntax.File, error) {
	f, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(src), name)
	if err != nil {
		return nil, err
	}
	s.rewrite(f)
	return f, nil
}

func (s *sh) syntaxError(err error) int {
	fmt.Fprintf(os.Stderr, "%v: syntax error\n", err)
	return 2
}

func (s *sh) runScript(src string) int {
	f, err := s.parse(src, s.name)
	if err != nil {
		return s.syntaxError(err)
	}
	if s.tailable && len(f.Stmts) > 0 {
		markTail(f.Stmts[len(f.Stmts)-1])
	}
	return s.finish(s.runner.Run(context.Background(), f))
}

// finish turns the result of a run into a status, after the traps that are still pending.
func (s *sh) finish(err error) int {
	for _, code := range s.traps.take() {
		s.eval(code)
	}
	var st interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &st):
		return int(st)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", s.name, err)
	return 1
}

// stream runs a script as it arrives, so that a driver can talk to a shell over a pipe, and reads no byte that the
// commands may want to read.
func (s *sh) stream(r io.Reader) int {
	if f, ok := r.(*os.File); ok {
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			r = &byteReader{f: f}
		}
	}
	parser := syntax.NewParser(syntax.Variant(syntax.LangBash))
	prompt := func(name, def string) {
		if s.interactive {
			fmt.Fprint(os.Stderr, s.prompt(name, def))
		}
	}
	var last error
	prompt("PS1", "$ ")
	for stmts, err := range parser.InteractiveSeq(r) {
		if err != nil {
			return s.syntaxError(err)
		}
		if parser.Incomplete() {
			prompt("PS2", "> ")
			continue
		}
		for _, st := range stmts {
			s.rewrite(st)
			last = s.runner.Run(context.Background(), st)
			if s.runner.Exited() {
				return s.finish(last)
			}
		}
		prompt("PS1", "$ ")
	}
	status := s.finish(last)
	s.exitTrap(status)
	return status
}

// exitTrap runs the EXIT trap after a script that was run by statements: running a file is what triggers it.
func (s *sh) exitTrap(status int) {
	if f, err := s.parse("exit "+strconv.Itoa(status), s.name); err == nil {
		s.runner.Run(context.Background(), f)
	}
}

type byteReader struct{ f *os.File }

func (r *byteReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return r.f.Read(b[:1])
}

func (s *sh) prompt(name, def string) string {
	v := s.runner.Vars[name]
	p := v.Str
	if !v.IsSet() {
		if p = os.Getenv(name); p == "" {
			if p = def; name == "PS1" && os.Geteuid() == 0 {
				p = strings.Replace(def, "$", "#", 1)
			}
		}
	}
	host, _ := os.Hostname()
	short, _, _ := strings.Cut(host, ".")
	user := lookupUser(os.Geteuid())
	dir := s.runner.Dir
	if home := os.Getenv("HOME"); home != "" && home != "/" && (dir == home || strings.HasPrefix(dir, home+"/")) {
		dir = "~" + dir[len(home):]
	}
	base := dir[strings.LastIndex(dir, "/")+1:]
	if base == "" {
		base = dir
	}
	mark := "$"
	if os.Geteuid() == 0 {
		mark = "#"
	}
	return strings.NewReplacer(`\h`, short, `\H`, host, `\u`, user, `\w`, dir, `\W`, base, `\$`, mark, `\n`, "\n",
		`\[`, "", `\]`, "", `\e`, "\x1b", `\033`, "\x1b", `\s`, "sh", `\t`, time.Now().Format("15:04:05"), `\\`, `\`).Replace(p)
}

// terminal is the read-run loop on a terminal.
func (s *sh) terminal() int {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGQUIT)
	signal.Ignore(syscall.SIGTSTP, syscall.SIGTTOU, syscall.SIGTTIN)
	keys := &keyReader{r: os.Stdin}
	screen := struct {
		io.Reader
		io.Writer
	}{keys, os.Stdout}
	t := term.NewTerminal(screen, "")
	t.AutoCompleteCallback = s.complete
	s.source(os.Getenv("ENV"))
	readLine := func(prompt string) (string, error) {
		if i := strings.LastIndexByte(prompt, '\n'); i >= 0 {
			fmt.Fprint(os.Stdout, prompt[:i+1])
			prompt = prompt[i+1:]
		}
		t.SetPrompt(prompt)
		if w, h, err := term.GetSize(0); err == nil && w > 0 {
			t.SetSize(w, h)
		}
		old, err := term.MakeRaw(0)
		if err != nil {
			return "", err
		}
		defer term.Restore(0, old)
		keys.interrupted = false
		return t.ReadLine()
	}
	var last error
	for {
		var text string
		prompt := s.prompt("PS1", "$ ")
		line, err := readLine(prompt)
		for {
			if err != nil {
				break
			}
			text += line + "\n"
			_, perr := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
			if perr == nil || !syntax.IsIncomplete(perr) {
				break
			}
			line, err = readLine(s.prompt("PS2", "> "))
		}
		if err != nil {
			fmt.Fprintln(os.Stdout)
			if keys.interrupted {
				last = interp.ExitStatus(130)
				// The old one would read the interrupted line again.
				history := t.History
				t = term.NewTerminal(screen, "")
				t.AutoCompleteCallback, t.History = s.complete, history
				continue
			}
			break
		}
		f, perr := s.parse(text, "sh")
		if perr != nil {
			s.syntaxError(perr)
			last = interp.ExitStatus(2)
			continue
		}
		for len(interrupts) > 0 {
			<-interrupts
		}
		ctx, cancel := context.WithCancel(context.Background())
		stop := make(chan struct{})
		go func() {
			select {
			case <-interrupts:
				cancel()
			case <-stop:
			}
		}()
		exited := false
		for _, st := range f.Stmts {
			last = s.runner.Run(ctx, st)
			if ctx.Err() != nil {
				fmt.Fprintln(os.Stdout)
				last = interp.ExitStatus(130)
				break
			}
			if exited = s.runner.Exited(); exited {
				break
			}
		}
		close(stop)
		cancel()
		s.jobs.reportDone(os.Stderr)
		if exited {
			return s.finish(last)
		}
	}
	status := s.finish(last)
	s.exitTrap(status)
	return status
}

// keyReader notices control-C, which x/term reports as the end of the input.
type keyReader struct {
	r           io.Reader
	interrupted bool
}

func (k *keyReader) Read(b []byte) (int, error) {
	n, err := k.r.Read(b[:min(len(b), 256)])
	for _, x := range b[:n] {
		if x == 3 {
			k.interrupted = true
		}
	}
	return n, err
}

// complete completes the word before the cursor to a file name, as far as it is unambiguous.
func (s *sh) complete(line string, pos int, key rune) (string, int, bool) {
	if key != '\t' {
		return "", 0, false
	}
	start := strings.LastIndexAny(line[:pos], " \t=<>|&;") + 1
	word := line[start:pos]
	dir, base := "", word
	if i := strings.LastIndexByte(word, '/'); i >= 0 {
		dir, base = word[:i+1], word[i+1:]
	}
	full := dir
	if !strings.HasPrefix(full, "/") {
		full = s.runner.Dir + "/" + dir
	}
	var found []string
	if ents, err := os.ReadDir(full); err == nil {
		for _, e := range ents {
			if strings.HasPrefix(e.Name(), base) && (base != "" || e.Name()[0] != '.') {
				name := e.Name() + " "
				if fi, err := os.Stat(full + "/" + e.Name()); err == nil && fi.IsDir() {
					name = e.Name() + "/"
				}
				found = append(found, name)
			}
		}
	}
	if start == 0 && dir == "" {
		for _, n := range appletNames() {
			if strings.HasPrefix(n, base) && base != "" {
				found = append(found, n+" ")
			}
		}
	}
	if len(found) == 0 {
		return line, pos, true
	}
	common := found[0]
	for _, f := range found[1:] {
		for !strings.HasPrefix(f, common) {
			common = common[:len(common)-1]
		}
	}
	done := line[:start] + dir + common
	return done + line[pos:], len(done), true
}

// runnerOf is the runner that a handler was called by. The interpreter hands out no way to reach a subshell's
// functions and parameters, nor to tell it from the main shell, so this looks into its context.
func runnerOf(hc interp.HandlerContext) *interp.Runner {
	return (*interp.Runner)(reflect.ValueOf(hc).FieldByName("runner").UnsafePointer())
}

// replace becomes the command, as exec does. It returns only if that is impossible.
func (s *sh) replace(hc interp.HandlerContext, path string, args, env []string) error {
	var fds [3]int
	for i, f := range []any{fileOrNil(hc.Stdin), hc.Stdout, hc.Stderr} {
		file, ok := f.(*os.File)
		if !ok {
			return errors.New("not a file")
		}
		fd := int(file.Fd())
		if fd != i && fd <= 2 { // out of the way of the dup below
			n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 10)
			if err != nil {
				return err
			}
			fd = n
		}
		fds[i] = fd
	}
	if err := os.Chdir(hc.Dir); err != nil {
		return err
	}
	for i, fd := range fds {
		if fd != i {
			if err := unix.Dup3(fd, i, 0); err != nil {
				return err
			}
		}
	}
	return syscall.Exec(path, args, env)
}

// quote makes a word of the shell out of a string.
func quote(v string) string {
	if v == "" {
		return "''"
	}
	if strings.IndexFunc(v, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./=:,+@%", r))
	}) < 0 && v[0] != '=' {
		return v
	}
	return "'" + strings.ReplaceAll(v, "'", `'\''`) + "'"
}

func quoteAll(args []string) string {
	q := make([]string, len(args))
	for i, a := range args {
		q[i] = quote(a)
	}
	return strings.Join(q, " ")
}

// readLineFrom reads one line byte by byte, as a shell must.
func readLineFrom(r io.Reader, delim byte, limit int) (string, error) {
	var line []byte
	var b [1]byte
	for limit <= 0 || len(line) < limit {
		n, err := r.Read(b[:])
		if n > 0 {
			if b[0] == delim {
				return string(line), nil
			}
			line = append(line, b[0])
		}
		if err != nil {
			return string(line), err
		}
	}
	return string(line), nil
}
