// Command caisson-sentry makes gVisor's library calls for the gVisor driver, and is the sentry that these calls start.
package main

import (
	"os"

	"github.com/caisson-sandbox/caisson/machine/gvisor/caller"
)

func main() { os.Exit(caller.Main(os.Args)) }
