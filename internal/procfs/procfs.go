// Package procfs reads what Linux says of processes.
package procfs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Descendants lists pid and every process below it.
func Descendants(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all) && len(all) < 100_000; i++ {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, t := range threads {
			b, _ := os.ReadFile(t)
			for _, f := range strings.Fields(string(b)) {
				if n, err := strconv.Atoi(f); err == nil {
					all = append(all, n)
				}
			}
		}
	}
	return all
}

// Sizes of a process's memory, in bytes. What several processes share is divided among them, except in RSS.
type Sizes struct {
	PSS      int64
	RSS      int64
	Unbacked int64 // the part of PSS that no file on a disk backs: private memory, shared memory and tmpfs
}

// Memory reads the sizes of a process; 0 where it cannot.
func Memory(pid int) (m Sizes) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return m
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		w := strings.Fields(sc.Text())
		if len(w) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(w[1], 10, 64)
		switch w[0] {
		case "Pss:":
			m.PSS = kb << 10
		case "Rss:":
			m.RSS = kb << 10
		case "Pss_Anon:", "Pss_Shmem:":
			m.Unbacked += kb << 10
		}
	}
	return m
}

// CPU reads the processor time of a process; 0 where it cannot.
func CPU(pid int) time.Duration {
	w := stat(pid)
	if len(w) < 13 {
		return 0
	}
	const userHZ = 100 // of /proc on every Linux
	u, _ := strconv.ParseInt(w[11], 10, 64)
	s, _ := strconv.ParseInt(w[12], 10, 64)
	return time.Duration(u+s) * time.Second / userHZ
}

// Start is the process's start time in clock ticks since boot: with the pid it names a process for ever. "" if there is none.
func Start(pid int) string {
	if w := stat(pid); len(w) > 19 && w[0] != "Z" {
		return w[19]
	}
	return ""
}

// stat gives the fields of /proc/PID/stat from the state on.
func stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return nil
	}
	return strings.Fields(string(b[i+1:]))
}

// PIDs lists all processes.
func PIDs() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var all []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// Args reads a process's arguments; nil where it cannot.
func Args(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// Cwd reads a process's working directory; "" where it cannot.
func Cwd(pid int) string {
	s, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return s
}
