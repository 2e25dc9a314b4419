//go:build unix

package main

import (
	"os"
	"syscall"
)

// forwarded are the signals that go to the command, by the names the API has for them.
var forwarded = map[os.Signal]string{
	syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT",
	syscall.SIGUSR1: "SIGUSR1", syscall.SIGUSR2: "SIGUSR2",
}

// resized is the signal that says that the terminal has another size; nil if there is none.
var resized os.Signal = syscall.SIGWINCH
