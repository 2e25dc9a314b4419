// Command caisson-shim is the host process of one sandbox. The node starts it; it has no use of its own.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/machine/gvisor"
	"github.com/caisson-sandbox/caisson/shim"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

var version = "dev"

func main() { os.Exit(run(context.Background(), os.Args)) }

func run(ctx context.Context, args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "caisson-shim DIR is started by caisson; it has no use of its own")
		return 2
	}
	if err := shim.Run(ctx, args[1], shim.Options{Version: version, Driver: driver}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func driver(c wire.Config) (machine.Driver, error) {
	if c.Driver == "gvisor" {
		return gvisor.New(gvisor.Config{Sentry: c.Sentry}), nil
	}
	return nil, caisson.E(caisson.Unsupported, "start shim", c.Driver, "no such driver in this build", nil)
}
