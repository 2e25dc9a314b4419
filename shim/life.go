package shim

import (
	"encoding/json"
	"os"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/caisson-sandbox/caisson/shim/wire"
)

// States of wire.Status.
const (
	stateNew      = "new"
	stateBooting  = "booting"
	stateRunning  = "running"
	stateStopping = "stopping"
	stateGone     = "gone"
)

// life is the state of the shim: new → booting → running → stopping → gone, and from each to gone.
type life struct {
	mu     sync.Mutex
	st     *wire.Status
	change chan struct{} // closed at the next change
}

func newLife(st *wire.Status) *life { return &life{st: st, change: make(chan struct{})} }

func (l *life) status() *wire.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return proto.Clone(l.st).(*wire.Status)
}

// watch gives the status and a channel that is closed when it is no longer true.
func (l *life) watch() (*wire.Status, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return proto.Clone(l.st).(*wire.Status), l.change
}

// move goes from one state to another and says whether it was in the first.
func (l *life) move(from, to string, edit func(*wire.Status)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.st.State != from {
		return false
	}
	l.set(to, edit)
	return true
}

// end goes to gone from the state from ("": any), once, and says whether it did.
func (l *life) end(from, reason, detail string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.st.State == stateGone || from != "" && l.st.State != from {
		return false
	}
	l.set(stateGone, func(s *wire.Status) { s.Reason, s.Detail = reason, detail })
	return true
}

func (l *life) set(to string, edit func(*wire.Status)) {
	l.st.State = to
	if edit != nil {
		edit(l.st)
	}
	close(l.change)
	l.change = make(chan struct{})
}

func goneText(s *wire.Status) string {
	t := "the sandbox's machine ended: " + s.Reason
	if s.Detail != "" {
		t += " (" + s.Detail + ")"
	}
	return t
}

// writeStatus leaves the last status for a node that was not watching.
func writeStatus(s *wire.Status) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	const tmp = wire.StatusFile + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, wire.StatusFile)
}
