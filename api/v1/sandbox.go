package v1

import "time"

// Resources bound a sandbox.
type Resources struct {
	VCPUs     int `json:"vcpus,omitempty" doc:"Virtual CPUs." default:"1" minimum:"0" maximum:"64"`
	MemoryMiB int `json:"memory_mib,omitempty" doc:"Guest memory in MiB; at least 64." default:"512" minimum:"0" maximum:"16777216"`
	DiskMiB   int `json:"disk_mib,omitempty" doc:"Writable disk layer in MiB; at least 16." default:"4096" minimum:"0" maximum:"1073741824"`
	PIDs      int `json:"pids,omitempty" doc:"Processes and threads in the guest; at least 16." default:"1024" minimum:"0" maximum:"4194304"`
}

// SandboxCreate is the body of POST /v1/sandboxes.
type SandboxCreate struct {
	Template    string            `json:"template,omitempty" doc:"Template to start from: name, name:tag or digest (sha256:…)." default:"base" maxLength:"256"`
	Name        string            `json:"name,omitempty" doc:"Optional name, unique in the team among the sandboxes that exist." maxLength:"64" example:"build-42"`
	Metadata    map[string]string `json:"metadata,omitempty" doc:"At most 64 entries; keys up to 128 bytes, values up to 1 KiB." maxProperties:"64"`
	Env         map[string]string `json:"env,omitempty" doc:"Environment of every command."`
	Resources   Resources         `json:"resources,omitzero" doc:"Limits of the sandbox."`
	User        string            `json:"user,omitempty" doc:"Default user of commands: a name or uid[:gid]; default from the template, else root." maxLength:"256"`
	Cwd         string            `json:"cwd,omitempty" doc:"Default working directory; default from the template, else the user's home." maxLength:"4096"`
	MaxLifetime Duration          `json:"max_lifetime,omitempty" doc:"The sandbox is deleted this long after its creation; 0: never." example:"\"2h\""`
	Driver      string            `json:"driver,omitempty" doc:"Driver to use; default: the server's choice (GET /v1/info)." maxLength:"64" example:"gvisor"`
}

// Sandbox is one sandbox.
type Sandbox struct {
	ID             string            `json:"id" doc:"\"sb\" and 18 letters and digits; safe as a DNS label." example:"sb0123456789abcdefgh"`
	Name           string            `json:"name,omitempty" doc:"Name, if it was given one."`
	Team           string            `json:"team" doc:"Who owns it."`
	State          string            `json:"state" doc:"Where it is in its life." enum:"creating,running,pausing,paused,suspending,suspended,waking,stopping,stopped,deleting,failed"`
	Reason         string            `json:"reason,omitempty" doc:"Why it is in this state, when that is not what was asked for (\"oom\", \"shim lost\")."`
	Template       string            `json:"template" doc:"Template as it was asked for."`
	TemplateDigest string            `json:"template_digest,omitempty" doc:"Digest the template resolved to (sha256:…)."`
	Metadata       map[string]string `json:"metadata,omitempty" doc:"As given."`
	Env            map[string]string `json:"env,omitempty" doc:"Environment of every command."`
	Resources      Resources         `json:"resources" doc:"Limits, defaults filled in."`
	User           string            `json:"user,omitempty" doc:"Default user of commands."`
	Cwd            string            `json:"cwd,omitempty" doc:"Default working directory."`
	MaxLifetime    Duration          `json:"max_lifetime,omitempty" doc:"Lifetime it was given; absent: none."`
	Driver         string            `json:"driver,omitempty" doc:"Driver that runs it; absent until it is placed." example:"gvisor"`
	DriverVersion  string            `json:"driver_version,omitempty" doc:"Version of the driver."`
	Isolation      string            `json:"isolation,omitempty" doc:"Boundary the driver gives: vm, userspace-kernel, none." example:"userspace-kernel"`
	DiskDurability string            `json:"disk_durability,omitempty" doc:"machine: the disk lives as long as the machine and is saved by a clean stop; host: every flushed write survives."`
	Epoch          uint64            `json:"epoch" doc:"Which life this is; one more at each start."`
	Revision       uint64            `json:"revision" doc:"One more at each change of the record."`
	CreatedAt      time.Time         `json:"created_at" doc:"When it was made."`
	StartedAt      time.Time         `json:"started_at,omitzero" doc:"When the current life began; absent if it never started."`
	ExpiresAt      time.Time         `json:"expires_at,omitzero" doc:"When it will be deleted; absent: never."`
	UpdatedAt      time.Time         `json:"updated_at" doc:"When the record last changed."`
}

// SandboxPatch is the body of PATCH /v1/sandboxes/{id}. Absent fields stay as they are.
type SandboxPatch struct {
	Name        *string            `json:"name,omitempty" doc:"New name; \"\" removes it." maxLength:"64"`
	Metadata    map[string]*string `json:"metadata,omitempty" doc:"Entries to set; null removes a key."`
	MaxLifetime *Duration          `json:"max_lifetime,omitempty" doc:"New lifetime, counted from now; 0: none."`
	Revision    uint64             `json:"revision,omitempty" doc:"Change only if the record is at this revision, else conflict; 0: in any case."`
}

// SandboxList is one page of GET /v1/sandboxes, newest first.
type SandboxList struct {
	Sandboxes []Sandbox `json:"sandboxes" doc:"The sandboxes of this page, newest first."`
	Next      string    `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one."`
}

// Metrics is what a sandbox uses now.
type Metrics struct {
	Time          time.Time `json:"time" doc:"When it was measured."`
	CPUSeconds    float64   `json:"cpu_seconds" doc:"CPU time since the start, in seconds."`
	MemoryUsed    int64     `json:"memory_used" doc:"Guest memory in use, bytes."`
	MemoryTotal   int64     `json:"memory_total" doc:"Guest memory, bytes."`
	DiskUsed      int64     `json:"disk_used" doc:"Writable layer in use, bytes."`
	DiskTotal     int64     `json:"disk_total" doc:"Writable layer, bytes."`
	Processes     int       `json:"processes" doc:"Processes in the guest."`
	LastSpawn     float64   `json:"last_spawn_seconds,omitempty" doc:"How long the agent took to start the last command, in seconds."`
	HostMemoryPSS int64     `json:"host_memory_pss,omitempty" doc:"Memory of the shim and the machine on the host, bytes (proportional set size); absent if unknown."`
}
