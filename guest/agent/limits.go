package agent

import (
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	agentNice = -10
	agentOOM  = "-1000"
	softFiles = 65536  // descriptors a user process may open before it asks for more
	hardFiles = 524288 // and after
)

// raise makes the agent answer while user processes use all there is, and sets what every process inherits. It reports
// whether children must be lowered again. A kernel that refuses any of it (gVisor has no such priorities) loses nothing
// else.
func raise() bool {
	syscall.Umask(0o022)
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) == nil {
		want := syscall.Rlimit{Cur: softFiles, Max: hardFiles}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want) != nil {
			want = syscall.Rlimit{Cur: min(softFiles, r.Max), Max: r.Max}
			syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want)
		}
	}
	raised := os.WriteFile("/proc/self/oom_score_adj", []byte(agentOOM), 0) == nil
	tasks, _ := os.ReadDir("/proc/self/task") // priorities belong to threads; new ones inherit them
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil && unix.Setpriority(unix.PRIO_PROCESS, tid, agentNice) == nil {
			raised = true
		}
	}
	return raised
}

// lower takes from a child what it inherited of the agent's standing.
func lower(pid int) {
	unix.Setpriority(unix.PRIO_PROCESS, pid, 0)
	os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("0"), 0)
}

// mayEnter tells by a directory's mode whether a user may have it as working directory, so that the error says which of
// program and directory was refused. Only the kernel decides.
func mayEnter(st fs.FileInfo, acc account) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || acc.uid == 0 {
		return true
	}
	if sys.Uid == acc.uid {
		return sys.Mode&0o100 != 0
	}
	for _, g := range append([]uint32{acc.gid}, acc.groups...) {
		if sys.Gid == g {
			return sys.Mode&0o010 != 0
		}
	}
	return sys.Mode&0o001 != 0
}
