package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson/test/testkit"
)

// state waits for the sandbox to be in one of the states and returns the one it is in, with its reason.
func state(t *testing.T, s *testkit.Server, id string, want ...string) (string, string) {
	t.Helper()
	var got struct{ State, Reason string }
	for range 150 {
		if err := json.Unmarshal([]byte(s.OK(t, "inspect", id)), &got); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if got.State == w {
				return got.State, got.Reason
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("sandbox %s is %s (%s), not %v", id, got.State, got.Reason, want)
	return "", ""
}

// TestKillEachProcess kills shim, sentry and agent while a command streams: the client gets an answer with a reason within
// seconds, the state is right, and delete works.
func TestKillEachProcess(t *testing.T) {
	s := testkit.Serve(t)
	for _, c := range []struct {
		name   string
		kill   func(t *testing.T, id string)
		reason string
	}{
		{"shim", func(t *testing.T, id string) { killAll(t, s.Processes("caisson-shim "+s.State+"/sandboxes/"+id)) }, "shim lost"},
		{"sentry", func(t *testing.T, id string) { killAll(t, sentries(s, id)) }, "killed"},
		{"agent", func(t *testing.T, id string) {
			s.Run(t, "", "exec", id, "--", "kill", "-9", "1") // process 1 takes no signals from inside: the next one does it
			s.Run(t, "", "exec", "--timeout", "5s", id, "--", "sh", "-c", "kill -9 1; kill -9 -1")
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := s.Create(t)
			neighbour := s.Create(t)
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			cmd := s.Command(ctx, "exec", id, "--", "sh", "-c", "while true; do echo tick; sleep 0.05; done")
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(700 * time.Millisecond)
			c.kill(t, id)
			begin := time.Now()
			cmd.Wait()
			if c.reason != "" {
				if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(errs.String(), "ended") {
					t.Errorf("the client ended with %d after %v: %q", code, time.Since(begin), errs.String())
				}
				if _, reason := state(t, s, id, "failed"); reason != c.reason {
					t.Errorf("reason %q, want %q", reason, c.reason)
				}
			}
			if !strings.HasPrefix(out.String(), "tick\n") {
				t.Errorf("output %q", out.String())
			}
			if got := s.Sh(t, neighbour, "echo well"); got != "well" {
				t.Errorf("the neighbour says %q", got)
			}
			s.OK(t, "rm", id, neighbour)
		})
	}
}

func killAll(t *testing.T, pids []int) {
	t.Helper()
	if len(pids) == 0 {
		t.Fatal("no process to kill")
	}
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// sentries finds the sentry of a sandbox, which has its id as an argument.
func sentries(_ *testkit.Server, id string) []int { return testkit.ProcessesWith("runsc", id) }

// TestStartAfterCrash: a sandbox whose machine was killed starts again, with the disk of its last clean stop.
func TestStartAfterCrash(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t)
	s.Sh(t, id, "echo saved > /saved")
	s.OK(t, "stop", id)
	s.OK(t, "start", id)
	s.Sh(t, id, "echo lost > /lost")
	killAll(t, sentries(s, id))
	state(t, s, id, "failed")
	s.OK(t, "start", id)
	if got := s.Sh(t, id, "cat /saved; ls /lost 2>/dev/null || echo none"); got != "saved\nnone" {
		t.Errorf("after the crash: %q", got)
	}
}

// TestServerKilledInEveryVerb kills the server at random moments of creates, stops and deletes, and looks for what is left.
func TestServerKilledInEveryVerb(t *testing.T) {
	s := testkit.Serve(t)
	for i, after := range []time.Duration{5, 20, 50, 90, 130, 180, 250} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		cmd := s.Command(ctx, "run", "--rm", "--", "true")
		if i%2 == 0 {
			cmd = s.Command(ctx, "create")
		}
		cmd.Stderr = nil
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after * time.Millisecond)
		s.Kill(t)
		cmd.Process.Kill()
		cmd.Wait()
		cancel()
		s.Start(t)
		for _, id := range strings.Fields(s.OK(t, "ls", "--quiet")) {
			state(t, s, id, "running", "failed", "stopped")
			s.OK(t, "rm", id)
		}
		if left := leftAfter(s, 3*time.Second); len(left) > 0 {
			t.Errorf("killed after %d ms: left %v", after, left)
		}
	}
}

func leftAfter(s *testkit.Server, patience time.Duration) []string {
	var left []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if left = s.Leaks(); len(left) == 0 {
			return nil
		}
	}
	return left
}

// TestSecondServer: one state directory has one server.
func TestSecondServer(t *testing.T) {
	s := testkit.Serve(t)
	r := s.Run(t, "", "serve", "--state-dir", s.State)
	if r.Code == 0 || !strings.Contains(r.Stderr, "pid") {
		t.Errorf("code %d, %q", r.Code, r.Stderr)
	}
}

// TestRounds makes, uses and deletes sandboxes: nothing is left and the server does not grow.
func TestRounds(t *testing.T) {
	rounds := 60
	if os.Getenv("CAISSON_TEST_LONG") != "" {
		rounds = 500
	}
	s := testkit.Serve(t)
	round := func() {
		id := s.Create(t, "--memory", "128")
		if got := s.Sh(t, id, "echo x"); got != "x" {
			t.Fatalf("%q", got)
		}
		s.OK(t, "rm", id)
	}
	for range 10 {
		round()
	}
	fds, rss := s.Usage(t)
	for range rounds {
		round()
	}
	fds2, rss2 := s.Usage(t)
	if fds2 > fds+10 {
		t.Errorf("descriptors of the server grew from %d to %d", fds, fds2)
	}
	if rss2 > rss+40<<20 {
		t.Errorf("memory of the server grew from %d to %d MiB", rss>>20, rss2>>20)
	}
	if left := leftAfter(s, 3*time.Second); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
