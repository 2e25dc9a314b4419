package control

import (
	"context"
	"sync"
	"time"

	"github.com/caisson-sandbox/caisson"
)

var (
	errDeleted  = caisson.E(caisson.Canceled, "", "", "the sandbox was deleted meanwhile", nil)
	errStopping = caisson.E(caisson.Unavailable, "", "", "the server is stopping", nil).WithHint("try again in a moment")
)

// verb serializes what is done to one sandbox.
type verb struct {
	work sync.Mutex

	// guarded by Control.mu
	users    int                     // that hold or want it
	deleters int                     // of these, those that delete
	cancel   context.CancelCauseFunc // of a holder that a deleter may interrupt
}

// begin takes a sandbox for a verb. The context outlives the caller's, but not limit, the server, nor a delete. A deleter
// interrupts the verb that runs, but for another deleter, and those that wait get errDeleted.
func (c *Control) begin(ctx context.Context, id caisson.SandboxID, limit time.Duration, deleter bool) (context.Context, func(), error) {
	c.mu.Lock()
	v := c.want(id)
	if deleter {
		v.deleters++
		if v.cancel != nil {
			v.cancel(errDeleted)
		}
	}
	c.mu.Unlock()
	return c.hold(ctx, id, v, limit, deleter)
}

// beginIdle is begin for those who come again later: it takes only what no verb holds or wants.
func (c *Control) beginIdle(ctx context.Context, id caisson.SandboxID, limit time.Duration) (context.Context, func(), bool) {
	c.mu.Lock()
	if c.verbs[id] != nil {
		c.mu.Unlock()
		return nil, nil, false
	}
	v := c.want(id)
	c.mu.Unlock()
	ctx, end, err := c.hold(ctx, id, v, limit, false)
	return ctx, end, err == nil
}

func (c *Control) want(id caisson.SandboxID) *verb {
	v := c.verbs[id]
	if v == nil {
		v = &verb{}
		c.verbs[id] = v
	}
	v.users++
	return v
}

func (c *Control) hold(ctx context.Context, id caisson.SandboxID, v *verb, limit time.Duration, deleter bool) (context.Context, func(), error) {
	v.work.Lock() // bounded by the limits of those before
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), limit)
	ctx, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(c.life, func() { cancel(errStopping) })
	end := func() {
		unlink()
		cancel(nil)
		stop()
		c.mu.Lock()
		if v.users--; v.users == 0 {
			delete(c.verbs, id)
		}
		if v.cancel = nil; deleter {
			v.deleters--
		}
		c.mu.Unlock()
		v.work.Unlock()
	}
	c.mu.Lock()
	overtaken := !deleter && v.deleters > 0
	if !deleter && !overtaken {
		v.cancel = cancel
	}
	c.mu.Unlock()
	if overtaken {
		end()
		return nil, nil, errDeleted
	}
	return ctx, end, nil
}

// enter counts work that Run waits for; false once the server stops.
func (c *Control) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.work.Add(1)
	return true
}

// detached runs a verb to its end and returns early when the caller goes.
func detached[T any](ctx context.Context, c *Control, do func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	if err := c.Ready(ctx); err != nil {
		return none, err
	}
	if !c.enter() {
		return none, errStopping
	}
	done := make(chan result, 1)
	go func() { // drain waits for it; it has a limit
		defer c.work.Done()
		v, err := do()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// refuse takes no more work, and cancels after stopGrace what still runs. It may be called again.
func (c *Control) refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		c.closing = true
		close(c.over)
		grace := time.AfterFunc(stopGrace, c.kill)
		context.AfterFunc(c.life, func() { grace.Stop() })
	}
}

// drain waits for what runs.
func (c *Control) drain() {
	c.refuse()
	c.work.Wait()
	c.kill()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c.keys.flush(ctx)
}
