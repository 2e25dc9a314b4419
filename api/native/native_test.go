package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// control answers every call with one error, or with next to nothing, and keeps what it was asked.
type control struct {
	caisson.Sandboxes
	caisson.Templates
	caisson.Events

	mu     sync.Mutex
	err    error
	panics bool
	asked  []string
	filter caisson.SandboxFilter
}

func (c *control) ask(what string, args ...any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, strings.TrimSpace(what+" "+strings.TrimSpace(fmt.Sprintln(args...))))
	if c.panics {
		panic("it was told to")
	}
	return c.err
}

func (c *control) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.asked = nil }()
	return c.asked
}

func (c *control) set(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

const boxID = "sb0123456789abcdefgh"

func (c *control) Create(_ context.Context, _ caisson.TeamID, cfg caisson.SandboxConfig, _ string) (caisson.Sandbox, []caisson.Timing, error) {
	return caisson.Sandbox{ID: boxID}, nil, c.ask("create", cfg.Name)
}

func (c *control) Get(_ context.Context, _ caisson.TeamID, id string) (caisson.Sandbox, error) {
	return caisson.Sandbox{ID: boxID}, c.ask("get", id)
}

func (c *control) List(_ context.Context, _ caisson.TeamID, f caisson.SandboxFilter) (caisson.SandboxPage, error) {
	c.mu.Lock()
	c.filter = f
	c.mu.Unlock()
	return caisson.SandboxPage{}, c.ask("list")
}

func (c *control) Update(_ context.Context, _ caisson.TeamID, id string, _ caisson.SandboxPatch) (caisson.Sandbox, error) {
	return caisson.Sandbox{ID: boxID}, c.ask("update", id)
}

func (c *control) Delete(_ context.Context, _ caisson.TeamID, id string) error {
	return c.ask("delete", id)
}

func (c *control) Guest(_ context.Context, _ caisson.TeamID, id string) (caisson.Guest, error) {
	return inside{control: c}, c.ask("guest", id)
}

type inside struct {
	caisson.Guest
	control *control
}

func (g inside) Command(_ context.Context, id caisson.CommandID) (caisson.Command, error) {
	return caisson.Command{ID: id}, g.control.ask("command", id)
}

func (g inside) StatFile(_ context.Context, path, _ string) (caisson.FileInfo, error) {
	return caisson.FileInfo{Path: path, Type: caisson.TypeFile}, g.control.ask("stat", path)
}

type events struct{ *control }

func (e events) List(_ context.Context, _ caisson.TeamID, after uint64, id caisson.SandboxID, limit int) ([]caisson.Event, error) {
	return nil, e.ask("events", after, id, limit)
}

type templates struct {
	caisson.Templates
	*control
}

func (c templates) List(context.Context) ([]caisson.Template, error) { return nil, c.ask("templates") }
func (c templates) Resolve(_ context.Context, ref string) (caisson.Template, error) {
	return caisson.Template{}, c.ask("resolve", ref)
}

type keys struct{ *control }

func (k keys) Create(context.Context, caisson.TeamID, string, []caisson.Scope, time.Duration) (caisson.Key, string, error) {
	return caisson.Key{}, "csn_x", k.ask("create key")
}
func (k keys) List(context.Context, caisson.TeamID) ([]caisson.Key, error) { return nil, k.ask("keys") }
func (k keys) Delete(_ context.Context, _ caisson.TeamID, id caisson.KeyID) error {
	return k.ask("delete key", id)
}

func (k keys) Authenticate(_ context.Context, key string) (caisson.Principal, error) {
	scope := map[string]caisson.Scope{"csn_admin": caisson.ScopeAdmin, "csn_write": caisson.ScopeWrite, "csn_read": caisson.ScopeRead}[key]
	switch {
	case key == "csn_down":
		return caisson.Principal{}, caisson.E(caisson.Unavailable, "authenticate", "", "the store is down", errors.New("secret of the store"))
	case scope == "":
		return caisson.Principal{}, caisson.E(caisson.Denied, "authenticate", "", "unknown", nil)
	}
	return caisson.Principal{Team: caisson.DefaultTeam, Name: key, Scopes: []caisson.Scope{scope}}, nil
}

type api struct {
	*control
	t   *testing.T
	url string
}

func newAPI(t *testing.T) *api {
	t.Helper()
	c := &control{}
	h, err := New(Config{
		Sandboxes: c, Keys: keys{c}, Events: events{c}, Templates: templates{control: c},
		Info: func(context.Context) (v1.Info, error) { return v1.Info{}, nil }, Limits: Limits{FailedAuth: 1000, Rate: 1e6, Burst: 1e6},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &api{control: c, t: t, url: srv.URL}
}

type answer struct {
	v1.Problem
	status int
	header http.Header
	text   string
}

func (a *api) do(method, path, body string, header ...string) answer {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, a.url+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer csn_admin")
	if body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(q) // follows no redirect
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	out := answer{status: res.StatusCode, header: res.Header, text: string(b)}
	if res.StatusCode >= 400 && method != http.MethodHead {
		if ct := res.Header.Get("Content-Type"); ct != v1.MediaProblem {
			a.t.Errorf("%s %.80s: an error of type %q: %.200s", method, path, ct, b)
		} else if err := json.Unmarshal(b, &out.Problem); err != nil || out.Problem.Status != res.StatusCode || out.Code == "" || out.Title == "" || out.RequestID == "" {
			a.t.Errorf("%s %.80s: the problem is %.300s (%v)", method, path, b, err)
		}
	}
	return out
}

// TestEachKindHasItsStatus: an error of the rooms below becomes its status and code, with message and hint; its cause is
// for the log alone; where waiting helps the answer says so.
func TestEachKindHasItsStatus(t *testing.T) {
	a := newAPI(t)
	for kind, status := range map[caisson.Kind]int{
		caisson.Invalid: 400, caisson.Denied: 403, caisson.NotFound: 404, caisson.Conflict: 409, caisson.Exhausted: 429, caisson.Unsupported: 422,
		caisson.Unavailable: 503, caisson.Timeout: 504, caisson.Canceled: 499, caisson.Internal: 500,
	} {
		a.set(fmt.Errorf("around: %w", caisson.E(kind, "do it", "this", "that happened", errors.New("secret cause")).WithHint("do that")))
		for _, c := range []struct{ method, path, body string }{
			{"GET", "/v1/sandboxes/x", ""}, {"GET", "/v1/sandboxes", ""}, {"POST", "/v1/sandboxes", "{}"}, {"DELETE", "/v1/sandboxes/x", ""},
			{"GET", "/v1/sandboxes/x/files?path=/a", ""}, {"POST", "/v1/sandboxes/x/commands", `{"shell":"true"}`}, {"GET", "/v1/events", ""}, {"GET", "/v1/templates/x", ""},
		} {
			got := a.do(c.method, c.path, c.body)
			if got.status != status || got.Code != string(kind) || !strings.Contains(got.Detail, "that happened") || got.Hint != "do that" {
				t.Errorf("%s of %s %s: %d %s", kind, c.method, c.path, got.status, got.text)
			}
			if strings.Contains(got.text, "secret") || strings.Contains(got.text, "around") {
				t.Errorf("the cause is shown: %s", got.text)
			}
			if retry := got.header.Get("Retry-After"); (retry != "") != (kind == caisson.Unavailable) {
				t.Errorf("Retry-After of %s is %q", kind, retry)
			}
		}
	}
}

// TestOtherErrors: what is no error of ours is a fault of ours, without its text, and a panic is no more than that.
func TestOtherErrors(t *testing.T) {
	a := newAPI(t)
	for _, c := range []struct {
		err    error
		status int
	}{{errors.New("secret"), 500}, {fmt.Errorf("secret: %w", context.DeadlineExceeded), 504}, {fmt.Errorf("secret: %w", context.Canceled), 499}} {
		a.set(c.err)
		if got := a.do("GET", "/v1/sandboxes/x", ""); got.status != c.status || strings.Contains(got.text, "secret") || got.Detail == "" {
			t.Errorf("%v became %d %s", c.err, got.status, got.text)
		}
	}
	a.set(nil)
	a.panics = true
	if got := a.do("GET", "/v1/sandboxes/x", ""); got.status != 500 || strings.Contains(got.text, "told") {
		t.Errorf("a panic became %d %s", got.status, got.text)
	}
}

// TestBodies: a body that is not what the route takes is refused with a text that names the fault, before anything is done.
func TestBodies(t *testing.T) {
	a := newAPI(t)
	big := `{"name":"` + strings.Repeat("x", v1.MaxJSONBody) + `"}`
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		text                     string
	}{
		{"an unknown field", "POST", "/v1/sandboxes", `{"nmae":"x"}`, 400, "nmae"},
		{"an unknown field inside", "POST", "/v1/sandboxes", `{"resources":{"cpus":1}}`, 400, "cpus"},
		{"no JSON", "POST", "/v1/sandboxes", `{"name":`, 400, "unexpected end of JSON"},
		{"JSON and more", "POST", "/v1/sandboxes", `{} {}`, 400, "after top-level value"},
		{"another type", "POST", "/v1/sandboxes", `{"name":7}`, 400, "body.name"},
		{"no object", "POST", "/v1/sandboxes", `[]`, 400, "expected object"},
		{"no body", "POST", "/v1/sandboxes", "", 400, "body is required"},
		{"a long name", "POST", "/v1/sandboxes", `{"name":"` + strings.Repeat("x", 65) + `"}`, 400, "body.name"},
		{"a negative lifetime", "POST", "/v1/sandboxes", `{"max_lifetime":"-1s"}`, 400, "max_lifetime"},
		{"too much", "POST", "/v1/sandboxes", big, 413, "1 MiB"},
		{"too much for a command", "POST", "/v1/sandboxes/x/commands", big, 413, "1 MiB"},
		{"deep nesting", "POST", "/v1/sandboxes", strings.Repeat("[", 100_000), 400, ""},
		{"an unknown field of a command", "POST", "/v1/sandboxes/x/commands", `{"shell":"x","comand":"y"}`, 400, "comand"},
		{"an unknown field of a change", "PATCH", "/v1/sandboxes/x", `{"id":"y"}`, 400, "body.id"},
		{"an unknown scope", "POST", "/v1/keys", `{"name":"x","scopes":["root"]}`, 400, "root"},
		{"a command that is none", "POST", "/v1/sandboxes/x/commands", `{}`, 400, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := a.do(c.method, c.path, c.body)
			if got.status != c.status || !strings.Contains(got.text, c.text) {
				t.Errorf("%d %s, want %d with %q", got.status, got.text, c.status, c.text)
			}
			if len(got.text) > 8<<10 {
				t.Errorf("the answer has %d bytes", len(got.text))
			}
			if asked := a.take(); len(asked) > 0 {
				t.Errorf("it was done all the same: %q", asked)
			}
		})
	}
}

// TestPages: what is asked of a page is held to its bounds; the cursor is the store's to read and passes whole.
func TestPages(t *testing.T) {
	a := newAPI(t)
	for _, c := range []struct {
		query, text string
		status      int
		filter      caisson.SandboxFilter
	}{
		{"", "", 200, caisson.SandboxFilter{Limit: 100}},
		{"?limit=1000&cursor=a%2Fb%3D&name=n", "", 200, caisson.SandboxFilter{Limit: 1000, Cursor: "a/b=", Name: "n"}},
		{"?state=running,stopped&metadata.a.b=c%20d", "", 200, caisson.SandboxFilter{Limit: 100, States: []caisson.State{"running", "stopped"}, Metadata: map[string]string{"a.b": "c d"}}},
		{"?limit=0", "query.limit", 400, caisson.SandboxFilter{}},
		{"?limit=-1", "query.limit", 400, caisson.SandboxFilter{}},
		{"?limit=1001", "query.limit", 400, caisson.SandboxFilter{}},
		{"?limit=99999999999999999999", "query.limit", 400, caisson.SandboxFilter{}},
		{"?limit=x", "query.limit", 400, caisson.SandboxFilter{}},
		{"?cursor=" + strings.Repeat("x", 1025), "query.cursor", 400, caisson.SandboxFilter{}},
		{"?state=sleeping", "sleeping", 400, caisson.SandboxFilter{}},
		{"?metadata.=x", "query.metadata.", 400, caisson.SandboxFilter{}},
		{"?metadata.a=1&metadata.a=2", "query.metadata.a", 400, caisson.SandboxFilter{}},
		{"?page=2", "query.page", 400, caisson.SandboxFilter{}},
	} {
		t.Run(c.query, func(t *testing.T) {
			got := a.do("GET", "/v1/sandboxes"+c.query, "")
			if got.status != c.status || !strings.Contains(got.text, c.text) {
				t.Errorf("%d %s", got.status, got.text)
			}
			if asked := a.take(); (len(asked) > 0) != (c.status == 200) {
				t.Errorf("asked %q", asked)
			}
			if diff := cmp.Diff(c.filter, a.filter); c.status == 200 && diff != "" {
				t.Error(diff)
			}
		})
	}
	a.set(caisson.E(caisson.Invalid, "list sandboxes", "", "the cursor is not one of ours", nil))
	if got := a.do("GET", "/v1/sandboxes?cursor=x", ""); got.status != 400 || !strings.Contains(got.Detail, "cursor") {
		t.Errorf("%d %s", got.status, got.text)
	}
}

// TestEventPages holds the parameters of events to their bounds.
func TestEventPages(t *testing.T) {
	a := newAPI(t)
	for _, c := range []struct {
		query, last string
		status      int
		asked       []string
	}{
		{"", "", 200, []string{"events 0  100"}},
		{"?after=7&limit=3&sandbox=" + boxID, "", 200, []string{"events 7 " + boxID + " 3"}},
		{"?after=7", "9", 200, []string{"events 9  100"}},
		{"?after=-1", "", 400, nil},
		{"?limit=0", "", 400, nil},
		{"?limit=1001", "", 400, nil},
		{"?sandbox=../etc", "", 400, nil},
		{"?sandbox=a-name", "", 400, nil},
		{"", "nine", 400, nil},
		{"?unknown=1", "", 400, nil},
	} {
		header := []string{}
		if c.last != "" {
			header = []string{"Last-Event-ID", c.last}
		}
		got := a.do("GET", "/v1/events"+c.query, "", header...)
		if asked := a.take(); got.status != c.status || !slices.Equal(asked, c.asked) {
			t.Errorf("%q %q: %d %s, asked %q", c.query, c.last, got.status, got.text, asked)
		}
	}
}

// TestPathTricks: an id is one segment, decoded once, and reaches the rooms below as it is; what is no command's id or
// no path never does; nothing leads from one route to another.
func TestPathTricks(t *testing.T) {
	a := newAPI(t)
	const command = "cmd0123456789abcdefgh"
	for _, c := range []struct {
		method, path string
		status       int
		asked        []string
	}{
		{"GET", "/v1/sandboxes/my-box", 200, []string{"get my-box"}},
		{"GET", "/v1/sandboxes/%2e%2e", 200, []string{"get .."}},
		{"GET", "/v1/sandboxes/..%2f..%2fetc%2fpasswd", 200, []string{"get ../../etc/passwd"}},
		{"GET", "/v1/sandboxes/%252e%252e", 200, []string{"get %2e%2e"}},
		{"GET", "/v1/sandboxes/%FF", 200, []string{"get \xff"}},
		{"GET", "/v1/sandboxes/a%2Fstart", 200, []string{"get a/start"}},
		{"GET", "/v1/sandboxes/" + strings.Repeat("x", 65), 400, nil},
		{"DELETE", "/v1/sandboxes/" + strings.Repeat("x", 65), 400, nil},
		{"GET", "/v1/sandboxes/x/nothing", 404, nil},
		{"GET", "/v1/nothing", 404, nil},
		{"PUT", "/v1/sandboxes/x", 405, nil},
		{"DELETE", "/v1/keys/..%2Fx", 204, []string{"delete key ../x"}},
		{"GET", "/v1/templates/..%2F..%2Fetc", 200, []string{"resolve ../../etc"}},

		{"GET", "/v1/sandboxes/x/commands/" + command, 200, []string{"guest x", "command " + command}},
		{"GET", "/v1/sandboxes/x/commands/..%2F..%2Fshim.json", 404, nil},
		{"GET", "/v1/sandboxes/x/commands/%2e%2e", 404, nil},
		{"GET", "/v1/sandboxes/x/commands/cmd0123456789abcdef%2F.", 404, nil},
		{"GET", "/v1/sandboxes/x/commands/" + command + "%00", 404, nil},
		{"GET", "/v1/sandboxes/x/commands/..%2F../output", 404, nil},

		{"GET", "/v1/sandboxes/x/files/stat?path=%2Fa%2F..%2Fb%FF", 200, []string{"guest x", "stat /a/../b\xff"}}, // the guest's own business
		{"GET", "/v1/sandboxes/x/files/stat?path=a%00b", 400, nil},
		{"GET", "/v1/sandboxes/x/files/stat?path=", 400, nil},
		{"GET", "/v1/sandboxes/x/files/stat", 400, nil},
		{"GET", "/v1/sandboxes/x/files/stat?path=/" + strings.Repeat("x", 4096), 400, nil},
	} {
		got := a.do(c.method, c.path, "")
		if asked := a.take(); got.status != c.status || !slices.Equal(asked, c.asked) {
			t.Errorf("%s %.100s: %d %.300s, asked %q", c.method, c.path, got.status, got.text, asked)
		}
	}
	for _, p := range []string{"/v1/sandboxes/../keys", "/v1//keys", "/v1/sandboxes/./x", "/../v1/keys"} {
		if got := a.do("DELETE", p, ""); got.status < 300 || len(a.take()) > 0 {
			t.Errorf("%s: %d %s", p, got.status, got.text)
		}
	}
}

// TestCredentials: without a key that is good and has the scope nothing is asked of the rooms below.
func TestCredentials(t *testing.T) {
	a := newAPI(t)
	for _, c := range []struct {
		method, path, credential string
		status                   int
	}{
		{"GET", "/v1/sandboxes/x", "", 401},
		{"GET", "/v1/sandboxes/x", "Basic csn_admin", 401},
		{"GET", "/v1/sandboxes/x", "Bearer", 401},
		{"GET", "/v1/sandboxes/x", "Bearer csn_unknown", 401},
		{"GET", "/v1/sandboxes/x", "Bearer " + strings.Repeat("x", 257), 401},
		{"GET", "/v1/sandboxes/x", "Bearer csn_down", 503},
		{"DELETE", "/v1/sandboxes/x", "Bearer csn_read", 403},
		{"GET", "/v1/keys", "Bearer csn_write", 403},
		{"GET", "/v1/sandboxes/x", "bearer csn_read", 200},
		{"DELETE", "/v1/sandboxes/x", "Bearer csn_write", 204},
		{"GET", "/healthz", "", 200},
		{"GET", "/metrics", "", 401},
	} {
		got := a.do(c.method, c.path, "", "Authorization", c.credential)
		if got.status != c.status || strings.Contains(got.text, "secret") {
			t.Errorf("%s %s with %.30q: %d %s", c.method, c.path, c.credential, got.status, got.text)
		}
		if asked := a.take(); c.status >= 400 && len(asked) > 0 {
			t.Errorf("%s %s with %.30q asked %q", c.method, c.path, c.credential, asked)
		}
		if c.status == 401 && got.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s with %.30q: no WWW-Authenticate", c.path, c.credential)
		}
	}
}
