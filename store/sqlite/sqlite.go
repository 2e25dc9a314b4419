// Package sqlite is the store on one SQLite file.
//
// The journal is a WAL that is synced at every commit (synchronous=FULL): a process that is killed and a host that loses
// power lose nothing that was acknowledged. One connection writes, a few read. Migrations are embedded and go forward only;
// a file that a newer release has migrated is refused, for its meaning is not known here.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// readers is how many connections read at once.
const readers = 4

// Store is an open file.
type Store struct {
	path  string
	clock func() time.Time
	w, r  *sql.DB
}

var _ store.Store = (*Store)(nil)

// Open opens the file at path, mode 0600, making or migrating it if need be. clock nil is time.Now.
func Open(ctx context.Context, path string, clock func() time.Time) (*Store, error) {
	const op = "open database"
	if clock == nil {
		clock = time.Now
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, caisson.E(caisson.Invalid, op, path, "not a path", err)
	}
	// SQLite gives -wal and -shm the mode of the file.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = errors.Join(f.Chmod(0o600), f.Close())
	}
	if err != nil {
		return nil, caisson.E(caisson.Unavailable, op, path, "it cannot be opened for writing", err)
	}
	s := &Store{path: path, clock: clock}
	if s.w, err = sql.Open("sqlite", dsn(path, "_txlock=immediate", "_pragma=journal_mode(WAL)", "_pragma=synchronous(FULL)", "_pragma=foreign_keys(1)")); err != nil {
		return nil, caisson.E(caisson.Internal, op, path, "it cannot be opened", err)
	}
	s.w.SetMaxOpenConns(1)
	if s.r, err = sql.Open("sqlite", dsn(path, "_pragma=query_only(1)")); err != nil {
		s.Close()
		return nil, caisson.E(caisson.Internal, op, path, "it cannot be opened", err)
	}
	s.r.SetMaxOpenConns(readers)
	s.r.SetMaxIdleConns(readers)
	if err := s.migrate(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// dsn makes a URI of the path, whatever bytes it holds.
func dsn(path string, params ...string) string {
	return (&url.URL{Scheme: "file", Path: path}).String() + "?_pragma=busy_timeout(10000)&" + strings.Join(params, "&")
}

// migrate brings the schema up to date, and refuses a newer one before it writes.
func (s *Store) migrate(ctx context.Context) error {
	const op = "open database"
	broken := func(err error) error {
		return caisson.E(caisson.Internal, op, s.path, "its schema could not be brought up to date", err)
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return broken(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, s.w, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return broken(err)
	}
	sources := p.ListSources()
	ours := sources[len(sources)-1].Version
	have, err := s.version(ctx)
	if err != nil {
		if isCode(err, lib.SQLITE_NOTADB) || isCode(err, lib.SQLITE_CORRUPT) {
			return caisson.E(caisson.Internal, op, s.path, "it is damaged, or not a database", err).WithHint("restore it from a backup, or move it away to start with an empty one")
		}
		return broken(err)
	}
	if have > ours {
		return caisson.E(caisson.Unsupported, op, s.path, fmt.Sprintf("a newer caisson has written it: its schema is version %d, this caisson knows versions up to %d", have, ours), nil).
			WithHint("use the newer caisson (or one newer still), or restore a backup from before the upgrade")
	}
	if _, err := p.Up(ctx); err != nil {
		return broken(err)
	}
	return nil
}

// version reads the schema's version; 0 for an empty file.
func (s *Store) version(ctx context.Context) (v int64, err error) {
	var n int
	if err := s.w.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master WHERE name = ?`, goose.DefaultTablename).Scan(&n); err != nil || n == 0 {
		return 0, err
	}
	err = s.w.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM `+goose.DefaultTablename+` WHERE is_applied`).Scan(&v)
	return v, err
}

// Close implements store.Store.
func (s *Store) Close() error {
	var errs []error
	if s.r != nil {
		errs = append(errs, s.r.Close())
	}
	return errors.Join(append(errs, s.w.Close())...) // the last connection to close folds the WAL into the file
}

// write runs one transaction. It waits for the connection with ctx, and from then on without it.
func (s *Store) write(ctx context.Context, op, subject string, do func(context.Context, *sql.Tx) error) error {
	conn, err := s.w.Conn(ctx)
	if err != nil {
		return wrap(op, subject, err)
	}
	defer conn.Close()
	ctx = context.WithoutCancel(ctx)
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return wrap(op, subject, err)
	}
	defer tx.Rollback()
	if err := do(ctx, tx); err != nil {
		return wrap(op, subject, err)
	}
	return wrap(op, subject, tx.Commit())
}

// wrap gives every error a kind.
func wrap(op, subject string, err error) error {
	var e *caisson.Error
	switch {
	case err == nil || errors.As(err, &e):
		return err
	case errors.Is(err, sql.ErrNoRows):
		return caisson.E(caisson.NotFound, op, subject, "it does not exist", nil)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return caisson.E(caisson.KindOf(err), op, subject, "the caller did not wait for the database", err)
	case isCode(err, lib.SQLITE_FULL):
		return caisson.E(caisson.Unavailable, op, subject, "the disk of the database is full", err)
	}
	return caisson.E(caisson.Internal, op, subject, "the database failed", err)
}

func isCode(err error, code int) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && (e.Code() == code || e.Code()&0xff == code)
}

func isUnique(err error) bool {
	return isCode(err, lib.SQLITE_CONSTRAINT_UNIQUE) || isCode(err, lib.SQLITE_CONSTRAINT_PRIMARYKEY)
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
