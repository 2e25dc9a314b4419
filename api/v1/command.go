package v1

import (
	"encoding/base64"
	"time"
)

// TTY is the size of a terminal in character cells.
type TTY struct {
	Rows int `json:"rows" doc:"Rows." minimum:"1" maximum:"65535"`
	Cols int `json:"cols" doc:"Columns." minimum:"1" maximum:"65535"`
}

// CommandCreate is the body of POST …/commands. Exactly one of Argv and Shell is set.
type CommandCreate struct {
	Argv    []string          `json:"argv,omitempty" doc:"Program and arguments; looked up in PATH." maxItems:"65536" example:"[\"python3\",\"-c\",\"print(1)\"]"`
	Shell   string            `json:"shell,omitempty" doc:"Script run by the sandbox's /bin/bash or /bin/sh with -c."`
	Cwd     string            `json:"cwd,omitempty" doc:"Working directory; default: the sandbox's." maxLength:"4096"`
	Env     map[string]string `json:"env,omitempty" doc:"Environment, on top of the sandbox's."`
	User    string            `json:"user,omitempty" doc:"A name or uid[:gid]; default: the sandbox's." maxLength:"256"`
	TTY     *TTY              `json:"tty,omitempty" doc:"Give it a terminal of this size. Everything it prints is then stdout."`
	Stdin   bool              `json:"stdin,omitempty" doc:"Keep stdin open for …/stdin and …/attach; else it is empty."`
	Timeout Duration          `json:"timeout,omitempty" doc:"At its end the process group is killed and the exit's reason is timeout; 0: none." example:"\"90s\""`
	Detach  bool              `json:"detach,omitempty" doc:"Answer 201 with the command at once; it runs on."`
}

// Command is one command.
type Command struct {
	ID        string    `json:"id" doc:"\"cmd\" and 18 letters and digits; unique over all sandboxes." example:"cmd0123456789abcdefgh"`
	Argv      []string  `json:"argv,omitempty" doc:"Program and arguments, as given."`
	Shell     string    `json:"shell,omitempty" doc:"Script, as given."`
	Cwd       string    `json:"cwd,omitempty" doc:"Working directory."`
	User      string    `json:"user,omitempty" doc:"User."`
	TTY       *TTY      `json:"tty,omitempty" doc:"Terminal size it was started with."`
	Stdin     bool      `json:"stdin,omitempty" doc:"Whether stdin was kept open."`
	Timeout   Duration  `json:"timeout,omitempty" doc:"Its timeout."`
	PID       int       `json:"pid,omitempty" doc:"Process id in the sandbox."`
	StartedAt time.Time `json:"started_at" doc:"When it started."`
	EndedAt   time.Time `json:"ended_at,omitzero" doc:"When it ended; absent while it runs."`
	LastSeq   uint64    `json:"last_seq,omitempty" doc:"Number of its last event so far."`
	Exit      *Exit     `json:"exit,omitempty" doc:"How it ended; absent while it runs."`
}

// CommandList is the commands of a sandbox, those that ended included.
type CommandList struct {
	Commands []Command `json:"commands" doc:"The commands, oldest first."`
}

// Exit is how a command ended.
type Exit struct {
	Code   int    `json:"code" doc:"Exit code; 128 + the signal's number when it was ended by one; 126 not executable, 127 not found."`
	Signal string `json:"signal,omitempty" doc:"Signal that ended it." example:"SIGKILL"`
	Reason string `json:"reason" doc:"exited: by itself; signaled; timeout; oom: the sandbox ran out of memory; sandbox_gone: its machine ended; canceled: before it started; not_started: could not be executed." enum:"exited,signaled,timeout,oom,sandbox_gone,canceled,not_started"`
	Error  string `json:"error,omitempty" doc:"Text for not_started and sandbox_gone."`
}

// CommandResult is a command that was waited for, with what it printed: the first MaxCollect bytes (1 MiB) of each.
type CommandResult struct {
	Command
	Stdout          string `json:"stdout" doc:"What it wrote to stdout, the first 1 MiB; empty if stdout_b64 is there."`
	StdoutB64       string `json:"stdout_b64,omitempty" doc:"The same in base64, when it is not UTF-8."`
	StdoutTruncated bool   `json:"stdout_truncated,omitempty" doc:"There was more; …/output has it."`
	Stderr          string `json:"stderr" doc:"What it wrote to stderr, the first 1 MiB; empty if stderr_b64 is there."`
	StderrB64       string `json:"stderr_b64,omitempty" doc:"The same in base64, when it is not UTF-8."`
	StderrTruncated bool   `json:"stderr_truncated,omitempty" doc:"There was more; …/output has it."`
}

// StdoutBytes gives stdout whatever its encoding.
func (r CommandResult) StdoutBytes() []byte { return text(r.Stdout, r.StdoutB64) }

// StderrBytes gives stderr whatever its encoding.
func (r CommandResult) StderrBytes() []byte { return text(r.Stderr, r.StderrB64) }

func text(s, b64 string) []byte {
	if b64 != "" {
		if b, err := base64.StdEncoding.DecodeString(b64); err == nil {
			return b
		}
	}
	return []byte(s)
}

// Signal is the body of POST …/signal.
type Signal struct {
	Signal string `json:"signal,omitempty" doc:"Signal for the process group: \"SIGTERM\", \"TERM\" or \"15\"." maxLength:"16" default:"SIGTERM"`
}

// AttachFrame is a text frame of the attach WebSocket; binary frames are stdin (to the server) and output (from it).
//
// To the server: {"type":"resize","rows":24,"cols":80}, {"type":"signal","signal":"INT"}, {"type":"stdin_close"}.
// From the server: {"type":"started","pid":12,"seq":1}, {"type":"gap","from":2,"to":9}, {"type":"exit","exit":{…},"seq":9},
// {"type":"error","error":{problem}}. The socket closes with status 1000 after exit. Output of a command without a
// terminal comes as binary frames whose first byte is 1 (stdout) or 2 (stderr); with one, as it is.
type AttachFrame struct {
	Type   string   `json:"type"`
	Seq    uint64   `json:"seq,omitempty"`
	PID    int      `json:"pid,omitempty"`
	Rows   int      `json:"rows,omitempty"`
	Cols   int      `json:"cols,omitempty"`
	Signal string   `json:"signal,omitempty"`
	From   uint64   `json:"from,omitempty"`
	To     uint64   `json:"to,omitempty"`
	Exit   *Exit    `json:"exit,omitempty"`
	Error  *Problem `json:"error,omitempty"`
}
