package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
)

// call is one run of an applet: everything it may know about its surroundings. In the shell's process the surroundings
// are the shell's, not the process's.
type call struct {
	ctx     context.Context
	name    string
	args    []string
	in      io.Reader // flushes out before it blocks, so that filters stay live
	out     *bufio.Writer
	err     io.Writer
	rawIn   io.Reader // what the caller gave: an *os.File most of the time
	rawOut  io.Writer
	dir     string // "" is the process's
	environ func() []string
	process bool // this call owns the process
	status  int
}

// exitPanic unwinds an applet; run turns it into the status.
type exitPanic int

func (c *call) exit(status int) { panic(exitPanic(status)) }

const (
	bufSize = 64 << 10
	sigpipe = 128 + int(syscall.SIGPIPE)
)

// processCall is the call of an applet that is the whole process.
func processCall(name string, args []string) *call {
	return &call{
		ctx: context.Background(), name: name, args: args,
		rawIn: os.Stdin, rawOut: os.Stdout, err: os.Stderr, environ: os.Environ, process: true,
	}
}

func (c *call) run(f applet) (status int) {
	c.out = bufio.NewWriterSize(pipeWriter{c}, bufSize)
	c.in = flushReader{c}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exitPanic:
			status = int(p)
			if status != sigpipe {
				status = c.flush(status)
			}
		default:
			fmt.Fprintf(c.err, "%s: bug: %v\n%s", c.name, p, debug.Stack())
			status = 70
		}
	}()
	status = f(c)
	return c.flush(max(status, c.status))
}

// flush flushes at the end of a run, when exit can no longer unwind.
func (c *call) flush(status int) (final int) {
	defer func() {
		if p, ok := recover().(exitPanic); ok {
			final = int(p)
		}
	}()
	c.out.Flush()
	return status
}

// pipeWriter ends the applet at the first write that fails, as SIGPIPE would.
type pipeWriter struct{ c *call }

func (w pipeWriter) Write(b []byte) (int, error) {
	n, err := w.c.rawOut.Write(b)
	if err != nil {
		w.c.out.Reset(io.Discard)
		if errors.Is(err, syscall.EPIPE) {
			w.c.exit(sigpipe)
		}
		w.c.warn("write error: %v", reason(err))
		w.c.exit(1)
	}
	return n, nil
}

type flushReader struct{ c *call }

func (r flushReader) Read(b []byte) (int, error) {
	if r.c.rawIn == nil {
		return 0, io.EOF
	}
	if r.c.out.Buffered() > 0 {
		r.c.out.Flush()
	}
	return r.c.rawIn.Read(b)
}

// write goes past the buffer: for applets that move blocks.
func (c *call) write(b []byte) {
	c.out.Flush()
	pipeWriter{c}.Write(b)
}

func (c *call) printf(format string, a ...any) { fmt.Fprintf(c.out, format, a...) }

// warn reports a problem that the applet goes on after.
func (c *call) warn(format string, a ...any) {
	fmt.Fprintf(c.err, c.name+": "+format+"\n", a...)
}

// fail reports a problem and makes the exit status at least 1.
func (c *call) fail(format string, a ...any) {
	c.warn(format, a...)
	c.status = max(c.status, 1)
}

// die reports a problem and ends the applet.
func (c *call) die(status int, format string, a ...any) {
	c.warn(format, a...)
	c.exit(status)
}

// reason is an error as coreutils words it: without the operation and the path.
func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		s := errno.Error()
		return strings.ToUpper(s[:1]) + s[1:]
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return err.Error()
}

// path resolves an operand against the working directory.
func (c *call) path(p string) string {
	if c.dir == "" || p == "" || filepath.IsAbs(p) {
		return p
	}
	if c.dir == "/" {
		return "/" + p
	}
	return c.dir + "/" + p // not Join: a trailing slash means something
}

func (c *call) wd() string {
	if c.dir != "" {
		return c.dir
	}
	d, _ := os.Getwd()
	return d
}

func (c *call) getenv(name string) string {
	env := c.environ()
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// open opens an operand for reading; "-" is stdin. It returns nil once it has reported why it cannot.
func (c *call) open(name string) io.ReadCloser {
	if name == "-" {
		return io.NopCloser(c.in)
	}
	f, err := os.Open(c.path(name))
	if err == nil {
		if st, serr := f.Stat(); serr == nil && st.IsDir() {
			f.Close()
			err = syscall.EISDIR
		}
	}
	if err != nil {
		c.fail("%s: %s", name, reason(err))
		return nil
	}
	return f
}

// inputs calls f for each operand that can be opened, or for stdin if there is none.
func (c *call) inputs(names []string, f func(name string, r io.Reader)) {
	if len(names) == 0 {
		names = []string{"-"}
	}
	for _, n := range names {
		if r := c.open(n); r != nil {
			f(n, r)
			r.Close()
		}
	}
}

// lines calls f for every line without its newline; last says that it had none. It stops when f says false.
func lines(r io.Reader, f func(line []byte, last bool) bool) {
	b := bufio.NewReaderSize(r, bufSize)
	var long []byte
	for {
		line, err := b.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			long = append(long, line...)
			continue
		}
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		if n := len(line); n > 0 && line[n-1] == '\n' {
			if !f(line[:n-1], false) {
				return
			}
		} else if n > 0 {
			f(line, true)
		}
		long = long[:0]
		if err != nil {
			return
		}
	}
}

func (c *call) readAll(name string) ([]byte, bool) {
	r := c.open(name)
	if r == nil {
		return nil, false
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		c.fail("%s: %s", name, reason(err))
		return nil, false
	}
	return b, true
}

// options is what getopt found.
type options struct {
	c    *call
	vals map[byte][]string
	args []string
}

func (o *options) has(b byte) bool { return len(o.vals[b]) > 0 }

func (o *options) any(bs string) bool {
	for i := range len(bs) {
		if o.has(bs[i]) {
			return true
		}
	}
	return false
}

// str is the last value given to an option.
func (o *options) str(b byte, def string) string {
	if v := o.vals[b]; len(v) > 0 {
		return v[len(v)-1]
	}
	return def
}

func (o *options) num(b byte, def int64) int64 {
	if !o.has(b) {
		return def
	}
	n, err := parseSize(o.str(b, ""))
	if err != nil {
		o.c.die(1, "invalid number: %q", o.str(b, ""))
	}
	return n
}

// getopt reads options as GNU getopt does. spec lists the letters, "x:" with a value, "x?" with one only when it is
// attached; a leading '+' stops at the first operand. longs are "name=x". A "#" in spec takes -NUMBER as option '#'.
func (c *call) getopt(spec string, longs ...string) *options {
	o := &options{c: c, vals: map[byte][]string{}}
	spec, posix := strings.CutPrefix(spec, "+")
	kind := func(b byte) byte {
		i := strings.IndexByte(spec, b)
		if i < 0 || b == ':' || b == '?' || b == '#' {
			return 'x'
		}
		if i+1 < len(spec) && (spec[i+1] == ':' || spec[i+1] == '?') {
			return spec[i+1]
		}
		return 0
	}
	args := c.args
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch {
		case a == "--":
			o.args = append(o.args, args...)
			return o
		case len(a) < 2 || a[0] != '-':
			o.args = append(o.args, a)
			if posix {
				o.args = append(o.args, args...)
				return o
			}
		case strings.Contains(spec, "#") && a[1] >= '0' && a[1] <= '9':
			o.vals['#'] = append(o.vals['#'], a[1:])
		case a[1] == '-':
			name, val, hasVal := strings.Cut(a[2:], "=")
			var letter byte
			for _, l := range longs {
				n, x, _ := strings.Cut(l, "=")
				if n == name || letter == 0 && strings.HasPrefix(n, name) {
					letter = x[0]
				}
			}
			if letter == 0 {
				c.die(2, "unrecognized option '--%s'", name)
			}
			if kind(letter) == ':' && !hasVal {
				if len(args) == 0 {
					c.die(2, "option '--%s' requires an argument", name)
				}
				val, args = args[0], args[1:]
			}
			o.vals[letter] = append(o.vals[letter], val)
		default:
			for i := 1; i < len(a); i++ {
				b := a[i]
				k := kind(b)
				if k == 'x' {
					c.die(2, "invalid option -- '%c'", b)
				}
				if k == 0 {
					o.vals[b] = append(o.vals[b], "")
					continue
				}
				val := a[i+1:]
				if val == "" && k == ':' {
					if len(args) == 0 {
						c.die(2, "option requires an argument -- '%c'", b)
					}
					val, args = args[0], args[1:]
				}
				o.vals[b] = append(o.vals[b], val)
				break
			}
		}
	}
	return o
}

// parseSize reads a number with an optional sign and multiplier: b, k, K, KiB, kB, M, G, T.
func parseSize(s string) (int64, error) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || i == 0 && (s[i] == '-' || s[i] == '+')) {
		i++
	}
	var n int64
	if _, err := fmt.Sscanf(s[:i], "%d", &n); err != nil {
		return 0, errors.New("not a number")
	}
	mult := map[string]int64{"": 1, "c": 1, "w": 2, "b": 512, "k": 1 << 10, "K": 1 << 10, "KiB": 1 << 10, "kB": 1000, "KB": 1000,
		"M": 1 << 20, "m": 1 << 20, "MiB": 1 << 20, "MB": 1e6, "G": 1 << 30, "g": 1 << 30, "GiB": 1 << 30, "GB": 1e9, "T": 1 << 40, "TB": 1e12}
	m, ok := mult[s[i:]]
	if !ok {
		return 0, errors.New("unknown unit")
	}
	return n * m, nil
}

// human prints a size as ls -h does.
func human(n int64) string {
	if n < 1024 {
		return fmt.Sprint(n)
	}
	f := float64(n)
	for _, u := range "KMGTPE" {
		f /= 1024
		if f < 10 {
			return fmt.Sprintf("%.1f%c", f+0.0499, u)
		}
		if f < 1023.5 {
			return fmt.Sprintf("%.0f%c", f+0.499, u)
		}
	}
	return fmt.Sprint(n)
}

var self = sync.OnceValue(func() fs.FileInfo {
	fi, err := os.Stat("/proc/self/exe")
	if err != nil {
		if exe, eerr := os.Executable(); eerr == nil {
			fi, _ = os.Stat(exe)
		}
	}
	return fi
})

// lookPath finds a command; a relative path is one from dir. The error is fs.ErrNotExist, fs.ErrPermission or syscall.EISDIR; isSelf says that the
// command is a link to this executable.
func lookPath(dir, pathVar, name string) (path string, isSelf bool, err error) {
	check := func(p string) error {
		abs := p
		if !filepath.IsAbs(p) {
			abs = filepath.Join(dir, p)
		}
		fi, err := os.Stat(abs)
		if err != nil {
			return err
		}
		if fi.IsDir() {
			return syscall.EISDIR
		}
		if fi.Mode()&0o111 == 0 {
			return fs.ErrPermission
		}
		path, isSelf = p, self() != nil && os.SameFile(fi, self())
		return nil
	}
	if strings.Contains(name, "/") {
		return path, isSelf, check(name)
	}
	found := fs.ErrNotExist
	for _, d := range filepath.SplitList(pathVar) {
		if d == "" {
			d = "."
		}
		err := check(d + "/" + name)
		if err == nil {
			return path, isSelf, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			found = fs.ErrPermission
		}
	}
	return "", false, found
}

// notRunnable is the status and wording for an error of lookPath or of starting a process.
func notRunnable(name string, err error) (int, string) {
	switch {
	case errors.Is(err, fs.ErrNotExist) && !strings.Contains(name, "/"):
		return 127, name + ": command not found"
	case errors.Is(err, fs.ErrNotExist):
		return 127, name + ": No such file or directory"
	case errors.Is(err, syscall.EISDIR):
		return 126, name + ": Is a directory"
	case errors.Is(err, fs.ErrPermission):
		return 126, name + ": Permission denied"
	}
	return 126, name + ": " + reason(err)
}

// command prepares a child process with the call's surroundings. A file that the kernel will not run is taken as a
// shell script.
func (c *call) command(args []string) (*exec.Cmd, error) {
	path, _, err := lookPath(c.wd(), c.getenv("PATH"), args[0])
	if err != nil {
		return nil, err
	}
	c.out.Flush()
	return &exec.Cmd{Path: path, Args: args, Env: c.environ(), Dir: c.dir, Stdin: fileOrNil(c.rawIn), Stdout: c.rawOut, Stderr: c.err}, nil
}

// fileOrNil keeps a nil *os.File from becoming a non-nil reader.
func fileOrNil(r io.Reader) io.Reader {
	if f, ok := r.(*os.File); ok && f == nil {
		return nil
	}
	return r
}

// startCmd starts a command, as a shell script if the kernel cannot run it.
func startCmd(cmd *exec.Cmd) error {
	err := cmd.Start()
	if errors.Is(err, syscall.ENOEXEC) {
		script := *cmd
		*cmd = exec.Cmd{Path: "/proc/self/exe", Args: append([]string{"sh", script.Path}, script.Args[1:]...),
			Env: script.Env, Dir: script.Dir, Stdin: script.Stdin, Stdout: script.Stdout, Stderr: script.Stderr, SysProcAttr: script.SysProcAttr}
		err = cmd.Start()
	}
	return err
}

// exitStatus is the shell's status for a process that ended.
func exitStatus(cmd *exec.Cmd, err error) int {
	if cmd.ProcessState == nil {
		if err != nil {
			return 126
		}
		return 0
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// spawn runs a command to its end and returns its status; an applet runs in this process.
func (c *call) spawn(args []string, stdin io.Reader) int {
	path, isSelf, err := lookPath(c.wd(), c.getenv("PATH"), args[0])
	if err != nil {
		status, msg := notRunnable(args[0], err)
		c.warn("%s", msg)
		return status
	}
	c.out.Flush()
	if f, ok := applets[filepath.Base(args[0])]; ok && isSelf && !ownProcess[filepath.Base(args[0])] {
		sub := &call{ctx: c.ctx, name: filepath.Base(args[0]), args: args[1:], rawIn: stdin, rawOut: c.rawOut, err: c.err, dir: c.dir, environ: c.environ}
		return sub.run(f)
	}
	cmd := &exec.Cmd{Path: path, Args: args, Env: c.environ(), Dir: c.dir, Stdin: fileOrNil(stdin), Stdout: c.rawOut, Stderr: c.err}
	if err := startCmd(cmd); err != nil {
		status, msg := notRunnable(args[0], err)
		c.warn("%s", msg)
		return status
	}
	return exitStatus(cmd, cmd.Wait())
}
