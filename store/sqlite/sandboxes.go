package sqlite

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/store"
)

type sandboxes struct{ *Store }

// Sandboxes implements store.Store.
func (s *Store) Sandboxes() store.Sandboxes { return sandboxes{s} }

const columns = `id, team, config, template_digest, state, reason, epoch, revision, driver, driver_version, isolation, disk_durability, created_at, started_at, expires_at, updated_at`

func scanSandbox(row interface{ Scan(...any) error }) (sb caisson.Sandbox, err error) {
	var config []byte
	var created, started, expires, updated int64
	err = row.Scan(&sb.ID, &sb.Team, &config, &sb.TemplateDigest, &sb.State, &sb.Reason, &sb.Epoch, &sb.Revision, &sb.Driver, &sb.DriverVersion,
		&sb.Isolation, &sb.DiskDurability, &created, &started, &expires, &updated)
	if err != nil {
		return sb, err
	}
	sb.CreatedAt, sb.StartedAt, sb.ExpiresAt, sb.UpdatedAt = fromNanos(created), fromNanos(started), fromNanos(expires), fromNanos(updated)
	return sb, json.Unmarshal(config, &sb.Config) // by the field names of caisson.SandboxConfig
}

type querier interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

func querySandboxes(ctx context.Context, q querier, where string, args ...any) ([]caisson.Sandbox, error) {
	rows, err := q.QueryContext(ctx, `SELECT `+columns+` FROM sandboxes `+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []caisson.Sandbox
	for rows.Next() {
		sb, err := scanSandbox(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, sb)
	}
	return all, rows.Err()
}

func getSandbox(ctx context.Context, q querier, id caisson.SandboxID) (caisson.Sandbox, error) {
	return scanSandbox(q.QueryRowContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE id = ?`, id))
}

// Create implements store.Sandboxes.
func (s sandboxes) Create(ctx context.Context, sb caisson.Sandbox, idem *store.IdempotencyKey, events ...caisson.Event) (caisson.Sandbox, bool, error) {
	const op = "create sandbox"
	made := true
	err := s.write(ctx, op, string(sb.ID), func(ctx context.Context, tx *sql.Tx) error {
		if idem != nil {
			prior, err := madeBy(ctx, tx, op, *idem)
			if err == nil {
				sb, made = prior, false
				return nil
			} else if !caisson.Is(err, caisson.NotFound) {
				return err
			}
		}
		now := s.clock()
		sb.CreatedAt, sb.UpdatedAt, sb.Revision = fromNanos(nanos(now)), fromNanos(nanos(now)), 1
		config, err := json.Marshal(sb.Config)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO sandboxes (`+columns+`, name) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`,
			sb.ID, sb.Team, string(config), sb.TemplateDigest, sb.State, sb.Reason, sb.Epoch, sb.Revision, sb.Driver, sb.DriverVersion, sb.Isolation,
			sb.DiskDurability, nanos(sb.CreatedAt), nanos(sb.StartedAt), nanos(sb.ExpiresAt), nanos(sb.UpdatedAt), nullable(sb.Config.Name))
		if isUnique(err) {
			return taken(op, sb.Config.Name, sb.ID)
		} else if err != nil {
			return err
		}
		if err := insertMetadata(ctx, tx, sb.ID, sb.Config.Metadata); err != nil {
			return err
		}
		if idem != nil {
			if _, err := tx.ExecContext(ctx, `INSERT INTO idempotency (team, key, config_hash, sandbox) VALUES (?,?,?,?)`, idem.Team, idem.Key, idem.ConfigHash, sb.ID); err != nil {
				return err
			}
		}
		return s.append(ctx, tx, sb, events)
	})
	if err != nil {
		return caisson.Sandbox{}, false, err
	}
	return sb, made, nil
}

func nullable(name string) any {
	if name == "" {
		return nil
	}
	return name
}

func taken(op, name string, id caisson.SandboxID) error {
	if name == "" {
		return caisson.E(caisson.Conflict, op, string(id), "a sandbox of this id exists", nil)
	}
	return caisson.E(caisson.Conflict, op, name, "a sandbox of this name exists", nil).WithHint("choose another name, or delete the other sandbox first")
}

func insertMetadata(ctx context.Context, tx *sql.Tx, id caisson.SandboxID, md map[string]string) error {
	for k, v := range md {
		if _, err := tx.ExecContext(ctx, `INSERT INTO metadata (sandbox, key, value) VALUES (?,?,?)`, id, k, v); err != nil {
			return err
		}
	}
	return nil
}

func madeBy(ctx context.Context, q querier, op string, idem store.IdempotencyKey) (caisson.Sandbox, error) {
	var hash string
	var id caisson.SandboxID
	err := q.QueryRowContext(ctx, `SELECT config_hash, sandbox FROM idempotency WHERE team = ? AND key = ?`, idem.Team, idem.Key).Scan(&hash, &id)
	if err != nil {
		return caisson.Sandbox{}, wrap(op, idem.Key, err)
	}
	if hash != idem.ConfigHash {
		return caisson.Sandbox{}, caisson.E(caisson.Conflict, op, "", "the idempotency key was used with another config, for "+string(id), nil).
			WithHint("a new request needs a new key")
	}
	sb, err := getSandbox(ctx, q, id)
	return sb, wrap(op, string(id), err)
}

// Made implements store.Sandboxes.
func (s sandboxes) Made(ctx context.Context, idem store.IdempotencyKey) (caisson.Sandbox, error) {
	// A snapshot, for the row may go between the two reads.
	const op = "create sandbox"
	tx, err := s.r.BeginTx(ctx, nil)
	if err != nil {
		return caisson.Sandbox{}, wrap(op, idem.Key, err)
	}
	defer tx.Rollback()
	return madeBy(ctx, tx, op, idem)
}

// Get implements store.Sandboxes.
func (s sandboxes) Get(ctx context.Context, id caisson.SandboxID) (caisson.Sandbox, error) {
	sb, err := getSandbox(ctx, s.r, id)
	return sb, wrap("get sandbox", string(id), err)
}

// Find implements store.Sandboxes.
func (s sandboxes) Find(ctx context.Context, team caisson.TeamID, idOrName string) (caisson.Sandbox, error) {
	by := "name"
	if caisson.SandboxID(idOrName).Valid() {
		by = "id"
	}
	sb, err := scanSandbox(s.r.QueryRowContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE team = ? AND `+by+` = ?`, team, idOrName))
	return sb, wrap("get sandbox", idOrName, err)
}

// List implements store.Sandboxes.
func (s sandboxes) List(ctx context.Context, team caisson.TeamID, f caisson.SandboxFilter) (caisson.SandboxPage, error) {
	const op = "list sandboxes"
	limit := f.Limit
	if limit <= 0 {
		limit = store.DefaultLimit
	}
	limit = min(limit, store.MaxLimit)
	where, args := []string{"team = ?"}, []any{team}
	add := func(cond string, a ...any) { where, args = append(where, cond), append(args, a...) }
	if f.Cursor != "" {
		at, id, err := parseCursor(f.Cursor)
		if err != nil {
			return caisson.SandboxPage{}, caisson.E(caisson.Invalid, op, "", "not a cursor", err).WithHint("use next of the page before as it is, or start without a cursor")
		}
		add("(created_at, id) < (?, ?)", at, id)
	}
	if f.Name != "" {
		add("name = ?", f.Name)
	}
	if len(f.States) > 0 {
		// + keeps the planner on the index that gives the order.
		add("+state IN (?"+strings.Repeat(",?", len(f.States)-1)+")", anys(f.States)...)
	}
	for k, v := range f.Metadata {
		add("EXISTS (SELECT 1 FROM metadata WHERE sandbox = sandboxes.id AND key = ? AND value = ?)", k, v)
	}
	rows, err := querySandboxes(ctx, s.r, `WHERE `+strings.Join(where, " AND ")+` ORDER BY created_at DESC, id DESC LIMIT ?`, append(args, limit+1)...)
	if err != nil {
		return caisson.SandboxPage{}, wrap(op, "", err)
	}
	page := caisson.SandboxPage{Sandboxes: rows}
	if len(rows) > limit {
		page.Sandboxes = rows[:limit]
		last := rows[limit-1]
		page.Next = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", nanos(last.CreatedAt), last.ID))
	}
	return page, nil
}

func anys[T any](in []T) []any {
	out := make([]any, len(in))
	for i, v := range in {
		out[i] = v
	}
	return out
}

func parseCursor(c string) (int64, string, error) {
	b, err := base64.RawURLEncoding.DecodeString(c)
	if err != nil {
		return 0, "", err
	}
	t, id, _ := strings.Cut(string(b), ".")
	at, err := strconv.ParseInt(t, 10, 64)
	if err == nil && !caisson.SandboxID(id).Valid() {
		err = fmt.Errorf("no id in it")
	}
	return at, id, err
}

// All implements store.Sandboxes.
func (s sandboxes) All(ctx context.Context) ([]caisson.Sandbox, error) {
	all, err := querySandboxes(ctx, s.r, `ORDER BY created_at, id`)
	return all, wrap("read sandboxes", "", err)
}

// Expiring implements store.Sandboxes.
func (s sandboxes) Expiring(ctx context.Context, limit int) ([]caisson.Sandbox, error) {
	all, err := querySandboxes(ctx, s.r, `WHERE expires_at > 0 AND +state <> ? ORDER BY expires_at LIMIT ?`, caisson.Deleting, limit)
	return all, wrap("read sandboxes", "", err)
}

// Count implements store.Sandboxes.
func (s sandboxes) Count(ctx context.Context) (map[caisson.State]int, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT state, count(*) FROM sandboxes GROUP BY state`)
	if err != nil {
		return nil, wrap("count sandboxes", "", err)
	}
	defer rows.Close()
	counts := map[caisson.State]int{}
	for rows.Next() {
		var st caisson.State
		var n int
		if err := rows.Scan(&st, &n); err != nil {
			return nil, wrap("count sandboxes", "", err)
		}
		counts[st] = n
	}
	return counts, wrap("count sandboxes", "", rows.Err())
}

// Digests implements store.Sandboxes.
func (s sandboxes) Digests(ctx context.Context) ([]string, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT DISTINCT template_digest FROM sandboxes`)
	if err != nil {
		return nil, wrap("read templates in use", "", err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var d string
		if err := rows.Scan(&d); err != nil {
			return nil, wrap("read templates in use", "", err)
		}
		all = append(all, d)
	}
	return all, wrap("read templates in use", "", rows.Err())
}

// Update implements store.Sandboxes.
func (s sandboxes) Update(ctx context.Context, id caisson.SandboxID, expect store.Expect, edit func(*caisson.Sandbox) error, events ...caisson.Event) (caisson.Sandbox, error) {
	const op = "update sandbox"
	var out caisson.Sandbox
	err := s.write(ctx, op, string(id), func(ctx context.Context, tx *sql.Tx) error {
		old, err := getSandbox(ctx, tx, id)
		if err != nil {
			return err
		}
		if expect.Revision != 0 && expect.Revision != old.Revision {
			return caisson.E(caisson.Conflict, op, string(id), fmt.Sprintf("it is at revision %d, not %d: someone else changed it", old.Revision, expect.Revision), nil).
				WithHint("read it again and decide anew")
		}
		if expect.Epoch != 0 && expect.Epoch != old.Epoch {
			return caisson.E(caisson.Conflict, op, string(id), fmt.Sprintf("it is in life %d, not %d", old.Epoch, expect.Epoch), nil)
		}
		sb := old
		sb.Config.Metadata, sb.Config.Env = maps.Clone(old.Config.Metadata), maps.Clone(old.Config.Env)
		if err := edit(&sb); err != nil {
			return err
		}
		sb.ID, sb.Team, sb.CreatedAt, sb.Revision, sb.UpdatedAt = old.ID, old.Team, old.CreatedAt, old.Revision+1, fromNanos(nanos(s.clock()))
		config, err := json.Marshal(sb.Config)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE sandboxes SET name=?, config=?, template_digest=?, state=?, reason=?, epoch=?, revision=?, driver=?, driver_version=?,
			isolation=?, disk_durability=?, started_at=?, expires_at=?, updated_at=? WHERE id=?`,
			nullable(sb.Config.Name), string(config), sb.TemplateDigest, sb.State, sb.Reason, sb.Epoch, sb.Revision, sb.Driver, sb.DriverVersion,
			sb.Isolation, sb.DiskDurability, nanos(sb.StartedAt), nanos(sb.ExpiresAt), nanos(sb.UpdatedAt), id)
		if isUnique(err) {
			return taken(op, sb.Config.Name, id)
		} else if err != nil {
			return err
		}
		if !maps.Equal(old.Config.Metadata, sb.Config.Metadata) {
			if _, err := tx.ExecContext(ctx, `DELETE FROM metadata WHERE sandbox = ?`, id); err != nil {
				return err
			}
			if err := insertMetadata(ctx, tx, id, sb.Config.Metadata); err != nil {
				return err
			}
		}
		out = sb
		return s.append(ctx, tx, sb, events)
	})
	if err != nil {
		return caisson.Sandbox{}, err
	}
	return out, nil
}

// Delete implements store.Sandboxes.
func (s sandboxes) Delete(ctx context.Context, id caisson.SandboxID, events ...caisson.Event) error {
	return s.write(ctx, "delete sandbox", string(id), func(ctx context.Context, tx *sql.Tx) error {
		sb, err := getSandbox(ctx, tx, id)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ?`, id); err != nil {
			return err
		}
		return s.append(ctx, tx, sb, events)
	})
}
