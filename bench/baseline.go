package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// baselines measures what the machine has beside us: a plain process always, other sandboxes where they are installed, with
// a root taken out of one of our own sandboxes.
func baselines(ctx context.Context, o Options, r *Report) error {
	times, err := repeat(ctx, 5*o.Rounds, func(int) *exec.Cmd { return exec.CommandContext(ctx, "/bin/true") })
	if err != nil {
		return err
	}
	r.add(HostSpawn, "ms", times)
	if o.Runsc == "" && o.Runc == "" && o.Bwrap == "" {
		return nil
	}
	root := filepath.Join(o.WorkDir, "bundle", "rootfs")
	if err := o.takeRoot(ctx, root); err != nil {
		return fmt.Errorf("take a root out of a sandbox: %w", err)
	}
	if err := writeBundle(filepath.Dir(root)); err != nil {
		return err
	}
	state := filepath.Join(o.WorkDir, "state")
	var all error
	for _, b := range []struct {
		name, path string
		args       func(id string) []string
	}{
		{RunscRun, o.Runsc, func(id string) []string {
			return []string{"--root", state, "--network=none", "--ignore-cgroups", "run", "--bundle", filepath.Dir(root), id}
		}},
		{RuncRun, o.Runc, func(id string) []string { return []string{"--root", state, "run", "--bundle", filepath.Dir(root), id} }},
		{BwrapRun, o.Bwrap, func(string) []string {
			return []string{"--bind", root, "/", "--proc", "/proc", "--dev", "/dev", "--unshare-all", "/bin/echo", "x"}
		}},
	} {
		if b.path == "" {
			continue
		}
		times, err := repeat(ctx, o.Rounds, func(i int) *exec.Cmd {
			return exec.CommandContext(ctx, b.path, b.args(fmt.Sprintf("bench-%d-%d", os.Getpid(), i))...)
		})
		if err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", b.name, err))
			continue
		}
		r.add(b.name, "ms", times)
	}
	return all
}

// repeat times whole commands.
func repeat(ctx context.Context, n int, make func(int) *exec.Cmd) ([]float64, error) {
	var times []float64
	for i := range n {
		cmd := make(i)
		var diag bytes.Buffer
		cmd.Stderr = &diag
		begin := time.Now()
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%w: %.500s", err, diag.String())
		}
		times = append(times, ms(time.Since(begin)))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return times, nil
}

// takeRoot copies /bin of the base template, which is all that its programs need.
func (o Options) takeRoot(ctx context.Context, dir string) error {
	id, err := o.create(ctx)
	if err != nil {
		return err
	}
	defer o.Client.Delete(context.WithoutCancel(ctx), id)
	rc, err := o.Client.Archive(ctx, id, "/bin", "")
	if err != nil {
		return err
	}
	defer rc.Close()
	for _, d := range []string{"proc", "dev", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(dir) // the archive is a guest's: it must not leave the directory
	if err != nil {
		return err
	}
	defer root.Close()
	for tr := tar.NewReader(rc); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		case tar.TypeReg:
			var f *os.File
			if f, err = root.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755); err == nil {
				_, err = io.Copy(f, tr)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			return err
		}
	}
}

// writeBundle writes the OCI configuration that runsc and runc run.
func writeBundle(dir string) error {
	caps := []string{}
	cfg := map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"args": []string{"/bin/echo", "x"}, "cwd": "/", "env": []string{"PATH=/bin"}, "user": map[string]int{"uid": 0, "gid": 0},
			"capabilities": map[string]any{"bounding": caps, "effective": caps, "permitted": caps},
		},
		"root": map[string]any{"path": "rootfs", "readonly": true},
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
		},
		"linux": map[string]any{"namespaces": []map[string]string{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}}},
	}
	b, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
}
