// Package transcript is the record of what commands did, on disk: every event of a command, numbered from 1, to be
// replayed from any number and followed while it grows. The shim writes it; the node reads it when no shim is left.
//
// Layout, below one directory a sandbox:
//
//	CMDID/command.json                  caisson.Command: replaced at the start and at the end, without Env values
//	CMDID/NNNNNNNNNNNNNNNNNNNN.seg      at most 4 MiB of records, named by their first sequence number
//
// Durability. Nothing is fsynced: a record survives the death of the process that wrote it (output at most 20 ms old
// may miss, unless a reader has it), and a crash of the host ends the machine too, after which a command without an end
// reads as ended with its sandbox. A torn tail is found by its checksum and cut.
//
// Bounds. Of one command 64 MiB are kept: the oldest segments go once every attached reader has passed them. A reader
// that lags holds them back up to 2 GiB; beyond that it gets a gap. All commands of a sandbox together keep 4 GiB: the
// output of those that ended first goes first, then that of live ones beyond their cap. 10,000 ended commands are kept.
// When the disk takes no more, output goes through memory to live readers (2 MiB a command) and is otherwise a gap;
// writers never fail or wait for it.
package transcript

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-sandbox/caisson"
)

// Options bound a Log. Zero fields have the defaults of the package comment.
type Options struct {
	SegmentBytes int64 // size of a segment file
	CapBytes     int64 // kept of one command
	SpoolBytes   int64 // kept of one command at most, for readers that lag
	TotalBytes   int64 // kept of all commands
	MaxEnded     int   // ended commands kept
}

func (o Options) withDefaults() Options {
	set := func(p *int64, d int64) {
		if *p <= 0 {
			*p = d
		}
	}
	set(&o.SegmentBytes, 4<<20)
	set(&o.CapBytes, 64<<20)
	set(&o.SpoolBytes, 2<<30)
	set(&o.TotalBytes, 4<<30)
	if o.MaxEnded <= 0 {
		o.MaxEnded = 10_000
	}
	return o
}

// Log holds the commands of one sandbox.
type Log struct {
	dir   string
	opt   Options
	bytes atomic.Int64 // kept, of all commands

	mu    sync.Mutex
	all   map[caisson.CommandID]*entry
	order []caisson.CommandID // of ended commands, the first that ended first
}

// entry is one command: its writer while it lives or is read, else only what must be known of it.
type entry struct {
	w       *Writer
	bytes   int64            // when w is nil
	cmd     *caisson.Command // when its record could not be written to disk
	emptied bool             // its output was dropped
}

// Open opens the log in dir, which is made if it is not there. Only one Log may be open on a directory.
func Open(dir string, o Options) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, caisson.E(caisson.Internal, "open command log", dir, "the directory cannot be made", err)
	}
	l := &Log{dir: dir, opt: o.withDefaults(), all: map[caisson.CommandID]*entry{}}
	ids, err := commandIDs(dir)
	if err != nil {
		return nil, err
	}
	changed := map[caisson.CommandID]time.Time{}
	for _, id := range ids {
		e := &entry{bytes: sizeOf(filepath.Join(dir, string(id)))}
		if st, err := os.Stat(filepath.Join(dir, string(id), commandFile)); err == nil {
			changed[id] = st.ModTime()
		}
		l.all[id] = e
		l.bytes.Add(e.bytes)
	}
	slices.SortStableFunc(ids, func(a, b caisson.CommandID) int { return changed[a].Compare(changed[b]) })
	l.order = ids
	return l, nil
}

func sizeOf(dir string) (n int64) {
	entries, _ := os.ReadDir(dir) // what cannot be read counts as nothing
	for _, e := range entries {
		if st, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), segmentSuffix) {
			n += st.Size()
		}
	}
	return n
}

// Create starts the record of a command; a known id is a Conflict. The record is made also when the disk is full.
func (l *Log) Create(cmd caisson.Command) (*Writer, error) {
	if !cmd.ID.Valid() {
		return nil, caisson.E(caisson.Invalid, "record command", string(cmd.ID), "not a command id", nil)
	}
	dir := filepath.Join(l.dir, string(cmd.ID))
	cmd.LastSeq, cmd.Exit, cmd.EndedAt, cmd.PID = 0, nil, time.Time{}, 0
	cmd.Spec.Env = withoutValues(cmd.Spec.Env)
	w := &Writer{dir: dir, opt: l.opt, log: l, cmd: cmd}
	l.mu.Lock()
	if l.all[cmd.ID] != nil {
		l.mu.Unlock()
		return nil, caisson.E(caisson.Conflict, "record command", string(cmd.ID), "the command exists", nil)
	}
	l.all[cmd.ID] = &entry{w: w}
	l.mu.Unlock()
	w.diskErr = os.Mkdir(dir, 0o700)
	if w.diskErr == nil {
		w.diskErr = writeCommand(dir, &cmd)
	}
	l.forgetOldest()
	return w, nil
}

// Writer returns the writer of a command that has not ended, else nil.
func (l *Log) Writer(id caisson.CommandID) *Writer {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.all[id]
	if e == nil || e.w == nil {
		return nil
	}
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.w.ended {
		return nil
	}
	return e.w
}

// Command returns the record of a command.
func (l *Log) Command(id caisson.CommandID) (caisson.Command, error) {
	w, err := l.open(id)
	if err != nil {
		return caisson.Command{}, err
	}
	return w.Command(), nil
}

// open returns the command's writer, loading an ended command from disk.
func (l *Log) open(id caisson.CommandID) (*Writer, error) {
	l.mu.Lock()
	e := l.all[id]
	if e != nil && e.w != nil {
		defer l.mu.Unlock()
		return e.w, nil
	}
	l.mu.Unlock()
	if e == nil {
		return nil, caisson.E(caisson.NotFound, "read command", string(id), "there is no such command", nil)
	}
	w, err := load(l.dir, id)
	if e.cmd != nil {
		if err != nil {
			w = &Writer{dir: filepath.Join(l.dir, string(id)), ended: true}
		}
		w.cmd, err = *e.cmd, nil
	}
	if err != nil {
		return nil, err
	}
	w.opt = l.opt
	return w, nil
}

// List returns all commands, oldest first.
func (l *Log) List() ([]caisson.Command, error) {
	l.mu.Lock()
	ids := make([]caisson.CommandID, 0, len(l.all))
	for id := range l.all {
		ids = append(ids, id)
	}
	l.mu.Unlock()
	cmds := make([]caisson.Command, 0, len(ids))
	for _, id := range ids {
		cmd, err := l.Command(id)
		if caisson.Is(err, caisson.NotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		cmds = append(cmds, cmd)
	}
	sortCommands(cmds)
	return cmds, nil
}

// Read replays a command from seq from (0 and 1: the start) and, with follow, goes on until its exit.
func (l *Log) Read(id caisson.CommandID, from uint64, follow bool) (*Reader, error) {
	for {
		w, err := l.open(id)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		e := l.all[id]
		if e == nil || e.w != nil && e.w != w {
			l.mu.Unlock()
			continue // removed, or loaded by someone else, meanwhile
		}
		if e.w == nil {
			w.log, e.w = l, w
		}
		r := w.attach(from, follow, func() { l.release(id, w) })
		l.mu.Unlock()
		return r, nil
	}
}

// release forgets the segments of an ended command that nobody reads any more.
func (l *Log) release(id caisson.CommandID, w *Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	e := l.all[id]
	if e == nil || e.w != w || !w.ended || len(w.readers) > 0 {
		return
	}
	for i := len(w.segments) - 1; i >= 0; i-- {
		if w.segments[i].inMemory {
			w.drop(i)
		}
	}
	if w.diskErr != nil {
		cmd := w.cmd
		e.cmd = &cmd
	}
	e.w, e.bytes = nil, w.total
}

// ended moves a command to the ended ones.
func (l *Log) ended(w *Writer) {
	id := w.Command().ID
	l.mu.Lock()
	if l.all[id] != nil {
		l.order = append(l.order, id)
	}
	l.mu.Unlock()
	l.release(id, w)
	l.forgetOldest()
}

// forgetOldest removes the ended commands that are too many.
func (l *Log) forgetOldest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.order) > l.opt.MaxEnded {
		id := l.order[0]
		l.order = l.order[1:]
		l.empty(id)
		delete(l.all, id)
		os.RemoveAll(filepath.Join(l.dir, string(id)))
	}
}

// empty drops an ended command's output. Locked.
func (l *Log) empty(id caisson.CommandID) {
	e := l.all[id]
	if e == nil || e.emptied {
		return
	}
	e.emptied = true
	if e.w != nil {
		e.w.dropTo(0)
		return
	}
	dir := filepath.Join(l.dir, string(id))
	entries, _ := os.ReadDir(dir) // a directory that is gone holds nothing
	for _, f := range entries {
		if strings.HasSuffix(f.Name(), segmentSuffix) {
			os.Remove(filepath.Join(dir, f.Name()))
		}
	}
	l.bytes.Add(-e.bytes)
	e.bytes = 0
}

// keepBound drops output until all commands together keep no more than they may.
func (l *Log) keepBound() {
	if l.bytes.Load() <= l.opt.TotalBytes {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.order {
		if l.bytes.Load() <= l.opt.TotalBytes {
			return
		}
		l.empty(id)
	}
	for _, share := range []int64{l.opt.CapBytes, l.opt.TotalBytes / int64(max(1, len(l.all)))} {
		for _, e := range l.all {
			if l.bytes.Load() <= l.opt.TotalBytes {
				return
			}
			if e.w != nil {
				e.w.dropTo(share)
			}
		}
	}
}

// Close ends every command that has not ended, with the given exit.
func (l *Log) Close(x caisson.CommandExit) error {
	l.mu.Lock()
	var live []*Writer
	for _, e := range l.all {
		if e.w != nil {
			live = append(live, e.w)
		}
	}
	l.mu.Unlock()
	var errs []error
	for _, w := range live {
		if _, err := w.Append(caisson.CommandEvent{Type: caisson.EventExit, Exit: &x}); err != nil && !caisson.Is(err, caisson.Conflict) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
