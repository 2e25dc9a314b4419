package agent

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func tarOf(headers ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		body := []byte("content")
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if w.WriteHeader(&h) == nil && h.Typeflag == tar.TypeReg {
			w.Write(body)
		}
	}
	w.Close()
	return b.Bytes()
}

// outside is a directory with one for the archive in it; after extraction nothing else may be there.
func outside(t testing.TB) (dir string, check func()) {
	t.Helper()
	parent := t.TempDir()
	dir = filepath.Join(parent, "in")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(parent, "victim"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(parent, "victim"))
		entries, _ := os.ReadDir(parent)
		if err != nil || string(b) != "untouched" || len(entries) != 2 {
			t.Errorf("outside: %q %v, %v", b, err, entries)
		}
	}
}

// TestHostileTars: no entry leaves the directory.
func TestHostileTars(t *testing.T) {
	for name, b := range map[string][]byte{
		"dots":          tarOf(tar.Header{Name: "../victim", Typeflag: tar.TypeReg, Mode: 0o644}),
		"absolute":      tarOf(tar.Header{Name: "/../../victim", Typeflag: tar.TypeReg, Mode: 0o644}),
		"link":          tarOf(tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "up/victim", Typeflag: tar.TypeReg, Mode: 0o644}),
		"absolute link": tarOf(tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "/"}, tar.Header{Name: "up/tmp/caisson-escaped", Typeflag: tar.TypeReg, Mode: 0o644}),
		"hard link":     tarOf(tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../victim"}, tar.Header{Name: "h", Typeflag: tar.TypeReg, Mode: 0o644}),
		"directory":     tarOf(tar.Header{Name: "../made", Typeflag: tar.TypeDir, Mode: 0o755}),
		"newline":       tarOf(tar.Header{Name: "new\nline", Typeflag: tar.TypeReg, Mode: 0o644}),
		"empty name":    tarOf(tar.Header{Name: "", Typeflag: tar.TypeReg, Mode: 0o644}),
	} {
		t.Run(name, func(t *testing.T) {
			dir, check := outside(t)
			err := extractTar(bytes.NewReader(b), dir)
			check()
			if _, serr := os.Lstat("/tmp/caisson-escaped"); serr == nil {
				os.Remove("/tmp/caisson-escaped")
				t.Error("it wrote through a link to /")
			}
			if name == "newline" {
				if got, _ := os.ReadFile(filepath.Join(dir, "new\nline")); err != nil || string(got) != "content" {
					t.Errorf("%q %v", got, err)
				}
			}
		})
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(tarOf(tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Mode: 0o644}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../.."}))
	f.Add([]byte("nonsense"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir, check := outside(t)
		extractTar(bytes.NewReader(b), dir)
		check()
	})
}
