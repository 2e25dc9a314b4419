package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"

	"github.com/caisson-sandbox/caisson/guest/wire"
)

const maxWatches = 8192

// Watch reports changes below a path until the caller goes.
func (s fileService) Watch(ctx context.Context, r *connect.Request[wire.WatchRequest], st *connect.ServerStream[wire.WatchResponse]) error {
	acc, path, err := s.a.who(r.Msg.User, r.Msg.Path)
	if err != nil {
		return err
	}
	w, err := fsnotify.NewBufferedWatcher(4096)
	if err != nil {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("watch %s: %w", path, err))
	}
	defer w.Close()
	watched := 0
	add := func(p string, deep bool) error {
		return as(acc, func() error {
			if !deep {
				watched++
				return w.Add(p)
			}
			return filepath.WalkDir(p, func(sub string, d fs.DirEntry, err error) error {
				if err != nil || !d.IsDir() {
					if sub == p {
						return err
					}
					return nil
				}
				if watched++; watched > maxWatches {
					return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s: more than %d directories to watch", path, maxWatches))
				}
				return w.Add(sub)
			})
		})
	}
	if _, err := os.Lstat(path); err != nil {
		return fileError(path, err)
	}
	isDir := false
	if stat, err := os.Stat(path); err == nil {
		isDir = stat.IsDir()
	}
	if err := add(path, r.Msg.Recursive && isDir); err != nil {
		return fileError(path, err)
	}
	if err := st.Send(&wire.WatchResponse{Ready: true}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			for _, op := range ops(e.Op) {
				if err := st.Send(&wire.WatchResponse{Path: []byte(e.Name), Op: op}); err != nil {
					return err
				}
			}
			if r.Msg.Recursive && e.Has(fsnotify.Create) {
				if stat, err := os.Lstat(e.Name); err == nil && stat.IsDir() {
					var ce *connect.Error
					if err := add(e.Name, true); errors.As(err, &ce) {
						return ce
					}
				}
			}
		case err, ok := <-w.Errors:
			if !ok {
				return nil
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fileError(path, err)
			}
			if err := st.Send(&wire.WatchResponse{Op: "overflow"}); err != nil {
				return err
			}
		}
	}
}

func ops(o fsnotify.Op) (out []string) {
	for _, x := range []struct {
		op   fsnotify.Op
		name string
	}{{fsnotify.Create, "create"}, {fsnotify.Write, "write"}, {fsnotify.Remove, "remove"}, {fsnotify.Rename, "rename"}, {fsnotify.Chmod, "chmod"}} {
		if o.Has(x.op) {
			out = append(out, x.name)
		}
	}
	return out
}
