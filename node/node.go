// Package node runs sandboxes on one machine. [Node] is the contract the control plane uses; [Local] is the form in
// this process. Verbs are idempotent by (sandbox, epoch): calling again with the same pair continues or returns the
// first call's result; an older epoch than the node knows is a Conflict and changes nothing.
//
// The node alone opens the state directory's sandboxes/, their shims' sockets and their processes. What it does in
// several steps it journals, so that a node that was killed finishes or undoes it when it opens again. A shim outlives
// the node; Open adopts every shim it finds and reports what it found through Statuses and Watch.
package node

import (
	"context"

	"github.com/caisson-sandbox/caisson"
)

// Spec is what a node needs to run one life of a sandbox. It is kept in sandboxes/ID/spec.json, mode 0600.
type Spec struct {
	Sandbox        caisson.SandboxID
	Epoch          uint64
	Team           caisson.TeamID
	TemplateDigest string
	Driver         string // "" = the node's choice
	Resources      caisson.Resources
	Hostname       string
	User, Cwd      string
	Env            map[string]string
}

// Phase is what a node knows of a sandbox's life.
type Phase string

// The phases.
const (
	Starting Phase = "starting"
	Up       Phase = "up"
	Stopping Phase = "stopping"
	Down     Phase = "down"  // stopped as asked; the disk is kept
	Ended    Phase = "ended" // its machine or shim ended by itself; Reason says why
	Deleted  Phase = "deleted"
)

// Status is what a node reports of one sandbox.
type Status struct {
	Sandbox        caisson.SandboxID
	Epoch          uint64
	Phase          Phase
	Reason         string // "oom", "killed", "crashed", "shim lost", "exited"
	Detail         string
	Driver         string
	DriverVersion  string
	Isolation      caisson.Isolation
	DiskDurability string
}

// Info describes a node.
type Info struct {
	Drivers       []DriverInfo
	Default       string // driver used for an empty Spec.Driver
	MemoryMiB     int    // what may be given to sandboxes in all
	MemoryUsedMiB int    // Σ of the live sandboxes
	Cgroup        string // "v2", "v1", "none: reason"
}

// DriverInfo describes a driver of a node.
type DriverInfo struct {
	Name, Version string
	Isolation     caisson.Isolation
	Err           string // why it cannot be used here; empty if it can
}

// Node runs sandboxes.
type Node interface {
	Info(ctx context.Context) (Info, error)
	// Start runs life s.Epoch of a sandbox, on the disk of an earlier life if there is one, and returns when the agent
	// answers. On an error nothing of the new life is left, and the disk is as it was.
	Start(ctx context.Context, s Spec) (Status, []caisson.Timing, error)
	// Stop ends the life and keeps the disk.
	Stop(ctx context.Context, id caisson.SandboxID, epoch uint64) (Status, error)
	// Delete removes everything of the sandbox, alive or not; deleting what is not there succeeds.
	Delete(ctx context.Context, id caisson.SandboxID, epoch uint64) error
	// Guest gives access to the inside; when the sandbox is not up, only ended commands can be read.
	Guest(ctx context.Context, id caisson.SandboxID, epoch uint64) (caisson.Guest, error)
	// Statuses lists all sandboxes the node has something of.
	Statuses(ctx context.Context) ([]Status, error)
	// Watch returns a channel that gets a Status at each change the caller did not ask for (Ended), until ctx ends. A slow
	// reader loses none: changes are coalesced by sandbox.
	Watch(ctx context.Context) (<-chan Status, error)
	// Sweep removes processes, mounts, cgroups, sockets and directories that belong to none of keep (sandbox → epoch) and
	// says what it removed.
	Sweep(ctx context.Context, keep map[caisson.SandboxID]uint64) ([]string, error)
}
