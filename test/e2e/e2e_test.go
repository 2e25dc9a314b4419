// Package e2e tests the real product end to end: the built binary, a real server, real gVisor sandboxes.
package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-sandbox/caisson/test/testkit"
)

// TestLife is the main job: create, run, stream, move files, stop, start, delete.
func TestLife(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t, "--name", "life", "--metadata", "purpose=test")
	if out := s.Sh(t, id, "echo hello; uname -s"); out != "hello\nLinux" {
		t.Errorf("output %q", out)
	}
	if out := s.OK(t, "ls", "--quiet", "--metadata", "purpose=test"); out != id {
		t.Errorf("ls by metadata: %q, want %q", out, id)
	}
	if out := s.OK(t, "exec", "life", "--", "echo", "by", "name"); out != "by name" {
		t.Errorf("exec by name: %q", out)
	}
	var got struct{ ID, State, Isolation, Driver string }
	if err := json.Unmarshal([]byte(s.OK(t, "inspect", id)), &got); err != nil {
		t.Fatal(err)
	}
	want := struct{ ID, State, Isolation, Driver string }{id, "running", "userspace-kernel", "gvisor"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	s.Sh(t, id, "mkdir -p /data && echo kept > /data/file")
	s.OK(t, "stop", id)
	if r := s.Run(t, "", "exec", id, "--", "true"); r.Code != 125 || !strings.Contains(r.Stderr, "stopped") {
		t.Errorf("exec in a stopped sandbox: code %d, %q", r.Code, r.Stderr)
	}
	s.OK(t, "start", id)
	if out := s.Sh(t, id, "cat /data/file"); out != "kept" {
		t.Errorf("after stop and start: %q", out)
	}
	s.OK(t, "rm", id)
	if r := s.Run(t, "", "inspect", id); r.Code == 0 {
		t.Errorf("inspect of a deleted sandbox: %q", r.Stdout)
	}
	if left := s.Leaks(); len(left) > 0 {
		t.Errorf("left after rm: %v", left)
	}
}

// TestExitCodes holds the command line to docker's conventions.
func TestExitCodes(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t)
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"code", []string{"exec", id, "--", "sh", "-c", "exit 7"}, 7},
		{"signal", []string{"exec", id, "--", "sh", "-c", "kill -9 $$"}, 137},
		{"not found", []string{"exec", id, "--", "no-such-program"}, 127},
		{"not executable", []string{"exec", id, "--", "/etc/passwd"}, 126},
		{"timeout", []string{"exec", "--timeout", "1s", id, "--", "sleep", "100"}, 124},
		{"no such sandbox", []string{"exec", "sb000000000000000000", "--", "true"}, 125},
		{"bad flag", []string{"exec", "--no-such-flag", id, "--", "true"}, 125},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := s.Run(t, "", c.args...); r.Code != c.want {
				t.Errorf("code %d, want %d; stderr %q", r.Code, c.want, r.Stderr)
			}
		})
	}
}

// TestStdinEnvUserDir passes what docker's flags pass.
func TestStdinEnvUserDir(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t, "-e", "FROM_CREATE=1")
	if r := s.Run(t, "some input\n", "exec", "-i", id, "--", "cat"); r.Stdout != "some input\n" {
		t.Errorf("cat gave %q, %q", r.Stdout, r.Stderr)
	}
	if out := s.OK(t, "exec", "-e", "A=b c", "-w", "/tmp", id, "--", "sh", "-c", `echo "$A $FROM_CREATE $(pwd)"`); out != "b c 1 /tmp" {
		t.Errorf("env and directory: %q", out)
	}
	if out := s.OK(t, "exec", "-u", "1000:1000", id, "--", "id", "-u"); out != "1000" {
		t.Errorf("user: %q", out)
	}
	// A big input goes through whole.
	sum := sha256.New()
	var in bytes.Buffer
	for i := range 200_000 {
		fmt.Fprintf(io.MultiWriter(&in, sum), "line %d of many\n", i)
	}
	if out := s.Run(t, in.String(), "exec", "-i", id, "--", "sha256sum").Stdout; !strings.HasPrefix(out, fmt.Sprintf("%x", sum.Sum(nil))) {
		t.Errorf("sum of a big stdin: %q", out)
	}
}

// TestServerKilled: commands go on, output is complete, exit codes that happened meanwhile are there.
func TestServerKilled(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t)
	cmd := s.OK(t, "exec", "--detach", id, "--", "sh", "-c", "for i in $(seq 1 40); do echo line $i; sleep 0.1; done; exit 5")
	done := s.OK(t, "exec", "--detach", id, "--", "sh", "-c", "sleep 1; echo meanwhile; exit 3")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	follow := s.Command(ctx, "logs", "--follow", id, cmd)
	var out bytes.Buffer
	follow.Stdout, follow.Stderr = &out, os.Stderr
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	s.Kill(t)
	time.Sleep(1500 * time.Millisecond)
	s.Start(t)
	follow.Wait()
	var want strings.Builder
	for i := 1; i <= 40; i++ {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if d := cmp.Diff(want.String(), out.String()); d != "" {
		t.Errorf("what a follower saw over a server's death:\n%s", d)
	}
	if code := follow.ProcessState.ExitCode(); code != 5 {
		t.Errorf("logs --follow ended with %d, want the command's 5", code)
	}
	if r := s.Run(t, "", "logs", id, done); r.Stdout != "meanwhile\n" || r.Code != 3 {
		t.Errorf("a command that ended while the server was down: %q, code %d", r.Stdout, r.Code)
	}
	if r := s.Run(t, "", "logs", "--from", "3", id, cmd); strings.HasPrefix(r.Stdout, "line 1\n") || !strings.HasSuffix(r.Stdout, "line 40\n") {
		t.Errorf("logs --from 3: %.60q", r.Stdout)
	}
}

// TestManyCommands runs 200 at once in one sandbox, each with its own output and code.
func TestManyCommands(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t, "--memory", "1024")
	var wg sync.WaitGroup
	client := s.HTTP()
	for i := range 200 {
		wg.Go(func() {
			body := fmt.Sprintf(`{"shell":"echo out %d; echo err %d >&2; exit %d"}`, i, i, i%100)
			res, err := client.Post("http://caisson/v1/sandboxes/"+id+"/commands", "application/json", strings.NewReader(body))
			if err != nil {
				t.Errorf("command %d: %v", i, err)
				return
			}
			defer res.Body.Close()
			var got struct {
				Stdout, Stderr string
				Exit           struct{ Code int }
			}
			if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
				t.Errorf("command %d: status %d: %v", i, res.StatusCode, err)
				return
			}
			if got.Stdout != fmt.Sprintf("out %d\n", i) || got.Stderr != fmt.Sprintf("err %d\n", i) || got.Exit.Code != i%100 {
				t.Errorf("command %d: %+v", i, got)
			}
		})
	}
	wg.Wait()
}

// TestBigOutput streams 1 GiB (64 MiB with -short) in order.
func TestBigOutput(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() {
		size = 64 << 20
	}
	s := testkit.Serve(t)
	id := s.Create(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := s.Command(ctx, "exec", id, "--", "sh", "-c", fmt.Sprintf("yes 0123456789abcde | head -c %d", size))
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	line, buf, n := []byte("0123456789abcde\n"), make([]byte, 1<<20), int64(0)
	for {
		k, err := pipe.Read(buf)
		for i := range k {
			if buf[i] != line[(n+int64(i))%16] {
				t.Fatalf("byte %d is %q", n+int64(i), buf[i])
			}
		}
		n += int64(k)
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil || n != size {
		t.Fatalf("%d of %d bytes, %v", n, size, err)
	}
	t.Logf("%.0f MB/s", float64(n)/1e6/time.Since(start).Seconds())
	for _, pid := range s.Processes("") {
		if rss := rssMiB(pid); rss > 300 && !isSentry(pid) {
			t.Errorf("process %d has %d MiB after streaming", pid, rss)
		}
	}
}

func isSentry(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.HasPrefix(b, []byte("runsc"))
}

func rssMiB(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for _, l := range strings.Split(string(b), "\n") {
		var kb int
		if n, _ := fmt.Sscanf(l, "VmHWM: %d kB", &kb); n == 1 {
			return kb >> 10
		}
	}
	return 0
}

// TestFiles moves files and trees both ways.
func TestFiles(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t)
	dir := t.TempDir()
	os.MkdirAll(filepath.Join(dir, "tree", "sub"), 0o755)
	os.WriteFile(filepath.Join(dir, "tree", "run.sh"), []byte("#!/bin/sh\necho ran\n"), 0o755)
	os.WriteFile(filepath.Join(dir, "tree", "sub", "new\nline"), []byte("x"), 0o600)
	os.Symlink("run.sh", filepath.Join(dir, "tree", "link"))
	s.OK(t, "cp", filepath.Join(dir, "tree"), id+":/srv")
	if out := s.Sh(t, id, "/srv/tree/link && cat '/srv/tree/sub/new\nline'"); out != "ran\nx" {
		t.Errorf("in the sandbox: %q", out)
	}
	back := filepath.Join(dir, "back")
	os.Mkdir(back, 0o755)
	s.OK(t, "cp", id+":/srv/tree", back)
	if got, _ := os.Readlink(filepath.Join(back, "tree", "link")); got != "run.sh" {
		t.Errorf("link came back as %q", got)
	}
	if st, err := os.Stat(filepath.Join(back, "tree", "sub", "new\nline")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st, err)
	}
	if got, _ := os.ReadFile(filepath.Join(back, "tree", "run.sh")); string(got) != "#!/bin/sh\necho ran\n" {
		t.Errorf("content %q", got)
	}
	// The API by hand: PUT, GET with a range, and a path that is not there.
	put, _ := http.NewRequest("PUT", "http://caisson/v1/sandboxes/"+id+"/files?path=/srv/api.txt", strings.NewReader("0123456789"))
	if res, err := s.HTTP().Do(put); err != nil || res.StatusCode/100 != 2 {
		t.Fatalf("PUT: %v %v", res, err)
	}
	get, _ := http.NewRequest("GET", "http://caisson/v1/sandboxes/"+id+"/files?path=/srv/api.txt", nil)
	get.Header.Set("Range", "bytes=2-4")
	res, err := s.HTTP().Do(get)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	if string(b) != "234" || res.StatusCode != http.StatusPartialContent {
		t.Errorf("range: %d %q", res.StatusCode, b)
	}
	res, _ = s.HTTP().Get("http://caisson/v1/sandboxes/" + id + "/files?path=/nowhere")
	if b, _ := io.ReadAll(res.Body); res.StatusCode != 404 || !strings.Contains(string(b), "/nowhere") {
		t.Errorf("missing file: %d %s", res.StatusCode, b)
	}
}
