// Package storetest holds every store to the contract of package store.
package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/store"
)

// Clock is a clock that tests set.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// Now gives the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Add moves the clock.
func (c *Clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Run runs the suite; open gives an empty store.
func Run(t *testing.T, open func(t *testing.T, clock func() time.Time) store.Store) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"Create", (*suite).create}, {"Names", (*suite).names}, {"Idempotency", (*suite).idempotency}, {"Update", (*suite).update},
		{"Teams", (*suite).teams}, {"Pages", (*suite).pages}, {"Filters", (*suite).filters}, {"Expiring", (*suite).expiring},
		{"Delete", (*suite).remove}, {"Keys", (*suite).keys}, {"Events", (*suite).events}, {"Concurrent", (*suite).concurrent},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := &Clock{now: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}
			s := open(t, clock.Now)
			t.Cleanup(func() { s.Close() })
			c.test(&suite{T: t, s: s, clock: clock, ctx: context.Background()})
		})
	}
}

type suite struct {
	*testing.T
	s     store.Store
	clock *Clock
	ctx   context.Context
}

// ok fails the test on an error.
func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) kind(err error, want caisson.Kind) {
	s.Helper()
	if !caisson.Is(err, want) {
		s.Fatalf("kind %q, want %q: %v", caisson.KindOf(err), want, err)
	}
}

func box(name string) caisson.Sandbox {
	return caisson.Sandbox{
		ID: caisson.NewSandboxID(), Team: caisson.DefaultTeam, State: caisson.Creating, Epoch: 1, TemplateDigest: "sha256:x", Driver: "gvisor",
		Config: caisson.SandboxConfig{Name: name, Template: "base", Metadata: map[string]string{"k": "v"}, Env: map[string]string{"A": "b"}, Resources: caisson.Resources{MemoryMiB: 512}},
	}
}

func (s *suite) add(sb caisson.Sandbox, idem *store.IdempotencyKey) caisson.Sandbox {
	s.Helper()
	out, made, err := s.s.Sandboxes().Create(s.ctx, sb, idem, caisson.Event{Type: "sandbox.created"})
	s.ok(err)
	if !made {
		s.Fatal("not made")
	}
	return out
}

func (s *suite) create() {
	in := box("")
	out := s.add(in, nil)
	if out.Revision != 1 || !out.CreatedAt.Equal(s.clock.Now()) || !out.UpdatedAt.Equal(s.clock.Now()) {
		s.Errorf("made %+v", out)
	}
	got, err := s.s.Sandboxes().Get(s.ctx, in.ID)
	s.ok(err)
	if fmt.Sprint(got) != fmt.Sprint(out) || got.Config.Env["A"] != "b" {
		s.Errorf("got %+v, made %+v", got, out)
	}
	_, err = s.s.Sandboxes().Get(s.ctx, caisson.NewSandboxID())
	s.kind(err, caisson.NotFound)
}

func (s *suite) names() {
	first := s.add(box("one"), nil)
	_, _, err := s.s.Sandboxes().Create(s.ctx, box("one"), nil)
	s.kind(err, caisson.Conflict)
	s.add(box(""), nil)
	s.add(box(""), nil) // no name is no conflict
	got, err := s.s.Sandboxes().Find(s.ctx, caisson.DefaultTeam, "one")
	s.ok(err)
	if got.ID != first.ID {
		s.Errorf("found %s", got.ID)
	}
	s.ok(s.s.Sandboxes().Delete(s.ctx, first.ID))
	s.add(box("one"), nil)
}

func (s *suite) idempotency() {
	key := &store.IdempotencyKey{Team: caisson.DefaultTeam, Key: "k", ConfigHash: "h"}
	_, err := s.s.Sandboxes().Made(s.ctx, *key)
	s.kind(err, caisson.NotFound)
	first := s.add(box(""), key)
	again, made, err := s.s.Sandboxes().Create(s.ctx, box(""), key)
	s.ok(err)
	if made || again.ID != first.ID {
		s.Errorf("made %v %s, want %s", made, again.ID, first.ID)
	}
	other := *key
	other.ConfigHash = "other"
	_, _, err = s.s.Sandboxes().Create(s.ctx, box(""), &other)
	s.kind(err, caisson.Conflict)
	_, err = s.s.Sandboxes().Made(s.ctx, other)
	s.kind(err, caisson.Conflict)
	s.ok(s.s.Sandboxes().Delete(s.ctx, first.ID))
	s.add(box(""), key)
}

func (s *suite) update() {
	sb := s.add(box(""), nil)
	s.clock.Add(time.Second)
	out, err := s.s.Sandboxes().Update(s.ctx, sb.ID, store.Expect{Revision: 1, Epoch: 1}, func(r *caisson.Sandbox) error {
		r.State, r.Epoch, r.ID, r.Team = caisson.Running, 2, "other", "other"
		return nil
	}, caisson.Event{Type: "sandbox.running"})
	s.ok(err)
	if out.State != caisson.Running || out.Revision != 2 || out.Epoch != 2 || out.ID != sb.ID || out.Team != sb.Team || !out.UpdatedAt.After(sb.UpdatedAt) || !out.CreatedAt.Equal(sb.CreatedAt) {
		s.Errorf("updated to %+v", out)
	}
	none := func(*caisson.Sandbox) error { s.Error("edit was called"); return nil }
	_, err = s.s.Sandboxes().Update(s.ctx, sb.ID, store.Expect{Revision: 1}, none)
	s.kind(err, caisson.Conflict)
	_, err = s.s.Sandboxes().Update(s.ctx, sb.ID, store.Expect{Epoch: 1}, none)
	s.kind(err, caisson.Conflict)
	boom := errors.New("boom")
	_, err = s.s.Sandboxes().Update(s.ctx, sb.ID, store.Expect{}, func(r *caisson.Sandbox) error { r.State = caisson.Failed; return boom }, caisson.Event{Type: "x"})
	if !errors.Is(err, boom) {
		s.Errorf("edit's error is %v", err)
	}
	got, err := s.s.Sandboxes().Get(s.ctx, sb.ID)
	s.ok(err)
	if got.State != caisson.Running || got.Revision != 2 {
		s.Errorf("a refused edit changed %+v", got)
	}
	if evs, _ := s.s.Events().List(s.ctx, caisson.DefaultTeam, 0, sb.ID, 10); len(evs) != 2 {
		s.Errorf("events %v", evs)
	}
}

func (s *suite) teams() {
	sb := s.add(box("mine"), nil)
	for _, n := range []string{string(sb.ID), "mine"} {
		_, err := s.s.Sandboxes().Find(s.ctx, "other", n)
		s.kind(err, caisson.NotFound)
	}
	other := box("mine")
	other.Team = "other"
	s.add(other, nil) // names are per team
	page, err := s.s.Sandboxes().List(s.ctx, "other", caisson.SandboxFilter{})
	s.ok(err)
	if len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != other.ID {
		s.Errorf("page %v", page)
	}
}

func (s *suite) pages() {
	want := map[caisson.SandboxID]bool{}
	for i := range 25 {
		if i%5 == 0 { // equal times
			s.clock.Add(time.Second)
		}
		want[s.add(box(""), nil).ID] = true
	}
	seen := map[caisson.SandboxID]bool{}
	var last time.Time
	f := caisson.SandboxFilter{Limit: 4}
	for pages := 0; ; pages++ {
		p, err := s.s.Sandboxes().List(s.ctx, caisson.DefaultTeam, f)
		s.ok(err)
		for _, sb := range p.Sandboxes {
			if seen[sb.ID] || !want[sb.ID] {
				s.Errorf("%s twice, or made meanwhile", sb.ID)
			}
			if !last.IsZero() && sb.CreatedAt.After(last) {
				s.Error("not newest first")
			}
			seen[sb.ID], last = true, sb.CreatedAt
		}
		if p.Next == "" {
			break
		}
		f.Cursor = p.Next
		s.clock.Add(time.Second)
		s.add(box(""), nil) // newer ones do not move the pages
		if pages > 20 {
			s.Fatal("no end of pages")
		}
	}
	if len(seen) != len(want) {
		s.Errorf("%d of %d", len(seen), len(want))
	}
	_, err := s.s.Sandboxes().List(s.ctx, caisson.DefaultTeam, caisson.SandboxFilter{Cursor: "nonsense"})
	s.kind(err, caisson.Invalid)
}

func (s *suite) filters() {
	a := box("a")
	a.Config.Metadata = map[string]string{"x": "1", "y": "2"}
	s.add(a, nil)
	b := box("b")
	b.Config.Metadata = map[string]string{"x": "1"}
	b.State = caisson.Stopped
	s.add(b, nil)
	for _, c := range []struct {
		f    caisson.SandboxFilter
		want int
	}{
		{caisson.SandboxFilter{}, 2}, {caisson.SandboxFilter{Name: "a"}, 1}, {caisson.SandboxFilter{Name: "c"}, 0},
		{caisson.SandboxFilter{States: []caisson.State{caisson.Stopped}}, 1}, {caisson.SandboxFilter{States: []caisson.State{caisson.Stopped, caisson.Creating}}, 2},
		{caisson.SandboxFilter{Metadata: map[string]string{"x": "1"}}, 2}, {caisson.SandboxFilter{Metadata: map[string]string{"x": "1", "y": "2"}}, 1},
		{caisson.SandboxFilter{Metadata: map[string]string{"x": "2"}}, 0},
	} {
		p, err := s.s.Sandboxes().List(s.ctx, caisson.DefaultTeam, c.f)
		s.ok(err)
		if len(p.Sandboxes) != c.want {
			s.Errorf("%+v: %d, want %d", c.f, len(p.Sandboxes), c.want)
		}
	}
	counts, err := s.s.Sandboxes().Count(s.ctx)
	s.ok(err)
	if counts[caisson.Stopped] != 1 || counts[caisson.Creating] != 1 {
		s.Errorf("counts %v", counts)
	}
}

func (s *suite) expiring() {
	never, later, soon := box(""), box(""), box("")
	later.ExpiresAt, soon.ExpiresAt = s.clock.Now().Add(time.Hour), s.clock.Now().Add(time.Minute)
	for _, sb := range []caisson.Sandbox{never, later, soon} {
		s.add(sb, nil)
	}
	got, err := s.s.Sandboxes().Expiring(s.ctx, 10)
	s.ok(err)
	if len(got) != 2 || got[0].ID != soon.ID || got[1].ID != later.ID || !got[0].ExpiresAt.Equal(soon.ExpiresAt) {
		s.Errorf("expiring %v", got)
	}
}

func (s *suite) remove() {
	sb := s.add(box(""), nil)
	s.ok(s.s.Sandboxes().Delete(s.ctx, sb.ID, caisson.Event{Type: "sandbox.deleted"}))
	_, err := s.s.Sandboxes().Get(s.ctx, sb.ID)
	s.kind(err, caisson.NotFound)
	s.kind(s.s.Sandboxes().Delete(s.ctx, sb.ID), caisson.NotFound)
	evs, err := s.s.Events().List(s.ctx, caisson.DefaultTeam, 0, sb.ID, 10)
	s.ok(err)
	if len(evs) != 2 || evs[1].Type != "sandbox.deleted" || evs[1].Sandbox != sb.ID || evs[1].Epoch != 1 {
		s.Errorf("events %+v", evs)
	}
}

func (s *suite) keys() {
	hash := sha256.Sum256([]byte("secret"))
	k, err := s.s.Keys().Create(s.ctx, caisson.Key{ID: caisson.NewKeyID(), Team: caisson.DefaultTeam, Name: "n", Scopes: []caisson.Scope{caisson.ScopeRead, caisson.ScopeWrite}}, hash)
	s.ok(err)
	got, err := s.s.Keys().ByHash(s.ctx, hash)
	s.ok(err)
	if got.ID != k.ID || len(got.Scopes) != 2 || !got.LastUsed.IsZero() {
		s.Errorf("key %+v", got)
	}
	used := s.clock.Now().Add(time.Hour).Truncate(time.Minute)
	s.ok(s.s.Keys().Touch(s.ctx, map[caisson.KeyID]time.Time{k.ID: used, "keyunknown": used}))
	s.ok(s.s.Keys().Touch(s.ctx, map[caisson.KeyID]time.Time{k.ID: used.Add(-time.Minute)}))
	list, err := s.s.Keys().List(s.ctx, caisson.DefaultTeam)
	s.ok(err)
	if len(list) != 1 || !list[0].LastUsed.Equal(used) {
		s.Errorf("keys %+v", list)
	}
	s.kind(s.s.Keys().Delete(s.ctx, "other", k.ID), caisson.NotFound)
	s.ok(s.s.Keys().Delete(s.ctx, caisson.DefaultTeam, k.ID))
	_, err = s.s.Keys().ByHash(s.ctx, hash)
	s.kind(err, caisson.NotFound)
}

func (s *suite) events() {
	for i := range 5 {
		s.ok(s.s.Events().Append(s.ctx, caisson.Event{Team: caisson.DefaultTeam, Type: "t", Sandbox: "sbx", Data: map[string]string{"i": fmt.Sprint(i)}}))
		s.clock.Add(time.Minute)
	}
	all, err := s.s.Events().List(s.ctx, caisson.DefaultTeam, 0, "", 100)
	s.ok(err)
	for i, e := range all {
		if e.Data["i"] != fmt.Sprint(i) || i > 0 && e.Seq <= all[i-1].Seq {
			s.Errorf("event %d is %+v", i, e)
		}
	}
	after, err := s.s.Events().List(s.ctx, caisson.DefaultTeam, all[2].Seq, "", 1)
	s.ok(err)
	if len(after) != 1 || after[0].Seq != all[3].Seq {
		s.Errorf("after %d: %+v", all[2].Seq, after)
	}
	n, err := s.s.Events().Trim(s.ctx, all[3].Time)
	s.ok(err)
	if n != 3 {
		s.Errorf("trimmed %d", n)
	}
	last, err := s.s.Events().Last(s.ctx)
	s.ok(err)
	if last != all[4].Seq {
		s.Errorf("last is %d", last)
	}
}

// concurrent: of many updates at one revision, one wins.
func (s *suite) concurrent() {
	sb := s.add(box(""), nil)
	var mu sync.Mutex
	won := 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_, err := s.s.Sandboxes().Update(s.ctx, sb.ID, store.Expect{Revision: 1}, func(r *caisson.Sandbox) error { r.Reason = "x"; return nil })
			if err == nil {
				mu.Lock()
				won++
				mu.Unlock()
			} else if !caisson.Is(err, caisson.Conflict) {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		s.Errorf("%d won", won)
	}
}
