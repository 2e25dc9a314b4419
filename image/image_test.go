package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-sandbox/caisson"
)

func tarOf(t testing.TB, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "etc/f", Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(content))
	w.Close()
	return b.Bytes()
}

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func importTar(t testing.TB, s *Store, name, content string) caisson.Template {
	t.Helper()
	tm, err := s.Import(context.Background(), name, bytes.NewReader(tarOf(t, content)))
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

func TestImportResolveReopen(t *testing.T) {
	ctx, dir := t.Context(), filepath.Join(t.TempDir(), "images")
	s := open(t, dir)
	a := importTar(t, s, "team/a", "a")
	b := importTar(t, s, "b:1.0", "b")
	again := importTar(t, s, "a2", "a")
	if a.Name != "team/a:latest" || again.Digest != a.Digest || a.Digest == b.Digest {
		t.Fatalf("%+v, %+v, %+v", a, b, again)
	}
	for range 2 { // the second time from the disk
		hex := strings.TrimPrefix(b.Digest, digestPrefix)
		for _, ref := range []string{"b:1.0", b.Digest, b.Digest[:20], hex, hex[:12]} {
			if got, err := s.Resolve(ctx, ref); err != nil || !cmp.Equal(got, b) {
				t.Errorf("%s: %+v, %v", ref, got, err)
			}
		}
		for ref, kind := range map[string]caisson.Kind{
			"b": caisson.NotFound, "": caisson.Invalid, "../x": caisson.Invalid, "B": caisson.Invalid, "b:": caisson.Invalid,
			"a//b": caisson.Invalid, "sha256:123": caisson.Invalid, hex[:11]: caisson.NotFound,
			"sha256:" + strings.Repeat("0", 64): caisson.NotFound,
		} {
			if _, err := s.Resolve(ctx, ref); caisson.KindOf(err) != kind {
				t.Errorf("%q: %v", ref, err)
			}
		}
		list, err := s.List(ctx)
		if err != nil || len(list) != 3 || list[0].Name != "a2:latest" || list[1].Name != "b:1.0" || list[2].Name != "team/a:latest" {
			t.Errorf("%+v, %v", list, err)
		}
		p, err := s.Path(b.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(p); err != nil || st.Size() != b.Size || !filepath.IsAbs(p) {
			t.Errorf("%s: %v", p, err)
		}
		if err := os.WriteFile(filepath.Join(dir, tempPrefix+"left"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}

func TestFailedImportLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	_, err := s.Import(t.Context(), "x", strings.NewReader("not a tar"))
	var e *caisson.Error
	if !errors.As(err, &e) || e.Kind != caisson.Invalid || e.Hint == "" {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Import(ctx, "x", bytes.NewReader(tarOf(t, "x"))); !caisson.Is(err, caisson.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := s.Import(t.Context(), "sha256:abc", bytes.NewReader(tarOf(t, "x"))); !caisson.Is(err, caisson.Invalid) {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRemove(t *testing.T) {
	ctx, s := t.Context(), open(t, t.TempDir())
	a := importTar(t, s, "a", "a")
	importTar(t, s, "a2", "a")
	exists := func() bool { _, err := s.Path(a.Digest); return err == nil }
	remove := func(name string) {
		t.Helper()
		if err := s.Remove(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	used := map[string]bool{}
	remove("a2")
	s.SetInUse(func(context.Context) (map[string]bool, error) { return used, nil })
	if err := s.Remove(ctx, "a2"); !caisson.Is(err, caisson.NotFound) {
		t.Errorf("%v", err)
	}
	if !exists() {
		t.Fatal("the image has a name and is gone")
	}
	used[a.Digest] = true
	remove("a")
	if !exists() {
		t.Fatal("the image is in use and is gone")
	}
	if got, err := s.Resolve(ctx, a.Digest); err != nil || got.Name != "" {
		t.Errorf("%+v, %v", got, err)
	}
	if gone, err := s.Prune(ctx); err != nil || len(gone) != 0 {
		t.Errorf("%v, %v", gone, err)
	}
	delete(used, a.Digest)
	if gone, err := s.Prune(ctx); err != nil || len(gone) != 1 || exists() {
		t.Errorf("%v, %v", gone, err)
	}
	// A name that moves on leaves its image to be deleted.
	old := importTar(t, s, "m", "1")
	importTar(t, s, "m", "2")
	if _, err := s.Path(old.Digest); !caisson.Is(err, caisson.NotFound) {
		t.Errorf("%v", err)
	}
	if s = open(t, s.dir); len(s.images) != 1 {
		t.Errorf("%v", s.images)
	}
	// If nobody can say what is in use, nothing goes.
	s.SetInUse(func(context.Context) (map[string]bool, error) { return nil, errors.New("no database") })
	if err := s.Remove(ctx, "m"); err == nil || len(s.images) != 1 {
		t.Errorf("%v", err)
	}
}

func TestInstall(t *testing.T) {
	ctx, s := t.Context(), open(t, t.TempDir())
	a, err := s.Install(ctx, "base", strings.NewReader("image"), caisson.Template{User: "root", Env: map[string]string{"A": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	// Known: the reader is not touched, the new environment is kept.
	b, err := s.Install(ctx, "base:latest", nil, caisson.Template{Digest: a.Digest, User: "root", Env: map[string]string{"A": "2"}})
	if err != nil || b.Digest != a.Digest || b.Env["A"] != "2" {
		t.Fatalf("%+v, %v", b, err)
	}
	if _, err := s.Install(ctx, "base", strings.NewReader("other"), caisson.Template{Digest: "sha256:" + strings.Repeat("1", 64)}); !caisson.Is(err, caisson.Invalid) {
		t.Errorf("%v", err)
	}
	s = open(t, s.dir)
	if got, err := s.Resolve(ctx, "base"); err != nil || !cmp.Equal(got, b) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestConcurrentImports(t *testing.T) {
	s := open(t, t.TempDir())
	s.SetInUse(func(context.Context) (map[string]bool, error) { return nil, nil })
	same, other := tarOf(t, "same"), tarOf(t, "other")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			b, name := same, "same"
			if i%2 == 0 {
				b, name = other, "moving"
			} else if i%4 == 1 {
				name = "moving"
			}
			if _, err := s.Import(context.Background(), name, bytes.NewReader(b)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s = open(t, s.dir)
	if len(s.names) != 2 {
		t.Errorf("%v", s.names)
	}
}
