package transcript

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-sandbox/caisson"
)

const (
	flushBytes  = 64 << 10              // pending records are written when they are this many bytes,
	flushAfter  = 20 * time.Millisecond // or this old, or when a reader wants them
	memoryBytes = 1 << 20               // size of a segment in memory
	maxMemory   = 2                     // segments kept in memory, for live readers, while the disk takes nothing
)

// segment is a run of records: a file, or memory while the disk is full. A segment's size is what readers may read.
type segment struct {
	first, last uint64 // sequence numbers; last is an upper bound in a segment loaded from disk
	path        string
	file        *os.File // of the segment being written
	size        int64
	mem         []byte // instead of a file
	inMemory    bool
	dropped     bool
}

// Writer records one command. Append may be called by several goroutines; so may everything else.
type Writer struct {
	dir string
	opt Options
	log *Log // nil for one read without a Log

	mu       sync.Mutex
	cmd      caisson.Command
	segments []*segment
	pending  []byte // encoded records of the last segment that are not in it yet
	timer    *time.Timer
	total    int64 // bytes kept, pending ones included
	ended    bool
	readers  map[*Reader]struct{}
	wake     chan struct{} // closed when there is more to read; nil while nobody waits
	diskErr  error         // why the last write failed
}

// Append records an event and returns its sequence number. Seq is assigned, Time when it is zero. An exit event ends the
// record: later ones are a Conflict. A disk that is full loses events (readers see a gap), and is no error.
func (w *Writer) Append(e caisson.CommandEvent) (uint64, error) {
	if len(e.Data) > MaxData {
		return 0, caisson.E(caisson.Invalid, "record event", string(w.cmd.ID), "an event holds at most 64 KiB", nil)
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Exit != nil {
		x := *e.Exit
		x.Error = cut(x.Error, 4<<10)
		x.Signal = cut(x.Signal, 64)
		e.Exit = &x
	}
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return 0, caisson.E(caisson.Conflict, "record event", string(w.cmd.ID), "the command has ended", nil)
	}
	e.Seq = w.cmd.LastSeq + 1
	if err := w.add(&e); err != nil {
		w.mu.Unlock()
		return 0, caisson.E(caisson.Internal, "record event", string(w.cmd.ID), "it cannot be encoded", err)
	}
	w.cmd.LastSeq = e.Seq
	switch e.Type {
	case caisson.EventStarted:
		w.cmd.PID = e.PID
	case caisson.EventExit:
		w.end(&e)
	}
	w.wakeReaders()
	ended := w.ended
	w.mu.Unlock()
	if w.log != nil {
		if ended {
			w.log.ended(w)
		}
		w.log.keepBound()
	}
	return e.Seq, nil
}

// Command returns the record as it is now.
func (w *Writer) Command() caisson.Command {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cmd
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// add encodes e into the pending bytes and starts a new segment when the last is full. Locked.
func (w *Writer) add(e *caisson.CommandEvent) error {
	n := int64(headerLen + fixedLen + len(e.Data) + 128)
	s := w.tail()
	limit := w.opt.SegmentBytes
	if s != nil && s.inMemory {
		limit = min(limit, memoryBytes)
	}
	if s == nil || s.size+int64(len(w.pending))+n > limit {
		s = w.rotate(e.Seq)
	}
	before := len(w.pending)
	var err error
	if w.pending, err = appendRecord(w.pending, e); err != nil {
		return err
	}
	s.last = e.Seq
	w.grow(int64(len(w.pending) - before))
	if len(w.pending) >= flushBytes {
		w.flush()
	} else if before == 0 && !w.armed() {
		w.arm()
	}
	return nil
}

func (w *Writer) armed() bool { return w.timer != nil }

// arm flushes pending records soon, so that a crash of this process loses little.
func (w *Writer) arm() {
	w.timer = time.AfterFunc(flushAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.timer = nil
		w.flush()
	})
}

func (w *Writer) tail() *segment {
	if len(w.segments) == 0 {
		return nil
	}
	return w.segments[len(w.segments)-1]
}

// rotate closes the last segment and begins one. Locked.
func (w *Writer) rotate(first uint64) *segment {
	w.flush()
	if s := w.tail(); s != nil {
		s.close()
	}
	s := &segment{first: first, last: first, path: filepath.Join(w.dir, segmentName(first))}
	w.segments = append(w.segments, s)
	w.trim()
	return s
}

func (s *segment) close() {
	if s.file != nil {
		s.file.Close() // nothing is buffered here: a late error has no one to act on it
		s.file = nil
	}
}

// flush moves the pending records into the last segment: into its file, or into memory when the disk does not take
// them. Locked.
func (w *Writer) flush() {
	if len(w.pending) == 0 {
		return
	}
	s := w.tail()
	if s == nil { // its file was taken away
		w.grow(-int64(len(w.pending)))
		w.pending = nil
		return
	}
	if !s.inMemory {
		if w.diskErr = s.write(w.pending); w.diskErr == nil {
			w.pending = w.pending[:0]
			if cap(w.pending) > 2*flushBytes {
				w.pending = nil
			}
			return
		}
		if s.size > 0 { // what is in the file stays; a segment in memory follows
			first := s.pendingFirst(w.pending)
			next := &segment{first: first, last: s.last, path: filepath.Join(w.dir, segmentName(first))}
			s.last = first - 1
			s.close()
			w.segments = append(w.segments, next)
			s = next
		} else {
			s.close()
			os.Remove(s.path)
		}
		s.inMemory = true
	}
	s.mem = append(s.mem, w.pending...)
	s.size = int64(len(s.mem))
	w.pending = w.pending[:0]
	w.boundMemory()
}

// pendingFirst is the sequence number of the first pending record.
func (s *segment) pendingFirst(pending []byte) uint64 {
	e, _, err := decodeRecord(pending)
	if err != nil {
		return s.last // cannot be: these are our own bytes
	}
	return e.Seq
}

func (s *segment) write(b []byte) error {
	if s.file == nil {
		f, err := os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		s.file = f
	}
	n, err := s.file.WriteAt(b, s.size)
	if err != nil {
		if n > 0 {
			s.file.Truncate(s.size) // a torn tail is also cut when it is read
		}
		return err
	}
	s.size += int64(n)
	return nil
}

// boundMemory drops the oldest segments in memory when they are too many, and all that nobody waits for. Locked.
func (w *Writer) boundMemory() {
	n := 0
	for _, s := range w.segments {
		if s.inMemory {
			n++
		}
	}
	for i := 0; i < len(w.segments) && n > 0; {
		s := w.segments[i]
		if s.inMemory && s != w.tail() && (n > maxMemory || len(w.readers) == 0) {
			w.drop(i)
			n--
			continue
		}
		i++
	}
}

// end writes the end to disk. Locked.
func (w *Writer) end(e *caisson.CommandEvent) {
	w.cmd.Exit, w.cmd.EndedAt = e.Exit, e.Time
	w.flush()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	w.pending = nil
	if s := w.tail(); s != nil {
		s.close()
	}
	w.ended = true
	if err := writeCommand(w.dir, &w.cmd); err != nil {
		w.diskErr = err
	}
	w.trim()
}

// trim drops the oldest segments that the cap does not allow and no reader needs, and those beyond the spool bound in
// any case. Locked.
func (w *Writer) trim() {
	for len(w.segments) > 1 && (w.total > w.opt.SpoolBytes || w.total > w.opt.CapBytes && !w.pinned(w.segments[0])) {
		w.drop(0)
	}
	w.boundMemory()
}

// pinned reports whether a reader still has to read s or what is before it.
func (w *Writer) pinned(s *segment) bool {
	for r := range w.readers {
		if r.next <= s.last {
			return true
		}
	}
	return false
}

// dropTo drops segments until at most n bytes are kept, whoever reads them.
func (w *Writer) dropTo(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	keep := 1 // a live command's last segment is being written
	if w.ended {
		keep = 0
	}
	for len(w.segments) > keep && w.total > n {
		w.drop(0)
	}
	w.wakeReaders()
}

func (w *Writer) drop(i int) {
	s := w.segments[i]
	s.dropped = true
	s.close()
	if !s.inMemory {
		os.Remove(s.path)
	}
	w.grow(-s.size)
	s.mem = nil
	w.segments = append(w.segments[:i:i], w.segments[i+1:]...)
}

func (w *Writer) grow(n int64) {
	w.total += n
	if w.log != nil {
		w.log.bytes.Add(n)
	}
}

func (w *Writer) wakeReaders() {
	if w.wake != nil {
		close(w.wake)
		w.wake = nil
	}
}
