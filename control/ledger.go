package control

import (
	"sync"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/control/lifecycle"
)

// ledger knows what memory is given out, so that admission costs the same however many rows there are, and two creates at
// once cannot both have the last of it.
type ledger struct {
	mu  sync.Mutex
	mib map[caisson.SandboxID]int
	sum int
}

// reserve gives id the memory if admit says so of what the others have.
func (l *ledger) reserve(id caisson.SandboxID, mib int, admit func(usedMiB int) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := admit(l.sum - l.mib[id]); err != nil {
		return err
	}
	l.set(id, mib)
	return nil
}

// account follows a row. One that is deleting keeps what it has until release.
func (l *ledger) account(sb caisson.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case sb.State == caisson.Deleting:
	case lifecycle.Live(sb.State):
		l.set(sb.ID, sb.Config.Resources.WithDefaults().MemoryMiB)
	default:
		l.set(sb.ID, 0)
	}
}

func (l *ledger) release(id caisson.SandboxID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(id, 0)
}

func (l *ledger) set(id caisson.SandboxID, mib int) {
	l.sum += mib - l.mib[id]
	if l.mib[id] = mib; mib == 0 {
		delete(l.mib, id)
	}
}
