package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/internal/durable"
)

const (
	rootFile     = "root.erofs"
	templateFile = "template.json"
	namesFile    = "names.json"
	tempPrefix   = ".tmp-"
)

// record is the form of template.json.
type record struct {
	Digest    string            `json:"digest"`
	Size      int64             `json:"size"`
	CreatedAt time.Time         `json:"created_at"`
	User      string            `json:"user,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
}

// readTemplate reads the directory of an image and checks that the image has its size.
func readTemplate(dir string) (caisson.Template, error) {
	var r record
	if err := readJSON(filepath.Join(dir, templateFile), &r); err != nil {
		return caisson.Template{}, err
	}
	if want := digestPrefix + filepath.Base(dir); r.Digest != want {
		return caisson.Template{}, fmt.Errorf("it holds the template %s", r.Digest)
	}
	st, err := os.Stat(filepath.Join(dir, rootFile))
	if err != nil {
		return caisson.Template{}, err
	}
	if st.Size() != r.Size {
		return caisson.Template{}, fmt.Errorf("the image has %d bytes, not %d", st.Size(), r.Size)
	}
	return caisson.Template{Digest: r.Digest, Size: r.Size, CreatedAt: r.CreatedAt, User: r.User, Cwd: r.Cwd, Env: r.Env}, nil
}

func writeTemplate(dir string, t caisson.Template) error {
	return writeJSON(dir, templateFile, record{
		Digest: t.Digest, Size: t.Size, CreatedAt: t.CreatedAt, User: t.User, Cwd: t.Cwd, Env: t.Env,
	})
}

func readNames(dir string) (map[string]string, error) {
	names := map[string]string{}
	err := readJSON(filepath.Join(dir, namesFile), &names)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return names, err
}

// setNames writes names.json and keeps the map. s.mu is held.
func (s *Store) setNames(names map[string]string) error {
	if err := writeJSON(s.dir, namesFile, names); err != nil {
		return err
	}
	s.names = names
	return nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// writeJSON replaces the file dir/name at once and durably.
func writeJSON(dir, name string, v any) (err error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, tempPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err == nil {
		err = durable.Dir(dir)
	}
	return err
}
