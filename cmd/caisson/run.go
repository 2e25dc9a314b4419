package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/client"
)

func newRun(g *globals) *cobra.Command {
	var cf createFlags
	var ef execFlags
	var template string
	var rm bool
	cmd := own(&cobra.Command{
		Use: "run [flags] [--] PROGRAM [ARGUMENT…]", Short: "Create a sandbox and run a command in it",
		Long: `Create a sandbox and run a command in it, as create and exec do. --rm deletes the sandbox at the end.

Where no server is reachable, run starts one for itself and deletes the sandbox in any case. That server works in a temporary
directory, unless --state-dir or CAISSON_STATE_DIR names one. With --detach the ids of sandbox and command are printed.
` + exitHelp,
		Example: "  caisson run --rm -- uname -a\n  caisson run -it --template python -- python3",
		RunE: func(cmd *cobra.Command, args []string) error {
			argv, err := program(args)
			if err != nil {
				return err
			}
			box, err := cf.sandbox(template)
			if err != nil {
				return err
			}
			ctx, sig := cmd.Context(), catchSignals()
			defer sig.stop()
			c, done, err := g.serverFor(ctx, ef.detach)
			if err != nil {
				return g.reach(err)
			}
			r := &oneRun{g: g, c: c, box: box, rm: rm || done != nil, flags: ef, signals: sig, spec: v1.CommandCreate{Argv: argv, Timeout: v1.Duration(ef.timeout)}}
			err = g.reach(r.do(ctx))
			c.Close()
			if done != nil {
				if e := done(); e != nil {
					fmt.Fprintf(g.err, "caisson: stopping the server: %v\n", e)
				}
			}
			return err
		},
	})
	f := cmd.Flags()
	f.SetInterspersed(false)
	cf.add(f)
	ef.add(f)
	f.StringVar(&template, "template", "", "template to start from (default base)")
	f.BoolVar(&rm, "rm", false, "delete the sandbox at the end")
	return cmd
}

// serverFor gives a client of the server there is, or of one started here; done then stops it.
func (g *globals) serverFor(ctx context.Context, detach bool) (c *client.Client, done func() error, err error) {
	if c, err = g.client(); err != nil {
		return nil, nil, err
	}
	_, err = c.Info(ctx)
	if g.url != "" || !client.Unreachable(err) {
		return c, nil, err
	}
	c.Close()
	if detach {
		return nil, nil, errors.New("no server is reachable: --detach needs one that stays; start it with `caisson serve`")
	}
	g.progress("no server is reachable; starting one…")
	defer g.progress("\r\033[K")
	remove := func() error { return nil }
	dir := g.stateDir
	if !g.stateDirSet {
		if dir, err = os.MkdirTemp("", "caisson-run-"); err != nil {
			return nil, nil, err
		}
		remove = func() error { return os.RemoveAll(dir) }
	}
	srv, err := startServer(ctx, serveOptions{StateDir: dir})
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	done = func() error { return errors.Join(srv.Close(), remove()) }
	c, err = client.New(client.Options{Socket: filepath.Join(dir, "caisson.sock"), UserAgent: "caisson/" + version, OnLost: g.lost})
	if err != nil {
		return nil, nil, errors.Join(err, done())
	}
	return c, done, nil
}

// oneRun is a sandbox for one command.
type oneRun struct {
	g       *globals
	c       *client.Client
	box     v1.SandboxCreate
	spec    v1.CommandCreate
	rm      bool
	flags   execFlags
	signals *signals
}

func (r *oneRun) do(ctx context.Context) (err error) {
	b, err := r.g.create(ctx, r.c, r.box, "")
	if err != nil {
		return err
	}
	if r.rm && !r.flags.detach {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			if e := r.c.Delete(ctx, b.ID); e != nil && !client.NotFound(e) {
				fmt.Fprintf(r.g.err, "caisson: sandbox %s was not deleted: %v\n", b.ID, e)
			}
		}()
	}
	if r.signals.interrupted() {
		return &exitError{130, "interrupted before the command started"}
	}
	s := &session{g: r.g, c: r.c, sandbox: b.ID, stdin: r.flags.stdin, tty: r.flags.tty, signals: r.signals}
	if !r.flags.detach {
		if r.rm {
			s.hint = "its sandbox is being deleted"
		}
		return s.run(ctx, r.spec)
	}
	if r.rm {
		return errors.Join(errors.New("--rm and --detach do not go together"), r.c.Delete(ctx, b.ID))
	}
	r.spec.Stdin = r.flags.stdin
	if r.flags.tty {
		size := s.size()
		r.spec.TTY = &size
	}
	k, err := r.c.StartCommand(ctx, b.ID, r.spec)
	if err != nil {
		return fmt.Errorf("%w (in sandbox %s, which stays)", err, b.ID)
	}
	if r.g.json {
		return r.g.printJSON(map[string]any{"sandbox": b, "command": k})
	}
	fmt.Fprintln(r.g.out, b.ID, k.ID)
	return nil
}
