package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/caisson-sandbox/caisson/bench"
)

func newBench(g *globals) *cobra.Command {
	var o bench.Options
	var mib int64
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure the server, and what else this machine has beside it", Args: cobra.NoArgs,
		Long: `Measure create to first output, the round trip of a command, output, files, idle memory and creates at once, as percentiles.

Beside it, in the same run: the spawn of a plain process and, where they are found in PATH or beside caisson, runsc (make runsc builds it), runc
and bwrap running the same root. Compare ratios; absolute times of two runs are not comparable. Without a server, one is started for the run.`,
		Example: "  caisson bench\n  caisson bench --json --rounds 50 --at-once 1,10",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			c, done, err := g.serverFor(cmd.Context(), false)
			if err != nil {
				return g.reach(err)
			}
			defer func() {
				c.Close()
				if done != nil {
					err = errors.Join(err, done())
				}
			}()
			o.Client, o.Bytes = c, mib<<20
			o.Progress = func(what string) { g.progress("\r\033[Kmeasuring: %s…", what) }
			for _, b := range []struct {
				path *string
				name string
			}{{&o.Runsc, "runsc"}, {&o.Runc, "runc"}, {&o.Bwrap, "bwrap"}} {
				if *b.path == "" {
					*b.path = findTool(b.name)
				}
			}
			if o.WorkDir, err = os.MkdirTemp("", "caisson-bench-"); err != nil {
				return err
			}
			defer os.RemoveAll(o.WorkDir)
			r, err := bench.Run(cmd.Context(), o)
			g.progress("\r\033[K")
			if err != nil {
				return g.reach(err)
			}
			if g.json {
				return g.printJSON(r)
			}
			return r.Table(g.out)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Rounds, "rounds", 20, "how often each single measurement is made")
	f.IntSliceVar(&o.Concurrency, "at-once", []int{1, 10, 50}, "numbers of creates at once")
	f.StringVar(&o.Template, "template", "base", "template to measure with")
	f.IntVar(&o.MemoryMiB, "memory", 128, "MiB of each sandbox")
	f.Int64Var(&mib, "mib", 256, "MiB of output and of files")
	f.StringVar(&o.Runsc, "runsc", "", "path of runsc (default: from PATH, or beside caisson)")
	return cmd
}

// findTool looks for a command in PATH and beside this executable.
func findTool(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	p, _ := exec.LookPath(filepath.Join(filepath.Dir(self), name))
	return p
}
