//go:build !unix

package main

import (
	"os"
	"syscall"
)

// forwarded are the signals that go to the command, by the names the API has for them.
var forwarded = map[os.Signal]string{os.Interrupt: "SIGINT", syscall.SIGTERM: "SIGTERM"}

// resized is the signal that says that the terminal has another size; nil if there is none.
var resized os.Signal
