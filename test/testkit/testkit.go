// Package testkit runs the real product for tests: the built bin/caisson as a server with a state directory of its own,
// its command line, its API over the unix socket, and a search for what a test left behind.
package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Need is something a test needs of the machine.
type Need string

// The needs.
const (
	Root   Need = "root"                       // uid 0
	Debian Need = "a Debian root (debian.tar)" // $CAISSON_TEST_CACHE/debian.tar, made by test/install.sh
)

// Needs skips the test, saying why, when the machine lacks something. Where CAISSON_TEST_NO_SKIP is set, as in CI, the
// test fails instead.
func Needs(t testing.TB, needs ...Need) {
	t.Helper()
	for _, n := range needs {
		var lack string
		switch n {
		case Root:
			if os.Geteuid() != 0 {
				lack = "this user is not root"
			}
		case Debian:
			if _, err := os.Stat(DebianTar()); err != nil {
				lack = err.Error()
			}
		}
		switch {
		case lack == "":
		case os.Getenv("CAISSON_TEST_NO_SKIP") != "":
			t.Fatalf("needs %s: %s", n, lack)
		default:
			t.Skipf("needs %s: %s", n, lack)
		}
	}
}

// Repo is the repository's root directory.
func Repo() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// DebianTar is the Debian root file system that test/install.sh makes.
func DebianTar() string {
	if c := os.Getenv("CAISSON_TEST_CACHE"); c != "" {
		return filepath.Join(c, "debian.tar")
	}
	return filepath.Join(Repo(), ".cache", "debian.tar")
}

// Binary is the built caisson.
func Binary(t testing.TB) string {
	t.Helper()
	p := filepath.Join(Repo(), "bin", "caisson")
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("bin/caisson is missing: run `make build` first (%v)", err)
	}
	return p
}

// Server is a running `caisson serve`.
type Server struct {
	State string
	bin   string
	args  []string
	cmd   *exec.Cmd
	log   *os.File
}

// Serve starts a server on its unix socket, with more arguments if given. At the test's end the sandboxes are deleted,
// the server is stopped, and nothing of it may be left: no process, mount, cgroup or sandbox directory.
func Serve(t testing.TB, args ...string) *Server {
	t.Helper()
	// Short, because a unix socket's path is: t.TempDir names the whole test.
	state, err := os.MkdirTemp(diskDir(), "csn")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{State: state, bin: Binary(t), args: args}
	s.log, err = os.Create(filepath.Join(state, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.finish(t) })
	s.Start(t)
	return s
}

// diskDir is a directory for temporary files that are not in memory: what a sandbox writes to a disk in memory counts as
// its memory.
func diskDir() string {
	dir := os.TempDir()
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC {
		return "/var/tmp"
	}
	return dir
}

// Start starts the server (again) and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command(s.bin, append([]string{"serve", "--state-dir", s.State}, s.args...)...)
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = s.log, s.log, s.env()
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(60 * time.Second)
	for time.Now().Before(deadline) {
		res, err := s.HTTP().Get("http://caisson/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("the server did not get ready:\n%s", s.Log())
}

// Kill ends the server as a crash would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// Stop ends the server in order; its sandboxes go on.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }() // ends with the process
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("serve ended with %v:\n%s", err, s.Log())
		}
	case <-time.After(30 * time.Second):
		s.cmd.Process.Kill()
		t.Errorf("serve did not end within 30 s of SIGTERM:\n%s", s.Log())
	}
}

// PID is the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Log is the end of what the server logged.
func (s *Server) Log() string {
	b, _ := os.ReadFile(s.log.Name())
	if len(b) > 8000 {
		b = b[len(b)-8000:]
	}
	return string(b)
}

func (s *Server) env() []string {
	env := []string{"CAISSON_STATE_DIR=" + s.State}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CAISSON_") {
			env = append(env, kv)
		}
	}
	return env
}

// HTTP is a client of the server's API on its unix socket; any host name does.
func (s *Server) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(s.State, "caisson.sock"))
		},
		MaxIdleConnsPerHost: 16, DisableCompression: true,
	}}
}

// Result is what a run of the command line gave.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Command makes a command line against the server, not yet started.
func (s *Server) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.bin, args...)
	cmd.Env = s.env()
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Run runs a command line, with two minutes at most.
func (s *Server) Run(t testing.TB, stdin string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := s.Command(ctx, args...)
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Stdin = &out, &errb, strings.NewReader(stdin)
	err := cmd.Run()
	r := Result{Stdout: out.String(), Stderr: errb.String(), Code: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("caisson %s: %v\n%s", strings.Join(args, " "), err, r.Stderr)
	}
	if ctx.Err() != nil {
		t.Fatalf("caisson %s did not end within two minutes\nstdout: %.2000s\nstderr: %.2000s\nserver: %s", strings.Join(args, " "), r.Stdout, r.Stderr, s.Log())
	}
	return r
}

// OK runs a command line that must end with 0, and returns its trimmed output.
func (s *Server) OK(t testing.TB, args ...string) string {
	t.Helper()
	r := s.Run(t, "", args...)
	if r.Code != 0 {
		t.Fatalf("caisson %s ended with %d\nstdout: %s\nstderr: %s\nserver: %s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr, s.Log())
	}
	return strings.TrimSpace(r.Stdout)
}

// Create makes a sandbox and returns its id.
func (s *Server) Create(t testing.TB, args ...string) string {
	t.Helper()
	id := s.OK(t, append([]string{"create"}, args...)...)
	if !strings.HasPrefix(id, "sb") || strings.ContainsAny(id, " \n") {
		t.Fatalf("create printed %q, not an id", id)
	}
	return id
}

// Sh runs a shell script in a sandbox; it must end with 0.
func (s *Server) Sh(t testing.TB, id, script string) string {
	t.Helper()
	return s.OK(t, "exec", id, "--", "sh", "-c", script)
}

func (s *Server) finish(t testing.TB) {
	if s.cmd != nil && s.cmd.ProcessState == nil {
		for _, id := range strings.Fields(s.Run(t, "", "ls", "--quiet").Stdout) {
			s.Run(t, "", "rm", id)
		}
		s.Stop(t)
	}
	s.log.Close()
	var left []string
	for i := 0; i < 50; i++ { // a killed process takes a moment to go
		if left = s.Leaks(); len(left) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, l := range left {
		t.Errorf("left behind: %s", l)
	}
	for _, pid := range s.Processes("") {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	if t.Failed() {
		t.Logf("server log:\n%s", s.Log())
	}
	os.RemoveAll(s.State)
}

// Processes lists the processes whose arguments name this server's state directory and contain what.
func (s *Server) Processes(what string) []int {
	var pids []int
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		line := string(bytes.ReplaceAll(args, []byte{0}, []byte{' '})) + " " + cwd
		if strings.Contains(line, s.State) && strings.Contains(line, what) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Leaks lists what is left of sandboxes when none should be.
func (s *Server) Leaks() []string {
	var left []string
	for _, pid := range s.Processes("") {
		if s.cmd != nil && s.cmd.ProcessState == nil && pid == s.cmd.Process.Pid {
			continue
		}
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d %s", pid, bytes.ReplaceAll(args, []byte{0}, []byte{' '})))
	}
	entries, _ := os.ReadDir(filepath.Join(s.State, "sandboxes"))
	for _, e := range entries {
		left = append(left, "directory sandboxes/"+e.Name())
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"} {
			if m, _ := filepath.Glob(filepath.Join(root, "*", e.Name())); len(m) > 0 {
				left = append(left, m...)
			}
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range strings.Split(string(mounts), "\n") {
		if strings.Contains(line, s.State) {
			left = append(left, "mount "+line)
		}
	}
	return left
}

// ProcessesWith lists the processes whose name starts with name and that have arg among their arguments.
func ProcessesWith(name, arg string) []int {
	var pids []int
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		list := strings.Split(string(args), "\x00")
		if strings.HasPrefix(filepath.Base(list[0]), name) && slices.Contains(list, arg) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Usage counts the server's descriptors and its resident memory in bytes.
func (s *Server) Usage(t testing.TB) (fds int, rss int64) {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.PID()))
	var size, resident int64
	fmt.Sscan(string(b), &size, &resident)
	return len(list), resident * int64(os.Getpagesize())
}

// CLI makes a command line that knows of no server.
func CLI(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Binary(t), args...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CAISSON_") && !strings.HasPrefix(kv, "HOME=") && !strings.HasPrefix(kv, "XDG_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	return cmd
}
