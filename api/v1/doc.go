// Package v1 holds the JSON types of the native HTTP API, version 1, and the binary framing of command events.
//
// It is what a server and its clients share. It imports the standard library only, so that a client costs nothing.
//
// Rules that hold for every type: names are snake_case; times are RFC 3339 in UTC; durations are written as Go duration
// strings ("1m30s") and read as those or as a number of seconds; sizes say their unit in the name (_mib) or are bytes; a
// field that is absent means its default; a field the server does not know is an error in a request and must be ignored
// by a client in a response. The struct tags doc, default, minimum, maximum, enum and so on feed the OpenAPI document.
package v1

// Media types of the API.
const (
	MediaJSON    = "application/json"
	MediaProblem = "application/problem+json"       // every error
	MediaNDJSON  = "application/x-ndjson"           // one JSON object a line
	MediaSSE     = "text/event-stream"              // the same objects as the data of server-sent events
	MediaEvents  = "application/vnd.caisson.events" // see AppendFrame and FrameReader
	MediaTar     = "application/x-tar"
	MediaBytes   = "application/octet-stream"
)

// Header names of the API.
const (
	HeaderRequestID   = "X-Request-Id"        // taken from the request or made; in every response, log line and problem
	HeaderCommand     = "X-Caisson-Command"   // the command's id, on every stream of command events
	HeaderFileInfo    = "X-Caisson-File-Info" // base64 of the JSON of FileInfo, on GET and HEAD of a file
	HeaderIdempotency = "Idempotency-Key"     // on POST /v1/sandboxes; at most 128 bytes
	HeaderSandbox     = "X-Caisson-Sandbox"   // ingress by header: the sandbox's id or name
	HeaderPort        = "X-Caisson-Port"      // ingress by header: the TCP port in the sandbox
	HeaderAPIKey      = "X-Caisson-Api-Key"   // ingress: the key, where Authorization belongs to the application
	CookieAPIKey      = "caisson_key"         // ingress by host name: the key, for browsers
	HeaderTiming      = "Server-Timing"       // on create and start: what took how long, in milliseconds
)

// Limits of requests.
const (
	MaxJSONBody      = 1 << 20 // bytes of a JSON request body
	MaxCollect       = 1 << 20 // bytes of stdout and of stderr that a CommandResult holds, each
	MaxPageSize      = 1000
	DefaultPageSize  = 100
	MaxDirDepth      = 64
	PingEverySeconds = 15 // a stream that is silent this long gets a ping event
)
