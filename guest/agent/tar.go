package agent

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson/guest/wire"
)

const maxTarEntries = 1_000_000

func (s fileService) Archive(_ context.Context, r *connect.Request[wire.ArchiveRequest], st *connect.ServerStream[wire.ArchiveResponse]) error {
	acc, path, err := s.a.who(r.Msg.User, r.Msg.Path)
	if err != nil {
		return err
	}
	if err := as(acc, func() error { _, err := os.Lstat(path); return err }); err != nil {
		return fileError(path, err)
	}
	pr, pw := io.Pipe()
	defer pr.Close()
	go func() { // ends when pr is closed or all is written
		pw.CloseWithError(as(acc, func() error { return writeTar(pw, path, filepath.Base(path)) }))
	}()
	return sendChunks(path, pr, func(b []byte) error { return st.Send(&wire.ArchiveResponse{Data: b}) })
}

// writeTar writes path and what is below it; the entries' names begin with name.
func writeTar(w io.Writer, path, name string) error {
	tw := tar.NewWriter(w)
	type inode struct{ dev, ino uint64 }
	seen := map[inode]string{} // files with several names
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if p != path && errors.Is(err, fs.ErrNotExist) {
				return nil // gone meanwhile
			}
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if st.Mode()&fs.ModeSocket != 0 {
			return nil // has no meaning elsewhere
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		target := ""
		if st.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(p); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(st, target)
		if err != nil {
			return err
		}
		h.Format, h.Name = tar.FormatPAX, filepath.Join(name, rel)
		h.Uname, h.Gname = "", ""
		if st.IsDir() {
			h.Name += "/"
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && st.Mode().IsRegular() && sys.Nlink > 1 {
			key := inode{uint64(sys.Dev), sys.Ino}
			if first, ok := seen[key]; ok {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
				return tw.WriteHeader(h)
			}
			seen[key] = h.Name
		}
		if !st.Mode().IsRegular() {
			return tw.WriteHeader(h)
		}
		f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		defer f.Close()
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		// The file may change while it is read: exactly the size in the header is written.
		n, err := io.Copy(tw, io.LimitReader(f, h.Size))
		if err != nil || n == h.Size {
			return err
		}
		_, err = io.CopyN(tw, zeros{}, h.Size-n)
		return err
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func (s fileService) Extract(_ context.Context, st *connect.ClientStream[wire.ExtractRequest]) (*connect.Response[wire.ExtractResponse], error) {
	if !st.Receive() {
		return nil, orUnexpected(st.Err())
	}
	acc, path, err := s.a.who(st.Msg().User, st.Msg().Path)
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	res := make(chan error, 1)
	go func() { // ends when pw is closed or the archive is bad
		err := as(acc, func() error { return extractTar(pr, path) })
		pr.CloseWithError(err)
		res <- err
	}()
	for {
		if b := st.Msg().Data; len(b) > 0 {
			if _, err := pw.Write(b); err != nil {
				break
			}
		}
		if st.Msg().Commit {
			pw.Close()
			break
		}
		if !st.Receive() {
			pw.CloseWithError(orUnexpected(st.Err()))
			break
		}
	}
	if err := <-res; err != nil {
		return nil, fileError(path, err)
	}
	return connect.NewResponse(&wire.ExtractResponse{}), nil
}

// extractTar unpacks below the directory dir and nowhere else, whatever names and links the archive holds.
func extractTar(r io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	type stamp struct {
		name string
		mode os.FileMode
		time time.Time
	}
	var dirs []stamp // directories get their mode and time when all is in them
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return badTar("the tar stream is damaged: %v", err)
		}
		if n >= maxTarEntries {
			return badTar("the tar stream has more than %d entries", maxTarEntries)
		}
		name, err := entryName(h.Name)
		if err != nil {
			return err
		}
		if name == "." {
			continue
		}
		if parent := filepath.Dir(name); parent != "." {
			if err := root.MkdirAll(parent, 0o755); err != nil {
				return entryError(name, err)
			}
		}
		mode := h.FileInfo().Mode()
		switch h.Typeflag {
		case tar.TypeDir:
			if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return entryError(name, err)
			}
			if st, err := root.Lstat(name); err != nil || !st.IsDir() {
				return entryError(name, syscall.ENOTDIR)
			}
			dirs = append(dirs, stamp{name, mode, h.ModTime})
		case tar.TypeReg:
			if err := clearWay(root, name); err != nil {
				return err
			}
			f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return entryError(name, err)
			}
			_, err = io.Copy(f, tr)
			if err == nil {
				chown(func(u, g int) error { return f.Chown(u, g) }, h)
				err = f.Chmod(mode.Perm() | mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
			}
			if e := f.Close(); err == nil {
				err = e
			}
			if err != nil {
				return entryError(name, err)
			}
			root.Chtimes(name, h.ModTime, h.ModTime)
			continue
		case tar.TypeSymlink:
			if err := clearWay(root, name); err != nil {
				return err
			}
			if err := root.Symlink(h.Linkname, name); err != nil {
				return entryError(name, err)
			}
		case tar.TypeLink:
			target, err := entryName(h.Linkname)
			if err != nil {
				return err
			}
			if err := clearWay(root, name); err != nil {
				return err
			}
			if err := root.Link(target, name); err != nil {
				return entryError(name, err)
			}
			continue
		default:
			return badTar("entry %q is a device, fifo or of an unknown type (%q); only files, directories and links are unpacked", name, h.Typeflag)
		}
		chown(func(u, g int) error { return root.Lchown(name, u, g) }, h)
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		d := dirs[i]
		root.Chmod(d.name, d.mode.Perm()|d.mode&(fs.ModeSetgid|fs.ModeSticky))
		root.Chtimes(d.name, d.time, d.time)
	}
	return nil
}

// chown gives the file its owner where the process may: as root, that is.
func chown(set func(uid, gid int) error, h *tar.Header) {
	if syscall.Geteuid() == 0 {
		set(h.Uid, h.Gid)
	}
}

// clearWay removes what stands where a file or link goes; the last entry of a name wins.
func clearWay(root *os.Root, name string) error {
	st, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return entryError(name, err)
	}
	if st.IsDir() {
		return entryError(name, syscall.EISDIR)
	}
	return entryError(name, root.Remove(name))
}

// entryName makes a name relative to the target directory, or refuses it.
func entryName(name string) (string, error) {
	if strings.ContainsRune(name, 0) || len(name) > maxPath {
		return "", badTar("an entry's name is longer than %d bytes or has a zero byte", maxPath)
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", badTar("entry %q leaves the directory", name)
		}
	}
	clean := filepath.Clean("/" + name)[1:]
	if clean == "" {
		return ".", nil
	}
	return clean, nil
}

func badTar(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

func entryError(name string, err error) error {
	if err == nil {
		return nil
	}
	return fileError(fmt.Sprintf("entry %q", name), err)
}
