package native

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// request is what is known of one request, for its log line, its metrics and its problems.
type request struct {
	id string
	w  http.ResponseWriter
	r  *http.Request

	route     string
	principal caisson.Principal

	mu      sync.Mutex // the fields below may be set by a stream's goroutine
	sandbox string
	command string
	err     error
}

type requestKey struct{}

func requestOf(ctx context.Context) *request {
	if ri, ok := ctx.Value(requestKey{}).(*request); ok {
		return ri
	}
	return &request{}
}

func (q *request) note(err error) { q.mu.Lock(); q.err = err; q.mu.Unlock() }
func (q *request) onSandbox(id string) {
	q.mu.Lock()
	q.sandbox = id
	q.mu.Unlock()
}
func (q *request) onCommand(id caisson.CommandID) {
	q.mu.Lock()
	q.command = string(id)
	q.mu.Unlock()
}

// requestID takes the caller's id if it is plain, so that a line can be followed through several systems.
func requestID(s string) string {
	plain := func(c rune) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.ContainsRune("-_.:", c)
	}
	if len(s) == 0 || len(s) > 64 || strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		return "req-" + rand.Text()[:16]
	}
	return s
}

// ServeHTTP gives the request its id, sends it where it belongs, and logs and counts how it went.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rec := &recorder{ResponseWriter: w}
	q := &request{id: requestID(r.Header.Get(v1.HeaderRequestID)), w: rec, route: "none"}
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
	q.r = r
	rec.Header().Set(v1.HeaderRequestID, q.id)
	rec.Header().Set("X-Content-Type-Options", "nosniff")
	s.metrics.inFlight.Inc()
	defer func() {
		s.metrics.inFlight.Dec()
		abort := s.recovered(recover(), q, rec)
		s.finish(q, rec, time.Since(start))
		if abort {
			panic(http.ErrAbortHandler) // net/http then cuts the connection, so that a client sees a cut answer as cut
		}
	}()
	if s.cfg.Ingress != nil && s.cfg.Ingress.Match(r) {
		q.route = "ingress"
		s.cfg.Ingress.ServeHTTP(rec, r)
		return
	}
	s.dispatch(rec, r)
}

// dispatch is the mux, with problems for what it does not know.
func (s *server) dispatch(w http.ResponseWriter, r *http.Request) {
	if _, pattern := s.mux.Handler(r); pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	probe := &discard{h: http.Header{}}
	s.mux.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.h.Get("Allow"))
		writeProblem(w, r, problem(http.StatusMethodNotAllowed, "method_not_allowed", "Method not allowed",
			clip(r.Method, 20)+" is not for this path", "allowed: "+probe.h.Get("Allow")))
		return
	}
	writeProblem(w, r, problem(http.StatusNotFound, string(caisson.NotFound), kindTitles[caisson.NotFound],
		"there is nothing at "+clip(r.URL.Path, 200), "GET /openapi.json lists every path"))
}

// writeProblem answers outside huma.
func writeProblem(w http.ResponseWriter, r *http.Request, p *v1.Problem) {
	p.RequestID = requestOf(r.Context()).id
	b, err := json.Marshal(p)
	if err != nil {
		b = []byte(`{"status":500,"code":"internal"}`) // strings and numbers always marshal
	}
	w.Header().Set("Content-Type", v1.MediaProblem)
	w.WriteHeader(p.Status)
	w.Write(append(b, '\n'))
}

// recovered handles a panic of a handler; it reports whether the connection must be cut.
func (s *server) recovered(v any, q *request, rec *recorder) (abort bool) {
	if v == nil {
		return false
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		return true
	}
	q.note(fmt.Errorf("panic: %v", v))
	s.log.Error("handler panicked", "request", q.id, "route", q.route, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if rec.status != 0 {
		return true
	}
	writeProblem(rec, q.r, problem(http.StatusInternalServerError, string(caisson.Internal), kindTitles[caisson.Internal],
		"the server failed", "the server's log has the cause under request "+q.id))
	return false
}

func (s *server) finish(q *request, rec *recorder, d time.Duration) {
	status := rec.status
	if status == 0 {
		status = http.StatusOK
	}
	s.metrics.done(q.route, status, d)
	q.mu.Lock()
	defer q.mu.Unlock()
	attrs := []slog.Attr{
		slog.String("request", q.id), slog.String("method", clip(q.r.Method, 20)), slog.String("route", q.route),
		slog.Int("status", status), slog.Duration("duration", d), slog.Int64("bytes", rec.bytes),
	}
	for _, a := range [][2]string{{"principal", q.principal.Name}, {"sandbox", q.sandbox}, {"command", q.command}} {
		if a[1] != "" {
			attrs = append(attrs, slog.String(a[0], a[1]))
		}
	}
	level := slog.LevelInfo
	switch {
	case status >= 500:
		level = slog.LevelError
	case q.route == "healthz" || q.route == "readyz" || q.route == "metrics":
		level = slog.LevelDebug
	}
	if q.err != nil {
		attrs = append(attrs, slog.String("error", q.err.Error()))
	}
	s.log.LogAttrs(context.WithoutCancel(q.r.Context()), level, "request", attrs...)
}

// recorder notes status and bytes. Unwrap leads http.ResponseController to the real writer.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// discard keeps the status and header alone.
type discard struct {
	h      http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(s int)           { d.status = s }
