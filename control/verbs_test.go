package control

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/node"
	"github.com/caisson-sandbox/caisson/store"
)

// held makes creates of the rig hang until let is called.
func held(r *rig) (let func()) {
	hang := make(chan struct{})
	r.node.mu.Lock()
	r.node.hang = hang
	r.node.mu.Unlock()
	return sync.OnceFunc(func() { close(hang) })
}

func (r *rig) there(name string) caisson.Sandbox {
	r.t.Helper()
	var sb caisson.Sandbox
	r.until("the row is there", func() (ok bool) {
		var err error
		sb, err = r.Get(context.Background(), caisson.DefaultTeam, name)
		return err == nil
	})
	return sb
}

// TestEndDuringCreate: an end that is reported before the create is recorded is not forgotten.
func TestEndDuringCreate(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	let := held(r)
	done := make(chan error, 1)
	go func() { // waited for below
		_, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{Name: "x"}, "")
		done <- err
	}()
	sb := r.there("x")
	r.node.changes <- node.Status{Sandbox: sb.ID, Epoch: 1, Phase: node.Ended, Reason: "oom"}
	time.Sleep(50 * time.Millisecond)
	let()
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.until("failed", func() bool { return r.state(sb.ID) == caisson.Failed })
}

// TestDeletesAndQueuedVerbs: a delete overtakes verbs that wait, and a second delete does not disturb the first.
func TestDeletesAndQueuedVerbs(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	defer held(r)()
	var wg sync.WaitGroup
	wg.Go(func() { r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{Name: "x"}, "") })
	sb := r.there("x")
	for range 5 {
		wg.Go(func() {
			if _, err := r.Stop(ctx, caisson.DefaultTeam, string(sb.ID)); err == nil {
				t.Error("a stop overtook the delete")
			}
		})
	}
	time.Sleep(30 * time.Millisecond)
	for range 8 {
		wg.Go(func() {
			if err := r.Delete(ctx, caisson.DefaultTeam, string(sb.ID)); err != nil && !caisson.Is(err, caisson.NotFound) {
				t.Errorf("delete: %v", err)
			}
		})
	}
	wg.Wait()
	if r.state(sb.ID) != "" {
		t.Error("it is still there")
	}
}

// TestSameKeyAtOnce: creates with one idempotency key wait for the first, and give what it made.
func TestSameKeyAtOnce(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	let := held(r)
	got := make([]caisson.Sandbox, 4)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], _, err = r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{}, "key"); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	let()
	wg.Wait()
	for _, sb := range got {
		if sb.ID != got[0].ID || sb.State != caisson.Running {
			t.Errorf("%s %s, the first is %s", sb.ID, sb.State, got[0].ID)
		}
	}
}

// TestAdmission counts sandboxes that are being created, and gives memory back.
func TestAdmission(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	r.node.memory = 1024
	let := held(r)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made []caisson.Sandbox
	exhausted := 0
	for range 5 {
		wg.Go(func() {
			sb, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{}, "")
			mu.Lock()
			defer mu.Unlock()
			if caisson.Is(err, caisson.Exhausted) {
				exhausted++
			} else if err != nil {
				t.Error(err)
			} else {
				made = append(made, sb)
			}
		})
	}
	r.until("three are refused", func() bool { mu.Lock(); defer mu.Unlock(); return exhausted == 3 })
	let()
	wg.Wait()
	if len(made) != 2 {
		t.Fatalf("%d were made", len(made))
	}
	again := func(what string, want caisson.Kind) {
		t.Helper()
		sb, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{}, "")
		if caisson.KindOf(err) != want {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			r.Delete(ctx, caisson.DefaultTeam, string(sb.ID))
		}
	}
	again("full", caisson.Exhausted)
	r.Stop(ctx, caisson.DefaultTeam, string(made[0].ID))
	again("after a stop", "")
	again("after a delete", "")
	if _, _, err := r.Start(ctx, caisson.DefaultTeam, string(made[0].ID)); err != nil {
		t.Error(err)
	}
	again("full again", caisson.Exhausted)
	r.stop()
	r.open()
	again("after a restart", caisson.Exhausted)
	r.node.startErr = fmt.Errorf("broken")
	r.Stop(ctx, caisson.DefaultTeam, string(made[1].ID))
	again("a create that fails", caisson.Internal)
	r.node.startErr = nil
	again("gives its memory back", "")
}

// TestShutdownWaits: Run returns when the verbs that run are done, and no new ones begin.
func TestShutdownWaits(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	let := held(r)
	done := make(chan error, 1)
	go func() { // waited for below
		_, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{Name: "x"}, "")
		done <- err
	}()
	sb := r.there("x")
	stopped := make(chan struct{})
	go func() { r.stop(); close(stopped) }() // waited for below
	select {
	case <-stopped:
		t.Fatal("it stopped while a create ran")
	case <-time.After(50 * time.Millisecond):
	}
	if err := r.Ready(ctx); !caisson.Is(err, caisson.Unavailable) {
		t.Errorf("ready while it stops: %v", err)
	}
	let()
	<-stopped
	if err := <-done; err != nil {
		t.Errorf("create: %v", err)
	}
	if _, err := r.Stop(ctx, caisson.DefaultTeam, string(sb.ID)); err == nil {
		t.Error("a verb of a server that has stopped")
	}
	r.open()
	if r.state(sb.ID) != caisson.Running {
		t.Errorf("it is %s", r.state(sb.ID))
	}
}

// TestInterruptedCreate: without a machine it is failed, and its idempotency key makes a new one.
func TestInterruptedCreate(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	sb, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{Name: "x"}, "key")
	if err != nil {
		t.Fatal(err)
	}
	r.force(sb.ID, caisson.Creating)
	r.stop()
	r.node.Delete(ctx, sb.ID, 1)
	r.open()
	if got, _ := r.Get(ctx, caisson.DefaultTeam, "x"); got.State != caisson.Failed || got.Reason == "" {
		t.Errorf("%s, %q", got.State, got.Reason)
	}
	again, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{Name: "x"}, "key")
	if err != nil || again.ID == sb.ID || again.State != caisson.Running {
		t.Errorf("%s %s %v", again.ID, again.State, err)
	}
}

// TestLaterRepair: what the watch did not tell and verbs left half-done is found by the look every few minutes.
func TestLaterRepair(t *testing.T) {
	r, ctx := newRig(t), context.Background()
	runs, gone, half := r.make(caisson.SandboxConfig{}), r.make(caisson.SandboxConfig{}), r.make(caisson.SandboxConfig{})
	busy := r.make(caisson.SandboxConfig{})
	r.node.Delete(ctx, gone.ID, 1)
	r.force(half.ID, caisson.Stopping)
	r.force(busy.ID, caisson.Stopping)
	_, end, err := r.begin(ctx, busy.ID, time.Minute, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	end()
	for id, want := range map[caisson.SandboxID]caisson.State{runs.ID: caisson.Running, gone.ID: caisson.Failed, half.ID: caisson.Stopped, busy.ID: caisson.Stopping} {
		if got := r.state(id); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
}

// force sets the state of a row as a server that was killed would leave it.
func (r *rig) force(id caisson.SandboxID, s caisson.State) {
	r.t.Helper()
	_, err := r.store.Sandboxes().Update(context.Background(), id, store.Expect{}, func(x *caisson.Sandbox) error {
		x.State = s
		if s == caisson.Creating {
			x.StartedAt = time.Time{}
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}
