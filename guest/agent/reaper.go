package agent

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
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
