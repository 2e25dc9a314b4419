package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/store"
)

type keys struct{ *Store }

// Keys implements store.Store.
func (s *Store) Keys() store.Keys { return keys{s} }

const keyColumns = `id, team, name, scopes, created_at, last_used, expires_at`

func scanKey(row interface{ Scan(...any) error }) (k caisson.Key, err error) {
	var scopes []byte
	var created, used, expires int64
	if err := row.Scan(&k.ID, &k.Team, &k.Name, &scopes, &created, &used, &expires); err != nil {
		return k, err
	}
	k.CreatedAt, k.LastUsed, k.ExpiresAt = fromNanos(created), fromNanos(used), fromNanos(expires)
	return k, json.Unmarshal(scopes, &k.Scopes)
}

// Create implements store.Keys.
func (s keys) Create(ctx context.Context, k caisson.Key, hash [sha256.Size]byte) (caisson.Key, error) {
	const op = "create key"
	k.CreatedAt = fromNanos(nanos(s.clock()))
	scopes, err := json.Marshal(k.Scopes)
	if err != nil {
		return caisson.Key{}, wrap(op, string(k.ID), err)
	}
	err = s.write(ctx, op, string(k.ID), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO keys (`+keyColumns+`, hash) VALUES (?,?,?,?,?,?,?,?)`,
			k.ID, k.Team, k.Name, string(scopes), nanos(k.CreatedAt), nanos(k.LastUsed), nanos(k.ExpiresAt), hash[:])
		if isUnique(err) {
			return caisson.E(caisson.Conflict, op, string(k.ID), "it exists", nil)
		}
		return err
	})
	return k, err
}

// ByHash implements store.Keys.
func (s keys) ByHash(ctx context.Context, hash [sha256.Size]byte) (caisson.Key, error) {
	k, err := scanKey(s.r.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM keys WHERE hash = ?`, hash[:]))
	return k, wrap("get key", "", err)
}

// List implements store.Keys.
func (s keys) List(ctx context.Context, team caisson.TeamID) ([]caisson.Key, error) {
	const op = "list keys"
	rows, err := s.r.QueryContext(ctx, `SELECT `+keyColumns+` FROM keys WHERE team = ? ORDER BY created_at, id`, team)
	if err != nil {
		return nil, wrap(op, "", err)
	}
	defer rows.Close()
	var all []caisson.Key
	for rows.Next() {
		k, err := scanKey(rows)
		if err != nil {
			return nil, wrap(op, "", err)
		}
		all = append(all, k)
	}
	return all, wrap(op, "", rows.Err())
}

// Delete implements store.Keys.
func (s keys) Delete(ctx context.Context, team caisson.TeamID, id caisson.KeyID) error {
	return s.write(ctx, "delete key", string(id), func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM keys WHERE team = ? AND id = ?`, team, id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return sql.ErrNoRows
		}
		return nil
	})
}

// Touch implements store.Keys.
func (s keys) Touch(ctx context.Context, used map[caisson.KeyID]time.Time) error {
	return s.write(ctx, "note use of keys", "", func(ctx context.Context, tx *sql.Tx) error {
		for id, at := range used {
			if _, err := tx.ExecContext(ctx, `UPDATE keys SET last_used = ? WHERE id = ? AND last_used < ?`, nanos(at), id, nanos(at)); err != nil {
				return err
			}
		}
		return nil
	})
}
