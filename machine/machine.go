// Package machine is the contract of what makes machines: a [Driver] turns a [Spec] into a running [Machine].
//
// Life cycle. Start boots and returns a running machine, or an error and nothing left behind. A machine ends by itself
// (its process 1 ended, it crashed, the host killed it) or by Close; either way Wait returns, with the same Exit for
// every caller. The driver knows nothing of what runs inside: commands, files, time and identity are the agent's, which
// the caller reaches over the link.
//
// Who owns what. The caller makes Spec.Dir and removes it after Close; the driver may write only there. Root and Agent
// are read-only and shared by many machines. The caller owns its end of the link; the driver takes over Spec.Link.File
// (it is closed by Start in every case).
//
// Fail closed. When the process that called Start dies, the machine dies with it, however it died.
//
// Concurrency. Every method may be called from several goroutines. Close and Wait work in every state, also during
// SaveDisk, which then fails and harms nothing.
//
// Differences between drivers are told by [Info], never by name. machinetest holds every driver to this page.
package machine

import (
	"context"
	"os"
	"time"

	"github.com/caisson-sandbox/caisson"
)

// Driver makes machines.
type Driver interface {
	Info() Info
	// Check says whether this host can run the driver, trying what can be tried without booting. Its error carries a hint.
	Check(ctx context.Context) error
	// Start boots a machine. The error is a *caisson.Error and says which step failed.
	Start(ctx context.Context, s Spec) (Machine, error)
}

// LinkKind is how frames cross the link's descriptor.
type LinkKind string

// The kinds of link.
const (
	LinkIP LinkKind = "ip" // SOCK_SEQPACKET socket pair, one IP packet a message, no checksums (offloaded on both sides)
)

// DiskKind says how long what the guest writes lives.
type DiskKind string

// The kinds of disk.
const (
	DiskMachine DiskKind = "machine" // as long as the machine; SaveDisk and Spec.DiskImage carry it over a stop
	DiskHost    DiskKind = "host"    // on the host: every write the guest flushed survives the machine
)

// Info is what a driver is and can do. It is static.
type Info struct {
	Name         string // "gvisor"
	Version      string // of the VMM or kernel
	Isolation    caisson.Isolation
	Link         LinkKind
	Disk         DiskKind
	Unprivileged bool // works without root
}

// Link is the guest's one network interface: fixed addresses, the gateway is the host's end.
type Link struct {
	File    *os.File // the driver's end
	MTU     int
	Address string // guest address in CIDR form: "10.0.2.2/24"
	Gateway string // "10.0.2.1"
}

// Spec says what machine to make. All paths are absolute.
type Spec struct {
	ID        string // unique on this host among machines alive; [a-z0-9-]
	Dir       string // the driver's working directory, empty, mode 0700
	VCPUs     int
	MemoryMiB int
	DiskMiB   int
	PIDs      int
	Root      string // EROFS image, read-only, shared
	Agent     string // EROFS image with /caisson-guest, read-only, shared; the machine's first process
	AgentArgs []string
	Hostname  string
	DiskImage string // directory that SaveDisk filled; empty: a blank writable layer
	Link      Link
	Console   string // file, relative to Dir, for the first 1 MiB of what the machine prints
	// Cgroups are directories (one for v2, one a controller for v1, none where no cgroup may be written) that the driver
	// puts every process of the machine into before it runs. The caller makes, limits and removes them.
	Cgroups []string
}

// ExitReason says why a machine ended.
type ExitReason string

// The reasons.
const (
	ExitStopped ExitReason = "stopped" // process 1 ended, or the guest powered off
	ExitClosed  ExitReason = "closed"  // Close
	ExitKilled  ExitReason = "killed"  // a signal from outside
	ExitOOM     ExitReason = "oom"     // the host's memory limit
	ExitCrashed ExitReason = "crashed" // the VMM or kernel failed
)

// Exit is how a machine ended.
type Exit struct {
	Reason ExitReason
	Code   int
	Detail string // the last of what it said; at most 4 KiB
}

// Stats is what a machine uses on the host.
type Stats struct {
	MemoryPSS int64         // bytes, all processes of the machine
	MemoryRSS int64         // bytes
	MemoryOwn int64         // bytes of MemoryPSS that no file on a disk backs
	CPU       time.Duration // since start
	PID       int           // of its main process, for diagnosis
}

// Machine is one running machine.
type Machine interface {
	// SaveDisk writes the writable layer into the empty directory dir and returns when it is durable. Only DiskMachine
	// drivers have it (else Unsupported). The machine goes on.
	SaveDisk(ctx context.Context, dir string) error
	Stats(ctx context.Context) (Stats, error)
	// Trim tells the machine that it is idle: it gives back host memory that it does not need to wait. It returns at
	// once, changes nothing that the guest can see, and may do nothing.
	Trim()
	// Wait blocks until the machine has ended.
	Wait() Exit
	// Close kills the machine and returns when no process of it is left. It is idempotent.
	Close() error
}
