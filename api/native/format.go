package native

import (
	"context"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// accepted picks the first of the request's media types that is offered, by q and then order; def when any will do.
func accepted(r *http.Request, def string, offered ...string) (string, error) {
	header := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(header) == "" {
		return def, nil
	}
	best, bestQ := "", 0.0
	for part := range strings.SplitSeq(header, ",") {
		t, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		q := 1.0
		if v, err := strconv.ParseFloat(params["q"], 64); err == nil {
			q = v
		}
		if t == "*/*" || t == "application/*" {
			t = def
		}
		for _, o := range offered {
			if t == o && q > bestQ {
				best, bestQ = o, q
			}
		}
	}
	if best == "" {
		return "", problem(http.StatusNotAcceptable, string(caisson.Invalid), "Not acceptable",
			"none of the media types in Accept is available here", "offered: "+strings.Join(offered, ", "))
	}
	return best, nil
}

func appendSSEID(buf []byte, id uint64) []byte {
	buf = append(buf, "id: "...)
	return append(strconv.AppendUint(buf, id, 10), '\n')
}

// commandCodec is one of the three formats of command events.
func commandCodec(mediaType string, es caisson.EventStream) codec[v1.CommandEvent] {
	next := func(ctx context.Context) (v1.CommandEvent, error) {
		e, err := es.Next(ctx)
		return eventOut(e), err
	}
	ping := func(*v1.Problem) v1.CommandEvent { return v1.CommandEvent{Type: v1.EventPing, Time: time.Now()} }
	fail := func(p *v1.Problem) v1.CommandEvent {
		return v1.CommandEvent{Type: v1.EventError, Time: time.Now(), Error: p}
	}
	if mediaType != v1.MediaEvents {
		return jsonCodec(mediaType, next, func(b []byte, e *v1.CommandEvent) ([]byte, error) { return e.AppendJSON(b) },
			func(e *v1.CommandEvent) uint64 { return e.Seq }, ping, fail)
	}
	must := func(buf []byte, e v1.CommandEvent) []byte {
		out, err := v1.AppendFrame(buf, &e)
		if err != nil {
			return buf
		}
		return out
	}
	return codec[v1.CommandEvent]{
		next:  next,
		event: v1.AppendFrame,
		ping:  func(buf []byte) []byte { return must(buf, ping(nil)) },
		fail:  func(buf []byte, p *v1.Problem) []byte { return must(buf, fail(p)) },
	}
}

// eventContent documents the stream formats of a type.
func (s *server) eventContent(item *huma.Schema, types ...string) map[string]*huma.MediaType {
	m := map[string]*huma.MediaType{}
	for _, t := range types {
		if t == v1.MediaEvents {
			m[t] = media(binary())
			continue
		}
		m[t] = media(item)
	}
	return m
}
