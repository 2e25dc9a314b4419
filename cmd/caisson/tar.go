package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// writeTar writes the file or tree at src, its names below name; with name "" those below src alone. Links are kept as links.
func writeTar(w io.Writer, src, name string, owners bool, warn func(string, ...any)) error {
	tw := tar.NewWriter(w)
	if contents(src) || os.IsPathSeparator(src[len(src)-1]) {
		if real, err := filepath.EvalSymlinks(src); err == nil {
			src = real
		}
	}
	src = filepath.Clean(src)
	err := filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		entry := path.Join(name, filepath.ToSlash(rel))
		if entry == "." {
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		return writeEntry(tw, p, entry, st, owners, warn)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func writeEntry(tw *tar.Writer, p, entry string, st fs.FileInfo, owners bool, warn func(string, ...any)) error {
	target := ""
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		var err error
		if target, err = os.Readlink(p); err != nil {
			return err
		}
	case !st.IsDir() && !st.Mode().IsRegular():
		warn("%q is left out: it is a device, pipe or socket", p)
		return nil
	}
	var f *os.File
	if st.Mode().IsRegular() {
		var err error
		if f, err = os.Open(p); err != nil {
			return err
		}
		defer f.Close()
		if st, err = f.Stat(); err != nil {
			return err
		}
		if !st.Mode().IsRegular() {
			return fmt.Errorf("%q changed while it was read", p)
		}
	}
	h, err := tar.FileInfoHeader(st, target)
	if err != nil {
		return err
	}
	h.Format, h.Name, h.Uname, h.Gname = tar.FormatPAX, entry, "", ""
	if st.IsDir() {
		h.Name += "/"
	}
	if !owners {
		h.Uid, h.Gid = 0, 0
	}
	if err := tw.WriteHeader(h); err != nil || f == nil {
		return err
	}
	n, err := io.Copy(tw, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%q became shorter while it was read", p)
	}
	return err
}
