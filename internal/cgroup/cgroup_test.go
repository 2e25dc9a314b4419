package cgroup

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tree shows the package a mount of these files (a name that ends in / is a directory) and this text of
// /proc/self/cgroup. The kernel makes the files of a group with it; here the ones that are read back are made before,
// because the package opens them as files that exist.
func tree(t *testing.T, own string, files ...string) string {
	t.Helper()
	root := t.TempDir()
	oldMount, oldSelf := mount, self
	t.Cleanup(func() { mount, self = oldMount, oldSelf })
	mount, self = filepath.Join(root, "mount"), filepath.Join(root, "self")
	for _, f := range files {
		p := filepath.Join(mount, f)
		dir := filepath.Dir(p)
		if strings.HasSuffix(f, "/") {
			dir = p
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir != p {
			put(t, f, "")
		}
	}
	if err := os.WriteFile(self, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	return mount
}

func put(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(mount, file), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}

// want compares files below the mount.
func want(t *testing.T, values map[string]string) {
	t.Helper()
	for _, f := range slices.Sorted(maps.Keys(values)) {
		b, err := os.ReadFile(filepath.Join(mount, f))
		if err != nil || string(b) != values[f] {
			t.Errorf("%s is %q (%v), want %q", f, b, err, values[f])
		}
	}
}

const (
	ownV1 = "12:memory:/user/x\n4:cpu,cpuacct:/\n3:pids:/user/x\n0::/ignored\n"
	ownV2 = "0::/app\n"
)

func open(t *testing.T) *Tree {
	t.Helper()
	tr, err := Open("place")
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestOpen: the place is made below the own group, or below the mount when the own group's path is not there, with the
// version that can be written; v2 gives its controllers to the place and the place to its groups.
func TestOpen(t *testing.T) {
	const control = "+cpu +memory +pids"
	for _, c := range []struct {
		name, own string
		files     []string
		version   string
		places    []string
		values    map[string]string
	}{
		{"v1", ownV1, []string{"memory/user/x/", "pids/user/x/", "cpu/"}, "v1",
			[]string{"memory/user/x/place", "pids/user/x/place", "cpu/place"}, nil},
		{"v1 in a container", ownV1, []string{"memory/", "pids/", "cpu/"}, "v1",
			[]string{"memory/place", "pids/place", "cpu/place"}, nil},
		{"v1 that is there", ownV1, []string{"memory/place/", "pids/place/", "cpu/place/"}, "v1",
			[]string{"memory/place", "pids/place", "cpu/place"}, nil},
		{"v2", ownV2, []string{"cgroup.controllers", "app/cgroup.subtree_control", "app/place/cgroup.subtree_control"}, "v2",
			[]string{"app/place"}, map[string]string{"app/cgroup.subtree_control": control, "app/place/cgroup.subtree_control": control}},
		{"v2 at the root", "0::/\n", []string{"cgroup.controllers", "cgroup.subtree_control", "place/cgroup.subtree_control"}, "v2",
			[]string{"place"}, map[string]string{"cgroup.subtree_control": control, "place/cgroup.subtree_control": control}},
		{"v2 beside v1", "4:cpu:/\n" + ownV2, []string{"cpu/", "unified/cgroup.controllers", "unified/app/cgroup.subtree_control", "unified/app/place/cgroup.subtree_control"}, "v2",
			[]string{"unified/app/place"}, map[string]string{"unified/app/cgroup.subtree_control": control, "unified/app/place/cgroup.subtree_control": control}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, c.own, c.files...)
			tr := open(t)
			if tr.Version() != c.version {
				t.Errorf("version is %s", tr.Version())
			}
			var places []string
			for _, p := range tr.parents {
				rel, _ := filepath.Rel(root, p)
				places = append(places, rel)
				if st, err := os.Stat(p); err != nil || !st.IsDir() {
					t.Errorf("%s was not made: %v", rel, err)
				}
			}
			if !slices.Equal(places, c.places) {
				t.Errorf("the places are %q, want %q", places, c.places)
			}
			want(t, c.values)
		})
	}
}

// TestOpenFails: the error names the file that stood in the way, and no process was moved.
func TestOpenFails(t *testing.T) {
	for _, c := range []struct {
		name, own string
		files     []string
		text      string
	}{
		{"nothing is mounted", ownV2, nil, "no cgroup filesystem"},
		{"controllers cannot be given", ownV2, []string{"cgroup.controllers", "app/cgroup.subtree_control/"}, "app/cgroup.subtree_control"},
		{"the own group is not there", ownV2, []string{"cgroup.controllers"}, "app/cgroup.subtree_control"},
		{"the place is a file", ownV2, []string{"cgroup.controllers", "app/cgroup.subtree_control", "app/place"}, "app/place"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, c.own, c.files...)
			_, err := Open("place")
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("the error is %v, want one that names %s", err, c.text)
			}
			if _, err := os.Stat(filepath.Join(root, "app/place-server")); err == nil {
				t.Error("this process was moved for a fault that is no EBUSY")
			}
		})
	}
	t.Run("no list of own groups", func(t *testing.T) {
		tree(t, "")
		os.Remove(self)
		if _, err := Open("place"); err == nil || !strings.Contains(err.Error(), self) {
			t.Errorf("the error is %v", err)
		}
	})
}

var (
	filesV1 = []string{
		"memory/place/g/memory.limit_in_bytes", "memory/place/g/memory.memsw.limit_in_bytes", "pids/place/g/pids.max",
		"cpu/place/g/cpu.cfs_period_us", "cpu/place/g/cpu.cfs_quota_us",
	}
	filesV2 = []string{
		"cgroup.controllers", "app/cgroup.subtree_control", "app/place/cgroup.subtree_control", "app/place/g/memory.max",
		"app/place/g/memory.swap.max", "app/place/g/memory.oom.group", "app/place/g/cpu.max", "app/place/g/pids.max",
	}
)

// TestLimits: what is written for each limit, and that a limit of zero writes nothing.
func TestLimits(t *testing.T) {
	all := Limits{MemoryBytes: 640 << 20, CPUs: 3, PIDs: 1500}
	for _, c := range []struct {
		name, own string
		files     []string
		limits    Limits
		values    map[string]string
	}{
		{"v1", ownV1, filesV1, all, map[string]string{
			filesV1[0]: "671088640", filesV1[1]: "671088640", filesV1[2]: "1500", filesV1[3]: "100000", filesV1[4]: "300000",
		}},
		{"v1 memory alone", ownV1, filesV1, Limits{MemoryBytes: 1}, map[string]string{filesV1[0]: "1", filesV1[1]: "1", filesV1[2]: "", filesV1[3]: "", filesV1[4]: ""}},
		{"v1 none", ownV1, filesV1, Limits{}, map[string]string{filesV1[0]: "", filesV1[2]: "", filesV1[4]: ""}},
		{"v2", ownV2, filesV2, all, map[string]string{
			filesV2[3]: "671088640", filesV2[4]: "0", filesV2[5]: "1", filesV2[6]: "300000 100000", filesV2[7]: "1500",
		}},
		{"v2 processes alone", ownV2, filesV2, Limits{PIDs: 7}, map[string]string{filesV2[3]: "", filesV2[4]: "", filesV2[5]: "", filesV2[6]: "", filesV2[7]: "7"}},
		{"v2 more than 32 bits", ownV2, filesV2, Limits{MemoryBytes: 1 << 40}, map[string]string{filesV2[3]: "1099511627776"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree(t, c.own, c.files...)
			tr := open(t)
			dirs, err := tr.Make("g", c.limits)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(dirs, tr.dirs("g")) || len(dirs) != map[string]int{"v1": 3, "v2": 1}[tr.Version()] {
				t.Errorf("the directories are %q", dirs)
			}
			want(t, c.values)
			if _, err := tr.Make("g", c.limits); err != nil {
				t.Errorf("a group that is there was not found: %v", err)
			}
		})
	}
}

// TestALimitThatCannotBeSet: the error names every file that was not written; swap accounting may be missing.
func TestALimitThatCannotBeSet(t *testing.T) {
	all := Limits{MemoryBytes: 1 << 30, CPUs: 1, PIDs: 1}
	for _, c := range []struct {
		own    string
		files  []string
		faults []string // suffixes of the files that are directories instead
		names  bool
	}{
		{ownV1, filesV1, []string{"memory.limit_in_bytes"}, true},
		{ownV1, filesV1, []string{"g/pids.max", "cpu.cfs_quota_us"}, true},
		{ownV1, filesV1, []string{"cpu.cfs_period_us"}, true},
		{ownV1, filesV1, []string{"memsw.limit_in_bytes"}, false},
		{ownV2, filesV2, []string{"g/memory.max"}, true},
		{ownV2, filesV2, []string{"g/memory.max", "cpu.max", "g/pids.max"}, true},
		{ownV2, filesV2, []string{"memory.swap.max", "memory.oom.group"}, false},
	} {
		t.Run(strings.Join(c.faults, " "), func(t *testing.T) {
			var files []string
			for _, f := range c.files {
				if slices.ContainsFunc(c.faults, func(s string) bool { return strings.HasSuffix(f, s) }) {
					f += "/"
				}
				files = append(files, f)
			}
			tree(t, c.own, files...)
			_, err := open(t).Make("g", all)
			if (err != nil) != c.names {
				t.Fatalf("the error is %v", err)
			}
			for _, f := range c.faults {
				if c.names && !strings.Contains(err.Error(), f) {
					t.Errorf("%v does not name %s", err, f)
				}
			}
		})
	}
	t.Run("no group", func(t *testing.T) {
		tree(t, ownV1, "memory/", "pids/", "cpu/place/g")
		if _, err := open(t).Make("g", all); err == nil || !strings.Contains(err.Error(), "cpu/place/g") {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestRemove: the processes in a group are killed, and the group goes as soon as it is empty; what is not there is gone.
func TestRemove(t *testing.T) {
	tree(t, ownV1, "memory/", "pids/", "cpu/")
	tr := open(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := tr.Remove(ctx, "never made"); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Make("g", Limits{}); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	procs := "memory/place/g/cgroup.procs"
	put(t, procs, strconv.Itoa(child.Process.Pid)+"\nnonsense\n")
	if got := tr.PIDs("g"); !slices.Equal(got, []int{child.Process.Pid}) {
		t.Errorf("the processes are %v", got)
	}
	removed := make(chan error, 1)
	go func() { removed <- tr.Remove(ctx, "g") }() // waited for below
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process in the group ended with %v", err)
	}
	os.Remove(filepath.Join(mount, procs)) // as the kernel's files do not stand in the way of their directory
	if err := <-removed; err != nil {
		t.Error(err)
	}
	for _, d := range tr.dirs("g") {
		if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", d, err)
		}
	}
	if got := tr.PIDs("g"); got != nil {
		t.Errorf("a group that is gone has processes %v", got)
	}
}

// TestRemoveGivesUp: the error names each directory that stayed, and the others went.
func TestRemoveGivesUp(t *testing.T) {
	root := tree(t, ownV1, "memory/place/g/", "pids/place/g/stays", "cpu/place/g/stays")
	tr := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := tr.Remove(ctx, "g")
	for _, d := range []string{"pids/place/g", "cpu/place/g"} {
		if err == nil || !strings.Contains(err.Error(), filepath.Join(root, d)) {
			t.Errorf("%v does not name %s", err, d)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "memory/place/g")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group that could go is left: %v", err)
	}
}

// TestListAndClose: a group is listed once whichever controllers have it, files are none, and a place with groups stays.
func TestListAndClose(t *testing.T) {
	root := tree(t, ownV1, "memory/place/a/", "memory/place/tasks", "pids/place/a/", "pids/place/b/", "cpu/")
	tr := open(t)
	got := tr.List()
	slices.Sort(got)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the groups are %q", got)
	}
	tr.Close()
	for d, stays := range map[string]bool{"memory/place": true, "pids/place": true, "cpu/place": false} {
		if _, err := os.Stat(filepath.Join(root, d)); (err == nil) != stays {
			t.Errorf("%s: %v", d, err)
		}
	}
}

// TestMemoryLimit: the least limit of the own group and those above it counts, in either version.
func TestMemoryLimit(t *testing.T) {
	const v1, v2 = "memory/user/x/memory.limit_in_bytes", "app/memory.max"
	for _, c := range []struct {
		name, own string
		values    map[string]string
		limit     int64
	}{
		{"none is known", ownV2, nil, 0},
		{"v2", ownV2, map[string]string{v2: "1000\n"}, 1000},
		{"v2 without one", ownV2, map[string]string{v2: "max\n"}, 0},
		{"v2 above", ownV2, map[string]string{v2: "max\n", "memory.max": "77\n"}, 77},
		{"v1", ownV1, map[string]string{v1: "4096\n"}, 4096},
		{"v1 without one", ownV1, map[string]string{v1: "9223372036854771712\n"}, 0},
		{"v1 above", ownV1, map[string]string{v1: "4096\n", "memory/user/memory.limit_in_bytes": "2048\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"}, 2048},
		{"v1 in a container", ownV1, map[string]string{"memory/memory.limit_in_bytes": "512\n"}, 512},
		{"both", "4:memory:/\n" + ownV2, map[string]string{"memory/memory.limit_in_bytes": "300\n", v2: "200\n"}, 200},
		{"nonsense", ownV2, map[string]string{v2: "many\n"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree(t, c.own, slices.Collect(maps.Keys(c.values))...)
			for f, v := range c.values {
				put(t, f, v)
			}
			if got := MemoryLimit(); got != c.limit {
				t.Errorf("the limit is %d, want %d", got, c.limit)
			}
		})
	}
}
