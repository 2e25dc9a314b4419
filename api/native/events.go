package native

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type eventsInput struct {
	After   uint64 `query:"after" doc:"Events with a greater number are wanted." default:"0"`
	Sandbox string `query:"sandbox" doc:"Events of this sandbox alone (its id)." maxLength:"64"`
	Limit   int    `query:"limit" doc:"Events in one JSON answer." default:"100" minimum:"1" maximum:"1000"`
	Follow  bool   `query:"follow" doc:"Streams: go on with what will happen; text/event-stream always does." default:"false"`
	LastID  string `header:"Last-Event-ID" doc:"Set by browsers that reconnect: like after." maxLength:"20"`
}

func (s *server) eventRoutes() {
	content := s.eventContent(schemaOf[v1.Event](s), v1.MediaSSE, v1.MediaNDJSON)
	content[v1.MediaJSON] = media(schemaOf[v1.EventList](s))
	addStream(s, caisson.ScopeRead, route{id: "listEvents", method: http.MethodGet, path: "/v1/events", tag: "events", summary: "Read and follow events", errors: []int{406},
		produces: content,
		text:     "application/json, the default, is one page, oldest first. application/x-ndjson gives all there are and, with follow, goes on; text/event-stream goes on."}, s.events)
}

func (s *server) events(ctx context.Context, p caisson.Principal, in *eventsInput, w http.ResponseWriter, r *http.Request) error {
	format, err := accepted(r, v1.MediaJSON, v1.MediaJSON, v1.MediaNDJSON, v1.MediaSSE)
	if err != nil {
		return err
	}
	if in.LastID != "" {
		if in.After, err = strconv.ParseUint(in.LastID, 10, 64); err != nil {
			return invalid("read events", "", "Last-Event-ID is not the number of an event", "")
		}
	}
	id := caisson.SandboxID(in.Sandbox)
	if id != "" && !id.Valid() {
		return invalid("read events", clip(in.Sandbox, 64), "not a sandbox's id", "\"sb\" and 18 letters and digits; a name will not do here")
	}
	requestOf(ctx).onSandbox(in.Sandbox)
	if format == v1.MediaJSON {
		es, err := s.cfg.Events.List(ctx, p.Team, in.After, id, in.Limit)
		if err != nil {
			return err
		}
		out := v1.EventList{Events: make([]v1.Event, 0, len(es)), Next: in.After}
		for _, e := range es {
			out.Events, out.Next = append(out.Events, serverEventOut(e)), e.Seq
		}
		return writeJSON(w, http.StatusOK, out)
	}
	f := &follower{events: s.cfg.Events, team: p.Team, sandbox: id, after: in.After, follow: in.Follow || format == v1.MediaSSE}
	return stream(s, w, r, format, "events", jsonCodec(format, f.next, appendMarshal[v1.Event], func(e *v1.Event) uint64 { return e.Seq },
		func(*v1.Problem) v1.Event { return v1.Event{Type: "ping", Time: time.Now().UTC()} },
		func(p *v1.Problem) v1.Event { return v1.Event{Type: "error", Time: time.Now().UTC(), Error: p} }))
}
