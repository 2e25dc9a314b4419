package agent

import (
	"context"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson/internal/trim"
)

const (
	guardFastest = 5 * time.Millisecond
	guardFast    = 50 * time.Millisecond
	guardCalm    = 400 * time.Millisecond // at most, while there is plenty and it does not change
	trimAfter    = 3 * time.Second        // without a user process
	leastFree    = 24 << 20               // bytes
	freeShare    = 20                     // 1/20 of the memory
	plentyFree   = 2                      // 1/2 of the memory
)

// guardMemory kills the largest user process before the machine is out of memory, and the largest session when there
// are more processes than the limit. On gVisor the host's limit would end the whole sandbox. It sleeps while there is
// no user process, and looks the more often the faster memory is taken.
func (ps *processes) guardMemory(ctx context.Context) {
	if ps.agent.cfg.Meminfo == "" {
		<-ctx.Done()
		return
	}
	timer := time.NewTimer(trimAfter)
	defer timer.Stop()
	idle := true
	pause := guardFast
	var used int64 // at the last look
	for {
		select {
		case <-ctx.Done():
			return
		case <-ps.started:
			if idle {
				idle, pause, used = false, guardFast, 0
				timer.Reset(pause)
			}
			continue
		case <-timer.C:
		}
		if ps.empty() {
			if idle {
				trim.Process() // nothing sets the timer again before a command starts
				continue
			}
			idle = true
			timer.Reset(trimAfter)
			continue
		}
		idle = false
		m := readMeminfo(ps.agent.cfg.Meminfo)
		if m.total > 0 && m.available < max(m.total/freeShare, leastFree) {
			ps.killLargest()
		}
		// Look again before what grew this fast has taken all.
		grown := m.total - m.available - used
		used += grown
		switch {
		case grown > m.available/4:
			pause = guardFastest
		case m.available > m.total/plentyFree && grown < m.available/16:
			pause = min(2*pause, guardCalm)
		default:
			pause = guardFast
		}
		timer.Reset(pause)
		var si unix.Sysinfo_t
		if limit := ps.limit.Load(); ps.agent.cfg.Init && limit > 0 && unix.Sysinfo(&si) == nil && int64(si.Procs) > limit {
			ps.killCrowd(int(limit))
		}
	}
}

// empty says that no process of a user is there, orphans of commands that have ended included.
func (ps *processes) empty() bool {
	return ps.live() == 0 && (!ps.agent.cfg.Init || len(pids()) <= 1)
}

// owners finds the command that each process belongs to: that of its session, else of its nearest ancestor.
type owners struct {
	stats    map[int]stat
	commands map[int]*process // by the pid of their first process
}

func (ps *processes) owners() owners {
	o := owners{stats: map[int]stat{}, commands: map[int]*process{}}
	ps.mu.Lock()
	for pid, p := range ps.byPID {
		o.commands[pid] = p
	}
	ps.mu.Unlock()
	for _, pid := range pids() {
		if st, ok := readStat(pid); ok && pid != os.Getpid() && !st.kernel {
			o.stats[pid] = st
		}
	}
	return o
}

func (o owners) of(pid int) *process {
	if p := o.commands[o.stats[pid].sid]; p != nil {
		return p
	}
	for range len(o.stats) { // the table is no instant's: it may hold a circle
		if p := o.commands[pid]; p != nil {
			return p
		}
		st, ok := o.stats[pid]
		if !ok {
			break
		}
		pid = st.ppid
	}
	return nil
}

// killLargest kills the user process with the most resident memory. Where the agent is not process 1, only processes of
// its commands are its to kill.
func (ps *processes) killLargest() {
	o := ps.owners()
	victim, most := 0, int64(-1)
	for pid, st := range o.stats {
		if st.state != 'Z' && st.rss > most && (ps.agent.cfg.Init || o.of(pid) != nil) {
			victim, most = pid, st.rss
		}
	}
	if victim == 0 {
		return
	}
	if p := o.of(victim); p != nil {
		p.mu.Lock()
		p.oom = true
		p.mu.Unlock()
	}
	syscall.Kill(victim, syscall.SIGKILL)
}

// killCrowd ends the session with the most threads.
func (ps *processes) killCrowd(limit int) {
	count, all, worst := map[int]int{}, 0, 0
	for _, st := range ps.owners().stats {
		count[st.sid] += st.threads
		all += st.threads
		if worst == 0 || count[st.sid] > count[worst] {
			worst = st.sid
		}
	}
	if all > limit && worst > 1 {
		killSession(worst)
	}
}
