// Package image keeps the templates that sandboxes start from, as files on the server's disk.
//
//	<dir>/<hex of the digest>/root.erofs      the root filesystem
//	<dir>/<hex of the digest>/template.json   what goes with it: user, directory, environment
//	<dir>/names.json                          name:tag → digest
//	<dir>/.tmp-*                              imports under way, removed at the next Open
//
// An image is complete and synced before its directory gets its name, and a name is written after the image it points
// to, so a crash leaves at most a .tmp-* directory or an image without a name. One process owns the directory.
package image

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-sandbox/caisson"
)

// InUse gives the digests ("sha256:…") that sandboxes need, stopped ones included.
type InUse func(context.Context) (map[string]bool, error)

// Store is the template store. It is safe for concurrent use.
type Store struct {
	dir string

	mu     sync.Mutex
	names  map[string]string           // name:tag → digest; what names.json holds
	images map[string]caisson.Template // digest → template, its Name empty
	inUse  InUse
}

var _ caisson.Templates = (*Store)(nil)

// Open opens the store in dir, making it if need be, and removes what a crash left. Names whose image is gone are
// forgotten.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, broken("open", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, broken("open", dir, err)
	}
	s := &Store{dir: dir, images: map[string]caisson.Template{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, broken("open", dir, err)
	}
	for _, e := range entries {
		switch p := filepath.Join(dir, e.Name()); {
		case strings.HasPrefix(e.Name(), tempPrefix):
			if err := os.RemoveAll(p); err != nil {
				return nil, broken("open", p, err)
			}
		case isHex(e.Name(), 64) && e.IsDir():
			t, err := readTemplate(p)
			if err != nil {
				return nil, broken("open", p, err)
			}
			s.images[digestPrefix+e.Name()] = t
		}
	}
	if s.names, err = readNames(dir); err != nil {
		return nil, broken("open", filepath.Join(dir, namesFile), err)
	}
	maps.DeleteFunc(s.names, func(_, digest string) bool { _, ok := s.images[digest]; return !ok })
	return s, nil
}

// SetInUse says how to learn which images sandboxes need. Before it is called, no image is deleted.
//
// f is called with the store locked and must not call it. A sandbox must be listed before its image is opened, or the
// image may go in between.
func (s *Store) SetInUse(f InUse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse = f
}

// List gives a template for every name, sorted by name. Images without a name are not listed.
func (s *Store) List(ctx context.Context) ([]caisson.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]caisson.Template, 0, len(s.names))
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		list = append(list, s.named(name))
	}
	return list, nil
}

// Resolve takes name, name:tag, a digest or at least 12 digits of one that fit a single image. What could be both is a
// name. A template found by its digest has the first of its names, or none.
func (s *Store) Resolve(ctx context.Context, ref string) (caisson.Template, error) {
	const op = "resolve template"
	s.mu.Lock()
	defer s.mu.Unlock()
	if name, err := parseName(op, ref); err == nil {
		if _, ok := s.names[name]; ok {
			return s.named(name), nil
		}
	}
	hex, isDigest := strings.CutPrefix(ref, digestPrefix)
	if len(hex) < minPrefix || len(hex) > 64 || !isHex(hex, len(hex)) {
		if isDigest {
			return caisson.Template{}, caisson.E(caisson.Invalid, op, ref, "not a digest", nil).
				WithHint("Give sha256: and at least 12 hexadecimal digits.")
		}
		if _, err := parseName(op, ref); err != nil {
			return caisson.Template{}, err
		}
		return caisson.Template{}, missing(op, ref)
	}
	var found []string
	for digest := range s.images {
		if strings.HasPrefix(digest, digestPrefix+hex) {
			found = append(found, digest)
		}
	}
	switch len(found) {
	case 0:
		return caisson.Template{}, missing(op, ref)
	case 1:
	default:
		return caisson.Template{}, caisson.E(caisson.Invalid, op, ref, "several templates have this digest", nil).
			WithHint("Give more digits.")
	}
	t := s.template(found[0])
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		if s.names[name] == found[0] {
			t.Name = name
			break
		}
	}
	return t, nil
}

// Path gives the absolute path of the EROFS image of a digest. The file never changes.
func (s *Store) Path(digest string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.images[digest]; !ok {
		return "", missing("find image", digest)
	}
	return filepath.Join(s.imageDir(digest), rootFile), nil
}

// Remove forgets the name, and deletes its image if neither another name nor a sandbox needs it.
func (s *Store) Remove(ctx context.Context, name string) error {
	const op = "remove template"
	name, err := parseName(op, name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	digest, ok := s.names[name]
	if !ok {
		return missing(op, name)
	}
	names := maps.Clone(s.names)
	delete(names, name)
	if err := s.setNames(names); err != nil {
		return broken(op, name, err)
	}
	_, err = s.collect(ctx, digest)
	return err
}

// Prune deletes the images that neither a name nor a sandbox needs and returns their digests.
func (s *Store) Prune(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.collect(ctx, slices.Sorted(maps.Keys(s.images))...)
}

// collect deletes those of the digests that nothing needs. s.mu is held.
func (s *Store) collect(ctx context.Context, digests ...string) ([]string, error) {
	const op = "delete image"
	if s.inUse == nil {
		return nil, nil
	}
	needed, err := s.inUse(ctx)
	if err != nil {
		return nil, caisson.E(caisson.KindOf(err), op, "", "cannot tell which images sandboxes need", err)
	}
	named := map[string]bool{}
	for _, d := range s.names {
		named[d] = true
	}
	var gone []string
	for _, d := range digests {
		if named[d] || needed[d] {
			continue
		}
		// Renamed first, so that a crash in between leaves a temporary directory, not half an image.
		trash := filepath.Join(s.dir, tempPrefix+"gone-"+d[len(digestPrefix):])
		if err := os.Rename(s.imageDir(d), trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return gone, broken(op, d, err)
		}
		delete(s.images, d)
		gone = append(gone, d)
		if err := os.RemoveAll(trash); err != nil {
			return gone, broken(op, d, err)
		}
	}
	return gone, nil
}

// template gives the template of a digest, without a name. s.mu is held.
func (s *Store) template(digest string) caisson.Template {
	t := s.images[digest]
	t.Env = maps.Clone(t.Env)
	return t
}

// named gives the template of a name that exists. s.mu is held.
func (s *Store) named(name string) caisson.Template {
	t := s.template(s.names[name])
	t.Name = name
	return t
}

func (s *Store) imageDir(digest string) string {
	return filepath.Join(s.dir, strings.TrimPrefix(digest, digestPrefix))
}

func missing(op, ref string) error {
	return caisson.E(caisson.NotFound, op, ref, "no such template", nil).
		WithHint("List the templates there are, or import this one.")
}

func broken(op, subject string, err error) error {
	return caisson.E(caisson.Internal, op+" in the template store", subject, "the disk does not do as told", err)
}
