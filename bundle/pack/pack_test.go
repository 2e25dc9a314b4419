package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"gvisor.dev/gvisor/pkg/erofs"

	"github.com/caisson-sandbox/caisson/bundle"
)

// packed runs the command and returns what it said and the manifest.
func packed(t *testing.T, out string, files map[string]string) (string, bundle.Manifest) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run([]string{"-out", out, "-shim", files["shim"], "-sentry", files["sentry"], "-guest", files["guest"],
		"-base", files["base"]}, &stdout, &stderr); code != 0 {
		t.Fatalf("%d: %s", code, stderr.String())
	}
	b, err := os.ReadFile(filepath.Join(out, bundle.ManifestFile))
	if err != nil {
		t.Fatal(err)
	}
	var m bundle.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return stdout.String(), m
}

// image decompresses a part and opens it as an image.
func image(t *testing.T, out, name string) *erofs.Image {
	t.Helper()
	f, err := os.Open(filepath.Join(out, name+bundle.Suffix))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	img, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(img, z); err != nil {
		t.Fatal(err)
	}
	i, err := erofs.OpenImage(img)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i
}

func lookup(t *testing.T, img *erofs.Image, path string) erofs.Inode {
	t.Helper()
	nid := img.RootNid()
	n, err := img.Inode(nid)
	for _, s := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		if err == nil {
			nid, err = n.Lookup(s)
		}
		if err == nil {
			n, err = img.Inode(nid)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return n
}

func TestPack(t *testing.T) {
	in, out := t.TempDir(), filepath.Join(t.TempDir(), "files")
	files := map[string]string{}
	for name, text := range map[string]string{
		"shim": "the shim", "sentry": "the sentry", "guest": "the guest",
		"base": "#!/bin/sh\ntest \"$1\" = --applets && printf 'ls\\n[\\nsh\\n'\n",
	} {
		files[name] = filepath.Join(in, name)
		if err := os.WriteFile(files[name], []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	said, m := packed(t, out, files)
	if strings.Count(said, "packed") != 4 || len(m.Parts) != 4 || m.Parts["shim"].Size != 8 {
		t.Errorf("%s%+v", said, m)
	}
	if g := lookup(t, image(t, out, "guest"), "caisson-guest"); g.Mode() != 0o100755 || g.Size() != 9 {
		t.Errorf("guest: %o, %d bytes", g.Mode(), g.Size())
	}
	base := image(t, out, "base")
	for path, mode := range map[string]uint16{
		"/": 0o40755, "root": 0o40700, "tmp": 0o41777, "var/tmp": 0o41777, "var/log": 0o40755, "home/user": 0o40755, ".caisson": 0o40755,
		"usr/local/bin": 0o40755, "etc/passwd": 0o100644, "etc/resolv.conf": 0o100644, "bin/caisson-base": 0o100755,
	} {
		if n := lookup(t, base, path); n.Mode() != mode {
			t.Errorf("%s: mode %o", path, n.Mode())
		}
	}
	if n := lookup(t, base, "home/user"); n.UID() != 1000 || n.GID() != 1000 {
		t.Errorf("home/user belongs to %d:%d", n.UID(), n.GID())
	}
	for path, target := range map[string]string{"bin/ls": "caisson-base", "bin/[": "caisson-base", "bin/sh": "caisson-base",
		"bin/bash": "caisson-base", "usr/bin": "../bin", "sbin": "bin"} {
		n := lookup(t, base, path)
		if got, err := n.Readlink(); err != nil || got != target {
			t.Errorf("%s → %q, %v", path, got, err)
		}
	}

	// Again: nothing to do, and the same manifest.
	said, again := packed(t, out, files)
	if said != "" || again.Parts["base"] != m.Parts["base"] {
		t.Errorf("again: %s%+v", said, again)
	}
	if err := os.WriteFile(files["guest"], []byte("a new guest"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(out, "shim"+bundle.Suffix)); err != nil {
		t.Fatal(err)
	}
	if said, _ := packed(t, out, files); strings.Count(said, "packed") != 2 {
		t.Errorf("after a change: %s", said)
	}
}

func TestUsage(t *testing.T) {
	if code := run([]string{"-out", "x"}, io.Discard, io.Discard); code != 2 {
		t.Errorf("status %d", code)
	}
}
