package control

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/control/lifecycle"
	"github.com/caisson-sandbox/caisson/node"
)

// Run is the loop; it ends with ctx, once the verbs that run have ended.
func (c *Control) Run(ctx context.Context) error {
	defer c.drain()
	defer context.AfterFunc(ctx, c.refuse)()
	// Watch before looking: what changes in between is seen twice, not never.
	changes, err := c.node.Watch(ctx)
	if err != nil {
		return err
	}
	all, err := c.store.Sandboxes().All(ctx)
	if err != nil {
		return err
	}
	for _, sb := range all {
		c.ledger.account(sb)
	}
	if err := c.reconcile(ctx); err != nil {
		return err
	}
	close(c.ready)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { c.follow(ctx, changes); return nil })
	g.Go(func() error { c.expire(ctx); return nil })
	g.Go(func() error { c.tend(ctx); return nil })
	return g.Wait()
}

// reconcile finishes what an earlier server began, takes over what the node has, and sweeps what no row owns. Sandboxes
// that a verb works on, or has since the rows were read, are left for the next time.
func (c *Control) reconcile(ctx context.Context) error {
	rows, err := c.store.Sandboxes().All(ctx)
	if err != nil {
		return err
	}
	statuses, err := c.node.Statuses(ctx) // after the rows: what is missing here is not one that was made since
	if err != nil {
		return err
	}
	known := map[caisson.SandboxID]node.Status{}
	for _, st := range statuses {
		known[st.Sandbox] = st
	}
	var g errgroup.Group
	g.SetLimit(16)
	for _, sb := range rows {
		st := known[sb.ID]
		if settled(sb, st) {
			continue
		}
		g.Go(func() error {
			wctx, end, ok := c.beginIdle(ctx, sb.ID, stopLimit)
			if !ok {
				return nil
			}
			defer end()
			now, err := c.store.Sandboxes().Get(wctx, sb.ID)
			if caisson.Is(err, caisson.NotFound) || err == nil && now.Revision != sb.Revision {
				return nil
			}
			if err == nil {
				err = c.reconcileOne(wctx, sb, st)
			}
			if err != nil {
				c.log.Error("sandbox was not reconciled", "sandbox", sb.ID, "state", sb.State, "error", err)
			}
			return nil
		})
	}
	g.Wait()
	return c.sweep(ctx)
}

// settled reports whether a row and what the node knows agree.
func settled(sb caisson.Sandbox, st node.Status) bool {
	up := st.Phase == node.Up && st.Epoch == sb.Epoch
	switch sb.State {
	case caisson.Running:
		return up
	case caisson.Stopped, caisson.Failed:
		return !up
	}
	return false
}

func (c *Control) reconcileOne(ctx context.Context, sb caisson.Sandbox, st node.Status) error {
	up := st.Phase == node.Up && st.Epoch == sb.Epoch
	switch sb.State {
	case caisson.Running:
		if st.Epoch == sb.Epoch && (st.Phase == node.Starting || st.Phase == node.Stopping) {
			return nil // the node is at it
		}
		return c.lost(ctx, sb, st)
	case caisson.Creating, caisson.Waking:
		if up {
			_, _, err := c.move(ctx, sb, lifecycle.Started, c.started(st))
			return err
		}
		_, actions, err := lifecycle.Next(sb.State, lifecycle.Interrupted)
		if err != nil {
			return err
		}
		for _, a := range actions { // before the row says so, or nobody comes again for it
			if a == lifecycle.DeleteMachine {
				err = c.node.Delete(ctx, sb.ID, sb.Epoch)
			} else if _, err = c.node.Stop(ctx, sb.ID, sb.Epoch); caisson.Is(err, caisson.NotFound) {
				err = nil
			}
			if err != nil {
				return err
			}
		}
		_, _, err = c.move(ctx, sb, lifecycle.Interrupted, func(r *caisson.Sandbox) { r.Reason = "the server ended while it started" })
		return err
	case caisson.Stopping:
		if !up {
			return c.lost(ctx, sb, st)
		}
		_, err := c.stop(ctx, sb)
		return err
	case caisson.Deleting:
		return c.remove(ctx, sb)
	case caisson.Stopped, caisson.Failed:
		_, err := c.node.Stop(ctx, sb.ID, sb.Epoch)
		return err
	}
	return nil
}

// lost takes the end of a life over into the row.
func (c *Control) lost(ctx context.Context, sb caisson.Sandbox, st node.Status) error {
	event, reason := lifecycle.Ended, st.Reason
	switch {
	case st.Epoch != sb.Epoch, st.Phase == "":
		reason = "shim lost"
	case st.Phase == node.Down && sb.State == caisson.Stopping:
		event, reason = lifecycle.Stopped, ""
	case st.Phase == node.Down:
		event, reason = lifecycle.Exited, "stopped"
	default:
		event = lifecycle.EndOf(st.Reason)
	}
	_, _, err := c.move(ctx, sb, event, func(r *caisson.Sandbox) {
		if st.Epoch == sb.Epoch {
			report(st)(r)
		}
		r.Reason = reason
	})
	return err
}

// follow takes over what the node reports, and watches anew when a watch ends.
func (c *Control) follow(ctx context.Context, changes <-chan node.Status) {
	for {
		for st := range changes {
			if (st.Phase == node.Ended || st.Phase == node.Down) && c.enter() {
				go func() { // drain waits for it: a verb that runs may be in its way
					defer c.work.Done()
					c.ended(ctx, st)
				}()
			}
		}
		for changes = nil; changes == nil; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			var err error
			if changes, err = c.node.Watch(ctx); err != nil {
				c.log.Error("the node cannot be watched", "error", err)
				changes = nil
			}
		}
		if err := c.reconcile(ctx); err != nil { // what happened while nobody watched
			c.log.Error("reconcile failed", "error", err)
		}
	}
}

// ended takes the node's word that a life ended, after the verb that runs: before it, a create that is about to be recorded
// would be recorded as running.
func (c *Control) ended(ctx context.Context, st node.Status) {
	wctx, end, err := c.begin(ctx, st.Sandbox, verbLimit, false)
	if err != nil {
		return // it is being deleted
	}
	defer end()
	for try := 0; try < 5; try++ {
		sb, err := c.store.Sandboxes().Get(wctx, st.Sandbox)
		if err == nil && (sb.Epoch != st.Epoch || sb.State != caisson.Running) {
			return // the verb saw it, or it is an older life
		}
		if err == nil {
			err = c.lost(wctx, sb, st)
		}
		if err == nil {
			c.log.Warn("sandbox ended by itself", "sandbox", sb.ID, "epoch", sb.Epoch, "reason", st.Reason, "detail", st.Detail)
			return
		}
		if caisson.Is(err, caisson.NotFound) || ctx.Err() != nil {
			return
		}
		c.log.Error("the end of a sandbox was not recorded", "sandbox", st.Sandbox, "error", err)
		time.Sleep(100 * time.Millisecond)
	}
}

func (c *Control) rearmExpiry() {
	select {
	case c.rearm <- struct{}{}:
	default:
	}
}

// expire deletes sandboxes at the end of their lifetime.
func (c *Control) expire(ctx context.Context) {
	for {
		next := time.Minute // at most: clocks jump, hosts sleep
		due, err := c.store.Sandboxes().Expiring(ctx, expireBatch)
		if err != nil {
			next = 10 * time.Second
		}
		now := c.cfg.Clock()
		var g errgroup.Group
		g.SetLimit(16)
		var failed atomic.Bool
		for _, sb := range due {
			if left := sb.ExpiresAt.Sub(now); left > 0 {
				next = min(next, left)
				break
			}
			next = 0
			g.Go(func() error {
				c.log.Info("sandbox has lived its time", "sandbox", sb.ID)
				if err := c.delete(ctx, sb.ID, lifecycle.Expire); err != nil && !caisson.Is(err, caisson.NotFound) {
					c.log.Error("an expired sandbox was not deleted", "sandbox", sb.ID, "error", err)
					failed.Store(true)
				}
				return nil
			})
		}
		if g.Wait(); failed.Load() {
			next = 10 * time.Second // and again
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-c.rearm:
			t.Stop()
		case <-t.C:
		}
	}
}

// tend does what is done now and then.
func (c *Control) tend(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	flush := time.NewTicker(time.Minute)
	defer flush.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-flush.C:
			c.keys.flush(ctx)
		case <-t.C:
			if err := c.reconcile(ctx); err != nil {
				c.log.Error("reconcile failed", "error", err)
			}
			if _, err := c.store.Events().Trim(ctx, c.cfg.Clock().Add(-eventsKept)); err != nil {
				c.log.Error("old events were not trimmed", "error", err)
			}
		}
	}
}

// sweep removes what no row owns. New lives wait for it.
func (c *Control) sweep(ctx context.Context) error {
	c.gate.Lock()
	defer c.gate.Unlock()
	rows, err := c.store.Sandboxes().All(ctx)
	if err != nil {
		return err
	}
	keep := make(map[caisson.SandboxID]uint64, len(rows))
	for _, sb := range rows {
		keep[sb.ID] = sb.Epoch
	}
	removed, err := c.node.Sweep(ctx, keep)
	for _, r := range removed {
		c.log.Warn("swept what no sandbox owns", "what", r)
	}
	if err != nil {
		c.log.Error("sweep failed", "error", err)
	}
	return nil
}
