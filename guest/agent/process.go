package agent

import (
	"bytes"
	"context"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson/guest/wire"
)

const (
	chunkSize  = 64 << 10  // bytes of one output event at most
	firstChunk = 4 << 10   // most commands print little, and each has two buffers
	batchSize  = 256 << 10 // bytes of output sent at once
	window     = 1 << 20   // output held back for an acknowledgement, bytes
	eventCost  = 128       // bytes an event takes besides its output
	drainAfter = 250 * time.Millisecond
	maxPipe    = 1 << 20 // bytes a pipe can hold at most (/proc/sys/fs/pipe-max-size)
)

// process is one command from start to the acknowledgement of its exit.
type process struct {
	id    string
	pid   int
	tty   *os.File // master side, nil without a terminal
	stdin *os.File // nil when closed or never open

	stdinMu sync.Mutex // held while stdin is written or closed

	mu        sync.Mutex
	change    *sync.Cond // events, acks or the stream changed
	events    []*wire.ProcessEvent
	unacked   int // bytes of output in events
	next      uint64
	sent      uint64 // events up to this one have been given to a stream and change no more
	stream    int    // which Run call owns the events; a later one takes over
	output    int64  // bytes of output so far
	ended     bool
	timedOut  bool
	oom       bool
	forgotten bool

	gone chan struct{} // closed when the process has ended and its output is read

	exited chan waitResult // from the reaper, once
}

type waitResult struct {
	status syscall.WaitStatus
	at     time.Time
}

func newProcess(id string) *process {
	p := &process{id: id, next: 1, exited: make(chan waitResult, 1), gone: make(chan struct{})}
	p.change = sync.NewCond(&p.mu)
	return p
}

// add appends an event and numbers it. Output waits while too much of it is unacknowledged.
func (p *process) add(e *wire.ProcessEvent, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waitForRoom(size)
	if p.forgotten {
		return
	}
	p.append(e)
	p.output += int64(size)
	p.change.Broadcast()
}

// addOutput adds a copy of what was printed, to the last event where that has not been sent yet: a program that prints in
// small pieces costs few events.
func (p *process) addOutput(b []byte, stderr bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waitForRoom(len(b))
	if p.forgotten {
		return
	}
	p.output += int64(len(b))
	if n := len(p.events); n > 0 && p.events[n-1].Seq > p.sent {
		switch w := p.events[n-1].What.(type) {
		case *wire.ProcessEvent_Stdout:
			if !stderr && len(w.Stdout)+len(b) <= chunkSize {
				w.Stdout = append(w.Stdout, b...)
				p.unacked += len(b)
				return
			}
		case *wire.ProcessEvent_Stderr:
			if stderr && len(w.Stderr)+len(b) <= chunkSize {
				w.Stderr = append(w.Stderr, b...)
				p.unacked += len(b)
				return
			}
		}
	}
	e := &wire.ProcessEvent{What: &wire.ProcessEvent_Stdout{Stdout: bytes.Clone(b)}}
	if stderr {
		e.What = &wire.ProcessEvent_Stderr{Stderr: bytes.Clone(b)}
	}
	p.append(e)
	p.change.Broadcast()
}

// waitForRoom holds output back. Locked.
func (p *process) waitForRoom(size int) {
	for size > 0 && p.unacked > window && !p.forgotten {
		p.change.Wait()
	}
}

// append numbers an event. Locked.
func (p *process) append(e *wire.ProcessEvent) {
	e.Seq, e.TimeUnixNano = p.next, time.Now().UnixNano()
	p.next++
	p.unacked += eventSize(e)
	p.events = append(p.events, e)
}

func eventSize(e *wire.ProcessEvent) int { return eventCost + len(e.GetStdout()) + len(e.GetStderr()) }

// forget drops all events, and those to come.
func (p *process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgotten, p.events, p.unacked = true, nil, 0
	p.change.Broadcast()
}

// ack drops the events up to seq; it reports whether the exit was among them.
func (p *process) ack(seq uint64) (done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.events) && p.events[n].Seq <= seq {
		p.unacked -= eventSize(p.events[n])
		done = done || p.events[n].GetExit() != nil
		n++
	}
	if n > 0 {
		rest := copy(p.events, p.events[n:])
		clear(p.events[rest:])
		p.events = p.events[:rest]
		p.change.Broadcast()
	}
	return done
}

// take makes the caller the owner of the events and returns its ticket.
func (p *process) take() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stream++
	p.change.Broadcast()
	return p.stream
}

// after waits for events with numbers above seq and gives as many as go into one message. It returns nil when the ticket
// is no longer the owner or ctx ended.
func (p *process) after(ctx context.Context, ticket int, seq uint64) []*wire.ProcessEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if ticket != p.stream || ctx.Err() != nil {
			return nil
		}
		if n := len(p.events); n > 0 && p.events[n-1].Seq > seq {
			from := 0
			if first := p.events[0].Seq; seq+1 > first {
				from = int(seq + 1 - first)
			}
			to, size := from, 0
			for to < n && (to == from || size+eventSize(p.events[to]) <= batchSize) {
				size += eventSize(p.events[to])
				to++
			}
			p.sent = max(p.sent, p.events[to-1].Seq)
			return slices.Clone(p.events[from:to])
		}
		p.change.Wait()
	}
}

// copyOutput turns what a pipe or terminal gives into events until its end. Valid UTF-8 is cut between characters.
func (p *process) copyOutput(f *os.File, stderr bool) {
	defer guard("output")
	buf := make([]byte, firstChunk)
	kept := 0
	text := true // valid UTF-8 so far; anything else is cut anywhere
	for {
		n, err := f.Read(buf[kept:])
		data := buf[:kept+n]
		kept = 0
		if err == nil && text {
			kept = incomplete(data)
			text = utf8.Valid(data[:len(data)-kept])
			if !text {
				kept = 0
			}
		}
		if out := data[:len(data)-kept]; len(out) > 0 {
			p.addOutput(out, stderr)
		}
		tail := data[len(data)-kept:]
		if len(data) == len(buf) && len(buf) < chunkSize {
			buf = make([]byte, min(4*len(buf), chunkSize)) // it prints more than a little
		}
		copy(buf, tail)
		if err != nil {
			return
		}
	}
}

// incomplete is how many bytes at the end of b begin a UTF-8 character that is not whole, if b is text so far.
func incomplete(b []byte) int {
	for i := 1; i <= utf8.UTFMax-1 && i <= len(b); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return i
			}
			return 0
		}
	}
	return 0
}

// supervise waits for the process, drains its output and adds the exit event.
func (p *process) supervise(outputs []*os.File, timeout time.Duration) {
	defer guard("supervisor")
	var readers sync.WaitGroup
	for i, f := range outputs {
		readers.Go(func() { p.copyOutput(f, i == 1) })
	}
	var timer *time.Timer
	if timeout > 0 {
		timer = time.AfterFunc(timeout, func() {
			p.mu.Lock()
			p.timedOut = true
			p.mu.Unlock()
			killSession(p.pid)
		})
	}
	res := <-p.exited
	if timer != nil {
		timer.Stop()
	}
	// What the process wrote before it ended is in the pipe now and is read to the last byte. A child in the background
	// may keep the pipe open: after this much quiet time it is not waited for.
	p.finishOutput(outputs, &readers)
	for _, f := range outputs {
		f.Close()
	}
	p.closeStdin()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	close(p.gone)
	p.add(&wire.ProcessEvent{What: &wire.ProcessEvent_Exit{Exit: p.exit(res.status)}}, 0)
}

// finishOutput gives the readers until drainAfter from now, and as long as there is something to read of what was in
// the pipes when the process ended.
func (p *process) finishOutput(outputs []*os.File, readers *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { // ends with the readers, which the deadlines below end
		readers.Wait()
		close(done)
	}()
	end := time.Now().Add(drainAfter)
	p.mu.Lock()
	most := p.output + int64(len(outputs))*(maxPipe+chunkSize) // what was in the pipes cannot be more
	p.mu.Unlock()
	for {
		select {
		case <-done:
			return
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().Before(end) {
			continue
		}
		// Readers that are held back by an unacknowledged window are not late: what they hold is wanted.
		p.mu.Lock()
		held := p.unacked > window && !p.forgotten
		more := p.output < most
		p.mu.Unlock()
		left := 0
		for _, f := range outputs {
			left += readable(f)
		}
		if more && (held || left > 0) {
			continue
		}
		for _, f := range outputs {
			f.SetReadDeadline(time.Now())
		}
		<-done
		return
	}
}

func readable(f *os.File) (n int) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n
}

func (p *process) exit(ws syscall.WaitStatus) *wire.Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &wire.Exit{Reason: "exited", Code: int32(ws.ExitStatus())}
	if ws.Signaled() {
		e.Reason, e.Signal, e.Code = "signaled", int32(ws.Signal()), 128+int32(ws.Signal())
	}
	switch {
	case p.timedOut && ws.Signaled():
		e.Reason = "timeout"
	case p.oom && e.Code == 128+int32(syscall.SIGKILL): // itself, or a shell that says so of its child
		e.Reason = "oom"
	}
	return e
}

func (p *process) closeStdin() {
	p.stdinMu.Lock()
	defer p.stdinMu.Unlock()
	if p.stdin != nil {
		p.stdin.Close()
		p.stdin = nil
	}
}

// killSession kills every process of the session that pid leads.
func killSession(pid int) {
	syscall.Kill(-pid, syscall.SIGKILL)
	for _, other := range pids() {
		if st, ok := readStat(other); ok && st.sid == pid {
			syscall.Kill(other, syscall.SIGKILL)
		}
	}
}
