package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson/guest/wire"
)

const (
	fileChunk   = 256 << 10
	listBatch   = 512
	listMost    = 100_000
	maxListDeep = 64
)

type fileService struct{ a *Agent }

// info describes a file, not following a link at its end.
func (a *Agent) info(path string) (*wire.FileInfo, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	return a.infoOf(path, st), nil
}

func (a *Agent) infoOf(path string, st fs.FileInfo) *wire.FileInfo {
	fi := &wire.FileInfo{Path: []byte(path), Name: []byte(filepath.Base(path)), Size: st.Size(), ModTimeUnixNano: st.ModTime().UnixNano()}
	switch m := st.Mode(); {
	case m.IsRegular():
		fi.Type = "file"
	case m.IsDir():
		fi.Type = "dir"
	case m&fs.ModeSymlink != 0:
		fi.Type = "symlink"
		target, _ := os.Readlink(path)
		fi.Target = []byte(target)
	default:
		fi.Type = "other"
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		fi.Mode, fi.Uid, fi.Gid = sys.Mode&0o7777, sys.Uid, sys.Gid
		fi.User, fi.Group = a.users.names(sys.Uid, sys.Gid)
	}
	return fi
}

func (s fileService) Stat(_ context.Context, r *connect.Request[wire.StatRequest]) (*connect.Response[wire.StatResponse], error) {
	acc, path, err := s.a.who(r.Msg.User, r.Msg.Path)
	if err != nil {
		return nil, err
	}
	var fi *wire.FileInfo
	err = as(acc, func() (err error) { fi, err = s.a.info(path); return })
	return connect.NewResponse(&wire.StatResponse{Info: fi}), fileError(path, err)
}

func (s fileService) Read(_ context.Context, r *connect.Request[wire.ReadRequest], st *connect.ServerStream[wire.ReadResponse]) error {
	acc, path, err := s.a.who(r.Msg.User, r.Msg.Path)
	if err != nil {
		return err
	}
	if r.Msg.Offset < 0 || r.Msg.Length < 0 {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("offset and length must not be negative"))
	}
	var f *os.File
	var fi *wire.FileInfo
	err = as(acc, func() (err error) {
		// O_NONBLOCK: opening a fifo must not wait for its writer.
		if f, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			return err
		}
		stat, err := f.Stat()
		if err == nil && !stat.Mode().IsRegular() {
			err = connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%s: not a regular file", path))
		}
		if err != nil {
			f.Close()
			return err
		}
		fi = s.a.infoOf(path, stat)
		return nil
	})
	if err != nil {
		return fileError(path, err)
	}
	defer f.Close()
	if err := st.Send(&wire.ReadResponse{Info: fi}); err != nil {
		return err
	}
	var src io.Reader = f
	if r.Msg.Offset > 0 {
		if _, err := f.Seek(r.Msg.Offset, io.SeekStart); err != nil {
			return fileError(path, err)
		}
	}
	if r.Msg.Length > 0 {
		src = io.LimitReader(f, r.Msg.Length)
	}
	return sendChunks(path, src, func(b []byte) error { return st.Send(&wire.ReadResponse{Data: b}) })
}

func sendChunks(path string, src io.Reader, send func([]byte) error) error {
	buf := make([]byte, fileChunk)
	for {
		n, err := io.ReadFull(src, buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return fileError(path, err)
		}
	}
}

// Write puts the content beside the target and renames it over when all of it came.
func (s fileService) Write(_ context.Context, st *connect.ClientStream[wire.WriteRequest]) (*connect.Response[wire.WriteResponse], error) {
	if !st.Receive() {
		return nil, orUnexpected(st.Err())
	}
	h := st.Msg().Header
	if h == nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the first message must hold the header"))
	}
	acc, path, err := s.a.who(h.User, h.Path)
	if err != nil {
		return nil, err
	}
	w, err := s.a.beginWrite(acc, path, h)
	if err != nil {
		return nil, fileError(path, err)
	}
	defer w.abort()
	for {
		if b := st.Msg().Data; len(b) > 0 {
			if _, err := w.tmp.Write(b); err != nil {
				return nil, fileError(path, err)
			}
		}
		if st.Msg().Commit {
			fi, err := w.commit()
			return connect.NewResponse(&wire.WriteResponse{Info: fi}), fileError(path, err)
		}
		if !st.Receive() {
			return nil, orUnexpected(st.Err())
		}
	}
}

func orUnexpected(err error) error {
	if err == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the stream ended before its commit; nothing was kept"))
	}
	return err
}

type pendingWrite struct {
	a    *Agent
	acc  account
	path string
	tmp  *os.File
	done bool
}

func (a *Agent) beginWrite(acc account, path string, h *wire.WriteHeader) (*pendingWrite, error) {
	w := &pendingWrite{a: a, acc: acc, path: path}
	err := as(acc, func() error {
		if h.Parents {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			w.path = real // through a link, the file it names is written
		}
		mode, old := os.FileMode(0o644), (*syscall.Stat_t)(nil)
		if st, err := os.Lstat(w.path); err == nil {
			if !st.Mode().IsRegular() {
				return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%s: not a regular file", path))
			}
			if err := unix.Access(w.path, unix.W_OK); err != nil {
				return &fs.PathError{Op: "write", Path: path, Err: err}
			}
			mode, old = st.Mode().Perm(), st.Sys().(*syscall.Stat_t)
		}
		if h.Mode != 0 {
			mode = os.FileMode(h.Mode & 0o777)
		}
		name := filepath.Join(filepath.Dir(w.path), ".caisson-"+rand.Text())
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		w.tmp = f
		if old != nil {
			f.Chown(int(old.Uid), int(old.Gid)) // only root can give files away
		}
		bits := uint32(mode)
		if h.Mode != 0 {
			bits = h.Mode & 0o7777
		} else if old != nil {
			bits = old.Mode & 0o7777
		}
		return unix.Fchmod(int(f.Fd()), bits)
	})
	if err != nil {
		w.abort()
		return nil, err
	}
	return w, nil
}

func (w *pendingWrite) commit() (fi *wire.FileInfo, err error) {
	if err := w.tmp.Close(); err != nil {
		return nil, err
	}
	err = as(w.acc, func() error {
		if err := os.Rename(w.tmp.Name(), w.path); err != nil {
			return err
		}
		w.done = true
		fi, err = w.a.info(w.path)
		return err
	})
	return fi, err
}

func (w *pendingWrite) abort() {
	if w.tmp != nil && !w.done {
		w.tmp.Close()
		os.Remove(w.tmp.Name())
	}
}

func (s fileService) List(_ context.Context, r *connect.Request[wire.ListRequest], st *connect.ServerStream[wire.ListResponse]) error {
	acc, path, err := s.a.who(r.Msg.User, r.Msg.Path)
	if err != nil {
		return err
	}
	deep := min(max(int(r.Msg.Depth), 1), maxListDeep)
	var all []*wire.FileInfo
	err = as(acc, func() error { return s.a.list(path, deep, &all) })
	if err != nil {
		return fileError(path, err)
	}
	for len(all) > 0 {
		n := min(len(all), listBatch)
		if err := st.Send(&wire.ListResponse{Entries: all[:n]}); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (a *Agent) list(dir string, deep int, all *[]*wire.FileInfo) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if len(*all) >= listMost {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s: more than %d entries; list a directory below it", dir, listMost))
		}
		path := filepath.Join(dir, e.Name())
		fi, err := a.info(path)
		if err != nil {
			continue // gone meanwhile
		}
		*all = append(*all, fi)
		if deep > 1 && e.IsDir() {
			if err := a.list(path, deep-1, all); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func (s fileService) Mkdir(_ context.Context, r *connect.Request[wire.MkdirRequest]) (*connect.Response[wire.MkdirResponse], error) {
	acc, path, err := s.a.who(r.Msg.User, r.Msg.Path)
	if err != nil {
		return nil, err
	}
	mode := os.FileMode(0o755)
	if r.Msg.Mode != 0 {
		mode = os.FileMode(r.Msg.Mode & 0o777)
	}
	var fi *wire.FileInfo
	err = as(acc, func() error {
		if r.Msg.Parents {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
		}
		if err := os.Mkdir(path, mode); err != nil {
			if st, e := os.Stat(path); !r.Msg.Parents || e != nil || !st.IsDir() {
				return err
			}
		} else if r.Msg.Mode != 0 {
			unix.Chmod(path, r.Msg.Mode&0o7777) // without the umask
		}
		var err error
		fi, err = s.a.info(path)
		return err
	})
	return connect.NewResponse(&wire.MkdirResponse{Info: fi}), fileError(path, err)
}

// Move renames; between file systems it copies, then removes.
func (s fileService) Move(_ context.Context, r *connect.Request[wire.MoveRequest]) (*connect.Response[wire.MoveResponse], error) {
	acc, from, err := s.a.who(r.Msg.User, r.Msg.From)
	if err != nil {
		return nil, err
	}
	to, err := resolvePath(acc, r.Msg.To)
	if err != nil {
		return nil, err
	}
	var fi *wire.FileInfo
	err = as(acc, func() error {
		err := os.Rename(from, to)
		if errors.Is(err, syscall.EXDEV) {
			if err = copyTree(from, to); err == nil {
				err = os.RemoveAll(from)
			} else {
				os.RemoveAll(to)
			}
		}
		if err != nil {
			return err
		}
		fi, err = s.a.info(to)
		return err
	})
	return connect.NewResponse(&wire.MoveResponse{Info: fi}), fileError(from, err)
}

// copyTree copies by way of a tar stream, which keeps what a move keeps.
func copyTree(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return &fs.PathError{Op: "move", Path: to, Err: syscall.EEXIST}
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeTar(w, from, filepath.Base(to))) }() // ends when r is closed or all is written
	defer r.Close()
	return extractTar(r, filepath.Dir(to))
}

func (s fileService) Remove(_ context.Context, r *connect.Request[wire.RemoveRequest]) (*connect.Response[wire.RemoveResponse], error) {
	acc, path, err := s.a.who(r.Msg.User, r.Msg.Path)
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("/: the root directory cannot be removed"))
	}
	err = as(acc, func() error {
		if _, err := os.Lstat(path); err != nil {
			return err
		}
		if r.Msg.Recursive {
			return os.RemoveAll(path)
		}
		return os.Remove(path)
	})
	return connect.NewResponse(&wire.RemoveResponse{}), fileError(path, err)
}
