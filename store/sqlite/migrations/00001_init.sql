-- +goose Up
-- Times are nanoseconds since 1970 in UTC; 0 is none.
CREATE TABLE sandboxes (
  id              TEXT PRIMARY KEY,
  team            TEXT NOT NULL,
  name            TEXT,
  config          TEXT NOT NULL,
  template_digest TEXT NOT NULL,
  state           TEXT NOT NULL,
  reason          TEXT NOT NULL,
  epoch           INTEGER NOT NULL,
  revision        INTEGER NOT NULL,
  driver          TEXT NOT NULL,
  driver_version  TEXT NOT NULL,
  isolation       TEXT NOT NULL,
  disk_durability TEXT NOT NULL,
  created_at      INTEGER NOT NULL,
  started_at      INTEGER NOT NULL,
  expires_at      INTEGER NOT NULL,
  updated_at      INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (team, name) WHERE name IS NOT NULL;
CREATE INDEX sandboxes_page ON sandboxes (team, created_at DESC, id DESC);
CREATE INDEX sandboxes_state ON sandboxes (state);
CREATE INDEX sandboxes_expiry ON sandboxes (expires_at) WHERE expires_at > 0;

-- What List filters by.
CREATE TABLE metadata (
  sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
  key     TEXT NOT NULL,
  value   TEXT NOT NULL,
  PRIMARY KEY (sandbox, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
  team        TEXT NOT NULL,
  key         TEXT NOT NULL,
  config_hash TEXT NOT NULL,
  sandbox     TEXT NOT NULL UNIQUE REFERENCES sandboxes (id) ON DELETE CASCADE,
  PRIMARY KEY (team, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
  id         TEXT PRIMARY KEY,
  team       TEXT NOT NULL,
  name       TEXT NOT NULL,
  hash       BLOB NOT NULL UNIQUE,
  scopes     TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  last_used  INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX keys_team ON keys (team, created_at);

-- AUTOINCREMENT: a sequence number is never given twice, also when the last events were trimmed.
CREATE TABLE events (
  seq     INTEGER PRIMARY KEY AUTOINCREMENT,
  time    INTEGER NOT NULL,
  team    TEXT NOT NULL,
  type    TEXT NOT NULL,
  sandbox TEXT NOT NULL,
  epoch   INTEGER NOT NULL,
  data    TEXT NOT NULL
) STRICT;
CREATE INDEX events_team ON events (team, seq);
CREATE INDEX events_sandbox ON events (sandbox, seq);
CREATE INDEX events_time ON events (time);
