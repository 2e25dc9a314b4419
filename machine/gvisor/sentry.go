package gvisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/internal/procfs"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/machine/gvisor/wire"
)

// closeTimeout is how long Close waits for the kernel to end a killed sentry.
const closeTimeout = 15 * time.Second

// sentry is one running machine.
type sentry struct {
	driver    *Driver
	spec      machine.Spec
	pid       int
	pidfd     int
	oomBefore uint64

	mu       sync.Mutex
	lifeline *os.File
	closed   bool

	saving sync.Mutex // one SaveDisk at a time

	exit  machine.Exit // set before ended is closed
	ended chan struct{}
}

// adopt takes the sentry over as this process's child and watches it.
func (m *sentry) adopt() error {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		return err
	}
	m.pidfd = fd
	go m.watch() // ends with the sentry; Close waits for it through m.ended
	return nil
}

// watch waits for the sentry to end and says why it did.
func (m *sentry) watch() {
	var info unix.Siginfo
	var err error
	for {
		err = unix.Waitid(unix.P_PIDFD, m.pidfd, &info, unix.WEXITED, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		break
	}
	m.mu.Lock()
	closed := m.closed
	m.lifeline.Close()
	unix.Close(m.pidfd)
	m.pidfd = -1
	m.mu.Unlock()
	m.exit = m.reason(info, err, closed)
	close(m.ended)
}

// Codes of waitid's siginfo.
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// sentryPanicked is the exit code of a Go program that panicked; gVisor's own exit codes are those of the guest's
// process 1, which is our agent and never exits with it.
const sentryPanicked = 2

func (m *sentry) reason(info unix.Siginfo, err error, closed bool) machine.Exit {
	code, status := int(info.Code), siginfoStatus(&info)
	oom := oomKills(m.spec.Cgroups) > m.oomBefore
	e := machine.Exit{Code: status}
	switch {
	case closed:
		e.Reason = machine.ExitClosed
	case err != nil:
		e.Reason, e.Detail = machine.ExitKilled, fmt.Sprintf("exit status unknown: %v", err)
	case oom && code != cldExited:
		e.Reason, e.Detail = machine.ExitOOM, fmt.Sprintf("the sandbox used more than its %d MiB and the kernel ended it", m.spec.MemoryMiB)
	case code == cldKilled || code == cldDumped:
		e.Reason, e.Detail = machine.ExitKilled, "killed by "+unix.SignalName(unix.Signal(status))
	case status == sentryPanicked:
		e.Reason, e.Detail = machine.ExitCrashed, tail(m.spec.Dir, "sentry.log", 4<<10)
	default:
		e.Reason, e.Detail = machine.ExitStopped, fmt.Sprintf("process 1 ended with code %d", status)
	}
	return e
}

// SaveDisk implements machine.Machine.
func (m *sentry) SaveDisk(ctx context.Context, dir string) error {
	const op = "save disk"
	m.saving.Lock()
	defer m.saving.Unlock()
	select {
	case <-m.ended:
		return caisson.E(caisson.Conflict, op, m.spec.ID, "the machine has ended", nil)
	default:
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return caisson.E(caisson.Invalid, op, dir, "bad directory", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with ctx, which ends with this call
		select {
		case <-m.ended:
			cancel(caisson.E(caisson.Conflict, op, m.spec.ID, "the machine ended while its disk was saved", nil))
		case <-ctx.Done():
		}
	}()
	_, err = m.driver.call(ctx, "save", m.spec.Dir, wire.Request{ID: m.spec.ID, PID: m.pid, SaveTo: abs})
	return err
}

// Stats implements machine.Machine. A sentry's processes are itself and its stubs, its descendants.
func (m *sentry) Stats(ctx context.Context) (machine.Stats, error) {
	select {
	case <-m.ended:
		return machine.Stats{}, caisson.E(caisson.Conflict, "read stats", m.spec.ID, "the machine has ended", nil)
	default:
	}
	s := machine.Stats{PID: m.pid}
	for _, pid := range procfs.Descendants(m.pid) {
		mem := procfs.Memory(pid)
		s.MemoryPSS += mem.PSS
		s.MemoryRSS += mem.RSS
		s.MemoryOwn += mem.Unbacked
		s.CPU += procfs.CPU(pid)
	}
	return s, nil
}

// Trim implements machine.Machine. A byte on the lifeline is the signal.
func (m *sentry) Trim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lifeline.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) // the pipe of a sentry that is stuck may be full
	m.lifeline.Write([]byte{0})
}

// Wait implements machine.Machine.
func (m *sentry) Wait() machine.Exit {
	<-m.ended
	return m.exit
}

// Close implements machine.Machine.
func (m *sentry) Close() error {
	m.mu.Lock()
	if !m.closed {
		select {
		case <-m.ended:
		default:
			m.closed = true
			if m.pidfd >= 0 {
				unix.PidfdSendSignal(m.pidfd, unix.SIGKILL, nil, 0)
			}
		}
	}
	m.mu.Unlock()
	select {
	case <-m.ended:
		return nil
	case <-time.After(closeTimeout):
		return caisson.E(caisson.Timeout, "close machine", m.spec.ID,
			fmt.Sprintf("the sentry (pid %d) was killed %s ago and has not ended", m.pid, closeTimeout), nil)
	}
}

// oomKills counts the processes that the kernel killed in the groups for their memory.
func oomKills(cgroups []string) uint64 {
	var n uint64
	for _, dir := range cgroups {
		for _, name := range []string{"memory.events", "memory.oom_control"} {
			f, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			for sc := bufio.NewScanner(f); sc.Scan(); {
				if v, ok := strings.CutPrefix(sc.Text(), "oom_kill "); ok {
					k, _ := strconv.ParseUint(v, 10, 64)
					n += k
				}
			}
			f.Close()
		}
	}
	return n
}
