// Command pack writes the parts that the caisson binary carries: the executables it is given, compressed, and two EROFS
// images made from them, one with the guest agent, one with the root filesystem of the base template.
//
// It runs at every build, so a part whose content has not changed is not compressed again.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-sandbox/caisson/bundle"
	"github.com/caisson-sandbox/caisson/image/rootfs"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("pack", flag.ContinueOnError)
	fs.SetOutput(stderr)
	out := fs.String("out", "", "`folder` to write to")
	shim := fs.String("shim", "", "the shim's executable `file`")
	sentry := fs.String("sentry", "", "the sentry's executable `file`")
	guest := fs.String("guest", "", "the guest agent's static executable `file`")
	base := fs.String("base", "", "the static multi-call executable `file` of the base template")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	for _, s := range []*string{out, shim, sentry, guest, base} {
		if *s == "" || fs.NArg() > 0 {
			fs.Usage()
			return 2
		}
	}
	if err := pack(stdout, *out, *shim, *sentry, *guest, *base); err != nil {
		fmt.Fprintln(stderr, "pack:", err)
		return 1
	}
	return 0
}

// pack writes all parts and then the manifest, so that the manifest never promises what is not there.
func pack(log io.Writer, out, shim, sentry, guest, base string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "caisson-pack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	guestImage, baseImage := filepath.Join(temp, "guest"), filepath.Join(temp, "base")
	files, err := guestFiles(guest)
	if err == nil {
		err = makeImage(guestImage, files)
	}
	if err != nil {
		return fmt.Errorf("make the guest image: %w", err)
	}
	files, err = baseFiles(base)
	if err == nil {
		err = makeImage(baseImage, files)
	}
	if err != nil {
		return fmt.Errorf("make the base image: %w", err)
	}

	old := readManifest(out)
	m := bundle.Manifest{Parts: map[string]bundle.Part{}}
	for _, p := range []struct{ name, file string }{
		{bundle.PartShim, shim}, {bundle.PartSentry, sentry}, {bundle.PartGuest, guestImage}, {bundle.PartBase, baseImage},
	} {
		if m.Parts[p.name], err = packPart(log, out, p.name, p.file, old.Parts[p.name]); err != nil {
			return fmt.Errorf("pack %s: %w", p.name, err)
		}
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return replace(filepath.Join(out, bundle.ManifestFile), func(f *os.File) error {
		_, err := f.Write(append(b, '\n'))
		return err
	})
}

// readManifest gives what the last run left; if that cannot be read, everything is packed again.
func readManifest(out string) (m bundle.Manifest) {
	if b, err := os.ReadFile(filepath.Join(out, bundle.ManifestFile)); err == nil {
		_ = json.Unmarshal(b, &m)
	}
	return m
}

// packPart compresses the file, unless the part is old and its file is there.
func packPart(log io.Writer, out, name, file string, old bundle.Part) (bundle.Part, error) {
	f, err := os.Open(file)
	if err != nil {
		return bundle.Part{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err != nil {
		return bundle.Part{}, err
	}
	p := bundle.Part{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), Size: size}
	target := filepath.Join(out, name+bundle.Suffix)
	if st, err := os.Stat(target); err == nil && st.Size() > 0 && p == old {
		return p, nil
	}
	// Should this run be cut short, the old manifest must not vouch for the new file.
	if err := os.Remove(filepath.Join(out, bundle.ManifestFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return p, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return p, err
	}
	var packed int64
	err = replace(target, func(w *os.File) error {
		z, err := zstd.NewWriter(w)
		if err != nil {
			return err
		}
		if _, err := io.Copy(z, f); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		packed, err = w.Seek(0, io.SeekCurrent)
		return err
	})
	fmt.Fprintf(log, "packed %-6s %6.1f MB as %5.1f MB\n", name, float64(size)/1e6, float64(packed)/1e6)
	return p, err
}

// makeImage writes the files as an EROFS image.
func makeImage(path string, files []rootfs.File) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = rootfs.FromFiles(files, f)
	return errors.Join(err, f.Close())
}

// replace has fill write a new file and puts it at path at once.
func replace(path string, fill func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once renamed
	if err := errors.Join(fill(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
