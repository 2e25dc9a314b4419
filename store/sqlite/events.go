package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/store"
)

type events struct{ *Store }

// Events implements store.Store.
func (s *Store) Events() store.Events { return events{s} }

// append adds events inside a transaction, about sb where they do not say.
func (s *Store) append(ctx context.Context, tx *sql.Tx, sb caisson.Sandbox, evs []caisson.Event) error {
	for _, e := range evs {
		if e.Team == "" {
			e.Team = sb.Team
		}
		if e.Sandbox == "" {
			e.Sandbox = sb.ID
		}
		if e.Epoch == 0 {
			e.Epoch = sb.Epoch
		}
		data, err := json.Marshal(e.Data)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO events (time, team, type, sandbox, epoch, data) VALUES (?,?,?,?,?,?)`,
			nanos(s.clock()), e.Team, e.Type, e.Sandbox, e.Epoch, string(data)); err != nil {
			return err
		}
	}
	return nil
}

// Append implements store.Events.
func (s events) Append(ctx context.Context, evs ...caisson.Event) error {
	return s.write(ctx, "append events", "", func(ctx context.Context, tx *sql.Tx) error {
		return s.append(ctx, tx, caisson.Sandbox{}, evs)
	})
}

// List implements store.Events.
func (s events) List(ctx context.Context, team caisson.TeamID, after uint64, sandbox caisson.SandboxID, limit int) ([]caisson.Event, error) {
	const op = "list events"
	if limit <= 0 {
		limit = store.DefaultLimit
	}
	where, args := `team = ?`, []any{team}
	if sandbox != "" {
		where, args = `+team = ? AND sandbox = ?`, append(args, sandbox)
	}
	after = min(after, 1<<63-1)
	rows, err := s.r.QueryContext(ctx, `SELECT seq, time, team, type, sandbox, epoch, data FROM events WHERE `+where+` AND seq > ? ORDER BY seq LIMIT ?`,
		append(args, int64(after), min(limit, store.MaxLimit))...)
	if err != nil {
		return nil, wrap(op, "", err)
	}
	defer rows.Close()
	var all []caisson.Event
	for rows.Next() {
		var e caisson.Event
		var at int64
		var data []byte
		if err := rows.Scan(&e.Seq, &at, &e.Team, &e.Type, &e.Sandbox, &e.Epoch, &data); err != nil {
			return nil, wrap(op, "", err)
		}
		if err := json.Unmarshal(data, &e.Data); err != nil {
			return nil, wrap(op, "", err)
		}
		e.Time = fromNanos(at)
		all = append(all, e)
	}
	return all, wrap(op, "", rows.Err())
}

// Last implements store.Events.
func (s events) Last(ctx context.Context) (uint64, error) {
	var n uint64
	err := s.r.QueryRowContext(ctx, `SELECT seq FROM sqlite_sequence WHERE name = 'events'`).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, wrap("read events", "", err)
}

// Trim implements store.Events.
func (s events) Trim(ctx context.Context, before time.Time) (int, error) {
	var n int64
	err := s.write(ctx, "trim events", "", func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM events WHERE time < ?`, nanos(before))
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	return int(n), err
}
