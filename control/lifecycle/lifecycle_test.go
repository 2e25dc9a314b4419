package lifecycle

import (
	"testing"

	"github.com/caisson-sandbox/caisson"
)

// TestScripts walks whole lives.
func TestScripts(t *testing.T) {
	type step struct {
		event Event
		to    caisson.State
		bad   bool
	}
	for name, script := range map[string][]step{
		"life":           {{Create, caisson.Creating, false}, {Started, caisson.Running, false}, {Stop, caisson.Stopping, false}, {Stopped, caisson.Stopped, false}, {Start, caisson.Waking, false}, {Started, caisson.Running, false}, {Delete, caisson.Deleting, false}, {Deleted, None, false}},
		"failed create":  {{Create, caisson.Creating, false}, {StartFailed, caisson.Deleting, false}, {Deleted, None, false}},
		"crash":          {{Create, caisson.Creating, false}, {Started, caisson.Running, false}, {Ended, caisson.Failed, false}, {Ended, caisson.Failed, false}, {Start, caisson.Waking, false}, {StartFailed, caisson.Stopped, false}},
		"power off":      {{Create, caisson.Creating, false}, {Started, caisson.Running, false}, {Exited, caisson.Stopped, false}},
		"idempotent":     {{Create, caisson.Creating, false}, {Started, caisson.Running, false}, {Start, caisson.Running, false}, {Stop, caisson.Stopping, false}, {Stopped, caisson.Stopped, false}, {Stop, caisson.Stopped, false}},
		"not yet":        {{Create, caisson.Creating, false}, {Stop, caisson.Creating, true}, {Start, caisson.Creating, true}, {Delete, caisson.Deleting, false}, {Start, caisson.Deleting, true}},
		"stop fails":     {{Create, caisson.Creating, false}, {Started, caisson.Running, false}, {Stop, caisson.Stopping, false}, {StopFailed, caisson.Running, false}},
		"server killed":  {{Create, caisson.Creating, false}, {Interrupted, caisson.Failed, false}, {Delete, caisson.Deleting, false}, {Interrupted, caisson.Deleting, false}, {Deleted, None, false}},
		"nothing":        {{Start, None, true}, {Delete, None, true}},
		"create is once": {{Create, caisson.Creating, false}, {Create, caisson.Creating, true}},
	} {
		t.Run(name, func(t *testing.T) {
			state := None
			for i, s := range script {
				next, _, err := Next(state, s.event)
				if next != s.to || (err != nil) != s.bad {
					t.Fatalf("step %d: %s in %q gave %q, %v; want %q", i+1, s.event, state, next, err, s.to)
				}
				state = next
			}
		})
	}
}

var states = []caisson.State{None, caisson.Creating, caisson.Running, caisson.Pausing, caisson.Paused, caisson.Suspending, caisson.Suspended, caisson.Waking, caisson.Stopping, caisson.Stopped, caisson.Deleting, caisson.Failed}

// TestDeleteWorksEverywhere: and nothing but Deleted leads out of deleting.
func TestDeleteWorksEverywhere(t *testing.T) {
	for _, s := range states[1:] {
		for _, e := range []Event{Delete, Expire} {
			if next, actions, err := Next(s, e); next != caisson.Deleting || len(actions) != 1 || err != nil {
				t.Errorf("%s in %s: %s %v %v", e, s, next, actions, err)
			}
		}
	}
	for _, e := range []Event{Create, Started, StartFailed, Stop, Stopped, StopFailed, Ended, Exited, Start, Interrupted, Delete, Expire} {
		if next, _, _ := Next(caisson.Deleting, e); next != caisson.Deleting {
			t.Errorf("%s leads from deleting to %q", e, next)
		}
	}
}

func FuzzNext(f *testing.F) {
	f.Add("running", "stop")
	f.Add("", "")
	f.Add("nonsense", "delete")
	f.Fuzz(func(t *testing.T, state, event string) {
		next, _, err := Next(caisson.State(state), Event(event))
		if err != nil && string(next) != state {
			t.Errorf("a refused event changed %q to %q", state, next)
		}
	})
}
