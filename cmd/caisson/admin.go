package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/client"
)

func newKey(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Make, list and delete API keys", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	var scopes []string
	var ttl duration
	create := &cobra.Command{
		Use: "create NAME", Short: "Make a key and print it; it is shown this once", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.do(func(c *client.Client) error {
				k, err := c.CreateKey(cmd.Context(), v1.KeyCreate{Name: args[0], Scopes: scopes, TTL: v1.Duration(ttl)})
				if err != nil {
					return err
				}
				if g.json {
					return g.printJSON(k)
				}
				g.progress("key %s, shown this once:\n", k.ID)
				fmt.Fprintln(g.out, k.Key)
				return nil
			})
		},
	}
	create.Flags().StringSliceVar(&scopes, "scope", []string{"read", "write"}, "rights: read, write, admin")
	create.Flags().Var(&ttl, "ttl", "how long it is good for: 24h (default: until deleted)")
	ls := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List keys", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.do(func(c *client.Client) error {
				keys, err := c.Keys(cmd.Context())
				if err != nil {
					return err
				}
				if g.json {
					return g.printJSON(keys)
				}
				rows := [][]string{{"ID", "NAME", "SCOPES", "AGE", "USED", "EXPIRES"}}
				for _, k := range keys {
					expires := "never"
					if !k.ExpiresAt.IsZero() {
						expires = k.ExpiresAt.Local().Format(time.DateTime)
					}
					used := "never"
					if !k.LastUsed.IsZero() {
						used = age(k.LastUsed) + " ago"
					}
					rows = append(rows, []string{k.ID, k.Name, strings.Join(k.Scopes, ","), age(k.CreatedAt), used, expires})
				}
				return g.table(rows)
			})
		},
	}
	rm := &cobra.Command{
		Use: "rm ID…", Aliases: []string{"delete"}, Short: "Delete keys", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.do(func(c *client.Client) error {
				return g.each(args, func(id string) (any, error) {
					return map[string]any{"id": id, "deleted": true}, c.DeleteKey(cmd.Context(), id)
				})
			})
		},
	}
	cmd.AddCommand(create, ls, rm)
	return cmd
}

func newTemplate(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "template", Short: "Import, list and remove templates", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	ls := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List templates", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.do(func(c *client.Client) error {
				ts, err := c.Templates(cmd.Context())
				if err != nil {
					return err
				}
				if g.json {
					return g.printJSON(ts)
				}
				rows := [][]string{{"NAME", "DIGEST", "SIZE", "AGE"}}
				for _, t := range ts {
					rows = append(rows, []string{t.Name, t.Digest[:min(len(t.Digest), 19)], fmt.Sprintf("%.1f MiB", float64(t.Size)/(1<<20)), age(t.CreatedAt)})
				}
				return g.table(rows)
			})
		},
	}
	imp := &cobra.Command{
		Use: "import NAME FILE", Short: "Make a template of a root filesystem in a tar file (plain, gzip or zstd; - is stdin)", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := g.in
			if args[1] != "-" {
				f, err := os.Open(args[1])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			return g.do(func(c *client.Client) error {
				g.progress("importing…")
				t, err := c.ImportTemplate(cmd.Context(), args[0], io.NopCloser(in))
				g.progress("\r\033[K")
				if err != nil {
					return err
				}
				if g.json {
					return g.printJSON(t)
				}
				fmt.Fprintln(g.out, t.Name, t.Digest)
				return nil
			})
		},
	}
	rm := &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"remove"}, Short: "Remove templates", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.do(func(c *client.Client) error {
				return g.each(args, func(name string) (any, error) {
					return map[string]any{"name": name, "removed": true}, c.RemoveTemplate(cmd.Context(), name)
				})
			})
		},
	}
	cmd.AddCommand(ls, imp, rm)
	return cmd
}

func newEvents(g *globals) *cobra.Command {
	var f client.EventFilter
	var follow bool
	cmd := &cobra.Command{
		Use: "events", Short: "Print what happened to sandboxes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.do(func(c *client.Client) error {
				if f.Sandbox != "" && !strings.HasPrefix(f.Sandbox, "sb") {
					b, err := c.Get(cmd.Context(), f.Sandbox)
					if err != nil {
						return err
					}
					f.Sandbox = b.ID
				}
				if follow {
					s := c.FollowEvents(cmd.Context(), f)
					for {
						e, err := s.Next()
						if err == nil {
							err = g.event(e)
						}
						if err != nil {
							return err
						}
					}
				}
				f.Limit = v1.MaxPageSize
				for {
					l, err := c.Events(cmd.Context(), f)
					if err != nil {
						return err
					}
					for _, e := range l.Events {
						if err := g.event(e); err != nil {
							return err
						}
					}
					if len(l.Events) == 0 || l.Next <= f.After {
						return nil
					}
					f.After = l.Next
				}
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	fl.Uint64Var(&f.After, "after", 0, "number of the last event that is not wanted any more")
	fl.StringVar(&f.Sandbox, "sandbox", "", "events of this sandbox alone")
	return cmd
}

// event prints one event: a line of JSON, or number, time, type, sandbox and details.
func (g *globals) event(e v1.Event) error {
	if g.json {
		return g.printLine(e)
	}
	line := fmt.Sprintf("%d %s %-16s %s", e.Seq, e.Time.UTC().Format("2006-01-02T15:04:05.000Z"), e.Type, e.Sandbox)
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		line += fmt.Sprintf(" %s=%q", k, e.Data[k])
	}
	_, err := fmt.Fprintln(g.out, printable(line))
	return err
}

func newVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if g.json {
				return g.printJSON(map[string]string{"version": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			fmt.Fprintf(g.out, "caisson %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
