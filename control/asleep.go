package control

import (
	"context"
	"io"
	"net"

	"github.com/caisson-sandbox/caisson"
)

// asleep is the inside of a sandbox that does not run: what commands did can be read, the rest is a Conflict.
type asleep struct {
	caisson.Guest
	sb caisson.Sandbox
}

func notRunning(sb caisson.Sandbox) error {
	msg := "it is " + string(sb.State)
	if sb.Reason != "" {
		msg += " (" + sb.Reason + ")"
	}
	e := caisson.E(caisson.Conflict, "reach sandbox", string(sb.ID), msg, nil)
	switch sb.State {
	case caisson.Stopped, caisson.Failed:
		return e.WithHint("start it: caisson start " + string(sb.ID))
	case caisson.Creating, caisson.Waking:
		return e.WithHint("wait until it runs")
	}
	return e
}

func (a *asleep) StartCommand(context.Context, caisson.CommandSpec) (caisson.Command, error) {
	return caisson.Command{}, notRunning(a.sb)
}

func (a *asleep) Run(context.Context, caisson.CommandSpec) (caisson.Command, caisson.EventStream, error) {
	return caisson.Command{}, nil, notRunning(a.sb)
}

func (a *asleep) Stdin(context.Context, caisson.CommandID, io.Reader, bool) error {
	return notRunning(a.sb)
}
func (a *asleep) Signal(context.Context, caisson.CommandID, string) error { return notRunning(a.sb) }
func (a *asleep) Resize(context.Context, caisson.CommandID, caisson.TTYSize) error {
	return notRunning(a.sb)
}

func (a *asleep) ReadFile(context.Context, string, string, int64, int64) (caisson.FileInfo, io.ReadCloser, error) {
	return caisson.FileInfo{}, nil, notRunning(a.sb)
}

func (a *asleep) WriteFile(context.Context, string, io.Reader, caisson.WriteOptions) (caisson.FileInfo, error) {
	return caisson.FileInfo{}, notRunning(a.sb)
}

func (a *asleep) ListFiles(context.Context, string, string, int) ([]caisson.FileInfo, error) {
	return nil, notRunning(a.sb)
}

func (a *asleep) StatFile(context.Context, string, string) (caisson.FileInfo, error) {
	return caisson.FileInfo{}, notRunning(a.sb)
}

func (a *asleep) Mkdir(context.Context, string, string, uint32, bool) (caisson.FileInfo, error) {
	return caisson.FileInfo{}, notRunning(a.sb)
}

func (a *asleep) Move(context.Context, string, string, string) (caisson.FileInfo, error) {
	return caisson.FileInfo{}, notRunning(a.sb)
}
func (a *asleep) Remove(context.Context, string, string, bool) error { return notRunning(a.sb) }
func (a *asleep) WatchFiles(context.Context, string, string, bool) (caisson.FileEventStream, error) {
	return nil, notRunning(a.sb)
}

func (a *asleep) Archive(context.Context, string, string) (io.ReadCloser, error) {
	return nil, notRunning(a.sb)
}
func (a *asleep) Extract(context.Context, string, string, io.Reader) error { return notRunning(a.sb) }
func (a *asleep) Dial(context.Context, uint16) (net.Conn, error)           { return nil, notRunning(a.sb) }
func (a *asleep) Metrics(context.Context) (caisson.GuestMetrics, error) {
	return caisson.GuestMetrics{}, notRunning(a.sb)
}
