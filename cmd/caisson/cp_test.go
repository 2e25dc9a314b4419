package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func archive(t *testing.T, hs ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range hs {
		body := h.PAXRecords["test.body"]
		h.PAXRecords = nil
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		h.ModTime = time.Unix(1_700_000_000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, body)
	}
	w.Close()
	return &b
}

func dir(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
func file(name, body string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, PAXRecords: map[string]string{"test.body": body}}
}
func link(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}
func hard(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

func unpacker() *untar {
	return &untar{limits: untarLimits{bytes: 1 << 20, entries: 100}, warn: func(string, ...any) {}}
}

// TestHostileArchives: whatever the stream says, nothing outside the destination changes.
func TestHostileArchives(t *testing.T) {
	for name, hs := range map[string][]tar.Header{
		"dotdot":               {dir("tree/"), file("tree/../../victim/file", "bad")},
		"dotdot at the top":    {dir("../victim/"), file("../victim/file", "bad")},
		"absolute":             {dir("tree/"), file("/victim/file", "bad")},
		"sibling":              {dir("tree/"), file("beside", "bad")},
		"prefix of a name":     {dir("tree/"), file("treehouse/file", "bad")},
		"link up":              {dir("tree/"), link("tree/up", "../../victim"), file("tree/up/file", "bad")},
		"link to the sibling":  {dir("tree/"), link("tree/up", "../beside"), file("tree/up", "bad"), file("tree/up/x", "bad")},
		"link absolute":        {dir("tree/"), link("tree/abs", "VICTIM"), file("tree/abs/file", "bad")},
		"link chain":           {dir("tree/"), link("tree/a", "b"), link("tree/b", ".."), file("tree/a/beside", "bad")},
		"link as the top":      {link("tree", "VICTIM"), file("tree/file", "bad")},
		"dir over link":        {dir("tree/"), link("tree/d", "../../victim"), dir("tree/d"), file("tree/d/file", "bad")},
		"hard link out":        {dir("tree/"), hard("tree/h", "../victim/file"), file("tree/h", "bad")},
		"hard link absolute":   {dir("tree/"), hard("tree/h", "VICTIM/file")},
		"hard link to no file": {dir("tree/"), link("tree/l", "../../victim/file"), hard("tree/h", "tree/l")},
		"two files for one":    {file("tree", "ok"), file("beside", "bad")},
		"too many":             append([]tar.Header{dir("tree/")}, make([]tar.Header, 0)...),
		"too deep":             {dir("tree/"), file("tree/"+strings.Repeat("d/", 300)+"f", "x")},
		"too big":              {dir("tree/"), file("tree/f", strings.Repeat("x", 1<<20)), file("tree/g", "x")},
		"empty":                {},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			victim, dst := filepath.Join(top, "victim"), filepath.Join(top, "dst")
			for _, d := range []string{victim, dst, filepath.Join(dst, "beside")} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			os.WriteFile(filepath.Join(victim, "file"), []byte("good"), 0o644)
			if name == "too many" {
				for range 200 {
					hs = append(hs, dir("tree/x"))
				}
			}
			for i := range hs {
				hs[i].Linkname = strings.ReplaceAll(hs[i].Linkname, "VICTIM", victim)
			}
			err := unpacker().extract(archive(t, hs...), dst, "tree", false)
			if err == nil {
				t.Error("it was taken")
			}
			if b, _ := os.ReadFile(filepath.Join(victim, "file")); string(b) != "good" {
				t.Errorf("the victim has %q", b)
			}
			if es, _ := os.ReadDir(victim); len(es) != 1 {
				t.Errorf("the victim has %v", es)
			}
			for _, e := range must(os.ReadDir(dst)) {
				if e.Name() != "tree" && e.Name() != "beside" {
					t.Errorf("%s was made beside the tree", e.Name())
				}
			}
			if es, _ := os.ReadDir(filepath.Join(dst, "beside")); len(es) != 0 {
				t.Errorf("beside the tree: %v", es)
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestEarlierLinks: links that one copy brought are not followed by the next.
func TestEarlierLinks(t *testing.T) {
	top := t.TempDir()
	victim, dst := filepath.Join(top, "victim"), filepath.Join(top, "dst")
	os.Mkdir(victim, 0o755)
	os.Mkdir(dst, 0o755)
	os.WriteFile(filepath.Join(victim, "file"), []byte("good"), 0o644)
	if err := unpacker().extract(archive(t, link("x", victim)), dst, "tree", false); err != nil {
		t.Fatal(err)
	}
	if err := unpacker().extract(archive(t, dir("x/"), file("x/file", "bad")), dst, "tree", false); err == nil {
		t.Error("a tree was unpacked through a link")
	}
	os.Symlink(filepath.Join(victim, "file"), filepath.Join(dst, "one"))
	if err := unpacker().extract(archive(t, file("x", "new")), dst, "one", false); err != nil {
		t.Fatal(err)
	}
	if b := must(os.ReadFile(filepath.Join(victim, "file"))); string(b) != "good" {
		t.Errorf("the victim has %q", b)
	}
	if b := must(os.ReadFile(filepath.Join(dst, "one"))); string(b) != "new" {
		t.Errorf("the file has %q", b)
	}
}

func TestSpecialFilesAndModes(t *testing.T) {
	dst := t.TempDir()
	suid := file("tree/suid", "x")
	suid.Mode = 0o6755
	closed := dir("tree/closed/")
	closed.Mode = 0o500
	warned := 0
	u := unpacker()
	u.warn = func(string, ...any) { warned++ }
	err := u.extract(archive(t, dir("tree/"), suid, closed, file("tree/closed/in", "y"), hard("tree/again", "tree/suid"),
		tar.Header{Typeflag: tar.TypeChar, Name: "tree/null", Devmajor: 1, Devminor: 3}, tar.Header{Typeflag: tar.TypeFifo, Name: "tree/fifo"}), dst, "tree", false)
	if err != nil || warned != 2 {
		t.Errorf("%v, %d warnings", err, warned)
	}
	tree := filepath.Join(dst, "tree")
	if st := must(os.Lstat(filepath.Join(tree, "suid"))); st.Mode() != 0o755 || st.ModTime().Unix() != 1_700_000_000 {
		t.Errorf("mode %v, time %v", st.Mode(), st.ModTime())
	}
	if st := must(os.Lstat(filepath.Join(tree, "closed"))); st.Mode() != fs.ModeDir|0o500 {
		t.Errorf("mode %v", st.Mode())
	}
	if !os.SameFile(must(os.Stat(filepath.Join(tree, "suid"))), must(os.Stat(filepath.Join(tree, "again")))) {
		t.Error("the hard link is another file")
	}
	for _, n := range []string{"null", "fifo"} {
		if _, err := os.Lstat(filepath.Join(tree, n)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", n, err)
		}
	}
	os.Chmod(filepath.Join(tree, "closed"), 0o700)
}

// TestCutStream: an archive that ends early is an error, also after its last entry.
func TestCutStream(t *testing.T) {
	b := archive(t, dir("tree/"), file("tree/f", "0123456789")).Bytes()
	if err := unpacker().extract(bytes.NewReader(b[:1030]), t.TempDir(), "tree", false); err == nil {
		t.Error("a cut in an entry was not noticed")
	}
	cut := io.MultiReader(bytes.NewReader(b), errReader{})
	if err := unpacker().extract(cut, t.TempDir(), "tree", false); err == nil {
		t.Error("a cut after the entries was not noticed")
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestThereAndBack writes a tree as cp does and unpacks it by docker's rules.
func TestThereAndBack(t *testing.T) {
	src := filepath.Join(t.TempDir(), "src")
	os.MkdirAll(filepath.Join(src, "sub"), 0o755)
	os.WriteFile(filepath.Join(src, "sub", "new\nline"), []byte("x"), 0o600)
	os.Symlink("sub/none", filepath.Join(src, "link"))
	pack := func(path, name string) *bytes.Buffer {
		var b bytes.Buffer
		if err := writeTar(&b, path, name, false, t.Logf); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	check := func(t *testing.T, at string) {
		t.Helper()
		if got, _ := os.Readlink(filepath.Join(at, "link")); got != "sub/none" {
			t.Errorf("link %q", got)
		}
		if st, err := os.Stat(filepath.Join(at, "sub", "new\nline")); err != nil || st.Mode() != 0o600 {
			t.Errorf("%v %v", st, err)
		}
	}
	there, none := t.TempDir(), filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		dst    string
		inside bool
		at     string
	}{{there, false, filepath.Join(there, "src")}, {none, false, none}, {there, true, there}} {
		if err := unpacker().extract(pack(src, "src"), c.dst, "src", c.inside); err != nil {
			t.Error(err)
		}
		check(t, c.at)
	}
	one := filepath.Join(src, "sub", "new\nline")
	for _, dst := range []string{there, filepath.Join(there, "renamed")} {
		if err := unpacker().extract(pack(one, "n"), dst, "n", false); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []string{"n", "renamed"} {
		if b, err := os.ReadFile(filepath.Join(there, n)); string(b) != "x" {
			t.Errorf("%s: %q %v", n, b, err)
		}
	}
	if err := unpacker().extract(pack(one, "n"), filepath.Join(there, "no")+"/", "n", false); err == nil {
		t.Error("a file was copied to a directory that is not there")
	}
	if err := unpacker().extract(pack(src, "n"), filepath.Join(there, "n"), "n", false); err == nil {
		t.Error("a directory was copied over a file")
	}
}

// TestWholeRoot: the names of an archive of / are absolute.
func TestWholeRoot(t *testing.T) {
	dst := t.TempDir()
	if err := unpacker().extract(archive(t, dir("/"), dir("/etc/"), file("/etc/f", "x"), hard("/etc/g", "/etc/f")), dst, "/", true); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dst, "etc", "g")); string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
}

func TestPlaces(t *testing.T) {
	for s, want := range map[string]place{
		"sb1:/etc": {"sb1", "/etc"}, "name:rel": {"name", "rel"}, "sb1:": {"sb1", "."}, "-": {"", "-"}, "./a:b": {"", "./a:b"},
		"/a:b": {"", "/a:b"}, "dir/a:b": {"", "dir/a:b"}, "plain": {"", "plain"}, "sb1:/a:b": {"sb1", "/a:b"},
	} {
		if got := parsePlace(s); got != want {
			t.Errorf("%q: %+v", s, got)
		}
	}
}
