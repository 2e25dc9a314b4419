package native

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// SandboxPath is the path parameter of everything below a sandbox.
type SandboxPath struct {
	ID string `path:"id" doc:"The sandbox's id or name." maxLength:"64"`
}

type sandboxOutput struct {
	Location string `header:"Location" doc:"Path of the sandbox."`
	Timing   string `header:"Server-Timing" doc:"What took how long, in milliseconds, in the order it happened; total is the whole call."`
	Body     v1.Sandbox
}

type sandboxBody struct{ Body v1.Sandbox }

type createInput struct {
	IdempotencyKey string `header:"Idempotency-Key" doc:"A second create with the same key and the same body returns the first one's sandbox; with another body it is a conflict." maxLength:"128"`
	Body           v1.SandboxCreate
}

// listInput: metadata.KEY=VALUE parameters are read by Resolve, since their names are the caller's.
type listInput struct {
	State    []string `query:"state" doc:"States to show, separated by commas; default: all."`
	Name     string   `query:"name" doc:"Name to show." maxLength:"64"`
	Limit    int      `query:"limit" doc:"Sandboxes on a page." default:"100" minimum:"1" maximum:"1000"`
	Cursor   string   `query:"cursor" doc:"next of the page before." maxLength:"1024"`
	metadata map[string]string
}

// Resolve reads the metadata parameters and refuses unknown ones.
func (l *listInput) Resolve(hc huma.Context) []error {
	r, _ := humago.Unwrap(hc)
	var errs []error
	for k, v := range r.URL.Query() {
		switch m, ok := strings.CutPrefix(k, "metadata."); {
		case ok && m != "" && len(v) == 1:
			if l.metadata == nil {
				l.metadata = map[string]string{}
			}
			l.metadata[m] = v[0]
		case k != "state" && k != "name" && k != "limit" && k != "cursor":
			errs = append(errs, &huma.ErrorDetail{Location: "query." + k, Message: "unknown query parameter"})
		}
	}
	for _, st := range l.State {
		if !knownStates[caisson.State(st)] {
			errs = append(errs, &huma.ErrorDetail{Location: "query.state", Message: fmt.Sprintf("%q is not a state of a sandbox", clip(st, 32))})
		}
	}
	return errs
}

var knownStates = map[caisson.State]bool{
	caisson.Creating: true, caisson.Running: true, caisson.Pausing: true, caisson.Paused: true, caisson.Suspending: true, caisson.Suspended: true,
	caisson.Waking: true, caisson.Stopping: true, caisson.Stopped: true, caisson.Deleting: true, caisson.Failed: true,
}

func (s *server) sandboxRoutes() {
	const tag = "sandboxes"
	one := "/v1/sandboxes/{id}"
	add(s, caisson.ScopeWrite, route{id: "createSandbox", method: http.MethodPost, path: "/v1/sandboxes", tag: tag, summary: "Create a sandbox",
		text:   "Makes and starts a sandbox, and answers when commands can be run in it. If the client goes away the sandbox is made all the same.",
		status: http.StatusCreated, errors: []int{404, 409, 422, 504}}, s.createSandbox)
	add(s, caisson.ScopeRead, route{id: "listSandboxes", method: http.MethodGet, path: "/v1/sandboxes", tag: tag, summary: "List sandboxes", anyQuery: true,
		text: "Newest first, in pages. `metadata.KEY=VALUE` (any number of them) shows those whose metadata has that entry."}, s.listSandboxes)
	add(s, caisson.ScopeRead, route{id: "getSandbox", method: http.MethodGet, path: one, tag: tag, summary: "Get a sandbox"},
		func(ctx context.Context, p caisson.Principal, in *SandboxPath) (*sandboxBody, error) {
			return one1(ctx, in.ID, func(id string) (caisson.Sandbox, error) { return s.cfg.Sandboxes.Get(ctx, p.Team, id) })
		})
	add(s, caisson.ScopeWrite, route{id: "updateSandbox", method: http.MethodPatch, path: one, tag: tag, summary: "Change a sandbox", errors: []int{409},
		text: "Fields that are absent stay as they are."}, s.updateSandbox)
	add(s, caisson.ScopeWrite, route{id: "deleteSandbox", method: http.MethodDelete, path: one, tag: tag, summary: "Delete a sandbox", status: http.StatusNoContent, errors: []int{504},
		text: "Works in every state, and answers when nothing is left of it."},
		func(ctx context.Context, p caisson.Principal, in *SandboxPath) (*struct{}, error) {
			requestOf(ctx).onSandbox(in.ID)
			return nil, s.cfg.Sandboxes.Delete(ctx, p.Team, in.ID)
		})
	add(s, caisson.ScopeWrite, route{id: "startSandbox", method: http.MethodPost, path: one + "/start", tag: tag, summary: "Start a sandbox", errors: []int{409, 504},
		text: "Boots a stopped sandbox with the disk it had. A running one is returned as it is."}, s.startSandbox)
	add(s, caisson.ScopeWrite, route{id: "stopSandbox", method: http.MethodPost, path: one + "/stop", tag: tag, summary: "Stop a sandbox", errors: []int{409, 504},
		text: "Ends all commands and keeps the disk. A stopped one is returned as it is."},
		func(ctx context.Context, p caisson.Principal, in *SandboxPath) (*sandboxBody, error) {
			return one1(ctx, in.ID, func(id string) (caisson.Sandbox, error) { return s.cfg.Sandboxes.Stop(ctx, p.Team, id) })
		})
	add(s, caisson.ScopeRead, route{id: "getSandboxMetrics", method: http.MethodGet, path: one + "/metrics", tag: tag, summary: "See what a sandbox uses", errors: []int{409},
		text: "Processor time, memory, disk and processes now. Needs a running sandbox."}, s.sandboxMetrics)
}

// one1 is the shape of calls that give one sandbox for an id or name.
func one1(ctx context.Context, id string, do func(id string) (caisson.Sandbox, error)) (*sandboxBody, error) {
	requestOf(ctx).onSandbox(id)
	b, err := do(id)
	if err != nil {
		return nil, err
	}
	requestOf(ctx).onSandbox(string(b.ID))
	return &sandboxBody{Body: sandboxOut(b)}, nil
}

func (s *server) createSandbox(ctx context.Context, p caisson.Principal, in *createInput) (*sandboxOutput, error) {
	const op = "create sandbox"
	b := in.Body
	if b.MaxLifetime < 0 {
		return nil, invalid(op, "", "max_lifetime is negative", "0 means none")
	}
	if err := validEnv(op, b.Env); err != nil {
		return nil, err
	}
	for i := range len(in.IdempotencyKey) {
		if c := in.IdempotencyKey[i]; c < 0x21 || c > 0x7e {
			return nil, invalid(op, "", "Idempotency-Key holds a character that is not printable ASCII", "a UUID is a good key")
		}
	}
	start := time.Now()
	cfg := caisson.SandboxConfig{Template: b.Template, Name: b.Name, Metadata: b.Metadata, Env: b.Env, Resources: caisson.Resources(b.Resources),
		User: b.User, Cwd: b.Cwd, MaxLifetime: b.MaxLifetime.D(), Driver: b.Driver}
	box, timing, err := s.cfg.Sandboxes.Create(ctx, p.Team, cfg, in.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	s.metrics.create.Observe(time.Since(start).Seconds())
	requestOf(ctx).onSandbox(string(box.ID))
	return &sandboxOutput{Location: "/v1/sandboxes/" + string(box.ID), Timing: serverTiming(timing, time.Since(start)), Body: sandboxOut(box)}, nil
}

type sandboxListOutput struct{ Body v1.SandboxList }

func (s *server) listSandboxes(ctx context.Context, p caisson.Principal, in *listInput) (*sandboxListOutput, error) {
	f := caisson.SandboxFilter{Name: in.Name, Metadata: in.metadata, Limit: in.Limit, Cursor: in.Cursor}
	for _, st := range in.State {
		f.States = append(f.States, caisson.State(st))
	}
	page, err := s.cfg.Sandboxes.List(ctx, p.Team, f)
	if err != nil {
		return nil, err
	}
	out := &sandboxListOutput{Body: v1.SandboxList{Sandboxes: make([]v1.Sandbox, 0, len(page.Sandboxes)), Next: page.Next}}
	for _, b := range page.Sandboxes {
		out.Body.Sandboxes = append(out.Body.Sandboxes, sandboxOut(b))
	}
	return out, nil
}

type updateInput struct {
	SandboxPath
	Body v1.SandboxPatch
}

func (s *server) updateSandbox(ctx context.Context, p caisson.Principal, in *updateInput) (*sandboxBody, error) {
	patch := caisson.SandboxPatch{Name: in.Body.Name, Metadata: in.Body.Metadata, Revision: in.Body.Revision}
	if in.Body.MaxLifetime != nil {
		d := in.Body.MaxLifetime.D()
		if d < 0 {
			return nil, invalid("change sandbox", in.ID, "max_lifetime is negative", "0 means none")
		}
		patch.MaxLifetime = &d
	}
	return one1(ctx, in.ID, func(id string) (caisson.Sandbox, error) { return s.cfg.Sandboxes.Update(ctx, p.Team, id, patch) })
}

func (s *server) startSandbox(ctx context.Context, p caisson.Principal, in *SandboxPath) (*sandboxOutput, error) {
	start := time.Now()
	requestOf(ctx).onSandbox(in.ID)
	box, timing, err := s.cfg.Sandboxes.Start(ctx, p.Team, in.ID)
	if err != nil {
		return nil, err
	}
	s.metrics.start.Observe(time.Since(start).Seconds())
	return &sandboxOutput{Location: "/v1/sandboxes/" + string(box.ID), Timing: serverTiming(timing, time.Since(start)), Body: sandboxOut(box)}, nil
}

type metricsOutput struct{ Body v1.Metrics }

func (s *server) sandboxMetrics(ctx context.Context, p caisson.Principal, in *SandboxPath) (*metricsOutput, error) {
	g, err := s.guest(ctx, p, in.ID)
	if err != nil {
		return nil, err
	}
	m, err := g.Metrics(ctx)
	return &metricsOutput{Body: metricsOut(m)}, err
}

// guest opens the inside of a sandbox, and notes the sandbox for the log.
func (s *server) guest(ctx context.Context, p caisson.Principal, id string) (caisson.Guest, error) {
	requestOf(ctx).onSandbox(id)
	return s.cfg.Sandboxes.Guest(ctx, p.Team, id)
}

// serverTiming writes the parts in the form of the header: name;dur=milliseconds.
func serverTiming(parts []caisson.Timing, total time.Duration) string {
	var b strings.Builder
	token := func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_' || c == '.' {
			return c
		}
		return '_'
	}
	for _, t := range parts {
		fmt.Fprintf(&b, "%s;dur=%.3f, ", strings.Map(token, t.Name), float64(t.Dur.Microseconds())/1000)
	}
	fmt.Fprintf(&b, "total;dur=%.3f", float64(total.Microseconds())/1000)
	return b.String()
}
