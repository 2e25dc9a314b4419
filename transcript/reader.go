package transcript

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sort"
	"sync"

	"github.com/caisson-sandbox/caisson"
)

const (
	smallBlock = 16 << 10 // what a reader holds at first; one record always fits when it has grown
	largeBlock = 256 << 10
)

// Reader replays a command and follows it. It holds at most 256 KiB.
type Reader struct {
	w       *Writer
	follow  bool
	done    func() // when it is closed
	closing chan struct{}

	// Guarded by w.mu.
	next   uint64 // the next sequence number to deliver
	closed bool

	busy    sync.Mutex // Next and Batch, one at a time
	seg     *segment
	file    *os.File
	off     int64
	block   []byte
	events  []caisson.CommandEvent
	sawExit bool
}

// attach makes a reader; done is called once when it is closed.
func (w *Writer) attach(from uint64, follow bool, done func()) *Reader {
	r := &Reader{w: w, follow: follow, done: done, next: max(from, 1), closing: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.readers == nil {
		w.readers = map[*Reader]struct{}{}
	}
	w.readers[r] = struct{}{}
	return r
}

// Close ends the reader; a waiting Next returns.
func (r *Reader) Close() error {
	w := r.w
	w.mu.Lock()
	if r.closed {
		w.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.closing)
	delete(w.readers, r)
	w.trim()
	w.mu.Unlock()
	if r.busy.TryLock() { // else Batch is about to see that it is closed, and does this
		r.closeFile()
		r.busy.Unlock()
	}
	if r.done != nil {
		r.done()
	}
	return nil
}

// Next implements caisson.EventStream. The event's Data is the caller's.
func (r *Reader) Next(ctx context.Context) (caisson.CommandEvent, error) {
	if len(r.events) == 0 {
		if _, err := r.Batch(ctx); err != nil {
			return caisson.CommandEvent{}, err
		}
		// Batch hands all of them out; take them back.
	}
	e := r.events[0]
	r.events = r.events[1:]
	if e.Data != nil {
		e.Data = slices.Clone(e.Data)
	}
	return e, nil
}

// Batch waits for events and returns all that one read gives: at most 256 KiB of records. The events are good until the
// next call. Use Next or Batch, not both.
func (r *Reader) Batch(ctx context.Context) ([]caisson.CommandEvent, error) {
	r.busy.Lock()
	defer r.busy.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		n, wait, err := r.position()
		if err != nil {
			r.closeFile()
			return nil, err
		}
		if wait != nil {
			if cap(r.block) > smallBlock {
				r.block = nil
			}
			select {
			case <-wait:
			case <-r.closing:
			case <-ctx.Done():
			}
			continue
		}
		r.events = r.events[:0:cap(r.events)]
		if n == 0 { // no record left, but not everything told
			r.finish()
			return r.events, nil
		}
		if err := r.read(n); err != nil {
			return nil, err
		}
		if len(r.events) > 0 {
			return r.events, nil // an EOF or a close is told by the next call, which lets go of the file
		}
	}
}

// position finds what to read next: n bytes at off of seg, or a channel to wait on. Zero bytes mean that the recorded
// events are at their end, and only a gap or an exit that were not recorded are missing.
func (r *Reader) position() (n int64, wait <-chan struct{}, err error) {
	w := r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case r.closed:
			return 0, nil, caisson.E(caisson.Canceled, "read command", string(w.cmd.ID), "the reader was closed", nil)
		case r.sawExit:
			return 0, nil, io.EOF
		case r.seg == nil || r.seg.dropped:
			r.enter(w.segmentOf(r.next))
		}
		s := r.seg
		if s != nil && r.off >= s.size && s == w.tail() {
			w.flush()
			s = r.seg
		}
		if s != nil && r.off < s.size {
			return min(s.size-r.off, largeBlock), nil, nil
		}
		if s != nil && s != w.tail() {
			r.leave(s)
			w.trim()
			continue
		}
		switch {
		case w.ended && r.next <= w.cmd.LastSeq:
			return 0, nil, nil
		case w.ended || !r.follow:
			return 0, nil, io.EOF
		}
		if w.wake == nil {
			w.wake = make(chan struct{})
		}
		return 0, w.wake, nil
	}
}

// leave goes on after segment s, which is at its end. Locked.
func (r *Reader) leave(s *segment) {
	i := slices.Index(r.w.segments, s)
	if i < 0 || i+1 == len(r.w.segments) {
		r.enter(nil)
		return
	}
	r.enter(r.w.segments[i+1])
}

func (r *Reader) enter(s *segment) {
	r.closeFile()
	r.seg, r.off = s, 0
}

func (r *Reader) closeFile() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// segmentOf finds the first segment that may hold seq or something later. Locked.
func (w *Writer) segmentOf(seq uint64) *segment {
	i := sort.Search(len(w.segments), func(i int) bool { return w.segments[i].last >= seq })
	if i == len(w.segments) {
		return nil
	}
	return w.segments[i]
}

// read reads a block and decodes its events.
func (r *Reader) read(n int64) error {
	if int64(cap(r.block)) < n {
		size := smallBlock
		for int64(size) < n {
			size *= 2
		}
		r.block = make([]byte, size)
	}
	b := r.block[:n]
	n, err := r.readAt(b)
	if err != nil {
		return err
	}
	b = b[:n]
	next, start := r.next, r.off
	size, last := r.extent()
	for len(b) > 0 {
		e, n, err := decodeRecord(b)
		if errors.Is(err, errShort) && r.off > start && r.off+int64(len(b)) < size {
			break // the rest is in the next block
		}
		if err != nil || e.Seq > last {
			// What follows in this segment is lost: the next record's number shows the gap.
			r.off = size
			break
		}
		b = b[n:]
		r.off += int64(n)
		if e.Seq < next {
			continue
		}
		if e.Seq > next {
			r.events = append(r.events, gap(next, e.Seq-1))
		}
		r.events = append(r.events, e)
		next = e.Seq + 1
		r.sawExit = r.sawExit || e.Type == caisson.EventExit
	}
	r.w.mu.Lock()
	r.next = next
	r.w.mu.Unlock()
	return nil
}

// extent is the segment's size and last sequence number.
func (r *Reader) extent() (int64, uint64) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return r.seg.size, r.seg.last
}

// readAt fills b from the segment and says how much it got: nothing when the segment was dropped meanwhile.
func (r *Reader) readAt(b []byte) (int64, error) {
	r.w.mu.Lock()
	s := r.seg
	if s.dropped {
		r.w.mu.Unlock()
		return 0, nil
	}
	if s.inMemory {
		n := copy(b, s.mem[min(r.off, int64(len(s.mem))):])
		r.w.mu.Unlock()
		return int64(n), nil
	}
	r.w.mu.Unlock()
	if r.file == nil {
		f, err := os.Open(s.path)
		if errors.Is(err, os.ErrNotExist) {
			r.w.forget(s)
			return 0, nil
		}
		if err != nil {
			return 0, caisson.E(caisson.Exhausted, "read command", string(r.w.cmd.ID), "its output cannot be opened", err)
		}
		r.file = f
	}
	n, err := r.file.ReadAt(b, r.off)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, caisson.E(caisson.Internal, "read command", string(r.w.cmd.ID), "its output cannot be read", err)
	}
	if n == 0 {
		r.w.forget(s)
	}
	return int64(n), nil
}

// forget drops a segment whose file was taken away by someone else.
func (w *Writer) forget(s *segment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.segments, s); i >= 0 {
		w.drop(i)
	}
}

// finish tells what no record tells: that the last events are lost, and how the command ended.
func (r *Reader) finish() {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	last := r.w.cmd.LastSeq
	if r.next < last {
		r.events = append(r.events, gap(r.next, last-1))
	}
	r.events = append(r.events, caisson.CommandEvent{Seq: last, Time: r.w.cmd.EndedAt, Type: caisson.EventExit, Exit: r.w.cmd.Exit})
	r.next, r.sawExit = last+1, true
}

func gap(from, to uint64) caisson.CommandEvent {
	return caisson.CommandEvent{Seq: to, Type: caisson.EventGap, From: from, To: to}
}
