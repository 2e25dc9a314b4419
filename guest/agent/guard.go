package agent

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"
)

// guard, deferred, keeps a panic of one task from ending process 1 and with it the sandbox. What happened goes to the
// machine's console.
func guard(task string) {
	if p := recover(); p != nil {
		fmt.Fprintf(os.Stderr, "%s panicked: %v\n%s", task, p, debug.Stack())
	}
}

// keep runs a task that must not end before ctx, again after a panic.
func keep(ctx context.Context, name string, task func()) {
	for {
		func() {
			defer guard(name)
			task()
		}()
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
