// Command caisson-guest is process 1 of every sandbox. It is started by the machine's kernel, not by people.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/caisson-sandbox/caisson/guest/agent"
)

var version = "dev"

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 1 && args[0] == "version" {
		fmt.Println(version)
		return 0
	}
	fs := flag.NewFlagSet("caisson-guest", flag.ContinueOnError)
	rpc := fs.String("listen", "0.0.0.0:1", "address of guest/wire")
	fwd := fs.String("forward", "0.0.0.0:2", "address of the port forwarder")
	if fs.Parse(args) != nil {
		return 2
	}
	initial := os.Getpid() == 1
	debug.SetGCPercent(200) // small steps cost output its speed; an idle agent gives the memory back (guardMemory)
	if initial {
		mounts()
	}
	rl, err := net.Listen("tcp", *rpc)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fl, err := net.Listen("tcp", *fwd)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	a := agent.New(agent.Config{Version: version, Init: initial})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := a.Serve(ctx, rl, fl); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	a.Shutdown(context.Background(), 5*time.Second)
	return 0
}
