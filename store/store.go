// Package store keeps the records of the control plane: sandboxes, keys and the log of events.
//
// The contract has narrow methods a noun; package sqlite implements it and package storetest holds every implementation to
// it. What is true of all of them:
//
//   - A method that returned nil is durable: neither kill -9 nor loss of power undoes it.
//   - A change and its events are one transaction. Seq, Time, and where they are empty Team, Sandbox and Epoch of an event
//     are filled by the store.
//   - Created, updated and event times come from the store's clock, in UTC.
//   - Once a write has begun it is finished even when ctx ends, so that no caller is left in doubt.
//   - Errors are *caisson.Error: NotFound, Conflict, Invalid (a bad cursor), else Internal.
package store

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/caisson-sandbox/caisson"
)

// Limits of a page of sandboxes.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Store is one set of records. All methods may be called concurrently.
type Store interface {
	Sandboxes() Sandboxes
	Keys() Keys
	Events() Events
	// Close waits for writes that have begun. It may be called twice.
	Close() error
}

// IdempotencyKey names a create, so that its repetition is seen. It is forgotten with the sandbox that it made.
type IdempotencyKey struct {
	Team       caisson.TeamID
	Key        string
	ConfigHash string // of the config as it was asked for
}

// Expect is what must still hold for an Update; zero fields are not looked at.
type Expect struct {
	Revision uint64
	Epoch    uint64
}

// Sandboxes keeps one row a sandbox.
type Sandboxes interface {
	// Create inserts a sandbox at revision 1. Its name, if it has one, is unique in the team among the sandboxes that
	// exist: else Conflict. With an idempotency key that made a sandbox before, that one is returned and made is false, or
	// Conflict if the hashes differ.
	Create(ctx context.Context, sb caisson.Sandbox, idem *IdempotencyKey, events ...caisson.Event) (out caisson.Sandbox, made bool, err error)
	// Made gives the sandbox that the key made: NotFound if none, Conflict if the hashes differ.
	Made(ctx context.Context, idem IdempotencyKey) (caisson.Sandbox, error)
	Get(ctx context.Context, id caisson.SandboxID) (caisson.Sandbox, error)
	// Find takes an id or a name. What belongs to another team is NotFound.
	Find(ctx context.Context, team caisson.TeamID, idOrName string) (caisson.Sandbox, error)
	// List gives a page, newest first, ids ordering equal times. What is made meanwhile moves no later page.
	List(ctx context.Context, team caisson.TeamID, f caisson.SandboxFilter) (caisson.SandboxPage, error)
	// All gives every sandbox of every team, oldest first.
	All(ctx context.Context) ([]caisson.Sandbox, error)
	// Expiring gives those with an end of life that are not being deleted, soonest first.
	Expiring(ctx context.Context, limit int) ([]caisson.Sandbox, error)
	// Count counts by state.
	Count(ctx context.Context) (map[caisson.State]int, error)
	// Digests gives the templates that sandboxes were made from.
	Digests(ctx context.Context) ([]string, error)
	// Update changes a row if expect holds: else Conflict. edit gets the row as it is inside the transaction; its error is
	// returned and nothing is changed. ID, team and creation are kept, the revision grows by 1.
	Update(ctx context.Context, id caisson.SandboxID, expect Expect, edit func(*caisson.Sandbox) error, events ...caisson.Event) (caisson.Sandbox, error)
	// Delete removes the row, its idempotency key with it.
	Delete(ctx context.Context, id caisson.SandboxID, events ...caisson.Event) error
}

// Keys keeps API keys by the SHA-256 of their text.
type Keys interface {
	Create(ctx context.Context, k caisson.Key, hash [sha256.Size]byte) (caisson.Key, error)
	// ByHash gives expired keys, too.
	ByHash(ctx context.Context, hash [sha256.Size]byte) (caisson.Key, error)
	// List gives the team's keys, oldest first.
	List(ctx context.Context, team caisson.TeamID) ([]caisson.Key, error)
	Delete(ctx context.Context, team caisson.TeamID, id caisson.KeyID) error
	// Touch notes uses of keys; an older time than the known one changes nothing, nor does an unknown key.
	Touch(ctx context.Context, used map[caisson.KeyID]time.Time) error
}

// Events is the outbox. Sequence numbers grow in the order of commits and are never used again.
type Events interface {
	Append(ctx context.Context, events ...caisson.Event) error
	// List gives up to limit events after seq after, oldest first, of one sandbox if not empty.
	List(ctx context.Context, team caisson.TeamID, after uint64, sandbox caisson.SandboxID, limit int) ([]caisson.Event, error)
	// Last is the highest sequence number ever given; 0: none.
	Last(ctx context.Context) (uint64, error)
	// Trim forgets events from before t and says how many.
	Trim(ctx context.Context, before time.Time) (int, error)
}
