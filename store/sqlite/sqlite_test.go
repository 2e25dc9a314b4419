package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/store"
	"github.com/caisson-sandbox/caisson/store/sqlite"
	"github.com/caisson-sandbox/caisson/store/storetest"
)

func open(t testing.TB, path string, clock func() time.Time) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), path, clock)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T, clock func() time.Time) store.Store {
		return open(t, filepath.Join(t.TempDir(), "caisson.db"), clock)
	})
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	open(t, path, nil).Close()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`); err != nil {
		t.Fatal(err)
	}
	db.Close()
	_, err = sqlite.Open(context.Background(), path, nil)
	if !caisson.Is(err, caisson.Unsupported) || !strings.Contains(err.Error(), "999") {
		t.Errorf("a newer schema: %v", err)
	}
}

func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	os.WriteFile(path, []byte(strings.Repeat("nonsense ", 1000)), 0o600)
	if _, err := sqlite.Open(context.Background(), path, nil); err == nil {
		t.Error("a file of nonsense was opened")
	}
}

func TestMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	open(t, path, nil).Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
}

const childEnv = "CAISSON_TEST_WRITER"

// TestMain runs as the writer that TestKilled kills.
func TestMain(m *testing.M) {
	path := os.Getenv(childEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	s, err := sqlite.Open(context.Background(), path, nil)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for {
		sb := caisson.Sandbox{ID: caisson.NewSandboxID(), Team: caisson.DefaultTeam, State: caisson.Creating, Epoch: 1}
		if _, _, err := s.Sandboxes().Create(context.Background(), sb, nil, caisson.Event{Type: "sandbox.created"}); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(sb.ID)
	}
}

// TestKilled kills a writer at random moments: every write it told of is there, and the file is whole.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	told := map[string]bool{}
	for range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(100*time.Millisecond+time.Duration(rand.IntN(150))*time.Millisecond, func() { cmd.Process.Kill() })
		for sc := bufio.NewScanner(out); sc.Scan(); {
			if strings.HasPrefix(sc.Text(), "error") {
				t.Error(sc.Text())
			}
			if caisson.SandboxID(sc.Text()).Valid() {
				told[sc.Text()] = true
			}
		}
		timer.Stop()
		cmd.Wait()
		s := open(t, path, nil)
		all, err := s.Sandboxes().All(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]bool{}
		for _, sb := range all {
			have[string(sb.ID)] = true
		}
		for id := range told {
			if !have[id] {
				t.Fatalf("%s was told and is not there", id)
			}
		}
		s.Close()
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		var check string
		if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&check); err != nil || check != "ok" {
			t.Fatalf("integrity: %q %v", check, err)
		}
		db.Close()
	}
	if len(told) == 0 {
		t.Error("nothing was ever written")
	}
}

// BenchmarkFirstPage lists the first page of 10,000 sandboxes.
func BenchmarkFirstPage(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "caisson.db"), nil)
	defer s.Close()
	for range 10_000 {
		sb := caisson.Sandbox{ID: caisson.NewSandboxID(), Team: caisson.DefaultTeam, State: caisson.Stopped, Epoch: 1}
		if _, _, err := s.Sandboxes().Create(context.Background(), sb, nil); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := s.Sandboxes().List(context.Background(), caisson.DefaultTeam, caisson.SandboxFilter{}); err != nil {
			b.Fatal(err)
		}
	}
}
