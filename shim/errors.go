package shim

import (
	"errors"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/guest/dial"
	"github.com/caisson-sandbox/caisson/shim/wire"
)

var codes = map[caisson.Kind]connect.Code{
	caisson.Invalid: connect.CodeInvalidArgument, caisson.Denied: connect.CodePermissionDenied, caisson.NotFound: connect.CodeNotFound,
	caisson.Conflict: connect.CodeFailedPrecondition, caisson.Exhausted: connect.CodeResourceExhausted, caisson.Unsupported: connect.CodeUnimplemented,
	caisson.Unavailable: connect.CodeUnavailable, caisson.Timeout: connect.CodeDeadlineExceeded, caisson.Canceled: connect.CodeCanceled,
}

// encode makes an error fit for the wire: the kind as code, the message, and the hint in a header.
func encode(err error) error {
	if err == nil {
		return nil
	}
	var own *caisson.Error
	if !errors.As(err, &own) {
		var ce *connect.Error
		if errors.As(err, &ce) {
			return err
		}
		own = caisson.E(caisson.KindOf(err), "", "", err.Error(), nil)
	}
	code, ok := codes[own.Kind]
	if !ok {
		code = connect.CodeInternal
	}
	text := own.Msg
	if own.Cause != nil && (own.Kind == caisson.Internal || own.Kind == caisson.Unavailable) {
		text += ": " + own.Cause.Error()
	}
	ce := connect.NewError(code, errors.New(text))
	if own.Hint != "" {
		ce.Meta().Set(wire.HintHeader, own.Hint)
	}
	return ce
}

// fromAgent turns an agent's error into one for the wire.
func fromAgent(op, subject string, err error) error { return encode(dial.Error(op, subject, err)) }
