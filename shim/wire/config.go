// Package wire is the protocol between a node and the shim of a sandbox: the calls, generated from shim.proto, and the files of
// the sandbox's directory that both know.
package wire

// Protocol is the version of this protocol; it changes when an older side could not go on.
const Protocol = 1

// The guest's network, the same constants in every sandbox: one private link, the gateway is the shim.
const (
	GuestAddress   = "10.0.2.2"
	GatewayAddress = "10.0.2.1"
	PrefixLen      = 24
	LinkMTU        = 65520
	AgentPort      = 1 // guest/wire RPC
	ForwardPort    = 2 // guest/wire port forwarding
)

// Files of a sandbox's directory, sandboxes/ID/. The shim changes into it and uses these names only.
const (
	ConfigFile  = "shim.json" // Config, written by the node before it starts the shim
	SocketFile  = "shim.sock" // the shim listens here
	LogFile     = "shim.log"  // the shim's own slog output (JSON), ≤ 8 MiB
	ConsoleFile = "console.log"
	CommandsDir = "log"         // command transcripts, log/CMD/
	MachineDir  = "machine"     // machine.Spec.Dir, emptied at each start
	DiskDir     = "disk"        // saved writable layers: disk/N/ was saved at the end of life N; the highest N is the disk
	StatusFile  = "status.json" // the last Status as JSON, written before the shim ends
)

// Config starts a shim: `caisson-shim DIR`, with DIR/shim.json holding this. Descriptor 3 is a pipe on which the shim
// writes one line, "ready" once it listens or the reason why it cannot. It holds nothing secret. Paths outside the
// directory are absolute.
type Config struct {
	Sandbox   string `json:"sandbox"`
	Epoch     uint64 `json:"epoch"`
	Driver    string `json:"driver"`
	Root      string `json:"root"`   // EROFS image of the template
	Agent     string `json:"agent"`  // EROFS image of the agent
	Sentry    string `json:"sentry"` // the caisson-sentry executable (gVisor driver)
	VCPUs     int    `json:"vcpus"`
	MemoryMiB int    `json:"memory_mib"`
	DiskMiB   int    `json:"disk_mib"`
	PIDs      int    `json:"pids"`
	DiskImage string `json:"disk_image,omitempty"` // saved writable layer to start from, relative
	// Cgroups are directories for the machine's processes (machine.Spec.Cgroups).
	Cgroups []string `json:"cgroups,omitempty"`
	// LogCapBytes bounds what is kept of one command's output once its live readers have it; default 64 MiB.
	LogCapBytes int64 `json:"log_cap_bytes,omitempty"`
}

// HintHeader is the metadata of an error that says what to do about it.
const HintHeader = "caisson-hint"

// DialProtocol is the protocol that GET /dial upgrades to.
const DialProtocol = "caisson-dial"
