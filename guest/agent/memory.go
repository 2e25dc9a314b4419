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
	guardFast  = 100 * time.Millisecond
	guardSlow  = time.Second // while no command runs
	leastFree  = 24 << 20    // bytes
	freeShare  = 20          // 1/20 of the memory
	trimAfter  = 3           // turns without a command
	plentyFree = 4           // 1/4 of the memory: look at every fourth turn
)

// guardMemory kills the largest user process before the machine is out of memory, and the largest session when there
// are more processes than the limit. On gVisor the host's limit would end the whole sandbox.
func (ps *processes) guardMemory(ctx context.Context) {
	if ps.agent.cfg.Meminfo == "" {
		<-ctx.Done()
		return
	}
	skip, quiet := 0, 0
	pause := guardFast
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if ps.live() == 0 {
			pause, skip = guardSlow, 0
			if quiet++; quiet == trimAfter {
				trim.Process()
			}
			continue
		}
		pause, quiet = guardFast, 0
		if skip--; skip <= 0 {
			m := readMeminfo(ps.agent.cfg.Meminfo)
			if m.available > m.total/plentyFree {
				skip = 4
			}
			if m.total > 0 && m.available < max(m.total/freeShare, leastFree) {
				ps.killLargest()
			}
		}
		var si unix.Sysinfo_t
		if limit := ps.limit.Load(); ps.agent.cfg.Init && limit > 0 && unix.Sysinfo(&si) == nil && int64(si.Procs) > limit {
			ps.killCrowd(int(limit))
		}
	}
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
