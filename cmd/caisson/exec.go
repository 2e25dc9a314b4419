package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/client"
)

// execFlags are what exec and run have in common.
type execFlags struct {
	stdin, tty, detach bool
	timeout            duration
}

func (e *execFlags) add(f *pflag.FlagSet) {
	f.BoolVarP(&e.stdin, "interactive", "i", false, "pass stdin on")
	f.BoolVarP(&e.tty, "tty", "t", false, "give the command a terminal")
	f.BoolVarP(&e.detach, "detach", "d", false, "do not wait; print the command's id")
	f.Var(&e.timeout, "timeout", "kill the command after this long (90s, 5m) and end with 124")
}

// own marks a command whose own errors end with 125.
func own(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{ownCode: exitCodesOwn}
	return cmd
}

// program takes the "--" away that may stand before a program.
func program(args []string) ([]string, error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return nil, errors.New("name the command to run: -- PROGRAM ARGUMENT…")
	}
	return args, nil
}

func newExec(g *globals) *cobra.Command {
	var e execFlags
	var env []string
	var spec v1.CommandCreate
	cmd := own(&cobra.Command{
		Use: "exec [flags] ID [--] PROGRAM [ARGUMENT…]", Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox, and stay with it.

Its stdout and stderr come out as its own. Signals go to it; a second interrupt within two seconds leaves it running, as
Ctrl-P Ctrl-Q does with -it. A lost connection, even to a server that restarts, is taken up again without a loss.
` + exitHelp,
		Example: "  caisson exec build -- make test\n  caisson exec -it build -- bash\n  tar c . | caisson exec -i build -- tar x -C /src",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if spec.Argv, err = program(args[1:]); err != nil {
				return err
			}
			if spec.Env, err = environment(env); err != nil {
				return err
			}
			spec.Timeout = v1.Duration(e.timeout)
			return g.do(func(c *client.Client) error { return g.exec(cmd, c, args[0], spec, e) })
		},
	})
	f := cmd.Flags()
	f.SetInterspersed(false)
	e.add(f)
	addCommandFlags(f, &env, &spec.User, &spec.Cwd)
	return cmd
}

func (g *globals) exec(cmd *cobra.Command, c *client.Client, sandbox string, spec v1.CommandCreate, e execFlags) error {
	s := &session{g: g, c: c, sandbox: sandbox, stdin: e.stdin, tty: e.tty}
	if !e.detach {
		s.signals = catchSignals()
		defer s.signals.stop()
		return s.run(cmd.Context(), spec)
	}
	spec.Stdin = e.stdin
	if e.tty {
		size := s.size()
		spec.TTY = &size
	}
	out, err := c.StartCommand(cmd.Context(), sandbox, spec)
	if err != nil {
		return err
	}
	if g.json {
		return g.printJSON(out)
	}
	fmt.Fprintln(g.out, out.ID)
	return nil
}

func newLogs(g *globals) *cobra.Command {
	var from uint64
	var follow, stamps bool
	cmd := own(&cobra.Command{
		Use: "logs [flags] ID COMMAND", Short: "Print what a command wrote",
		Long: `Print what a command wrote, to stdout and stderr as it did. When it has ended, logs ends with its exit code; while it
still runs, and without --follow, with 0.
` + exitHelp,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.do(func(c *client.Client) error {
				s := &session{g: g, c: c, sandbox: args[0], stamps: stamps}
				if follow {
					return s.follow(cmd.Context(), c.Follow(cmd.Context(), args[0], args[1], from))
				}
				return s.follow(cmd.Context(), c.Replay(cmd.Context(), args[0], args[1], from))
			})
		},
	})
	f := cmd.Flags()
	f.Uint64Var(&from, "from", 0, "number of the first event to print")
	f.BoolVarP(&follow, "follow", "f", false, "go on until the command ends")
	f.BoolVarP(&stamps, "timestamps", "t", false, "put the time before each line")
	return cmd
}

func newAttach(g *globals) *cobra.Command {
	var from uint64
	var noStdin bool
	cmd := own(&cobra.Command{
		Use: "attach [flags] ID COMMAND", Short: "Join a command that runs",
		Long: `Join a command that runs: see what it writes from now on, and type for it if its stdin was kept open (exec -i -d).
Signals go to it; a second interrupt within two seconds, or Ctrl-P Ctrl-Q in a terminal, leaves it running.
` + exitHelp,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.do(func(c *client.Client) error {
				ctx := cmd.Context()
				k, err := c.Command(ctx, args[0], args[1])
				if err != nil {
					return err
				}
				if !cmd.Flags().Changed("from") {
					if from = k.LastSeq + 1; k.Exit != nil {
						from = k.LastSeq
					}
				}
				s := &session{g: g, c: c, sandbox: args[0], stdin: (k.Stdin || k.TTY != nil) && !noStdin && k.Exit == nil, signals: catchSignals()}
				defer s.signals.stop()
				if k.TTY != nil {
					s.tty = true
					return s.terminal(ctx, k.ID, from)
				}
				return s.follow(ctx, c.Follow(ctx, args[0], k.ID, from))
			})
		},
	})
	cmd.Flags().Uint64Var(&from, "from", 0, "number of the first event to print (default: what comes from now on)")
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "do not pass stdin on")
	return cmd
}
