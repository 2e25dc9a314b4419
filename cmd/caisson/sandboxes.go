package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/client"
)

// table prints columns, plain.
func (g *globals) table(rows [][]string) error {
	w := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		for i, c := range r {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, printable(c))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := max(time.Since(t), 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

func newLs(g *globals) *cobra.Command {
	var quiet bool
	var metadata []string
	var f client.Filter
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list", "ps"}, Short: "List sandboxes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.Metadata, err = pairs("--metadata", metadata); err != nil {
				return err
			}
			return g.do(func(c *client.Client) error {
				f.Limit = v1.MaxPageSize
				all, err := c.ListAll(cmd.Context(), f)
				if err != nil {
					return err
				}
				switch {
				case g.json:
					return g.printJSON(all)
				case quiet:
					for _, b := range all {
						fmt.Fprintln(g.out, b.ID)
					}
					return nil
				}
				rows := [][]string{{"ID", "NAME", "TEMPLATE", "STATE", "ISOLATION", "AGE"}}
				for _, b := range all {
					state := b.State
					if b.Reason != "" {
						state += " (" + b.Reason + ")"
					}
					rows = append(rows, []string{b.ID, b.Name, b.Template, state, b.Isolation, age(b.CreatedAt)})
				}
				return g.table(rows)
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&quiet, "quiet", "q", false, "print ids alone")
	fl.StringArrayVar(&metadata, "metadata", nil, "show those with KEY=VALUE; may be repeated")
	fl.StringSliceVar(&f.States, "state", nil, "show those in this state; may be repeated")
	fl.StringVar(&f.Name, "name", "", "show the one of this name")
	return cmd
}

func newInspect(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "inspect ID", Short: "Print a sandbox as JSON", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.do(func(c *client.Client) error {
				b, err := c.Get(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return g.printJSON(b)
			})
		},
	}
}

// each does something to every sandbox named, and goes on after an error.
func (g *globals) each(ids []string, do func(id string) (any, error)) error {
	failed := 0
	for _, id := range ids {
		v, err := do(id)
		switch {
		case err != nil && client.Unreachable(err):
			return err
		case err != nil:
			failed++
			fmt.Fprintf(g.err, "caisson: %s: %v\n", id, err)
		case g.json:
			if err := g.printLine(v); err != nil {
				return err
			}
		default:
			fmt.Fprintln(g.out, id)
		}
	}
	if failed > 0 {
		return &exitError{code: 1}
	}
	return nil
}

func newRm(g *globals) *cobra.Command {
	var all, force bool
	cmd := &cobra.Command{
		Use: "rm ID…", Aliases: []string{"delete"}, Short: "Delete sandboxes, whatever their state",
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return fmt.Errorf("name sandboxes to delete, or give --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, ids []string) error {
			return g.do(func(c *client.Client) error {
				if all {
					bs, err := c.ListAll(cmd.Context(), client.Filter{Limit: v1.MaxPageSize})
					if err != nil {
						return err
					}
					for _, b := range bs {
						ids = append(ids, b.ID)
					}
				}
				return g.each(ids, func(id string) (any, error) {
					return map[string]any{"id": id, "deleted": true}, c.Delete(cmd.Context(), id)
				})
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "delete every sandbox")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "does nothing: rm works in every state")
	return cmd
}

func newStop(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "stop ID…", Short: "Stop sandboxes: their commands end, their disks are kept", Args: cobra.MinimumNArgs(1),
		RunE: g.lifecycle(func(ctx context.Context, c *client.Client, id string) (v1.Sandbox, error) { return c.Stop(ctx, id) }),
	}
}

func newStart(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "start ID…", Short: "Start stopped sandboxes", Args: cobra.MinimumNArgs(1),
		RunE: g.lifecycle(func(ctx context.Context, c *client.Client, id string) (v1.Sandbox, error) {
			b, _, err := c.Start(ctx, id)
			return b, err
		}),
	}
}

func (g *globals) lifecycle(do func(context.Context, *client.Client, string) (v1.Sandbox, error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, ids []string) error {
		return g.do(func(c *client.Client) error {
			return g.each(ids, func(id string) (any, error) { return do(cmd.Context(), c, id) })
		})
	}
}
