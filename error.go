package caisson

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Kind says what sort of failure an Error is. It is stable and part of the API (problem+json "code").
type Kind string

// The kinds of error.
const (
	Invalid     Kind = "invalid"     // the request can never work as it is
	Denied      Kind = "denied"      // no or wrong credentials, or not allowed
	NotFound    Kind = "not_found"   // the named object does not exist
	Conflict    Kind = "conflict"    // the object is in a state that forbids this, or someone else changed it first
	Exhausted   Kind = "exhausted"   // a limit or quota is used up
	Unsupported Kind = "unsupported" // this driver, host or version cannot do that
	Unavailable Kind = "unavailable" // something needed is down for now
	Timeout     Kind = "timeout"     // a deadline passed
	Canceled    Kind = "canceled"    // the caller went away
	Internal    Kind = "internal"    // a fault of ours
)

// Error is the error type of every room.
type Error struct {
	Op      string // what was attempted: "create sandbox"
	Kind    Kind
	Subject string // the object: an id, a path
	Msg     string // what happened, for the user
	Hint    string // what to do next, for the user; may be empty
	Cause   error  // logged, not shown to API users
}

// E makes an Error. Cause may be nil.
func E(kind Kind, op, subject, msg string, cause error) *Error {
	return &Error{Op: op, Kind: kind, Subject: subject, Msg: msg, Cause: cause}
}

// WithHint sets the hint and returns the error.
func (e *Error) WithHint(hint string) *Error { e.Hint = hint; return e }

// Error gives the whole text, cause included, for logs.
func (e *Error) Error() string {
	s := e.User()
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// User gives the text a user may see: no cause.
func (e *Error) User() string {
	var parts []string
	for _, p := range []string{e.Op, e.Subject, e.Msg} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// KindOf returns the kind of err: that of the outermost *Error in its chain, Timeout or Canceled for context errors,
// else Internal. KindOf(nil) is "".
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Internal
}

// Is reports whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }

// Hintf formats a hint for an existing error, keeping its kind.
func Hintf(err error, format string, args ...any) error {
	var e *Error
	if errors.As(err, &e) {
		c := *e
		c.Hint = fmt.Sprintf(format, args...)
		return &c
	}
	return err
}

// HTTPStatus is the status code of a kind.
func (k Kind) HTTPStatus() int {
	switch k {
	case Invalid:
		return http.StatusBadRequest
	case Denied:
		return http.StatusForbidden
	case NotFound:
		return http.StatusNotFound
	case Conflict:
		return http.StatusConflict
	case Exhausted:
		return http.StatusTooManyRequests
	case Unsupported:
		return http.StatusUnprocessableEntity
	case Unavailable:
		return http.StatusServiceUnavailable
	case Timeout:
		return http.StatusGatewayTimeout
	case Canceled:
		return 499
	}
	return http.StatusInternalServerError
}

// Retryable reports whether the same call may succeed later.
func (k Kind) Retryable() bool {
	return k == Unavailable || k == Timeout || k == Exhausted
}
