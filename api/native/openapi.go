package native

import (
	"encoding/json"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// durationSchema stands for v1.Duration in the document and in validation.
type durationSchema struct{}

// Schema says what v1.Duration reads.
func (durationSchema) Schema(huma.Registry) *huma.Schema {
	zero := 0.0
	return &huma.Schema{
		Description: "A duration: \"90s\", \"1h30m\", or a number of seconds.",
		OneOf: []*huma.Schema{
			{Type: huma.TypeString, Pattern: `^[0-9.]+(ns|us|µs|ms|s|m|h)?([0-9.]+(ns|us|µs|ms|s|m|h))*$`, PatternDescription: "a duration such as 90s or 1h30m"},
			{Type: huma.TypeNumber, Minimum: &zero},
		},
	}
}

// modeSchema stands for v1.Mode.
type modeSchema struct{}

// Schema says what v1.Mode reads.
func (modeSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: "^0?[0-7]{1,4}$", PatternDescription: "octal digits such as 0644", Examples: []any{"0644"}}
}

// metadataPatch stands for map[string]*string.
type metadataPatch struct{}

// Schema allows null for a value, which removes the key.
func (metadataPatch) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: &huma.Schema{Type: huma.TypeString, Nullable: true}}
}

// CommandEvent stands for v1.CommandEvent in the document.
type CommandEvent struct {
	Seq     uint64      `json:"seq,omitempty" doc:"Its number, from 1; absent for ping and error."`
	Time    time.Time   `json:"time,omitempty" doc:"When it happened in the sandbox."`
	Type    string      `json:"type" doc:"started; stdout, stderr: output; gap: events from..to fell to the log's cap; exit: always the last; ping: nothing happened, the stream is alive; error: the stream (not the command) ended, re-attach with from." enum:"started,stdout,stderr,gap,exit,ping,error"`
	PID     int         `json:"pid,omitempty" doc:"started: process id in the sandbox."`
	Data    string      `json:"data,omitempty" doc:"stdout, stderr: what was printed, at most 64 KiB."`
	DataB64 string      `json:"data_b64,omitempty" doc:"The same in base64, when it is not UTF-8."`
	From    uint64      `json:"from,omitempty" doc:"gap: first lost event."`
	To      uint64      `json:"to,omitempty" doc:"gap: last lost event."`
	Exit    *v1.Exit    `json:"exit,omitempty" doc:"exit: how it ended."`
	Error   *v1.Problem `json:"error,omitempty" doc:"error: why the stream ended."`
}

const about = `Caisson runs code in sandboxes: isolated Linux machines, each with its own kernel, disk and network gateway.

**Credentials.** ` + "`Authorization: Bearer csn_…`" + ` on TCP; on the unix socket the caller's user id. Each operation names the scope it needs;
` + "`admin`" + ` holds all.

**Errors** are application/problem+json with a stable ` + "`code`" + `, and a ` + "`hint`" + ` where there is something to do. 429 and 503 carry Retry-After.

**Waiting.** Calls wait for their result. ` + "`Prefer: respond-async`" + ` is not implemented and ignored, as RFC 7240 allows. A client that goes away
ends neither a command nor a create; the record tells how it went.

**Streams** (command events, watches, events) come as application/x-ndjson, text/event-stream or, for commands,
application/vnd.caisson.events: frames of u8 type (0 ping, 1 started, 2 stdout, 3 stderr, 4 gap, 5 exit, 6 error), u64 seq, i64 nanoseconds since
1970, u32 length, payload (big-endian; the payload is the output itself, or the event in JSON). A silent stream gets a ping
every 15 s; a client that takes nothing for 60 s is dropped and can re-attach.

**Limits.** JSON bodies 1 MiB, header 64 KiB, 200 requests per second (burst 400) and 2000 open streams for a key; bodies of files and archives have no limit
of size, only one of inactivity, 60 s. Unknown fields and unknown query parameters are errors.

**Ports.** A TCP port of a sandbox is at ` + "`{port}-{id}.{domain}`" + `, or on this address with the headers X-Caisson-Sandbox and X-Caisson-Port.`

func (s *server) newAPI() {
	useProblems()
	s.mux = http.NewServeMux()
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	for t, alias := range map[reflect.Type]reflect.Type{
		reflect.TypeFor[v1.Duration]():        reflect.TypeFor[durationSchema](),
		reflect.TypeFor[v1.Mode]():            reflect.TypeFor[modeSchema](),
		reflect.TypeFor[map[string]*string](): reflect.TypeFor[metadataPatch](),
		reflect.TypeFor[v1.CommandEvent]():    reflect.TypeFor[CommandEvent](),
	} {
		schemas.RegisterTypeAlias(t, alias)
	}
	s.api = humago.New(s.mux, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "Caisson", Version: "v1", Description: about,
				License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}},
			Components: &huma.Components{Schemas: schemas, SecuritySchemes: map[string]*huma.SecurityScheme{
				"key": {Type: "http", Scheme: "bearer", BearerFormat: "csn_…", Description: "An API key. On the unix socket none is needed."},
			}},
			Tags: []*huma.Tag{
				{Name: "sandboxes", Description: "The life of sandboxes."},
				{Name: "commands", Description: "Commands in a sandbox, their output and input."},
				{Name: "files", Description: "Files in a sandbox."},
				{Name: "templates", Description: "Filesystems that sandboxes start from."},
				{Name: "keys", Description: "API keys of the caller's team."},
				{Name: "events", Description: "What happened to the team's objects, kept for seven days."},
				{Name: "server", Description: "The server itself."},
			},
		},
		Formats:       huma.DefaultFormats,
		DefaultFormat: v1.MediaJSON,
	})
}

// OpenAPI generates the OpenAPI document.
func OpenAPI() ([]byte, error) {
	s := build(Config{})
	b, err := json.MarshalIndent(s.api.OpenAPI(), "", "  ")
	return append(b, '\n'), err
}
