package transcript

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-sandbox/caisson"
)

const (
	commandFile   = "command.json"
	segmentSuffix = ".seg"
	maxCommand    = 4 << 20 // bytes of a command.json; a command's arguments are bounded well below
)

// List reads the commands below dir, oldest first, when no shim writes there. A command without a recorded end ended
// with its sandbox; one whose record cannot be read is listed with that as its end.
func List(dir string) ([]caisson.Command, error) {
	ids, err := commandIDs(dir)
	if err != nil {
		return nil, err
	}
	cmds := make([]caisson.Command, 0, len(ids))
	for _, id := range ids {
		w, err := load(dir, id)
		if caisson.Is(err, caisson.NotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		cmds = append(cmds, w.cmd)
	}
	sortCommands(cmds)
	return cmds, nil
}

// OpenReader replays what is recorded of one command from seq from (0 and 1: the start), when no shim writes there. Its
// last event is always an exit.
func OpenReader(dir string, id caisson.CommandID, from uint64) (caisson.EventStream, error) {
	if !id.Valid() {
		return nil, caisson.E(caisson.NotFound, "read command", string(id), "there is no such command", nil)
	}
	w, err := load(dir, id)
	if err != nil {
		return nil, err
	}
	return w.attach(from, false, nil), nil
}

func sortCommands(cmds []caisson.Command) {
	slices.SortStableFunc(cmds, func(a, b caisson.Command) int {
		if c := a.StartedAt.Compare(b.StartedAt); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
}

// commandIDs lists the commands that have a directory below dir. A missing dir holds none.
func commandIDs(dir string) ([]caisson.CommandID, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, caisson.E(caisson.Internal, "list commands", dir, "the directory cannot be read", err)
	}
	var ids []caisson.CommandID
	for _, e := range entries {
		if id := caisson.CommandID(e.Name()); e.IsDir() && id.Valid() {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// writeCommand replaces the command's record in one step.
func writeCommand(dir string, cmd *caisson.Command) error {
	c := *cmd
	c.Spec.Env = withoutValues(c.Spec.Env)
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, commandFile+".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		os.Remove(tmp)
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, commandFile))
}

// withoutValues keeps the names: values may be secret and the disk may be copied.
func withoutValues(env map[string]string) map[string]string {
	if env == nil {
		return nil
	}
	names := make(map[string]string, len(env))
	for k := range env {
		names[k] = ""
	}
	return names
}

func readCommand(dir string) (caisson.Command, error) {
	var cmd caisson.Command
	f, err := os.Open(filepath.Join(dir, commandFile))
	if err != nil {
		return cmd, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCommand))
	if err != nil {
		return cmd, err
	}
	err = json.Unmarshal(b, &cmd)
	return cmd, err
}

func segmentName(first uint64) string { return fmt.Sprintf("%020d%s", first, segmentSuffix) }

// load makes a writer of what is on disk. It takes no more events: whoever wrote it is gone, so a command without an
// end ended with its sandbox.
func load(dir string, id caisson.CommandID) (*Writer, error) {
	const op = "read command"
	path := filepath.Join(dir, string(id))
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, caisson.E(caisson.NotFound, op, string(id), "there is no such command", nil)
	}
	if err != nil {
		return nil, caisson.E(caisson.Internal, op, string(id), "its directory cannot be read", err)
	}
	w := &Writer{dir: path, opt: Options{}.withDefaults(), ended: true, log: nil}
	changed := time.Time{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if !ok {
			continue
		}
		first, err := strconv.ParseUint(name, 10, 64)
		st, statErr := e.Info()
		if err != nil || first == 0 || statErr != nil || e.Name() != segmentName(first) {
			continue
		}
		w.segments = append(w.segments, &segment{first: first, path: filepath.Join(path, e.Name()), size: st.Size()})
		w.total += st.Size()
		changed = st.ModTime()
	}
	for i, s := range w.segments[:max(0, len(w.segments)-1)] {
		s.last = w.segments[i+1].first - 1
	}
	cmd, cmdErr := readCommand(path)
	cmd.ID = id
	if n := len(w.segments); n > 0 && (cmdErr != nil || cmd.Exit == nil) {
		last, event := w.segments[n-1].scan()
		cmd.LastSeq = max(last, w.segments[n-1].first-1)
		if event.Type == caisson.EventExit {
			cmd.Exit, cmd.EndedAt = event.Exit, event.Time
		}
		changed = maxTime(changed, event.Time)
	}
	if cmd.Exit == nil {
		cmd.LastSeq++
		cmd.EndedAt = changed
		cmd.Exit = &caisson.CommandExit{Code: 137, Signal: "SIGKILL", Reason: caisson.ReasonSandboxGone, Error: "the sandbox ended before the command did"}
		if cmdErr != nil {
			cmd.Exit.Error = "the command's record cannot be read"
		}
	}
	if n := len(w.segments); n > 0 {
		w.segments[n-1].last = max(cmd.LastSeq, w.segments[n-1].first)
	}
	w.cmd = cmd
	return w, nil
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// scan reads a segment to its end or its first damaged record, cuts size to what is whole, and returns the last event.
func (s *segment) scan() (uint64, caisson.CommandEvent) {
	var last caisson.CommandEvent
	b, err := os.ReadFile(s.path)
	if err != nil {
		s.size = 0
		return 0, last
	}
	off := 0
	for off < len(b) {
		e, n, err := decodeRecord(b[off:])
		if err != nil || e.Seq < s.first || e.Seq <= last.Seq {
			break
		}
		last, off = e, off+n
	}
	s.size = int64(off)
	return last.Seq, last
}
