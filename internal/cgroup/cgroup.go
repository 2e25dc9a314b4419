// Package cgroup makes limited control groups, below the group this process is in, with cgroup v2 or v1, whichever this
// process may write. Files and names are those of the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Where the kernel shows groups; tests show their own.
var (
	mount = "/sys/fs/cgroup"
	self  = "/proc/self/cgroup"
)

// Limits of a group. Zero means none.
type Limits struct {
	MemoryBytes int64
	CPUs        int
	PIDs        int
}

// Tree is a place for groups. Its methods may be called from several goroutines, for different groups.
type Tree struct {
	version string
	parents []string // one for v2, one a controller for v1
}

// Open makes the place, name, for groups. The error says why no group can be made here.
func Open(name string) (*Tree, error) {
	own, err := ownGroups()
	if err != nil {
		return nil, err
	}
	if t, err := openV1(own, name); err == nil {
		return t, nil
	}
	return openV2(own[""], name)
}

// ownGroups reads where this process is: controller → path below its mount; "" is v2.
func ownGroups() (map[string]string, error) {
	f, err := os.Open(self)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	own := map[string]string{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		w := strings.SplitN(sc.Text(), ":", 3)
		if len(w) != 3 {
			continue
		}
		for _, c := range strings.Split(w[1], ",") {
			own[c] = w[2]
		}
	}
	return own, nil
}

func openV1(own map[string]string, name string) (*Tree, error) {
	t := &Tree{version: "v1"}
	for _, c := range []string{"memory", "pids", "cpu"} {
		path, ok := own[c]
		if !ok {
			return nil, fmt.Errorf("no v1 controller %s", c)
		}
		base := filepath.Join(mount, c, path)
		if _, err := os.Stat(base); err != nil {
			base = filepath.Join(mount, c) // in a container the path is the host's
		}
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		t.parents = append(t.parents, dir)
	}
	return t, nil
}

func openV2(own, name string) (*Tree, error) {
	for _, root := range []string{mount, filepath.Join(mount, "unified")} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		base := filepath.Join(root, own)
		if err := delegate(base, name); err != nil {
			return nil, err
		}
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		if err := enable(dir); err != nil {
			return nil, err
		}
		return &Tree{version: "v2", parents: []string{dir}}, nil
	}
	return nil, errors.New("no cgroup filesystem that this process may write")
}

func enable(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0)
}

// delegate makes the group's controllers available to its children. A group that holds processes can have none, but for
// the root: then this process moves one level down first.
func delegate(base, name string) error {
	err := enable(base)
	if err == nil || !errors.Is(err, syscall.EBUSY) {
		return err
	}
	leaf := filepath.Join(base, name+"-server")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return err
	}
	return enable(base)
}

// Version is "v2" or "v1".
func (t *Tree) Version() string { return t.version }

// Make makes the group id, or finds it, and sets its limits. It returns its directories: one for v2, one a controller for v1.
func (t *Tree) Make(id string, l Limits) ([]string, error) {
	dirs := t.dirs(id)
	for _, d := range dirs {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	const period = 100_000 // µs, the kernel's default
	set := func(i int, file, value string) error {
		return os.WriteFile(filepath.Join(dirs[i], file), []byte(value), 0)
	}
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	var err error
	if t.version == "v2" {
		if l.MemoryBytes > 0 {
			err = set(0, "memory.max", num(l.MemoryBytes))
			set(0, "memory.swap.max", "0")  // there is no file without swap accounting
			set(0, "memory.oom.group", "1") // a sandbox ends as one
		}
		if l.CPUs > 0 {
			err = errors.Join(err, set(0, "cpu.max", fmt.Sprintf("%d %d", l.CPUs*period, period)))
		}
		if l.PIDs > 0 {
			err = errors.Join(err, set(0, "pids.max", num(int64(l.PIDs))))
		}
		return dirs, err
	}
	if l.MemoryBytes > 0 {
		err = set(0, "memory.limit_in_bytes", num(l.MemoryBytes))
		set(0, "memory.memsw.limit_in_bytes", num(l.MemoryBytes)) // there is no file without swap accounting
	}
	if l.PIDs > 0 {
		err = errors.Join(err, set(1, "pids.max", num(int64(l.PIDs))))
	}
	if l.CPUs > 0 {
		err = errors.Join(err, set(2, "cpu.cfs_period_us", num(period)), set(2, "cpu.cfs_quota_us", num(int64(l.CPUs)*period)))
	}
	return dirs, err
}

func (t *Tree) dirs(id string) []string {
	var dirs []string
	for _, p := range t.parents {
		dirs = append(dirs, filepath.Join(p, id))
	}
	return dirs
}

// Remove kills what is in the group and removes it. A group that is not there is removed.
func (t *Tree) Remove(ctx context.Context, id string) error {
	var all error
	for _, d := range t.dirs(id) {
		all = errors.Join(all, remove(ctx, d))
	}
	return all
}

func remove(ctx context.Context, dir string) error {
	for {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		for _, pid := range pids(dir) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// PIDs lists the processes in the group.
func (t *Tree) PIDs(id string) []int { return pids(t.dirs(id)[0]) }

func pids(dir string) []int {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var all []int
	for _, w := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(w); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// List names the groups that are there.
func (t *Tree) List() []string {
	seen := map[string]bool{}
	var all []string
	for _, p := range t.parents {
		entries, _ := os.ReadDir(p)
		for _, e := range entries {
			if e.IsDir() && !seen[e.Name()] {
				seen[e.Name()] = true
				all = append(all, e.Name())
			}
		}
	}
	return all
}

// Close removes the place if no group is left in it.
func (t *Tree) Close() {
	for _, p := range t.parents {
		os.Remove(p)
	}
}

// MemoryLimit is the least memory limit that holds for this process, in bytes; 0: none is known.
func MemoryLimit() int64 {
	own, err := ownGroups()
	if err != nil {
		return 0
	}
	least := int64(0)
	look := func(root, path, file string) {
		for p := path; ; p = filepath.Dir(p) {
			b, err := os.ReadFile(filepath.Join(root, p, file))
			if err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n < 1<<60 && (least == 0 || n < least) {
					least = n
				}
			}
			if p == "/" || p == "." {
				return
			}
		}
	}
	if p, ok := own["memory"]; ok {
		look(filepath.Join(mount, "memory"), p, "memory.limit_in_bytes")
	}
	if p, ok := own[""]; ok {
		look(mount, p, "memory.max")
	}
	return least
}
