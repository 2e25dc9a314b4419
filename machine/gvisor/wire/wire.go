// Package wire is what the gVisor driver and the executable that makes gVisor's library calls (caisson-sentry) say to
// each other. The driver starts `caisson-sentry start` or `caisson-sentry save` with one Request as JSON on stdin; the
// call prints one Response as JSON on stdout and exits. It is used between two processes of one build only, so it has no
// version.
package wire

// Descriptors of `caisson-sentry start`.
const (
	NICFD      = 3 // the machine's end of the link, SOCK_SEQPACKET, IP packets
	LifelineFD = 4 // read end of a pipe whose only write end the driver holds: at its end the sentry exits
	ConsoleFD  = 5 // write end of a pipe the driver drains: what the agent prints
)

// ExitLifeline is the sentry's exit code when the lifeline ended.
const ExitLifeline = 113

// Request asks for one call. The working directory of the call is the machine's directory; State names are relative.
type Request struct {
	ID        string   `json:"id"`
	VCPUs     int      `json:"vcpus,omitempty"`
	MemoryMiB int      `json:"memory_mib,omitempty"`
	DiskMiB   int      `json:"disk_mib,omitempty"`
	PIDs      int      `json:"pids,omitempty"`
	Root      string   `json:"root,omitempty"`
	Agent     string   `json:"agent,omitempty"`
	AgentArgs []string `json:"agent_args,omitempty"`
	Hostname  string   `json:"hostname,omitempty"`
	DiskImage string   `json:"disk_image,omitempty"` // start: directory of a saved disk
	MTU       int      `json:"mtu,omitempty"`
	Address   string   `json:"address,omitempty"` // CIDR
	Gateway   string   `json:"gateway,omitempty"`
	Cgroups   []string `json:"cgroups,omitempty"`
	SaveTo    string   `json:"save_to,omitempty"` // save: empty directory
	PID       int      `json:"pid,omitempty"`     // save: the sentry
}

// Response is the outcome of a call.
type Response struct {
	PID   int    `json:"pid,omitempty"`   // start: the sentry's host pid
	Error string `json:"error,omitempty"` // empty: it worked
	Step  string `json:"step,omitempty"`  // where it failed
	// Steps is how long each part took, in order.
	Steps []Step `json:"steps,omitempty"`
}

// Step is the time of one part of a call.
type Step struct {
	Name  string `json:"name"`
	Nanos int64  `json:"nanos"`
}
