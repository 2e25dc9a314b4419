package native

import (
	"context"
	"io"
	"time"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// follower gives the events of a team one by one.
type follower struct {
	events  caisson.Events
	team    caisson.TeamID
	sandbox caisson.SandboxID
	after   uint64
	follow  bool
	page    []caisson.Event
	waited  uint64 // what Wait was last asked for
}

// next gives the next event; io.EOF at the end of what there is, when not following.
func (f *follower) next(ctx context.Context) (v1.Event, error) {
	const size = 100
	for len(f.page) == 0 {
		page, err := f.events.List(ctx, f.team, f.after, f.sandbox, size)
		if err != nil {
			return v1.Event{}, err
		}
		if len(page) > 0 {
			f.page = page
			break
		}
		if !f.follow {
			return v1.Event{}, io.EOF
		}
		if err := f.wait(ctx); err != nil {
			return v1.Event{}, err
		}
	}
	e := f.page[0]
	f.page, f.after = f.page[1:], e.Seq
	return serverEventOut(e), nil
}

// wait returns when a look is worth while. Events of other teams and sandboxes also end Wait, and after does not grow by
// them, so that a second wait for the same number pauses first.
func (f *follower) wait(ctx context.Context) error {
	if f.waited == f.after+1 {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.waited = f.after + 1
	return f.events.Wait(ctx, f.after)
}
