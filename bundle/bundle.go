// Package bundle holds what the caisson binary carries inside it: the executables that run once per sandbox, the guest
// agent's image and the root filesystem of the base template.
//
// The parts stand in bundle/files, compressed with zstd, beside manifest.json, which says the digest and size of each.
// They are written by bundle/pack, which `make build` runs, and are not in git: without them the module compiles, and
// [Unpack] and [Base] say what to do.
package bundle

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-sandbox/caisson"
)

//go:embed all:files
var embedded embed.FS

// The names of the parts.
const (
	PartShim   = "shim"   // executable: the host process of a sandbox
	PartSentry = "sentry" // executable: its kernel
	PartGuest  = "guest"  // EROFS image that holds /caisson-guest
	PartBase   = "base"   // EROFS image of the base template
)

const (
	// ManifestFile is the name of the manifest among the files.
	ManifestFile = "manifest.json"
	// Suffix comes after a part's name in the name of its file.
	Suffix = ".zst"
)

// Part describes the uncompressed content of a part.
type Part struct {
	Digest string `json:"digest"` // sha256:…
	Size   int64  `json:"size"`
}

// Manifest is the form of manifest.json.
type Manifest struct {
	Parts map[string]Part `json:"parts"`
}

// Paths says where the unpacked parts are.
type Paths struct {
	Shim, Sentry string // executables
	Guest        string // EROFS image
}

// Parts gives the parts this binary carries, by name. It fails with Unsupported if it was built without.
func Parts() (map[string]Part, error) { return parts(files()) }

// Unpack writes the shim, the sentry and the guest image below stateDir/bin, each in a folder named for its digest, and
// says where. What is there already is used. Several processes may do it at once.
//
// The sentry runs as nobody, so folders and executables are 0755; stateDir itself must let it pass (0711 or more).
// Parts of other versions stay: shims that live may be using them.
func Unpack(stateDir string) (Paths, error) { return unpack(files(), stateDir) }

// Base opens the EROFS image of the base template and gives its digest ("sha256:…") and size.
func Base() (io.ReadCloser, string, int64, error) {
	r, p, err := open(files(), PartBase)
	return r, p.Digest, p.Size, err
}

func files() fs.FS {
	sub, err := fs.Sub(embedded, "files")
	if err != nil {
		panic(err) // only for a malformed path
	}
	return sub
}

func parts(files fs.FS) (map[string]Part, error) {
	const op = "read bundled parts"
	b, err := fs.ReadFile(files, ManifestFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, caisson.E(caisson.Unsupported, op, "", "this caisson was built without the parts that run sandboxes", nil).
			WithHint("Build it with `make build`; `go build` alone leaves them out.")
	}
	if err != nil {
		return nil, caisson.E(caisson.Internal, op, ManifestFile, "cannot be read", err)
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, caisson.E(caisson.Internal, op, ManifestFile, "is damaged", err)
	}
	for _, name := range []string{PartShim, PartSentry, PartGuest, PartBase} {
		p, ok := m.Parts[name]
		if !ok || len(p.Digest) != len("sha256:")+64 || !strings.HasPrefix(p.Digest, "sha256:") {
			return nil, caisson.E(caisson.Internal, op, name, "is not in the manifest", nil).WithHint("Run `make build` again.")
		}
	}
	return m.Parts, nil
}

// part is the content of a part, decompressed as it is read.
type part struct {
	*zstd.Decoder
	file io.Closer
}

func (p part) Close() error {
	p.Decoder.Close()
	return p.file.Close()
}

func open(files fs.FS, name string) (io.ReadCloser, Part, error) {
	ps, err := parts(files)
	if err != nil {
		return nil, Part{}, err
	}
	f, err := files.Open(name + Suffix)
	if err != nil {
		return nil, Part{}, damaged(name, err)
	}
	z, err := zstd.NewReader(f)
	if err != nil {
		f.Close()
		return nil, Part{}, damaged(name, err)
	}
	return part{z, f}, ps[name], nil
}

func unpack(files fs.FS, stateDir string) (Paths, error) {
	stateDir, err := filepath.Abs(stateDir)
	if err != nil {
		return Paths{}, caisson.E(caisson.Internal, "unpack parts", stateDir, "no such directory", err)
	}
	var paths Paths
	for _, w := range []struct {
		part, file string
		mode       os.FileMode
		path       *string
	}{
		{PartShim, "caisson-shim", 0o755, &paths.Shim},
		{PartSentry, "caisson-sentry", 0o755, &paths.Sentry},
		{PartGuest, "guest.erofs", 0o644, &paths.Guest},
	} {
		if *w.path, err = unpackPart(files, filepath.Join(stateDir, "bin"), w.part, w.file, w.mode); err != nil {
			return Paths{}, err
		}
	}
	return paths, nil
}

// unpackPart writes one part, unless it is there with the right size, and returns its path.
func unpackPart(files fs.FS, bin, name, file string, mode os.FileMode) (string, error) {
	ps, err := parts(files)
	if err != nil {
		return "", err
	}
	p := ps[name]
	dir := filepath.Join(bin, strings.TrimPrefix(p.Digest, "sha256:")[:16])
	path := filepath.Join(dir, file)
	if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() && st.Size() == p.Size && st.Mode().Perm() == mode {
		return path, nil
	}
	r, _, err := open(files, name)
	if err != nil {
		return "", err
	}
	defer r.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", unwritten(name, err)
	}
	for _, d := range []string{bin, dir} { // whatever the umask
		if err := os.Chmod(d, 0o755); err != nil {
			return "", unwritten(name, err)
		}
	}
	if err := writeFile(dir, path, r, p, mode); err != nil {
		return "", unwritten(name, err)
	}
	return path, nil
}

// writeFile puts the content of r at path at once and durably, if it is what p says.
func writeFile(dir, path string, r io.Reader, p Part, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(dir, ".tmp-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, p.Size+1))
	if err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); n != p.Size || got != p.Digest {
		return fmt.Errorf("the part is %s of %d bytes, not %s of %d", got, n, p.Digest, p.Size)
	}
	if err := errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func damaged(name string, err error) error {
	return caisson.E(caisson.Internal, "read bundled parts", name, "is damaged", err).WithHint("Run `make build` again.")
}

func unwritten(name string, err error) error {
	return caisson.E(caisson.Internal, "unpack parts", name, "cannot be written", err).
		WithHint("See that the state directory can be written and has room.")
}
