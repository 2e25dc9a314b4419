package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
)

func newServe(g *globals) *cobra.Command {
	var o serveOptions
	var level, format string
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the server", Args: cobra.NoArgs,
		Long: `Run the server on its state directory, until SIGTERM or SIGINT.

It listens on the unix socket caisson.sock there, for root and the user it runs as, and with --listen on a TCP address, for API
keys (caisson key create). Sandboxes outlive it: the next serve on the same directory takes them over.

Exit codes: 0 after a signal; 1 when it cannot start or go on.`,
		Example: "  caisson serve\n  caisson serve --listen 127.0.0.1:7070 --domain sandbox.example.com",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(g, level, format)
			if err != nil {
				return err
			}
			o.StateDir, o.Log = g.stateDir, log
			debug.SetGCPercent(200) // streams allocate much and hold little
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return serve(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", os.Getenv("CAISSON_LISTEN"), "TCP address to listen on beside the unix socket, such as 127.0.0.1:7070 (env CAISSON_LISTEN; default none)")
	f.StringVar(&o.TLSCert, "tls-cert", "", "PEM file with the certificate chain for --listen; without one it speaks plain HTTP")
	f.StringVar(&o.TLSKey, "tls-key", "", "PEM file with the key of --tls-cert")
	f.StringVar(&o.Domain, "domain", os.Getenv("CAISSON_DOMAIN"), "ports of sandboxes are reached at {port}-{id}.DOMAIN (env CAISSON_DOMAIN; default by headers alone)")
	f.IntVar(&o.MemoryMiB, "memory", envInt("CAISSON_MEMORY_MIB"), "MiB that all sandboxes may have together (env CAISSON_MEMORY_MIB; default the host's, less a tenth and 256)")
	f.BoolVar(&o.NoCgroup, "no-cgroup", os.Getenv("CAISSON_NO_CGROUP") != "", "keep limits without cgroups, as where none may be written (env CAISSON_NO_CGROUP)")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	return cmd
}

func envInt(name string) int {
	n, _ := strconv.Atoi(os.Getenv(name))
	return n
}

func logger(g *globals, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %s: write debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(g.err, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(g.err, o)), nil
	}
	return nil, fmt.Errorf("--log-format %s: write text or json", format)
}

// serve runs until ctx ends or something of the server fails.
func serve(ctx context.Context, o serveOptions) error {
	s, err := startServer(ctx, o)
	if err != nil {
		return err
	}
	o.Log.Info("ready", "version", version, "state", s.opt.StateDir, "listen", s.addr, "pid", os.Getpid())
	select {
	case <-ctx.Done():
		o.Log.Info("stopping; sandboxes go on")
	case err = <-s.failed:
		o.Log.Error("the server cannot go on", "error", err)
	}
	if cerr := s.Close(); err == nil {
		err = cerr
	}
	return err
}
