package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-sandbox/caisson"
)

// made gives files as bundle/pack writes them; the content of a part is its name and version, many times.
func made(t testing.TB, version string) fstest.MapFS {
	t.Helper()
	out, m := fstest.MapFS{}, Manifest{Parts: map[string]Part{}}
	enc, _ := zstd.NewWriter(nil)
	for _, name := range []string{PartShim, PartSentry, PartGuest, PartBase} {
		b := []byte(content(name, version))
		sum := sha256.Sum256(b)
		m.Parts[name] = Part{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(b))}
		out[name+Suffix] = &fstest.MapFile{Data: enc.EncodeAll(b, nil)}
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out[ManifestFile] = &fstest.MapFile{Data: b}
	return out
}

func content(name, version string) string { return strings.Repeat(name+version, 10000) }

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	one, err := unpack(made(t, "1"), dir)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		content string
		mode    fs.FileMode
	}{
		one.Shim: {content(PartShim, "1"), 0o755}, one.Sentry: {content(PartSentry, "1"), 0o755}, one.Guest: {content(PartGuest, "1"), 0o644},
		filepath.Dir(one.Sentry): {"", 0o755 | fs.ModeDir}, filepath.Join(dir, "bin"): {"", 0o755 | fs.ModeDir},
	} {
		st, err := os.Stat(path)
		if err != nil || st.Mode() != want.mode {
			t.Fatalf("%s: %v, %v", path, st, err)
		}
		if b, _ := os.ReadFile(path); string(b) != want.content {
			t.Errorf("%s: %d bytes", path, len(b))
		}
	}
	before, _ := os.Stat(one.Shim)
	if again, err := unpack(made(t, "1"), dir); err != nil || again != one {
		t.Errorf("%+v, %v", again, err)
	}
	if after, _ := os.Stat(one.Shim); !os.SameFile(before, after) {
		t.Error("written again")
	}
	if err := os.WriteFile(one.Guest, []byte("cut"), 0o644); err != nil {
		t.Fatal(err)
	}
	two, err := unpack(made(t, "2"), dir)
	if err != nil || two.Shim == one.Shim {
		t.Errorf("%+v, %v", two, err)
	}
	if _, err := unpack(made(t, "1"), dir); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(one.Guest); string(b) != content(PartGuest, "1") {
		t.Error("the damaged part was not repaired")
	}
}

func TestUnpackAtOnce(t *testing.T) {
	dir, files := t.TempDir(), made(t, "1")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := unpack(files, dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if left, _ := filepath.Glob(filepath.Join(dir, "bin", "*", ".tmp-*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestUnpackRefuses(t *testing.T) {
	_, err := unpack(fstest.MapFS{"README": {}}, t.TempDir())
	var e *caisson.Error
	if !errors.As(err, &e) || e.Kind != caisson.Unsupported || !strings.Contains(e.Hint, "make build") {
		t.Errorf("no parts: %v", err)
	}
	files := made(t, "1")
	files[PartSentry+Suffix] = made(t, "2")[PartSentry+Suffix]
	dir := t.TempDir()
	if _, err := unpack(files, dir); !caisson.Is(err, caisson.Internal) {
		t.Errorf("wrong content: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "bin", "*", "*sentry*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	delete(files, PartGuest+Suffix)
	if _, _, err := open(files, PartGuest); !caisson.Is(err, caisson.Internal) {
		t.Errorf("missing file: %v", err)
	}
}

// TestEmbedded holds what this build carries, if anything, to its manifest.
func TestEmbedded(t *testing.T) {
	if _, err := Parts(); caisson.Is(err, caisson.Unsupported) {
		t.Skip("built without parts")
	}
	if _, err := Unpack(t.TempDir()); err != nil {
		t.Error(err)
	}
	r, digest, size, err := Base()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := filepath.Join(t.TempDir(), "base")
	if err := writeFile(filepath.Dir(p), p, r, Part{digest, size}, 0o600); err != nil {
		t.Error(err)
	}
}
