package native

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

var kindTitles = map[caisson.Kind]string{
	caisson.Invalid: "Invalid request", caisson.Denied: "Denied", caisson.NotFound: "Not found", caisson.Conflict: "Conflict",
	caisson.Exhausted: "Limit reached", caisson.Unsupported: "Unsupported", caisson.Unavailable: "Unavailable",
	caisson.Timeout: "Timeout", caisson.Canceled: "Canceled", caisson.Internal: "Internal error",
}

// problemOf turns an error of any room into what a user may see, and notes the whole of it for the log.
func problemOf(ctx context.Context, err error) *v1.Problem {
	var p *v1.Problem
	ri := requestOf(ctx)
	if errors.As(err, &p) {
		q := *p
		q.RequestID = ri.id
		return &q
	}
	ri.note(err)
	k := caisson.KindOf(err)
	p = &v1.Problem{Type: "about:blank", Title: kindTitles[k], Status: k.HTTPStatus(), Code: string(k), RequestID: ri.id}
	var e *caisson.Error
	switch {
	case errors.As(err, &e):
		p.Detail, p.Hint = e.User(), e.Hint
	case k == caisson.Timeout:
		p.Detail = "the time for this request passed"
	case k == caisson.Canceled:
		p.Detail = "the request was canceled"
	}
	if k == caisson.Internal {
		if p.Detail == "" {
			p.Detail = "the server failed"
		}
		if p.Hint == "" {
			p.Hint = "the server's log has the cause under request " + ri.id
		}
	}
	return p
}

// problem makes one that has no caisson.Kind.
func problem(status int, code, title, detail, hint string) *v1.Problem {
	return &v1.Problem{Type: "about:blank", Title: title, Status: status, Code: code, Detail: detail, Hint: hint}
}

// fail is what handlers return: the problem, with Retry-After where waiting helps.
func fail(ctx context.Context, err error) error {
	p := problemOf(ctx, err)
	if p.Status == http.StatusServiceUnavailable {
		return huma.ErrorWithHeaders(p, http.Header{"Retry-After": {"1"}})
	}
	return p
}

func invalid(op, subject, msg, hint string) error {
	return caisson.E(caisson.Invalid, op, subject, msg, nil).WithHint(hint)
}

// tooMany is 429 with Retry-After.
func tooMany(detail, hint string, wait time.Duration) (*v1.Problem, string) {
	secs := max(1, int(math.Ceil(wait.Seconds())))
	return problem(http.StatusTooManyRequests, string(caisson.Exhausted), kindTitles[caisson.Exhausted], detail, hint), strconv.Itoa(secs)
}

// useProblems makes huma's own errors (validation, too large, …) problems of ours. The hook is a variable of huma's package;
// it is set once, to a function that keeps nothing.
var useProblems = sync.OnceFunc(func() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return humaProblem("", status, msg, errs)
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		id := ""
		if ctx != nil {
			ri := requestOf(ctx.Context())
			id = ri.id
			if status >= 500 {
				ri.note(errors.Join(errs...))
				msg, errs = "the server failed", nil
			}
		}
		return humaProblem(id, status, msg, errs)
	}
})

func humaProblem(id string, status int, msg string, errs []error) *v1.Problem {
	p := &v1.Problem{Type: "about:blank", Title: kindTitles[caisson.Invalid], Status: status, Code: string(caisson.Invalid), Detail: msg, RequestID: id}
	switch {
	case status == http.StatusUnprocessableEntity:
		p.Status = http.StatusBadRequest // huma says 422 for what does not pass validation; ours is for unsupported
		p.Hint = "GET /openapi.json describes every field"
	case status == http.StatusRequestEntityTooLarge:
		p.Code, p.Title, p.Hint = "too_large", "Too large", "JSON bodies hold at most 1 MiB; send data through …/files"
	case status == http.StatusRequestTimeout:
		p.Code, p.Title = string(caisson.Timeout), kindTitles[caisson.Timeout]
	case status >= 500:
		p.Code, p.Title = string(caisson.Internal), kindTitles[caisson.Internal]
	}
	for _, e := range errs {
		if e == nil {
			continue
		}
		f := v1.Fault{Message: clip(e.Error(), 500)}
		var d *huma.ErrorDetail
		if errors.As(e, &d) {
			f = v1.Fault{Location: clip(d.Location, 200), Message: clip(d.Message, 500)}
		}
		if p.Errors = append(p.Errors, f); len(p.Errors) == 20 {
			break
		}
	}
	return p
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
