package native

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// route describes an operation. It cannot be added without a scope: add and addStream take one.
type route struct {
	id, method, path string
	tag              string
	summary, text    string
	status           int   // of success; default 200
	errors           []int // statuses it may answer with beyond those of every route
	body             *huma.RequestBody
	produces         map[string]*huma.MediaType // content of success, for streams
	headers          map[string]*huma.Param
	anyQuery         bool // takes query parameters that are not declared (metadata.KEY)
}

func (s *server) operation(rt route, scope caisson.Scope) huma.Operation {
	op := huma.Operation{
		OperationID: rt.id, Method: rt.method, Path: rt.path, Summary: rt.summary, Tags: []string{rt.tag},
		DefaultStatus: rt.status, RequestBody: rt.body, MaxBodyBytes: v1.MaxJSONBody + 1, BodyReadTimeout: 30 * time.Second,
		RejectUnknownQueryParameters: !rt.anyQuery,
	}
	if op.DefaultStatus == 0 {
		op.DefaultStatus = http.StatusOK
	}
	op.Description = strings.TrimSpace(rt.text)
	if scope == "" {
		op.Middlewares = huma.Middlewares{s.open}
		op.Errors = append([]int{http.StatusInternalServerError}, rt.errors...)
		return op
	}
	op.Description = strings.TrimSpace(op.Description + "\n\nScope: `" + string(scope) + "`.")
	op.Security = []map[string][]string{{"key": {}}}
	op.Middlewares = huma.Middlewares{s.guard(scope)}
	op.Errors = []int{400, 401, 403, 429, 500, 503}
	if strings.Contains(rt.path, "{") {
		op.Errors = append(op.Errors, 404)
	}
	op.Errors = append(op.Errors, rt.errors...)
	slices.Sort(op.Errors)
	op.Errors = slices.Compact(op.Errors)
	return op
}

// finishDoc makes the document say what is true: validation answers 400, and 499 and the like are not shown.
func finishDoc(op *huma.Operation, rt route) {
	r := op.Responses[strconv.Itoa(op.DefaultStatus)]
	if r != nil && rt.headers != nil {
		r.Headers = rt.headers
	}
	if !slices.Contains(rt.errors, http.StatusUnprocessableEntity) {
		delete(op.Responses, "422")
	}
}

// add adds an operation that answers with JSON.
func add[I, O any](s *server, scope caisson.Scope, rt route, h func(ctx context.Context, p caisson.Principal, in *I) (*O, error)) {
	op := s.operation(rt, scope)
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		q := requestOf(ctx)
		s.bodyRead(q)
		out, err := h(ctx, q.principal, in)
		if err != nil {
			return nil, fail(ctx, err)
		}
		return out, nil
	})
	finishDoc(s.lastOperation(rt), rt)
}

// addStream adds an operation that reads the body or writes the answer itself. An error it returns before it wrote anything
// becomes a problem; after that the connection is cut.
func addStream[I any](s *server, scope caisson.Scope, rt route, h func(ctx context.Context, p caisson.Principal, in *I, w http.ResponseWriter, r *http.Request) error) {
	op := s.operation(rt, scope)
	status := strconv.Itoa(op.DefaultStatus)
	op.Responses = map[string]*huma.Response{status: {Description: http.StatusText(op.DefaultStatus), Content: rt.produces}}
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			r, w := humago.Unwrap(hc)
			q := requestOf(r.Context())
			s.bodyRead(q)
			name := q.principal.Name
			if !s.streams.Enter(name) {
				p, after := tooMany("more than "+strconv.Itoa(s.limits.Streams)+" streams are open for "+name, "end some streams first", time.Second)
				w.Header().Set("Retry-After", after)
				writeProblem(w, r, p)
				return
			}
			defer s.streams.Leave(name)
			err := h(r.Context(), q.principal, in, w, r)
			if err == nil {
				return
			}
			p := problemOf(r.Context(), err)
			if rec, ok := w.(*recorder); ok && rec.status != 0 {
				panic(http.ErrAbortHandler)
			}
			if p.Status == http.StatusServiceUnavailable {
				w.Header().Set("Retry-After", "1")
			}
			writeProblem(w, r, p)
		}}, nil
	})
	finishDoc(s.lastOperation(rt), rt)
}

func (s *server) lastOperation(rt route) *huma.Operation {
	item := s.api.OpenAPI().Paths[rt.path]
	return map[string]*huma.Operation{
		http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put, http.MethodPatch: item.Patch, http.MethodDelete: item.Delete,
	}[rt.method]
}

// bodyRead takes back the deadline for reading the JSON body. Left in place it would end the request's context, because
// net/http goes on reading the connection to see a client leave.
func (s *server) bodyRead(q *request) {
	if q.w != nil {
		http.NewResponseController(q.w).SetReadDeadline(time.Time{}) //nolint:errcheck // a writer without deadlines has none to take back
	}
}

// schemaOf is the schema of a type for content that huma does not write itself.
func schemaOf[T any](s *server) *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
}

func media(schema *huma.Schema) *huma.MediaType { return &huma.MediaType{Schema: schema} }

func binary() *huma.Schema { return &huma.Schema{Type: huma.TypeString, Format: "binary"} }

func rawBody(what string, types ...string) *huma.RequestBody {
	b := &huma.RequestBody{Description: what, Required: true, Content: map[string]*huma.MediaType{}}
	for _, t := range types {
		b.Content[t] = media(binary())
	}
	return b
}

func headerDoc(text string) *huma.Param {
	return &huma.Param{Description: text, Schema: &huma.Schema{Type: huma.TypeString}}
}
