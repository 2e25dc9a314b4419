package native

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type CommandPath struct {
	SandboxPath
	Command string `path:"command" doc:"The command's id." maxLength:"32"`
}

func (c CommandPath) id() (caisson.CommandID, error) {
	id := caisson.CommandID(c.Command)
	if !id.Valid() {
		return "", caisson.E(caisson.NotFound, "command", clip(c.Command, 32), "there is no such command", nil).
			WithHint("a command's id is \"cmd\" and 18 letters and digits; GET …/commands lists them")
	}
	return id, nil
}

type runInput struct {
	SandboxPath
	Body v1.CommandCreate
}

type commandsOutput struct{ Body v1.CommandList }
type commandOutput struct{ Body v1.Command }

type outputInput struct {
	CommandPath
	From   uint64 `query:"from" doc:"Number of the first event wanted; 0 and 1: the start. To go on, one more than the last number seen." default:"0"`
	Follow bool   `query:"follow" doc:"Go on until the command ends; else end with what is there." default:"false"`
	LastID string `header:"Last-Event-ID" doc:"Set by browsers that reconnect to server-sent events: from is one more." maxLength:"20"`
}

func (s *server) commandRoutes() {
	const tag, all = "commands", "/v1/sandboxes/{id}/commands"
	event := schemaOf[v1.CommandEvent](s)
	content := s.eventContent(event, v1.MediaNDJSON, v1.MediaSSE, v1.MediaEvents)
	content[v1.MediaJSON] = media(schemaOf[v1.CommandResult](s))
	id := map[string]*huma.Param{v1.HeaderCommand: headerDoc("The command's id.")}
	addStream(s, caisson.ScopeWrite, route{id: "runCommand", method: http.MethodPost, path: all, tag: tag, summary: "Run a command", errors: []int{406, 409, 504},
		produces: content, headers: id,
		text: `What Accept names decides the answer. application/x-ndjson, text/event-stream and application/vnd.caisson.events stream the events until
the exit. application/json, which is the default, waits for the end and returns the command with the first 1 MiB of stdout and of stderr. With "detach": true
the answer is 201 with the command at once.

A client that goes away never ends the command: re-attach with …/output?from=N&follow=true. A program that cannot be executed is a command that
ended with the reason not_started and code 126 or 127.`}, s.runCommand)
	s.alsoAnswers(all, http.MethodPost, http.StatusCreated, "The command, started (detach).", media(schemaOf[v1.Command](s)))
	add(s, caisson.ScopeRead, route{id: "listCommands", method: http.MethodGet, path: all, tag: tag, summary: "List commands", errors: []int{409},
		text: "Commands that run and that ended, oldest first."}, s.listCommands)
	add(s, caisson.ScopeRead, route{id: "getCommand", method: http.MethodGet, path: all + "/{command}", tag: tag, summary: "Get a command"}, s.getCommand)
	addStream(s, caisson.ScopeRead, route{id: "getOutput", method: http.MethodGet, path: all + "/{command}/output", tag: tag, summary: "Replay and follow a command's events",
		errors: []int{406}, produces: s.eventContent(event, v1.MediaNDJSON, v1.MediaSSE, v1.MediaEvents), headers: id,
		text: "Replays the events from a number on. The default format is application/x-ndjson."}, s.output)
}

// alsoAnswers documents a further status of an operation.
func (s *server) alsoAnswers(path, method string, status int, text string, m *huma.MediaType) {
	op := s.lastOperation(route{path: path, method: method})
	op.Responses[strconv.Itoa(status)] = &huma.Response{Description: text, Content: map[string]*huma.MediaType{v1.MediaJSON: m}}
}

func (s *server) runCommand(ctx context.Context, p caisson.Principal, in *runInput, w http.ResponseWriter, r *http.Request) error {
	format, err := accepted(r, v1.MediaJSON, v1.MediaJSON, v1.MediaNDJSON, v1.MediaSSE, v1.MediaEvents)
	if err != nil && !in.Body.Detach {
		return err
	}
	spec, err := commandSpec(in.Body)
	if err != nil {
		return err
	}
	g, err := s.guest(ctx, p, in.ID)
	if err != nil {
		return err
	}
	if in.Body.Detach {
		c, err := g.StartCommand(ctx, spec)
		if err != nil {
			return err
		}
		requestOf(ctx).onCommand(c.ID)
		w.Header().Set(v1.HeaderCommand, string(c.ID))
		w.Header().Set("Location", r.URL.Path+"/"+string(c.ID))
		return writeJSON(w, http.StatusCreated, commandOut(c))
	}
	c, es, err := g.Run(ctx, spec)
	if err != nil {
		return err
	}
	defer es.Close()
	requestOf(ctx).onCommand(c.ID)
	w.Header().Set(v1.HeaderCommand, string(c.ID))
	if format == v1.MediaJSON {
		return s.collect(ctx, w, c, es)
	}
	return stream(s, w, r, format, "events", commandCodec(format, es))
}

// collect waits for the end of a command and answers with what it printed, within MaxCollect.
func (s *server) collect(ctx context.Context, w http.ResponseWriter, c caisson.Command, es caisson.EventStream) error {
	var out, errs collected
	for {
		e, err := es.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return caisson.Hintf(err, "command %s may still run; read GET …/commands/%s/output", c.ID, c.ID)
		}
		c.LastSeq = e.Seq
		switch e.Type {
		case caisson.EventStarted:
			c.PID = e.PID
		case caisson.EventStdout:
			out.add(e.Data)
		case caisson.EventStderr:
			errs.add(e.Data)
		case caisson.EventGap:
			out.truncated, errs.truncated = true, true
		case caisson.EventExit:
			c.Exit, c.EndedAt = e.Exit, e.Time
		}
	}
	res := v1.CommandResult{Command: commandOut(c), StdoutTruncated: out.truncated, StderrTruncated: errs.truncated}
	res.Stdout, res.StdoutB64 = out.text()
	res.Stderr, res.StderrB64 = errs.text()
	return writeJSON(w, http.StatusOK, res)
}

// collected is the beginning of what a command printed.
type collected struct {
	b         []byte
	truncated bool
}

func (c *collected) add(b []byte) {
	if room := v1.MaxCollect - len(c.b); len(b) > room {
		b, c.truncated = b[:room], true
	}
	c.b = append(c.b, b...)
}

func (c *collected) text() (text, b64 string) {
	b := c.b
	if c.truncated { // the cut may be inside a character
		for i := 0; i < utf8.UTFMax-1 && len(b) > 0 && !utf8.Valid(b[max(0, len(b)-utf8.UTFMax):]); i++ {
			b = b[:len(b)-1]
		}
	}
	if utf8.Valid(b) {
		return string(b), ""
	}
	return "", base64.StdEncoding.EncodeToString(c.b)
}

func (s *server) listCommands(ctx context.Context, p caisson.Principal, in *SandboxPath) (*commandsOutput, error) {
	g, err := s.guest(ctx, p, in.ID)
	if err != nil {
		return nil, err
	}
	cs, err := g.Commands(ctx)
	if err != nil {
		return nil, err
	}
	out := &commandsOutput{Body: v1.CommandList{Commands: make([]v1.Command, 0, len(cs))}}
	for _, c := range cs {
		out.Body.Commands = append(out.Body.Commands, commandOut(c))
	}
	return out, nil
}

// command opens the sandbox of a command and checks the id.
func (s *server) command(ctx context.Context, p caisson.Principal, in CommandPath) (caisson.Guest, caisson.CommandID, error) {
	id, err := in.id()
	if err != nil {
		return nil, "", err
	}
	requestOf(ctx).onCommand(id)
	g, err := s.guest(ctx, p, in.ID)
	return g, id, err
}

func (s *server) getCommand(ctx context.Context, p caisson.Principal, in *CommandPath) (*commandOutput, error) {
	g, id, err := s.command(ctx, p, *in)
	if err != nil {
		return nil, err
	}
	c, err := g.Command(ctx, id)
	return &commandOutput{Body: commandOut(c)}, err
}

func (s *server) output(ctx context.Context, p caisson.Principal, in *outputInput, w http.ResponseWriter, r *http.Request) error {
	format, err := accepted(r, v1.MediaNDJSON, v1.MediaNDJSON, v1.MediaSSE, v1.MediaEvents)
	if err != nil {
		return err
	}
	if in.LastID != "" {
		last, err := strconv.ParseUint(in.LastID, 10, 63)
		if err != nil {
			return invalid("read output", "", "Last-Event-ID is not the number of an event", "")
		}
		in.From = last + 1
	}
	g, id, err := s.command(ctx, p, in.CommandPath)
	if err != nil {
		return err
	}
	es, err := g.Output(ctx, id, in.From, in.Follow)
	if err != nil {
		return err
	}
	defer es.Close()
	w.Header().Set(v1.HeaderCommand, string(id))
	return stream(s, w, r, format, "events", commandCodec(format, es))
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", v1.MediaJSON)
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
	return nil
}
