// Package trim gives back memory that a process which waits does not need: what its garbage collector holds free, and
// the pages of its own executable, which the kernel has in its cache and maps again when they are next used. A host runs
// thousands of such processes, and most of what each had to read was for its start.
package trim

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Process trims this process. It costs one garbage collection now and a few hundred page faults later.
func Process() {
	debug.FreeOSMemory()
	dropImage()
}

// Idle calls a function once each time the process has been quiet for a while after it was busy.
type Idle struct {
	quiet time.Duration
	do    func()
	busy  atomic.Bool // since the last look
	armed atomic.Bool
}

// NewIdle makes an Idle that calls do after quiet without a Touch. It takes no time while nothing happens.
func NewIdle(quiet time.Duration, do func()) *Idle { return &Idle{quiet: quiet, do: do} }

// Touch says that something happened.
func (i *Idle) Touch() {
	if !i.busy.Load() {
		i.busy.Store(true)
	}
	if i.armed.CompareAndSwap(false, true) {
		time.AfterFunc(i.quiet, i.look)
	}
}

// look runs as a timer: at the latest two quiet times after the last Touch, the function is called.
func (i *Idle) look() {
	if i.busy.Swap(false) {
		time.AfterFunc(i.quiet, i.look)
		return
	}
	i.do()
	i.armed.Store(false)
	if i.busy.Load() && i.armed.CompareAndSwap(false, true) { // touched while do ran
		time.AfterFunc(i.quiet, i.look)
	}
}
