package native

import (
	"context"
	"net/http"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type stdinInput struct {
	CommandPath
	Close bool `query:"close" doc:"Close stdin at the end of the body." default:"false"`
}

type signalInput struct {
	CommandPath
	Body v1.Signal
}

type resizeInput struct {
	CommandPath
	Body v1.TTY
}

// stdinRoutes are the ways to talk to a command.
func (s *server) stdinRoutes() {
	const tag, one = "commands", "/v1/sandboxes/{id}/commands/{command}"
	addStream(s, caisson.ScopeWrite, route{id: "sendStdin", method: http.MethodPost, path: one + "/stdin", tag: tag, summary: "Send input to a command", status: http.StatusNoContent,
		errors: []int{409}, body: rawBody("Bytes for stdin, passed on as they come, without a limit of size.", v1.MediaBytes),
		text: "The command must have been started with stdin or a terminal. To close stdin and send nothing, send an empty body with close=true."}, s.stdin)
	add(s, caisson.ScopeWrite, route{id: "signalCommand", method: http.MethodPost, path: one + "/signal", tag: tag, summary: "Send a signal", status: http.StatusNoContent, errors: []int{409},
		text: "To the command's process group."},
		func(ctx context.Context, p caisson.Principal, in *signalInput) (*struct{}, error) {
			g, id, err := s.command(ctx, p, in.CommandPath)
			if err != nil {
				return nil, err
			}
			if in.Body.Signal == "" {
				in.Body.Signal = "SIGTERM"
			}
			return nil, g.Signal(ctx, id, in.Body.Signal)
		})
	add(s, caisson.ScopeWrite, route{id: "resizeCommand", method: http.MethodPost, path: one + "/resize", tag: tag, summary: "Resize a terminal", status: http.StatusNoContent, errors: []int{409}},
		func(ctx context.Context, p caisson.Principal, in *resizeInput) (*struct{}, error) {
			g, id, err := s.command(ctx, p, in.CommandPath)
			if err != nil {
				return nil, err
			}
			return nil, g.Resize(ctx, id, caisson.TTYSize{Rows: uint16(in.Body.Rows), Cols: uint16(in.Body.Cols)})
		})
	addStream(s, caisson.ScopeWrite, route{id: "attachCommand", method: http.MethodGet, path: one + "/attach", tag: tag, summary: "Attach to a command (WebSocket)", status: http.StatusSwitchingProtocols,
		errors: []int{409, 426},
		text: `A WebSocket. Binary frames are stdin, to the server, and output, from it: of a command with a terminal as it is, of others with one byte
in front, 1 for stdout and 2 for stderr. Text frames are JSON. To the server: {"type":"resize","rows":24,"cols":80},
{"type":"signal","signal":"INT"}, {"type":"stdin_close"}. From the server: {"type":"started","pid":12,"seq":1}, {"type":"gap","from":2,"to":9},
{"type":"exit","exit":{…}}, {"type":"error","error":{problem}}. After exit the socket closes with status 1000. Frames to the server hold at most 1 MiB. A page of another
origin is refused. Closing the socket does not end the command.`}, s.attach)
}

func (s *server) stdin(ctx context.Context, p caisson.Principal, in *stdinInput, w http.ResponseWriter, r *http.Request) error {
	g, id, err := s.command(ctx, p, in.CommandPath)
	if err != nil {
		return err
	}
	if err := g.Stdin(ctx, id, s.progressBody(w, r, "stdin"), in.Close); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
