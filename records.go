package caisson

import (
	"context"
	"io"
	"time"
)

// Scope is a right that a key can hold.
type Scope string

// The scopes.
const (
	ScopeRead  Scope = "read"  // look at sandboxes, commands, events, templates
	ScopeWrite Scope = "write" // make, change and delete sandboxes; run commands; move files; reach ports
	ScopeAdmin Scope = "admin" // keys, templates, server metrics
)

// Key is the record of an API key. The key itself is shown once, when made; a SHA-256 of it is kept.
type Key struct {
	ID        KeyID
	Team      TeamID
	Name      string
	Scopes    []Scope
	CreatedAt time.Time
	LastUsed  time.Time // to the minute; zero: never
	ExpiresAt time.Time // zero: never
}

// Principal is who makes a call.
type Principal struct {
	Team   TeamID
	Scopes []Scope
	Name   string // "key:ID" or "uid:N", for logs
}

// Has reports whether the principal holds the scope; admin holds all.
func (p Principal) Has(s Scope) bool {
	for _, x := range p.Scopes {
		if x == s || x == ScopeAdmin {
			return true
		}
	}
	return false
}

// Keys manages API keys.
type Keys interface {
	// Create returns the record and the key's text ("csn_…").
	Create(ctx context.Context, team TeamID, name string, scopes []Scope, ttl time.Duration) (Key, string, error)
	List(ctx context.Context, team TeamID) ([]Key, error)
	Delete(ctx context.Context, team TeamID, id KeyID) error
	// Authenticate answers Denied for unknown and expired keys.
	Authenticate(ctx context.Context, key string) (Principal, error)
}

// Event is something that happened to an object, kept for seven days.
type Event struct {
	Seq     uint64
	Time    time.Time
	Team    TeamID
	Type    string // "sandbox.created", "sandbox.running", "sandbox.stopped", "sandbox.failed", "sandbox.deleted", "sandbox.updated"
	Sandbox SandboxID
	Epoch   uint64
	Data    map[string]string
}

// Events reads the log of events.
type Events interface {
	// List gives up to limit events of the team after seq after, oldest first, of one sandbox if not empty.
	List(ctx context.Context, team TeamID, after uint64, sandbox SandboxID, limit int) ([]Event, error)
	// Wait returns when there may be an event of seq > after, or ctx ends.
	Wait(ctx context.Context, after uint64) error
}

// Template is a root filesystem that sandboxes start from.
type Template struct {
	Name      string // name:tag
	Digest    string // sha256:…, of the EROFS image
	Size      int64  // bytes of the image
	CreatedAt time.Time
	User, Cwd string
	Env       map[string]string
}

// Templates holds the templates of a server.
type Templates interface {
	List(ctx context.Context) ([]Template, error)
	// Resolve takes name, name:tag or a digest.
	Resolve(ctx context.Context, ref string) (Template, error)
	// Import makes a template from a root filesystem in tar form (plain, gzip or zstd).
	Import(ctx context.Context, name string, tar io.Reader) (Template, error)
	// Remove forgets the name; the image goes when no sandbox needs it.
	Remove(ctx context.Context, name string) error
}
