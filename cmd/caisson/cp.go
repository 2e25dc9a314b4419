package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-sandbox/caisson/client"
)

func newCp(g *globals) *cobra.Command {
	cp := &copying{g: g}
	var maxSize mib = 64 << 10
	cmd := &cobra.Command{
		Use: "cp SOURCE DESTINATION", Short: "Copy files between this machine and a sandbox",
		Long: `Copy a file or directory. One of SOURCE and DESTINATION is ID:PATH, the other is on this machine.

A directory goes into a DESTINATION that is there, under its own name, and is else made as DESTINATION. SOURCE/. means what is in
SOURCE. "-" is a tar stream: cp ID:PATH - writes one to stdout, cp - ID:DIRECTORY unpacks stdin. Symbolic links are copied as such.

What comes out of a sandbox is not trusted: nothing is written outside DESTINATION, setuid and setgid are dropped, devices
and pipes are left out.`,
		Example: "  caisson cp src build:/srv\n  caisson cp build:/srv/out.txt .\n  caisson cp build:/etc - | tar t",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cp.limits = untarLimits{bytes: int64(maxSize) << 20, entries: 1_000_000}
			return cp.run(cmd.Context(), args[0], args[1])
		},
	}
	cmd.Flags().StringVarP(&cp.user, "user", "u", "", "whose rights are used in the sandbox: a name or uid[:gid]")
	cmd.Flags().BoolVarP(&cp.owners, "archive", "a", false, "into a sandbox: keep owners (else everything is root's, or that of --user)")
	cmd.Flags().Var(&maxSize, "max-size", "most that may come out of a sandbox, in MiB or with a unit")
	return cmd
}

type copying struct {
	g      *globals
	c      *client.Client
	user   string
	owners bool
	limits untarLimits
}

// place is one side: a path, in a sandbox if that is not "".
type place struct{ sandbox, path string }

// parsePlace follows docker: what begins with . or / is local, and so is C:\ on Windows.
func parsePlace(s string) place {
	id, p, ok := strings.Cut(s, ":")
	windows := runtime.GOOS == "windows" && len(id) == 1
	if !ok || id == "" || windows || strings.HasPrefix(s, ".") || strings.ContainsAny(id, `/\`) {
		return place{path: s}
	}
	if p == "" {
		p = "."
	}
	return place{id, p}
}

func (cp *copying) run(ctx context.Context, from, to string) error {
	src, dst := parsePlace(from), parsePlace(to)
	if (src.sandbox == "") == (dst.sandbox == "") {
		return errors.New("one of SOURCE and DESTINATION is ID:PATH, and the other is on this machine")
	}
	if src.path == "" || dst.path == "" {
		return errors.New("an empty path names nothing")
	}
	return cp.g.do(func(c *client.Client) error {
		cp.c = c
		if dst.sandbox != "" {
			return cp.in(ctx, src.path, dst)
		}
		return cp.out(ctx, src, dst.path)
	})
}

// contents reports whether what is in the path is meant rather than the path.
func contents(p string) bool {
	return p == "." || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, string(filepath.Separator)+".")
}

// isDir reports whether there is a directory at a path of the sandbox, links followed.
func (cp *copying) isDir(ctx context.Context, p place) (exists, dir bool, err error) {
	st, err := cp.c.Stat(ctx, p.sandbox, p.path, cp.user)
	if client.NotFound(err) {
		// The sandbox itself may be what is not there.
		if _, e := cp.c.Get(ctx, p.sandbox); e != nil {
			return false, false, e
		}
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	if st.Type == "symlink" {
		_, err := cp.c.ListFiles(ctx, p.sandbox, p.path+"/.", cp.user, 1)
		return true, err == nil, nil
	}
	return true, st.Type == "dir", nil
}

// in copies into the sandbox. The tar's names say where everything goes below the directory it is unpacked in.
func (cp *copying) in(ctx context.Context, src string, dst place) error {
	exists, dir, err := cp.isDir(ctx, dst)
	if err != nil {
		return err
	}
	if src == "-" {
		if exists && !dir || !exists && !strings.HasSuffix(dst.path, "/") {
			return fmt.Errorf("%s:%s is not a directory", dst.sandbox, dst.path)
		}
		return cp.c.Extract(ctx, dst.sandbox, dst.path, cp.user, io.NopCloser(cp.g.in))
	}
	st, err := os.Lstat(src)
	if err != nil {
		return err
	}
	if st.Mode()&os.ModeSymlink != 0 && (contents(src) || os.IsPathSeparator(src[len(src)-1])) {
		if st, err = os.Stat(src); err != nil {
			return err
		}
	}
	into, name := dst.path, filepath.Base(filepath.Clean(src))
	switch {
	case exists && dir && st.IsDir() && contents(src):
		name = ""
	case exists && dir:
		if abs, err := filepath.Abs(src); err == nil {
			name = filepath.Base(abs) // "..", "dir/.."
		}
	case exists && st.IsDir():
		return fmt.Errorf("%s:%s is not a directory; a directory cannot be copied over it", dst.sandbox, dst.path)
	case !exists && strings.HasSuffix(dst.path, "/") && !st.IsDir():
		return fmt.Errorf("%s:%s does not exist", dst.sandbox, dst.path)
	default:
		into, name = path.Dir(path.Clean(dst.path)), path.Base(path.Clean(dst.path))
		_, parent, err := cp.isDir(ctx, place{dst.sandbox, into})
		if err != nil {
			return err
		}
		if !parent {
			return fmt.Errorf("%s:%s is not a directory", dst.sandbox, into)
		}
	}
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() { // waited for below
		err := writeTar(pw, src, name, cp.owners, func(format string, args ...any) { fmt.Fprintf(cp.g.err, "caisson: "+format+"\n", args...) })
		pw.CloseWithError(err)
		done <- err
	}()
	err = cp.c.Extract(ctx, dst.sandbox, into, cp.user, pr)
	pr.CloseWithError(io.ErrClosedPipe)
	if local := <-done; local != nil && !errors.Is(local, io.ErrClosedPipe) {
		return local
	}
	return err
}

// out copies out of the sandbox.
func (cp *copying) out(ctx context.Context, src place, dst string) error {
	name := path.Base(path.Clean("/" + src.path))
	inside := contents(src.path) || name == "/" || path.Base(path.Clean(src.path)) == ".."
	archived := src.path
	if inside && archived != "/" {
		archived = strings.TrimSuffix(archived, ".")
		if archived == "" {
			archived = "."
		}
	}
	rc, err := cp.c.Archive(ctx, src.sandbox, archived, cp.user)
	if err != nil {
		return err
	}
	defer rc.Close()
	if dst == "-" {
		if _, ok := terminal(cp.g.out); ok {
			return errors.New("a tar stream does not go to a terminal; send it to a file or a pipe")
		}
		_, err := io.Copy(cp.g.out, rc)
		return err
	}
	u := &untar{limits: cp.limits, warn: func(format string, args ...any) { fmt.Fprintf(cp.g.err, "caisson: "+format+"\n", args...) }}
	return u.extract(rc, dst, name, inside)
}
