package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/client"
)

// createFlags are what create and run have in common.
type createFlags struct {
	name, driver   string
	metadata       []string
	memory, disk   mib
	cpus, pids     int
	maxLifetime    duration
	env            []string
	user, cwd      string
	idempotencyKey string
}

func (c *createFlags) add(f *pflag.FlagSet) {
	f.StringVar(&c.name, "name", "", "name, unique among the sandboxes that exist")
	f.StringArrayVar(&c.metadata, "metadata", nil, "KEY=VALUE to find it by; may be repeated")
	f.Var(&c.memory, "memory", "memory in MiB, or with a unit: 512m, 1g")
	f.IntVar(&c.cpus, "cpus", 0, "virtual CPUs")
	f.Var(&c.disk, "disk", "size of the writable disk in MiB, or with a unit: 10g")
	f.IntVar(&c.pids, "pids", 0, "most processes and threads")
	f.Var(&c.maxLifetime, "max-lifetime", "delete the sandbox after this long: 90s, 2h")
	f.StringVar(&c.driver, "driver", "", "driver that runs it (default: the server's choice)")
	addCommandFlags(f, &c.env, &c.user, &c.cwd)
}

// addCommandFlags adds -e, -u and -w.
func addCommandFlags(f *pflag.FlagSet, env *[]string, user, cwd *string) {
	f.StringArrayVarP(env, "env", "e", nil, "KEY=VALUE for the environment, or KEY to pass on that of caisson; may be repeated")
	f.StringVarP(user, "user", "u", "", "user name or uid[:gid]")
	f.StringVarP(cwd, "cwd", "w", "", "working directory")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "workdir" {
			name = "cwd"
		}
		return pflag.NormalizedName(name)
	})
}

func (c *createFlags) sandbox(template string) (v1.SandboxCreate, error) {
	s := v1.SandboxCreate{Template: template, Name: c.name, User: c.user, Cwd: c.cwd, MaxLifetime: v1.Duration(c.maxLifetime), Driver: c.driver,
		Resources: v1.Resources{VCPUs: c.cpus, MemoryMiB: int(c.memory), DiskMiB: int(c.disk), PIDs: c.pids}}
	var err error
	if s.Metadata, err = pairs("--metadata", c.metadata); err != nil {
		return s, err
	}
	s.Env, err = environment(c.env)
	return s, err
}

func newCreate(g *globals) *cobra.Command {
	var c createFlags
	cmd := &cobra.Command{
		Use: "create [TEMPLATE]", Short: "Create a sandbox and print its id", Args: cobra.MaximumNArgs(1),
		Example: "  caisson create --name build --memory 1g --metadata owner=me",
		RunE: func(cmd *cobra.Command, args []string) error {
			template := ""
			if len(args) > 0 {
				template = args[0]
			}
			s, err := c.sandbox(template)
			if err != nil {
				return err
			}
			return g.do(func(cl *client.Client) error {
				b, err := g.create(cmd.Context(), cl, s, c.idempotencyKey)
				if err != nil {
					return err
				}
				if g.json {
					return g.printJSON(b)
				}
				fmt.Fprintln(g.out, b.ID)
				return nil
			})
		},
	}
	c.add(cmd.Flags())
	cmd.Flags().StringVar(&c.idempotencyKey, "idempotency-key", "", "a second create with the same key gives the first one's sandbox")
	return cmd
}

// create makes a sandbox; an answer that got lost is asked for again, under the same key.
func (g *globals) create(ctx context.Context, c *client.Client, s v1.SandboxCreate, key string) (v1.Sandbox, error) {
	if key == "" {
		key = rand.Text()
	}
	g.progress("creating…")
	b, timing, err := c.Create(ctx, s, key)
	if client.Unreachable(err) {
		time.Sleep(500 * time.Millisecond)
		b, timing, err = c.Create(ctx, s, key)
	}
	if err != nil {
		g.progress("\r\033[K")
		return b, err
	}
	g.progress("\r\033[K%s", timingNote(timing))
	return b, nil
}

// timingNote makes "total;dur=412.3" a short line.
func timingNote(timing string) string {
	for part := range strings.SplitSeq(timing, ",") {
		if ms, ok := strings.CutPrefix(strings.TrimSpace(part), "total;dur="); ok {
			if f, err := strconv.ParseFloat(ms, 64); err == nil {
				return fmt.Sprintf("created in %.0f ms\n", f)
			}
		}
	}
	return ""
}

// mib is a size flag in MiB.
type mib int

func (m *mib) String() string {
	if *m == 0 {
		return ""
	}
	return strconv.Itoa(int(*m))
}
func (*mib) Type() string { return "size" }

// Set reads "1024", "512m", "1g", "1.5GiB"; a bare number is MiB.
func (m *mib) Set(s string) error {
	t := strings.ToLower(strings.TrimSpace(s))
	t = strings.TrimSuffix(strings.TrimSuffix(t, "b"), "i")
	factor := 1.0
	if t != "" {
		if f, ok := map[byte]float64{'k': 1.0 / 1024, 'm': 1, 'g': 1024, 't': 1024 * 1024}[t[len(t)-1]]; ok {
			factor, t = f, t[:len(t)-1]
		}
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil || math.IsNaN(f) || f <= 0 || f*factor > 1<<40 {
		return fmt.Errorf("%q is not a size: write MiB as a number, or 512m, 1g", s)
	}
	*m = mib(math.Ceil(f * factor))
	return nil
}

// duration is a flag in the API's form of durations.
type duration v1.Duration

func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return v1.Duration(*d).String()
}
func (*duration) Type() string { return "duration" }

func (d *duration) Set(s string) error {
	v, err := v1.ParseDuration(s)
	if err == nil && v < 0 {
		err = fmt.Errorf("%q is negative", s)
	}
	*d = duration(v)
	return err
}

// pairs reads KEY=VALUE.
func pairs(flag string, kvs []string) (map[string]string, error) {
	if len(kvs) == 0 {
		return nil, nil
	}
	m := map[string]string{}
	for _, kv := range kvs {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("%s %q is not KEY=VALUE", flag, kv)
		}
		m[k] = v
	}
	return m, nil
}

// environment reads KEY=VALUE, and KEY for what caisson's own environment has.
func environment(kvs []string) (map[string]string, error) {
	var all []string
	for _, kv := range kvs {
		if kv != "" && !strings.Contains(kv, "=") {
			v, ok := os.LookupEnv(kv)
			if !ok {
				continue
			}
			kv += "=" + v
		}
		all = append(all, kv)
	}
	return pairs("--env", all)
}
