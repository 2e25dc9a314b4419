package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// untarLimits bound what one stream may bring.
type untarLimits struct {
	bytes   int64 // of files, holes included
	entries int
}

const (
	maxTarName  = 4096
	maxTarDepth = 256
	// maxTrailer is what may follow the end of the archive; tar pads to 10 KiB.
	maxTrailer = 1 << 20
)

// untar unpacks a stream from a sandbox, whose every byte may be hostile, onto this machine.
//
// All writing goes through an os.Root at the destination itself, so that no name and no link leads out of it. No file is
// opened through a link that stands in its place: what is there is removed first. Only regular files, directories, symbolic
// links and hard links to files of the same stream are made; symbolic links keep their target, whatever it is.
type untar struct {
	limits untarLimits
	warn   func(format string, args ...any)

	root    *os.Root
	files   map[string]bool // regular files made so far
	dirs    []dirStamp      // directories get mode and time when all is in them
	bytes   int64
	entries int
}

type dirStamp struct {
	name string
	mode fs.FileMode
	time time.Time
}

// extract puts the stream's one tree to dst by the rules of cp. name is the base name of the source as the user gave it, never
// as the stream has it; inside means that the tree's contents are wanted.
func (u *untar) extract(r io.Reader, dst, name string, inside bool) error {
	u.files = map[string]bool{}
	body := bufio.NewReaderSize(r, 256<<10)
	tr := tar.NewReader(body)
	h, err := tr.Next()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the stream is empty")
		}
		return fmt.Errorf("reading the archive: %w", err)
	}
	if h.Typeflag == tar.TypeDir {
		err = u.tree(tr, h, dst, name, inside)
	} else {
		err = u.single(tr, h, dst, name)
	}
	if err != nil {
		return err
	}
	// The end of the archive is not the end of the stream: a cut one is noticed here.
	if n, err := io.Copy(io.Discard, io.LimitReader(body, maxTrailer+1)); err != nil || n > maxTrailer {
		return fmt.Errorf("the archive did not end as it should: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	return nil
}

// single is a source that is not a directory: one entry, whatever it calls itself.
func (u *untar) single(tr *tar.Reader, h *tar.Header, dst, name string) error {
	dir, base := filepath.Split(filepath.Clean(dst))
	st, err := os.Stat(dst)
	switch {
	case err == nil && st.IsDir():
		dir, base = dst, name
	case err != nil && os.IsPathSeparator(dst[len(dst)-1]):
		return fmt.Errorf("%s is not a directory", dst)
	}
	if dir == "" {
		dir = "."
	}
	if u.root, err = os.OpenRoot(dir); err != nil {
		return err
	}
	defer u.root.Close()
	if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
		return fmt.Errorf("%s is a device, pipe or something else that is not copied", name)
	}
	if !filepath.IsLocal(base) || base == "." {
		return fmt.Errorf("%q cannot be a file's name here", base)
	}
	if err := u.entry(tr, h, base); err != nil {
		return err
	}
	if _, err := tr.Next(); !errors.Is(err, io.EOF) {
		return errors.Join(errors.New("the archive of one file has more in it"), err)
	}
	return nil
}

// tree is a directory: it is made at, or below, dst.
func (u *untar) tree(tr *tar.Reader, h *tar.Header, dst, name string, inside bool) error {
	top, err := destination(dst, name, inside)
	if err != nil {
		return err
	}
	fresh := false
	if err := os.Mkdir(top, 0o700); err == nil {
		fresh = true
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if u.root, err = os.OpenRoot(top); err != nil {
		return err
	}
	defer u.root.Close()
	if fresh {
		u.dirs = append(u.dirs, dirStamp{".", h.FileInfo().Mode().Perm(), h.ModTime})
	}
	prefix := strings.Trim(path.Clean("/"+h.Name), "/")
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
		rel, err := below(prefix, h.Name)
		if err != nil {
			return err
		}
		if rel == "." {
			continue
		}
		if h.Typeflag == tar.TypeLink {
			if h.Linkname, err = below(prefix, h.Linkname); err != nil {
				return err
			}
		}
		if err := u.entry(tr, h, rel); err != nil {
			return err
		}
	}
}

// destination is the directory that a tree is unpacked in. A link that stands there, perhaps from an earlier copy, is not
// followed, unless the user named it.
func destination(dst, name string, inside bool) (string, error) {
	st, err := os.Stat(dst)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return filepath.Clean(dst), nil
	case err != nil:
		return "", err
	case !st.IsDir():
		return "", fmt.Errorf("%s is not a directory", dst)
	case inside:
		return dst, nil
	}
	if !filepath.IsLocal(name) || name == "." {
		return "", fmt.Errorf("%q cannot be a directory's name here; name the destination", name)
	}
	top := filepath.Join(dst, name)
	if st, err := os.Lstat(top); err == nil && !st.IsDir() {
		return "", fmt.Errorf("%s is there and is not a directory", top)
	}
	return top, nil
}

// below makes an entry's name relative to the tree's top, in the form of this system.
func below(prefix, name string) (string, error) {
	if len(name) > maxTarName || strings.ContainsRune(name, 0) {
		return "", errors.New("the archive has a name that is too long or holds a zero byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("the archive has the name %q, which leads out of it", name)
		}
	}
	clean := path.Clean(strings.TrimLeft(name, "/")) // an archive of / has absolute names
	if prefix != "" {
		rest, ok := strings.CutPrefix(clean, prefix)
		if !ok || rest != "" && rest[0] != '/' {
			return "", fmt.Errorf("the archive has the name %q, which is not below %q", name, prefix)
		}
		clean = path.Clean(strings.TrimPrefix(rest, "/"))
	}
	if strings.Count(clean, "/") > maxTarDepth {
		return "", errors.New("the archive has directories nested too deep")
	}
	local := filepath.FromSlash(clean)
	if !filepath.IsLocal(local) {
		return "", fmt.Errorf("the archive has the name %q, which cannot be a file's name here", name)
	}
	return local, nil
}

// entry makes one entry at name, below the root.
func (u *untar) entry(tr *tar.Reader, h *tar.Header, name string) error {
	if u.entries++; u.entries > u.limits.entries {
		return fmt.Errorf("the archive has more than %d entries", u.limits.entries)
	}
	if parent := filepath.Dir(name); parent != "." {
		if _, err := u.root.Lstat(parent); errors.Is(err, fs.ErrNotExist) {
			u.entries += strings.Count(parent, string(filepath.Separator)) // parents without entries of their own count, too
		}
		if err := u.root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(h, name)
	case tar.TypeReg:
		return u.file(tr, h, name)
	case tar.TypeSymlink:
		if len(h.Linkname) > maxTarName {
			return fmt.Errorf("the target of the link %q is too long", name)
		}
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		if !u.files[h.Linkname] {
			return fmt.Errorf("%q is a hard link to %q, which is no file of the archive", name, h.Linkname)
		}
		if h.Linkname == name {
			return nil
		}
		if err := u.clear(name); err != nil {
			return err
		}
		if err := u.root.Link(h.Linkname, name); err != nil {
			return err
		}
		u.files[name] = true
		return nil
	}
	u.warn("%q is left out: it is a device, pipe or something else that is not copied", name)
	return nil
}

// clear removes what stands in the way of a file or link, which a directory may not be.
func (u *untar) clear(name string) error {
	delete(u.files, name)
	st, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.IsDir() {
		return fmt.Errorf("%q is a directory; it is not replaced by a file", name)
	}
	return u.root.Remove(name)
}

func (u *untar) dir(h *tar.Header, name string) error {
	err := u.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		st, err := u.root.Lstat(name)
		if err == nil && !st.IsDir() {
			err = fmt.Errorf("%q is there and is not a directory", name)
		}
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	u.dirs = append(u.dirs, dirStamp{name, h.FileInfo().Mode().Perm(), h.ModTime})
	return nil
}

func (u *untar) file(tr *tar.Reader, h *tar.Header, name string) error {
	if h.Size > u.limits.bytes-u.bytes {
		return fmt.Errorf("the archive holds more than %d MiB; --max-size allows more", u.limits.bytes>>20)
	}
	u.bytes += h.Size
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, tr)
	if err == nil {
		err = f.Chmod(h.FileInfo().Mode().Perm())
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	u.files[name] = true
	u.root.Chtimes(name, h.ModTime, h.ModTime) //nolint:errcheck // a time is not worth a failed copy
	return nil
}

// finish gives directories their modes and times, the inner ones first.
func (u *untar) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		if st, err := u.root.Lstat(d.name); err != nil || !st.IsDir() {
			continue // replaced by a later entry
		}
		u.root.Chtimes(d.name, d.time, d.time) //nolint:errcheck // as above
		if err := u.root.Chmod(d.name, d.mode); err != nil {
			return err
		}
	}
	return nil
}
