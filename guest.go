package caisson

import (
	"context"
	"io"
	"net"
	"time"
)

// CommandSpec says what to run. Exactly one of Argv and Shell is set.
type CommandSpec struct {
	Argv    []string
	Shell   string // run by the sandbox's /bin/bash or /bin/sh with -c
	Cwd     string // default: the sandbox's
	Env     map[string]string
	User    string // default: the sandbox's; name or uid[:gid]
	TTY     *TTYSize
	Stdin   bool          // keep stdin open for Guest.Stdin; else it is empty
	Timeout time.Duration // 0: none. At its end the process group is killed and the reason is ReasonTimeout.
}

// TTYSize is the size of a terminal in character cells.
type TTYSize struct{ Rows, Cols uint16 }

// ExitReason says how a command ended.
type ExitReason string

// The ways for a command to end.
const (
	ReasonExited      ExitReason = "exited"       // by itself, with a code
	ReasonSignaled    ExitReason = "signaled"     // by a signal
	ReasonTimeout     ExitReason = "timeout"      // its timeout passed
	ReasonOOM         ExitReason = "oom"          // the sandbox ran out of memory
	ReasonSandboxGone ExitReason = "sandbox_gone" // its machine ended
	ReasonCanceled    ExitReason = "canceled"     // by request before it started
	ReasonNotStarted  ExitReason = "not_started"  // could not be executed; Code is 126 (not executable) or 127 (not found)
)

// CommandExit is how a command ended.
type CommandExit struct {
	Code   int    // exit code; 128+signal when signaled
	Signal string // "SIGKILL", else empty
	Reason ExitReason
	Error  string // text for ReasonNotStarted and ReasonSandboxGone
}

// EventType is the type of a CommandEvent.
type EventType string

// The types of command events.
const (
	EventStarted EventType = "started"
	EventStdout  EventType = "stdout" // with a TTY, everything
	EventStderr  EventType = "stderr"
	EventGap     EventType = "gap" // events From to To fell to the log's cap
	EventExit    EventType = "exit"
)

// CommandEvent is one event in a command's life. Seq starts at 1 and grows by 1; a gap event has the Seq of its last lost event.
type CommandEvent struct {
	Seq      uint64
	Time     time.Time
	Type     EventType
	PID      int    // EventStarted
	Data     []byte // EventStdout, EventStderr; at most 64 KiB
	From, To uint64 // EventGap
	Exit     *CommandExit
}

// Command is the record of one command.
type Command struct {
	ID        CommandID
	Spec      CommandSpec // without Env values
	StartedAt time.Time
	EndedAt   time.Time // zero while it runs
	PID       int
	LastSeq   uint64
	Exit      *CommandExit // nil while it runs
}

// EventStream delivers events in order. Next returns io.EOF after the exit event (or at the end of what is there, when
// not following). Close may be called at any time, also during Next.
type EventStream interface {
	Next(ctx context.Context) (CommandEvent, error)
	Close() error
}

// FileType is the type of a file.
type FileType string

// The types of files.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// FileInfo describes one file in a sandbox. Path and Name may hold any bytes but NUL.
type FileInfo struct {
	Path     string
	Name     string
	Type     FileType
	Size     int64
	Mode     uint32 // permission bits, setuid, setgid and sticky as in stat(2)
	UID, GID uint32
	User     string // name, if the sandbox knows one
	Group    string
	ModTime  time.Time
	Target   string // of a symlink
}

// WriteOptions of Guest.WriteFile.
type WriteOptions struct {
	Mode    uint32 // 0: 0644, or what the file has
	User    string // who owns the file and whose rights are used; default: the sandbox's user
	Parents bool   // make missing parent directories
}

// FileEvent is a change below a watched directory.
type FileEvent struct {
	Path string
	Op   string // create, write, remove, rename, chmod, overflow (events were lost: look again)
}

// FileEventStream delivers file events.
type FileEventStream interface {
	Next(ctx context.Context) (FileEvent, error)
	Close() error
}

// GuestMetrics is what a sandbox uses now.
type GuestMetrics struct {
	Time          time.Time
	CPUSeconds    float64 // since start
	MemoryUsed    int64   // bytes
	MemoryTotal   int64
	DiskUsed      int64
	DiskTotal     int64
	Processes     int
	HostMemoryPSS int64         // shim and machine on the host, bytes; 0 if unknown
	LastSpawn     time.Duration // how long the agent took to start the last command
}

// Guest is the inside of one sandbox. Paths are absolute or relative to the user's home.
type Guest interface {
	// StartCommand starts a command and returns at once with its id. It fails only when the sandbox cannot be reached or
	// the request is wrong: a program that cannot be executed is a command that ended with ReasonNotStarted.
	StartCommand(ctx context.Context, spec CommandSpec) (Command, error)
	// Run is StartCommand and Output(from 1, follow) in one call. Ending the stream does not end the command.
	Run(ctx context.Context, spec CommandSpec) (Command, EventStream, error)
	Commands(ctx context.Context) ([]Command, error)
	Command(ctx context.Context, id CommandID) (Command, error)
	// Output replays events from seq from (0 and 1: the start) and, with follow, goes on until the exit event.
	Output(ctx context.Context, id CommandID, from uint64, follow bool) (EventStream, error)
	// Stdin copies r to the command's stdin, and closes it at r's end if closeAfter.
	Stdin(ctx context.Context, id CommandID, r io.Reader, closeAfter bool) error
	// Signal sends a signal ("SIGTERM", "TERM", "15") to the process group.
	Signal(ctx context.Context, id CommandID, signal string) error
	Resize(ctx context.Context, id CommandID, size TTYSize) error

	// ReadFile reads from offset (bytes), length bytes at most (0: to the end). The caller closes the reader.
	ReadFile(ctx context.Context, path, user string, offset, length int64) (FileInfo, io.ReadCloser, error)
	// WriteFile replaces the file with what r gives. A failed write leaves the old file.
	WriteFile(ctx context.Context, path string, r io.Reader, o WriteOptions) (FileInfo, error)
	// ListFiles lists a directory down to depth (1: its own entries).
	ListFiles(ctx context.Context, path, user string, depth int) ([]FileInfo, error)
	StatFile(ctx context.Context, path, user string) (FileInfo, error)
	Mkdir(ctx context.Context, path, user string, mode uint32, parents bool) (FileInfo, error)
	Move(ctx context.Context, from, to, user string) (FileInfo, error)
	Remove(ctx context.Context, path, user string, recursive bool) error
	WatchFiles(ctx context.Context, path, user string, recursive bool) (FileEventStream, error)
	// Archive gives a tar stream of path; its entries are below path's base name.
	Archive(ctx context.Context, path, user string) (io.ReadCloser, error)
	// Extract unpacks a tar stream below the directory path.
	Extract(ctx context.Context, path, user string, r io.Reader) error

	// Dial connects to a TCP port that something in the sandbox listens on, on 127.0.0.1, ::1 or any address.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
	Metrics(ctx context.Context) (GuestMetrics, error)
}
