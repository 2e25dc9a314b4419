package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson/test/testkit"
)

// TestFiftyAlive has fifty sandboxes at once, each answering.
func TestFiftyAlive(t *testing.T) {
	n := 50
	if testing.Short() {
		n = 8
	}
	s := testkit.Serve(t)
	ids := make([]string, n)
	var wg sync.WaitGroup
	gate := make(chan struct{}, 8)
	for i := range n {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			ids[i] = s.Create(t, "--memory", "64", "--disk", "64")
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i, id := range ids {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			if got := s.Sh(t, id, "echo alive"); got != "alive" {
				t.Errorf("sandbox %d says %q", i, got)
			}
		})
	}
	wg.Wait()
	s.OK(t, append([]string{"rm"}, ids...)...)
}

// limits runs f with the limits kept by cgroups where they can be written, and by the driver alone.
func limits(t *testing.T, f func(t *testing.T, s *testkit.Server)) {
	t.Run("default", func(t *testing.T) { f(t, testkit.Serve(t)) })
	t.Run("no cgroup", func(t *testing.T) { f(t, testkit.Serve(t, "--no-cgroup")) })
}

// TestMemoryLimit: a command that takes all memory ends with a reason, the neighbour does not notice.
func TestMemoryLimit(t *testing.T) {
	limits(t, func(t *testing.T, s *testkit.Server) {
		id, neighbour := s.Create(t, "--memory", "128"), s.Create(t)
		for _, c := range []string{
			"x=$(yes | head -c 400000000); echo ${#x}",
			"sort < /dev/zero",
			"head -c 400000000 /dev/zero > /dev/shm/x && ls -l /dev/shm/x",
			"rm -f /dev/shm/x; head -c 400000000 /dev/zero > /dev/x && ls -l /dev/x", // the last: it stays
		} {
			r := s.Run(t, "", "exec", "--timeout", "60s", id, "--", "sh", "-c", c)
			if r.Code == 0 || r.Code == 124 {
				t.Errorf("%s in 128 MiB ended with %d: %q %q", c, r.Code, r.Stdout, r.Stderr)
			}
		}
		if got := s.Sh(t, neighbour, "echo well"); got != "well" {
			t.Errorf("the neighbour says %q", got)
		}
		s.OK(t, "rm", id)
	})
}

// TestDiskLimit: a full disk is an error inside, and the sandbox goes on; a disk may be larger than the memory.
func TestDiskLimit(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t, "--memory", "128", "--disk", "300")
	if got := s.Sh(t, id, "head -c 250000000 /dev/zero > /big && wc -c < /big"); got != "250000000" {
		t.Errorf("a file larger than the memory: %q", got)
	}
	r := s.Run(t, "", "exec", id, "--", "sh", "-c", "head -c 250000000 /dev/zero > /second")
	if r.Code == 0 || !strings.Contains(r.Stderr, "space") {
		t.Errorf("a full disk: code %d, %q", r.Code, r.Stderr)
	}
	if got := s.Sh(t, id, "rm /big /second; echo more > /more; cat /more"); got != "more" {
		t.Errorf("after making room: %q", got)
	}
}

// TestProcessLimit: a fork bomb is bounded and the agent answers.
func TestProcessLimit(t *testing.T) {
	limits(t, func(t *testing.T, s *testkit.Server) {
		id, neighbour := s.Create(t, "--pids", "100", "--memory", "512"), s.Create(t)
		cmd := s.OK(t, "exec", "--detach", id, "--", "sh", "-c", "while true; do setsid sleep 1000 & done")
		time.Sleep(4 * time.Second)
		if got := s.Sh(t, neighbour, "echo well"); got != "well" {
			t.Errorf("the neighbour says %q", got)
		}
		if r := s.Run(t, "", "exec", "--timeout", "20s", id, "--", "echo", "answers"); r.Stdout != "answers\n" && !strings.Contains(r.Stderr, "process") {
			t.Errorf("the sandbox of a fork bomb: code %d, %q, %q", r.Code, r.Stdout, r.Stderr)
		}
		_ = cmd
		s.OK(t, "rm", id)
	})
}

// TestNothingIsReachable: default deny, also for the root inside.
func TestNothingIsReachable(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t)
	for _, to := range []string{"http://10.0.2.1/", "http://169.254.169.254/latest/meta-data/", "http://1.1.1.1/", "http://127.0.0.1:7070/v1/info"} {
		r := s.Run(t, "", "exec", "--timeout", "20s", id, "--", "curl", "-s", "-f", to)
		if r.Code == 0 || r.Code == 124 {
			t.Errorf("%s: code %d, %q: it must be refused at once", to, r.Code, r.Stdout)
		}
	}
}
