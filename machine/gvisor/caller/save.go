package caller

import (
	"fmt"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/caisson-sandbox/caisson/machine/gvisor/wire"
)

// save writes the writable layer of a running sentry into an empty directory and makes it durable.
func save(req wire.Request, next func(string)) error {
	next("prepare")
	conf, err := configure()
	if err != nil {
		return err
	}
	sb := &sandbox.Sandbox{ID: req.ID, ControlSocketPath: "runsc-" + req.ID + ".sock"}
	sb.Pid.Store(req.PID)
	next("save")
	if err := sb.FSSave(conf, req.ID, req.SaveTo, sandbox.FSSaveOpts{}); err != nil {
		return err
	}
	next("sync")
	return syncDir(req.SaveTo)
}

// syncDir makes every file of a directory, and the directory, durable.
func syncDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	names := []string{"."}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, n := range names {
		f, err := os.Open(filepath.Join(dir, n))
		if err != nil {
			return err
		}
		err = f.Sync()
		f.Close()
		if err != nil {
			return fmt.Errorf("sync %s: %w", n, err)
		}
	}
	return nil
}
