package v1

import "time"

// KeyCreate is the body of POST /v1/keys.
type KeyCreate struct {
	Name   string   `json:"name" doc:"What the key is for." minLength:"1" maxLength:"128" example:"ci"`
	Scopes []string `json:"scopes" doc:"Rights: read (look), write (make, change, delete, run, reach ports), admin (keys, templates, metrics; holds all)." minItems:"1" maxItems:"3"`
	TTL    Duration `json:"ttl,omitempty" doc:"How long it is good for; 0: until deleted." example:"\"720h\""`
}

// Key is the record of an API key.
type Key struct {
	ID        string    `json:"id" doc:"Id of the key; not the key." example:"key0123456789abcdefgh"`
	Name      string    `json:"name" doc:"What it is for."`
	Team      string    `json:"team" doc:"Whose objects it reaches."`
	Scopes    []string  `json:"scopes" doc:"Its rights."`
	Key       string    `json:"key,omitempty" doc:"The key itself (csn_…): only in the answer to its creation, and kept nowhere."`
	CreatedAt time.Time `json:"created_at" doc:"When it was made."`
	LastUsed  time.Time `json:"last_used,omitzero" doc:"When it was last used, to the minute; absent: never."`
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"When it ends; absent: never."`
}

// KeyList is all keys of a team.
type KeyList struct {
	Keys []Key `json:"keys" doc:"The keys."`
}

// Event is something that happened to an object.
type Event struct {
	Seq     uint64            `json:"seq,omitempty" doc:"Its number; pass the last one seen as after to go on."`
	Time    time.Time         `json:"time" doc:"When."`
	Type    string            `json:"type" doc:"sandbox.created, sandbox.running, sandbox.stopped, sandbox.failed, sandbox.deleted, sandbox.updated; on streams also ping (nothing happened) and error (the stream ended, error says why)." example:"sandbox.created"`
	Sandbox string            `json:"sandbox,omitempty" doc:"Which sandbox."`
	Epoch   uint64            `json:"epoch,omitempty" doc:"Which of its lives."`
	Data    map[string]string `json:"data,omitempty" doc:"Details of the type."`
	Error   *Problem          `json:"error,omitempty" doc:"Why the stream ended."`
}

// EventList is one page of events, oldest first.
type EventList struct {
	Events []Event `json:"events" doc:"The events, oldest first."`
	Next   uint64  `json:"next" doc:"Pass as after to get what comes next."`
}

// Template is a root filesystem that sandboxes start from.
type Template struct {
	Name      string            `json:"name" doc:"name:tag." example:"base:latest"`
	Digest    string            `json:"digest" doc:"sha256:… of the image."`
	Size      int64             `json:"size" doc:"Bytes of the image."`
	User      string            `json:"user,omitempty" doc:"Default user."`
	Cwd       string            `json:"cwd,omitempty" doc:"Default working directory."`
	Env       map[string]string `json:"env,omitempty" doc:"Environment it gives."`
	CreatedAt time.Time         `json:"created_at" doc:"When it was imported."`
}

// TemplateList is all templates.
type TemplateList struct {
	Templates []Template `json:"templates" doc:"The templates."`
}

// Info describes a server.
type Info struct {
	Version       string   `json:"version" doc:"Version of the server."`
	API           string   `json:"api" doc:"Version of this API." example:"v1"`
	Drivers       []Driver `json:"drivers" doc:"Drivers of the server, the default one first."`
	DefaultDriver string   `json:"default_driver" doc:"Driver of a sandbox that names none." example:"gvisor"`
	Isolation     string   `json:"isolation" doc:"Isolation the default driver gives." example:"userspace-kernel"`
	MemoryMiB     int      `json:"memory_mib" doc:"Memory that may be given to sandboxes, MiB."`
	MemoryUsedMiB int      `json:"memory_used_mib" doc:"Memory given to sandboxes that live, MiB."`
	Cgroup        string   `json:"cgroup,omitempty" doc:"How limits are enforced: v2, v1, or none with the reason."`
	Domain        string   `json:"domain,omitempty" doc:"Ports of sandboxes are reached at {port}-{id}.{domain}."`
	Principal     string   `json:"principal,omitempty" doc:"Who the server takes the caller for: key:ID or uid:N."`
}

// Driver is a way to make machines.
type Driver struct {
	Name      string `json:"name" doc:"Name." example:"gvisor"`
	Version   string `json:"version,omitempty" doc:"Version."`
	Isolation string `json:"isolation" doc:"vm, userspace-kernel or none."`
	Available bool   `json:"available" doc:"Whether it can be used on this server."`
	Reason    string `json:"reason,omitempty" doc:"Why it cannot be used."`
}

// Health is the body of /healthz and /readyz.
type Health struct {
	Status string `json:"status" doc:"ok, or unavailable with status 503." example:"ok"`
}
