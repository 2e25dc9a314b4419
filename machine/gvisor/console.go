package gvisor

import (
	"io"
	"os"
)

// consoleCap bounds what is kept of what a machine prints: its start, where a boot failure shows.
const consoleCap = 1 << 20

// openConsole opens the console's file and returns the end of a pipe for the machine. What comes beyond the cap is read
// and dropped, so that a guest that prints without end neither fills the disk nor blocks.
func openConsole(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	rd, wr, err := os.Pipe()
	if err != nil {
		f.Close()
		return nil, err
	}
	go func() { // ends when the last writer, the sentry, has ended
		io.Copy(f, io.LimitReader(rd, consoleCap))
		f.Close()
		io.Copy(io.Discard, rd)
		rd.Close()
	}()
	return wr, nil
}
