package caisson

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"strings"
	"time"
)

// SandboxID names a sandbox: "sb" and 18 lower-case letters and digits, safe as a DNS label.
type SandboxID string

// CommandID names a command: "cmd" and 18 lower-case letters and digits. It is unique over all sandboxes.
type CommandID string

// KeyID names an API key (it is not the key).
type KeyID string

// TeamID names a team.
type TeamID string

// DefaultTeam owns everything on a server without further teams.
const DefaultTeam TeamID = "default"

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

func newID(prefix string) string {
	var b [12]byte
	rand.Read(b[:])
	return prefix + idEncoding.EncodeToString(b[:])[:18]
}

// NewSandboxID makes a fresh id.
func NewSandboxID() SandboxID { return SandboxID(newID("sb")) }

// NewCommandID makes a fresh id.
func NewCommandID() CommandID { return CommandID(newID("cmd")) }

// NewKeyID makes a fresh id.
func NewKeyID() KeyID { return KeyID(newID("key")) }

func validID(s, prefix string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != 18 {
		return false
	}
	for _, c := range rest {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z') {
			return false
		}
	}
	return true
}

// Valid reports whether the id has the right form; only valid ids ever reach a file name.
func (id SandboxID) Valid() bool { return validID(string(id), "sb") }

// Valid reports whether the id has the right form.
func (id CommandID) Valid() bool { return validID(string(id), "cmd") }

// State is where a sandbox is in its life. What may follow what is in control/lifecycle.
type State string

// The states of a sandbox.
const (
	Creating   State = "creating"
	Running    State = "running"
	Pausing    State = "pausing"
	Paused     State = "paused"
	Suspending State = "suspending"
	Suspended  State = "suspended"
	Waking     State = "waking"
	Stopping   State = "stopping"
	Stopped    State = "stopped"
	Deleting   State = "deleting"
	Failed     State = "failed"
)

// Resources bound a sandbox. The zero value of a field means its default.
type Resources struct {
	VCPUs     int // virtual CPUs; default 1, at most 64
	MemoryMiB int // guest memory; default 512, at least 64
	DiskMiB   int // writable layer; default 4096, at least 16
	PIDs      int // processes and threads in the guest; default 1024, at least 16
}

// Limits of Resources.
const (
	DefaultVCPUs     = 1
	DefaultMemoryMiB = 512
	DefaultDiskMiB   = 4096
	DefaultPIDs      = 1024
)

// WithDefaults fills zero fields.
func (r Resources) WithDefaults() Resources {
	set := func(p *int, d int) {
		if *p == 0 {
			*p = d
		}
	}
	set(&r.VCPUs, DefaultVCPUs)
	set(&r.MemoryMiB, DefaultMemoryMiB)
	set(&r.DiskMiB, DefaultDiskMiB)
	set(&r.PIDs, DefaultPIDs)
	return r
}

// Isolation is the boundary a driver gives.
type Isolation string

// The isolations.
const (
	IsolationVM         Isolation = "vm"               // hardware virtual machine with its own Linux kernel
	IsolationUserKernel Isolation = "userspace-kernel" // gVisor: a Linux kernel in user space, seccomp below it
	IsolationNone       Isolation = "none"             // tests only
)

// SandboxConfig is what the caller of Create decides.
type SandboxConfig struct {
	Template    string            // name[:tag] or digest; default "base"
	Name        string            // optional, unique in the team among sandboxes that exist
	Metadata    map[string]string // at most 64 entries, keys ≤ 128 bytes, values ≤ 1 KiB
	Env         map[string]string // environment of every command
	Resources   Resources
	User        string        // default user of commands: name or uid[:gid]; default from the template, else root
	Cwd         string        // default working directory; default from the template, else the user's home
	MaxLifetime time.Duration // 0: none. At its end the sandbox is deleted.
	Driver      string        // "" = the server's choice
}

// Sandbox is the record of one sandbox.
type Sandbox struct {
	ID             SandboxID
	Team           TeamID
	Config         SandboxConfig
	TemplateDigest string // sha256:… that Config.Template resolved to
	State          State
	Reason         string // why it is in State, when that is not what the user asked for: "oom", "shim lost: …"
	Epoch          uint64 // which life; +1 at each start
	Revision       uint64 // +1 at each change of the record
	Driver         string // set once placed
	DriverVersion  string
	Isolation      Isolation
	DiskDurability string // "machine": the disk lives as long as the machine and is saved by a clean stop; "host": every flushed write survives
	CreatedAt      time.Time
	StartedAt      time.Time // of the current life; zero if never
	ExpiresAt      time.Time // zero: never
	UpdatedAt      time.Time
}

// SandboxPatch changes what may change while a sandbox exists. Nil fields stay.
type SandboxPatch struct {
	Name        *string
	Metadata    map[string]*string // nil value removes the key
	MaxLifetime *time.Duration     // counted from now
	Revision    uint64             // if not 0, the change is made only when the record is at this revision (else Conflict)
}

// SandboxFilter selects sandboxes in List.
type SandboxFilter struct {
	States   []State
	Name     string
	Metadata map[string]string
	Limit    int    // default 100, at most 1000
	Cursor   string // from the previous page
}

// SandboxPage is one page of List, newest first.
type SandboxPage struct {
	Sandboxes []Sandbox
	Next      string // empty on the last page
}

// Timing is a named part of the time a call took, in the order it happened (HTTP Server-Timing).
type Timing struct {
	Name string
	Dur  time.Duration
}

// Sandboxes is the life of sandboxes, as the API serves it. Implemented by package control.
//
// Every method checks the team first: an object of another team is NotFound. Methods wait for their result; when ctx
// ends first the work goes on in the background and the record tells how it ended.
type Sandboxes interface {
	// Create makes and starts a sandbox and returns when its agent answers. idempotencyKey may be empty; with one, a
	// second call with the same key and the same config returns the first call's sandbox, and with another config Conflict.
	Create(ctx context.Context, team TeamID, cfg SandboxConfig, idempotencyKey string) (Sandbox, []Timing, error)
	// Get takes an id or a name.
	Get(ctx context.Context, team TeamID, idOrName string) (Sandbox, error)
	List(ctx context.Context, team TeamID, f SandboxFilter) (SandboxPage, error)
	Update(ctx context.Context, team TeamID, idOrName string, p SandboxPatch) (Sandbox, error)
	// Start boots a stopped sandbox with the disk it had. Starting a running one returns it unchanged.
	Start(ctx context.Context, team TeamID, idOrName string) (Sandbox, []Timing, error)
	// Stop ends all commands and keeps the disk. Stopping a stopped one returns it unchanged.
	Stop(ctx context.Context, team TeamID, idOrName string) (Sandbox, error)
	// Delete works in every state and returns when nothing is left.
	Delete(ctx context.Context, team TeamID, idOrName string) error
	// Guest gives access to the inside of a sandbox. Commands that ended can be read in any state; everything else
	// needs a running one and is a Conflict that names the state otherwise.
	Guest(ctx context.Context, team TeamID, idOrName string) (Guest, error)
}
