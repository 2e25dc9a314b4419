package control

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/control/lifecycle"
	"github.com/caisson-sandbox/caisson/node"
)

// Run is the loop; it ends with ctx.
func (c *Control) Run(ctx context.Context) error {
	// Watch before looking: what changes in between is seen twice, not never.
	changes, err := c.node.Watch(ctx)
	if err != nil {
		return err
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

// reconcile finishes what an earlier server began and takes over what the node has.
func (c *Control) reconcile(ctx context.Context) error {
	rows, err := c.store.Sandboxes().All(ctx)
	if err != nil {
		return err
	}
	statuses, err := c.node.Statuses(ctx)
	if err != nil {
		return err
	}
	known := map[caisson.SandboxID]node.Status{}
	for _, st := range statuses {
		known[st.Sandbox] = st
	}
	keep := map[caisson.SandboxID]uint64{}
	var g errgroup.Group
	g.SetLimit(16)
	for _, sb := range rows {
		keep[sb.ID] = sb.Epoch
		g.Go(func() error {
			if err := c.reconcileOne(ctx, sb, known[sb.ID]); err != nil {
				c.log.Error("sandbox was not reconciled", "sandbox", sb.ID, "state", sb.State, "error", err)
			}
			return nil
		})
	}
	g.Wait()
	c.sweep(ctx, keep)
	return nil
}

func (c *Control) reconcileOne(ctx context.Context, sb caisson.Sandbox, st node.Status) error {
	up := st.Phase == node.Up && st.Epoch == sb.Epoch
	switch sb.State {
	case caisson.Running:
		if up {
			return nil
		}
		return c.lost(ctx, sb, st)
	case caisson.Creating, caisson.Waking:
		if up {
			_, _, err := c.move(ctx, sb, lifecycle.Started, c.started(st))
			return err
		}
		sb, actions, err := c.move(ctx, sb, lifecycle.Interrupted, func(r *caisson.Sandbox) { r.Reason = "the server ended while it started" })
		if err != nil {
			return err
		}
		for _, a := range actions {
			if a == lifecycle.DeleteMachine {
				err = c.node.Delete(ctx, sb.ID, sb.Epoch)
			} else if _, err = c.node.Stop(ctx, sb.ID, sb.Epoch); caisson.Is(err, caisson.NotFound) {
				err = nil
			}
		}
		return err
	case caisson.Stopping:
		if !up {
			return c.lost(ctx, sb, st)
		}
		_, err := c.stop(ctx, sb)
		return err
	case caisson.Deleting:
		return c.delete(ctx, sb.ID, lifecycle.Delete)
	case caisson.Stopped, caisson.Failed:
		if up {
			_, err := c.node.Stop(ctx, sb.ID, sb.Epoch)
			return err
		}
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

// follow takes over what the node reports.
func (c *Control) follow(ctx context.Context, changes <-chan node.Status) {
	for st := range changes {
		if st.Phase != node.Ended && st.Phase != node.Down {
			continue
		}
		for try := 0; try < 5 && ctx.Err() == nil; try++ {
			sb, err := c.store.Sandboxes().Get(ctx, st.Sandbox)
			if err != nil || sb.Epoch != st.Epoch || sb.State != caisson.Running {
				break // a verb is at work on it and sees it, or it is an older life
			}
			err = c.lost(ctx, sb, st)
			if err == nil {
				c.log.Warn("sandbox ended by itself", "sandbox", sb.ID, "epoch", sb.Epoch, "reason", st.Reason, "detail", st.Detail)
				break
			}
			if !caisson.Is(err, caisson.Conflict) {
				c.log.Error("the end of a sandbox was not recorded", "sandbox", sb.ID, "error", err)
				time.Sleep(100 * time.Millisecond)
			}
		}
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
		next := time.Hour
		due, err := c.store.Sandboxes().Expiring(ctx, expireBatch)
		if err != nil {
			next = 10 * time.Second
		}
		now := c.cfg.Clock()
		for _, sb := range due {
			if left := sb.ExpiresAt.Sub(now); left > 0 {
				next = min(next, left)
				break
			}
			next = 10 * time.Second // a delete that failed is tried again
			c.log.Info("sandbox has lived its time", "sandbox", sb.ID)
			if err := c.delete(ctx, sb.ID, lifecycle.Expire); err != nil && !caisson.Is(err, caisson.NotFound) {
				c.log.Error("an expired sandbox was not deleted", "sandbox", sb.ID, "error", err)
			} else {
				next = 0
			}
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
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			c.keys.flush(last)
			cancel()
			return
		case <-flush.C:
			c.keys.flush(ctx)
		case <-t.C:
			rows, err := c.store.Sandboxes().All(ctx)
			if err != nil {
				continue
			}
			keep := map[caisson.SandboxID]uint64{}
			for _, sb := range rows {
				keep[sb.ID] = sb.Epoch
				if sb.State == caisson.Deleting && !c.busy(sb.ID) { // one that could not be finished
					if err := c.delete(ctx, sb.ID, lifecycle.Delete); err != nil {
						c.log.Error("a sandbox is still not deleted", "sandbox", sb.ID, "error", err)
					}
				}
			}
			c.sweep(ctx, keep)
			if _, err := c.store.Events().Trim(ctx, c.cfg.Clock().Add(-eventsKept)); err != nil {
				c.log.Error("old events were not trimmed", "error", err)
			}
		}
	}
}

func (c *Control) sweep(ctx context.Context, keep map[caisson.SandboxID]uint64) {
	removed, err := c.node.Sweep(ctx, keep)
	for _, r := range removed {
		c.log.Warn("swept what no sandbox owns", "what", r)
	}
	if err != nil {
		c.log.Error("sweep failed", "error", err)
	}
}
