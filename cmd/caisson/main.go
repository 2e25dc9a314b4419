// Command caisson is the whole product: the server (caisson serve) and its command line.
//
// The command line finds the server by $CAISSON_URL and $CAISSON_API_KEY, else by the unix socket caisson.sock in the state
// directory. `caisson run` needs no server: it starts one for itself.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caisson-sandbox/caisson/client"
)

// version is set at the build.
var version = "dev"

func main() {
	os.Exit(run(context.Background(), os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// stdio is what a command line reads and writes. Terminals are recognized when these are *os.File.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// globals are the flags that every command has, and what comes from them.
type globals struct {
	stdio
	stateDir    string
	stateDirSet bool // by flag or environment
	json        bool
	url         string
}

const exitCodesOwn = "125" // in annotations: the exit code of this command's own errors; 1 where there is none
const ownCode = "exit-code"

const exitHelp = `
Exit codes: the command's own; 128 plus the signal's number if a signal ended it; 124 its --timeout passed; 125 an error of
caisson (no server, no such sandbox, a wrong flag, the sandbox died); 126 the program is not executable; 127 it was not
found; 130 left with the command still running.`

// exitError ends the process with a code. A message of its own is optional.
type exitError struct {
	code int
	msg  string
}

func (e *exitError) Error() string { return e.msg }

// run is the process: it returns the exit code.
func run(ctx context.Context, args []string, std stdio) int {
	g := &globals{stdio: std}
	root := newRoot(g)
	root.SetArgs(args)
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	code := 1
	if cmd != nil && cmd.Annotations[ownCode] == exitCodesOwn {
		code = 125
	}
	var e *exitError
	if errors.As(err, &e) {
		code = e.code
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(std.err, "caisson: "+msg)
	}
	return code
}

func newRoot(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "caisson",
		Short: "Run untrusted code in sandboxes",
		Long: `Run untrusted code in sandboxes.

The server is found by $CAISSON_URL and $CAISSON_API_KEY, else by the unix socket caisson.sock in the state directory.
Start one with: caisson serve

Exit codes: 0; 1 for errors. run, exec, logs and attach have those of the command they run, and 125 for errors.`,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return g.settle(cmd.Flags().Changed("state-dir"))
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&g.stateDir, "state-dir", "", "where the server keeps everything (env CAISSON_STATE_DIR; default "+defaultStateDir()+")")
	f.StringVar(&g.url, "url", "", "URL of the server (env CAISSON_URL; the key comes from CAISSON_API_KEY)")
	f.BoolVar(&g.json, "json", false, "print JSON")
	root.AddCommand(newServe(g), newRun(g), newCreate(g), newLs(g), newInspect(g), newExec(g), newAttach(g), newLogs(g), newCp(g), newRm(g), newStop(g), newStart(g),
		newKey(g), newTemplate(g), newEvents(g), newDoctor(g), newBench(g), newVersion(g))
	return root
}

// settle takes from the environment what no flag said.
func (g *globals) settle(flagged bool) error {
	g.stateDirSet = flagged
	if !flagged {
		if g.stateDir = os.Getenv("CAISSON_STATE_DIR"); g.stateDir != "" {
			g.stateDirSet = true
		} else {
			g.stateDir = defaultStateDir()
		}
	}
	var err error
	if g.stateDir, err = filepath.Abs(g.stateDir); err != nil {
		return err
	}
	if g.url == "" {
		g.url = os.Getenv("CAISSON_URL")
	}
	return nil
}

func defaultStateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/caisson"
	}
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "caisson")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "caisson")
	}
	return filepath.Join(home, ".local", "share", "caisson")
}

func (g *globals) socket() string { return filepath.Join(g.stateDir, "caisson.sock") }

// client makes the client of the server that flags and environment name.
func (g *globals) client() (*client.Client, error) {
	o := client.Options{URL: g.url, UserAgent: "caisson/" + version, OnLost: g.lost}
	if g.url == "" {
		o.Socket = g.socket()
	} else {
		o.APIKey = os.Getenv("CAISSON_API_KEY")
	}
	return client.New(o)
}

// reach adds to an error what to do when there is no server.
func (g *globals) reach(err error) error {
	if err == nil || !client.Unreachable(err) {
		return err
	}
	if g.url != "" {
		return fmt.Errorf("%w (is CAISSON_URL right, and does the server run?)", err)
	}
	return fmt.Errorf("%w (start one with `caisson serve`, or name the right one with --state-dir or CAISSON_URL)", err)
}

func (g *globals) lost(err error) { g.progress("connection lost, attaching again: %v\r\n", err) }

// progress is for people: it is printed on a terminal's stderr alone.
func (g *globals) progress(format string, args ...any) {
	if _, ok := terminal(g.err); ok {
		fmt.Fprintf(g.err, format, args...)
	}
}

// terminal gives the descriptor if v is one.
func terminal(v any) (fd int, ok bool) {
	f, ok := v.(*os.File)
	if !ok {
		return 0, false
	}
	return int(f.Fd()), term.IsTerminal(int(f.Fd()))
}

// printJSON prints one value, indented.
func (g *globals) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = g.out.Write(append(b, '\n'))
	return err
}

// printLine prints one value as one line of JSON.
func (g *globals) printLine(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = g.out.Write(append(b, '\n'))
	return err
}

// do runs f with a client, and makes its errors tell what to do.
func (g *globals) do(f func(c *client.Client) error) error {
	c, err := g.client()
	if err != nil {
		return err
	}
	defer c.Close()
	return g.reach(f(c))
}

// printable makes text from a sandbox harmless to a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
