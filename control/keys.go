package control

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/store"
)

const (
	keyPrefix  = "csn_"
	keyCache   = 30 * time.Second // a deleted key may work this long on a server that did not delete it
	maxCached  = 10_000
	maxKeyText = 128
)

// keys implements caisson.Keys. The text of a key is 256 random bits, so a plain hash keeps it.
type keys struct {
	store store.Store
	clock func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]cachedKey
	used  map[caisson.KeyID]time.Time
}

type cachedKey struct {
	key  caisson.Key
	read time.Time
}

func newKeys(s store.Store, clock func() time.Time) *keys {
	return &keys{store: s, clock: clock, known: map[[sha256.Size]byte]cachedKey{}, used: map[caisson.KeyID]time.Time{}}
}

// Create implements caisson.Keys.
func (k *keys) Create(ctx context.Context, team caisson.TeamID, name string, scopes []caisson.Scope, ttl time.Duration) (caisson.Key, string, error) {
	const op = "create key"
	if name == "" || len(name) > 128 {
		return caisson.Key{}, "", caisson.E(caisson.Invalid, op, name, "a key has a name of 1 to 128 bytes", nil)
	}
	if len(scopes) == 0 {
		return caisson.Key{}, "", caisson.E(caisson.Invalid, op, name, "a key needs a scope", nil).WithHint("read, write or admin")
	}
	for _, s := range scopes {
		if s != caisson.ScopeRead && s != caisson.ScopeWrite && s != caisson.ScopeAdmin {
			return caisson.Key{}, "", caisson.E(caisson.Invalid, op, string(s), "there is no such scope", nil).WithHint("read, write or admin")
		}
	}
	if ttl < 0 {
		return caisson.Key{}, "", caisson.E(caisson.Invalid, op, name, "a negative time to live", nil)
	}
	text := keyPrefix + rand.Text() + rand.Text()
	key := caisson.Key{ID: caisson.NewKeyID(), Team: team, Name: name, Scopes: scopes}
	if ttl > 0 {
		key.ExpiresAt = k.clock().UTC().Add(ttl)
	}
	key, err := k.store.Keys().Create(ctx, key, sha256.Sum256([]byte(text)))
	return key, text, err
}

// List implements caisson.Keys.
func (k *keys) List(ctx context.Context, team caisson.TeamID) ([]caisson.Key, error) {
	k.flush(ctx)
	return k.store.Keys().List(ctx, team)
}

// Delete implements caisson.Keys.
func (k *keys) Delete(ctx context.Context, team caisson.TeamID, id caisson.KeyID) error {
	err := k.store.Keys().Delete(ctx, team, id)
	k.mu.Lock()
	defer k.mu.Unlock()
	for h, c := range k.known {
		if c.key.ID == id {
			delete(k.known, h)
		}
	}
	return err
}

// Authenticate implements caisson.Keys.
func (k *keys) Authenticate(ctx context.Context, text string) (caisson.Principal, error) {
	const op = "authenticate"
	denied := caisson.E(caisson.Denied, op, "", "the API key is unknown or has expired", nil).WithHint("`caisson key create` makes a key")
	if len(text) > maxKeyText {
		return caisson.Principal{}, denied
	}
	now := k.clock()
	hash := sha256.Sum256([]byte(text))
	k.mu.Lock()
	c, ok := k.known[hash]
	k.mu.Unlock()
	if !ok || now.Sub(c.read) > keyCache {
		key, err := k.store.Keys().ByHash(ctx, hash)
		if caisson.Is(err, caisson.NotFound) {
			return caisson.Principal{}, denied
		}
		if err != nil {
			return caisson.Principal{}, err
		}
		c = cachedKey{key, now}
		k.mu.Lock()
		if len(k.known) >= maxCached {
			clear(k.known)
		}
		k.known[hash] = c
		k.mu.Unlock()
	}
	if !c.key.ExpiresAt.IsZero() && !now.Before(c.key.ExpiresAt) {
		return caisson.Principal{}, denied
	}
	k.mu.Lock()
	k.used[c.key.ID] = now.UTC().Truncate(time.Minute)
	k.mu.Unlock()
	return caisson.Principal{Team: c.key.Team, Scopes: c.key.Scopes, Name: "key:" + string(c.key.ID)}, nil
}

// flush writes down when keys were used.
func (k *keys) flush(ctx context.Context) {
	k.mu.Lock()
	used := k.used
	k.used = map[caisson.KeyID]time.Time{}
	k.mu.Unlock()
	if len(used) > 0 && k.store.Keys().Touch(ctx, used) != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		for id, t := range used {
			if _, ok := k.used[id]; !ok {
				k.used[id] = t
			}
		}
	}
}
