package agent

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reap collects every child of process 1, its own and the orphans, and tells commands of their end.
func (ps *processes) reap(ctx context.Context) {
	if !ps.agent.cfg.Init {
		return
	}
	child := make(chan os.Signal, 1)
	signal.Notify(child, syscall.SIGCHLD)
	defer signal.Stop(child)
	for {
		select {
		case <-ctx.Done():
			return
		case <-child:
		case <-time.After(time.Minute): // a lost signal is never for ever
		}
		for ps.collect() {
		}
	}
}

// collect takes one ended child. The lock keeps a child that ends at once from being taken before it is registered.
func (ps *processes) collect() bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, &ru)
	if err != nil || pid <= 0 {
		return err == syscall.EINTR
	}
	ps.reapedTicks.Add((ru.Utime.Nano() + ru.Stime.Nano()) / int64(time.Second/userHZ))
	ps.tell(pid, ws)
	return true
}

// tell hands a status to the command; ps.mu is held.
func (ps *processes) tell(pid int, ws syscall.WaitStatus) {
	if p, ok := ps.byPID[pid]; ok {
		delete(ps.byPID, pid)
		p.exited <- waitResult{ws, time.Now()}
	}
}

// wait is reap for one own child, where the agent is not process 1.
func (ps *processes) wait(pid int) {
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.tell(pid, ws)
}

const (
	guardFast  = 100 * time.Millisecond
	guardSlow  = time.Second
	leastFree  = 24 << 20 // bytes
	freeShare  = 20       // 1/20 of the memory
	plentyFree = 4        // 1/4 of the memory: look rarely
)

// guardMemory kills the largest user process before the machine is out of memory, and the largest session when there
// are more processes than the limit. On gVisor the host's limit would end the whole sandbox.
func (ps *processes) guardMemory(ctx context.Context) {
	if !ps.agent.cfg.Init {
		return
	}
	pause := guardSlow
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if ps.live() == 0 {
			pause = guardSlow
			continue
		}
		m := readMeminfo("/proc/meminfo")
		pause = guardFast
		if m.available > m.total/plentyFree {
			pause = 4 * guardFast
		}
		if m.total > 0 && m.available < max(m.total/freeShare, leastFree) {
			ps.killLargest()
		}
		var si unix.Sysinfo_t
		if limit := ps.limit.Load(); limit > 0 && unix.Sysinfo(&si) == nil && int64(si.Procs) > limit {
			ps.killCrowd(int(limit))
		}
	}
}

func (ps *processes) killLargest() {
	var victim int
	var most int64
	var sid int
	for _, pid := range pids() {
		if st, ok := readStat(pid); ok && pid != os.Getpid() && st.state != 'Z' && st.rss > most {
			victim, most, sid = pid, st.rss, st.sid
		}
	}
	if victim == 0 {
		return
	}
	ps.mu.Lock()
	p := ps.byPID[sid]
	ps.mu.Unlock()
	if p != nil {
		p.mu.Lock()
		p.oom = true
		p.mu.Unlock()
	}
	syscall.Kill(victim, syscall.SIGKILL)
}

// killCrowd ends the session with the most processes.
func (ps *processes) killCrowd(limit int) {
	count := map[int]int{}
	all := pids()
	if len(all) <= limit {
		return
	}
	worst := 0
	for _, pid := range all {
		if st, ok := readStat(pid); ok && pid != os.Getpid() {
			count[st.sid]++
			if worst == 0 || count[st.sid] > count[worst] {
				worst = st.sid
			}
		}
	}
	if worst > 1 {
		killSession(worst)
	}
}
