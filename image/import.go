package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/image/rootfs"
	"github.com/caisson-sandbox/caisson/internal/durable"
)

// Import makes a template from a root filesystem in tar form (plain, gzip or zstd) and gives it the name, taking it
// from the image that had it. Its user, directory and environment are empty: a tar says nothing of them.
func (s *Store) Import(ctx context.Context, name string, tar io.Reader) (caisson.Template, error) {
	return s.add(ctx, "import template", name, caisson.Template{}, func(f *os.File) error {
		_, err := rootfs.FromTar(ctx, tar, f)
		return err
	})
}

// Install makes a template of a ready EROFS image, with the user, directory and environment of t, and gives it the name.
// If t has a digest, the image must have it; and if the name already points to that digest, erofs is not read.
func (s *Store) Install(ctx context.Context, name string, erofs io.Reader, t caisson.Template) (caisson.Template, error) {
	const op = "install template"
	full, err := parseName(op, name)
	if err != nil {
		return caisson.Template{}, err
	}
	s.mu.Lock()
	if t.Digest != "" && s.names[full] == t.Digest {
		defer s.mu.Unlock()
		if err := s.configure(t); err != nil {
			return caisson.Template{}, broken(op, full, err)
		}
		return s.named(full), nil
	}
	s.mu.Unlock()
	return s.add(ctx, op, name, t, func(f *os.File) error {
		_, err := io.Copy(f, &ctxReader{ctx, erofs})
		return err
	})
}

// configure gives a stored image the user, directory and environment of t. s.mu is held.
func (s *Store) configure(t caisson.Template) error {
	old := s.images[t.Digest]
	if old.User == t.User && old.Cwd == t.Cwd && maps.Equal(old.Env, t.Env) {
		return nil
	}
	old.User, old.Cwd, old.Env = t.User, t.Cwd, maps.Clone(t.Env)
	if err := writeTemplate(s.imageDir(t.Digest), old); err != nil {
		return err
	}
	s.images[t.Digest] = old
	return nil
}

// add has fill write an image to a temporary place, moves it to its digest and points the name to it.
func (s *Store) add(ctx context.Context, op, name string, t caisson.Template, fill func(*os.File) error) (caisson.Template, error) {
	name, err := parseName(op, name)
	if err != nil {
		return caisson.Template{}, err
	}
	temp, err := os.MkdirTemp(s.dir, tempPrefix)
	if err != nil {
		return caisson.Template{}, failed(op, name, err)
	}
	defer os.RemoveAll(temp)
	digest, size, err := writeImage(ctx, filepath.Join(temp, rootFile), fill)
	if err != nil {
		return caisson.Template{}, failed(op, name, err)
	}
	if t.Digest != "" && t.Digest != digest {
		return caisson.Template{}, caisson.E(caisson.Invalid, op, name, "the image is damaged: its digest is "+digest, nil)
	}
	t.Name, t.Digest, t.Size = "", digest, size
	t.CreatedAt, t.Env = time.Now().UTC().Truncate(time.Second), maps.Clone(t.Env)
	if err := writeTemplate(temp, t); err != nil {
		return caisson.Template{}, failed(op, name, err)
	}
	return s.publish(ctx, op, name, temp, t)
}

// publish moves a complete directory to its digest, if that is new, and points the name to it.
func (s *Store) publish(ctx context.Context, op, name, temp string, t caisson.Template) (caisson.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.images[t.Digest]; ok {
		// An import says nothing of user, directory and environment, so it leaves those there are.
		if t.User != "" || t.Cwd != "" || len(t.Env) > 0 {
			if err := s.configure(t); err != nil {
				return caisson.Template{}, failed(op, name, err)
			}
		}
	} else {
		if err := os.Rename(temp, s.imageDir(t.Digest)); err != nil {
			return caisson.Template{}, failed(op, name, err)
		}
		s.images[t.Digest] = t
		if err := durable.Dir(s.dir); err != nil {
			return caisson.Template{}, failed(op, name, err)
		}
	}
	old := s.names[name]
	if old == t.Digest {
		return s.named(name), nil
	}
	names := maps.Clone(s.names)
	names[name] = t.Digest
	if err := s.setNames(names); err != nil {
		return caisson.Template{}, failed(op, name, err)
	}
	if old != "" {
		_, _ = s.collect(ctx, old) // the import has succeeded; Prune tries again
	}
	return s.named(name), nil
}

// writeImage makes the file, syncs it and gives its digest.
func writeImage(ctx context.Context, path string, fill func(*os.File) error) (digest string, size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", 0, err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if err := fill(f); err != nil {
		return "", 0, err
	}
	if err := f.Sync(); err != nil {
		return "", 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", 0, err
	}
	h := sha256.New()
	if size, err = io.Copy(h, &ctxReader{ctx, f}); err != nil {
		return "", 0, err
	}
	return digestPrefix + hex.EncodeToString(h.Sum(nil)), size, nil
}

// failed words the failure of an import: those of the input and of limits are told already.
func failed(op, name string, err error) error {
	var e *caisson.Error
	switch {
	case errors.As(err, &e):
		c := *e
		c.Op, c.Subject = op, name
		if e.Subject != "" {
			c.Msg = e.Subject + ": " + e.Msg
		}
		if c.Kind == caisson.Invalid && c.Hint == "" {
			c.Hint = "Give the root filesystem as a tar, plain or compressed with gzip or zstd, as from docker export."
		}
		return &c
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return caisson.E(caisson.KindOf(err), op, name, "it was stopped", err)
	case errors.Is(err, syscall.ENOSPC):
		return caisson.E(caisson.Exhausted, op, name, "the disk is full", err).WithHint("Remove templates that are not needed.")
	}
	return broken(op, name, err)
}

// ctxReader stops reading when ctx ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
