package v1

import "strings"

// Problem is every error's body (RFC 9457, application/problem+json).
//
// Code is stable: invalid (400), unauthenticated (401), denied (403), not_found (404), method_not_allowed (405),
// conflict (409), too_large (413), unsupported (422), exhausted (429, with Retry-After where time helps), canceled (499),
// internal (500), unavailable (503), timeout (504).
type Problem struct {
	Type      string  `json:"type" doc:"A URI reference that names the kind of problem; \"about:blank\" when code says it all." example:"about:blank"`
	Title     string  `json:"title" doc:"The kind of problem in words." example:"Not found"`
	Status    int     `json:"status" doc:"The HTTP status, repeated." example:"404"`
	Code      string  `json:"code" doc:"Stable name of the kind of problem: invalid, unauthenticated, denied, not_found, method_not_allowed, conflict, too_large, unsupported, exhausted, canceled, internal, unavailable, timeout." example:"not_found"`
	Detail    string  `json:"detail,omitempty" doc:"What happened, to which object."`
	Hint      string  `json:"hint,omitempty" doc:"What to do about it."`
	RequestID string  `json:"request_id,omitempty" doc:"The request's id, as in the server's log."`
	Errors    []Fault `json:"errors,omitempty" doc:"The single faults of a request that did not pass validation."`
}

// Fault is one thing wrong with a request.
type Fault struct {
	Location string `json:"location,omitempty" doc:"Where: body.resources.vcpus, query.limit, path.id."`
	Message  string `json:"message" doc:"What is wrong there."`
}

// Error makes a Problem an error for clients.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Detail)
	if p.Detail == "" {
		b.WriteString(p.Title)
	}
	for _, f := range p.Errors {
		b.WriteString("; ")
		if f.Location != "" {
			b.WriteString(f.Location + ": ")
		}
		b.WriteString(f.Message)
	}
	if p.Hint != "" {
		b.WriteString(" (" + p.Hint + ")")
	}
	return b.String()
}

// GetStatus gives the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType is MediaProblem whatever was asked for.
func (p *Problem) ContentType(string) string { return MediaProblem }
