package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/control/lifecycle"
	"github.com/caisson-sandbox/caisson/control/schedule"
	"github.com/caisson-sandbox/caisson/store"
)

// Create implements caisson.Sandboxes.
func (c *Control) Create(ctx context.Context, team caisson.TeamID, cfg caisson.SandboxConfig, key string) (caisson.Sandbox, []caisson.Timing, error) {
	const op = "create sandbox"
	if err := c.Ready(ctx); err != nil {
		return caisson.Sandbox{}, nil, err
	}
	if err := validate(cfg, key); err != nil {
		return caisson.Sandbox{}, nil, err
	}
	type outcome struct {
		sb      caisson.Sandbox
		timings []caisson.Timing
	}
	out, err := detached(ctx, c, func() (outcome, error) {
		sb, t, err := c.createOnce(ctx, op, team, cfg, idempotency(team, cfg, key))
		return outcome{sb, t}, err
	})
	if err != nil {
		return caisson.Sandbox{}, nil, subject(op, cfg.Name, err)
	}
	return out.sb, out.timings, nil
}

// createOnce gives what an idempotency key made. It waits for a create of the same key that runs; one that was interrupted
// and never ran is made again.
func (c *Control) createOnce(ctx context.Context, op string, team caisson.TeamID, cfg caisson.SandboxConfig, idem *store.IdempotencyKey) (caisson.Sandbox, []caisson.Timing, error) {
	ctx = context.WithoutCancel(ctx) // begin gives limits
	if idem == nil {
		return c.create(ctx, op, team, cfg, nil)
	}
	// Not the form of an id, so no sandbox is meant.
	kctx, end, err := c.begin(ctx, caisson.SandboxID("key/"+string(team)+"/"+idem.Key), 2*verbLimit, false)
	if err != nil {
		return caisson.Sandbox{}, nil, err
	}
	defer end()
	sb, err := c.store.Sandboxes().Made(kctx, *idem)
	switch {
	case caisson.Is(err, caisson.NotFound):
	case err != nil:
		return sb, nil, err
	case sb.State == caisson.Failed && sb.StartedAt.IsZero():
		if err := c.delete(kctx, sb.ID, lifecycle.Delete); err != nil && !caisson.Is(err, caisson.NotFound) {
			return sb, nil, err
		}
	default:
		return sb, nil, nil
	}
	return c.create(kctx, op, team, cfg, idem)
}

func (c *Control) create(ctx context.Context, op string, team caisson.TeamID, cfg caisson.SandboxConfig, idem *store.IdempotencyKey) (caisson.Sandbox, []caisson.Timing, error) {
	var timings []caisson.Timing
	last := c.cfg.Clock()
	lap := func(name string) {
		now := c.cfg.Clock()
		timings = append(timings, caisson.Timing{Name: name, Dur: now.Sub(last)})
		last = now
	}
	id := caisson.NewSandboxID()
	// The verb is held before the row can be seen, so that nobody takes the row for one without a verb.
	ctx, end, err := c.begin(ctx, id, verbLimit, false)
	if err != nil {
		return caisson.Sandbox{}, nil, err
	}
	defer end()
	if cfg.Template == "" {
		cfg.Template = "base"
	}
	t, err := c.cfg.Templates.Resolve(ctx, cfg.Template)
	if err != nil {
		return caisson.Sandbox{}, nil, err
	}
	cfg = withDefaults(cfg, t)
	lap("template")
	sb := caisson.Sandbox{ID: id, Team: team, Config: cfg, TemplateDigest: t.Digest, State: caisson.Creating, Epoch: 1}
	if cfg.MaxLifetime > 0 {
		sb.ExpiresAt = c.cfg.Clock().UTC().Add(cfg.MaxLifetime)
	}
	made := true
	err = c.place(ctx, id, cfg, func(d schedule.Driver) error {
		lap("admission")
		sb.Driver, sb.DriverVersion, sb.Isolation = d.Name, d.Version, d.Isolation
		sb, made, err = c.store.Sandboxes().Create(ctx, sb, idem, caisson.Event{Type: "sandbox.created"})
		return err
	})
	if err != nil || !made {
		c.ledger.release(id)
		return sb, nil, err
	}
	c.feed.wake()
	c.rearmExpiry()
	lap("record")
	sb, booting, err := c.boot(ctx, sb, op)
	if err != nil {
		return caisson.Sandbox{}, nil, subject(op, string(id), err)
	}
	return sb, append(timings, booting...), nil
}

// boot starts the life that the row names. When it fails, nothing of a first life is left, and a later one is stopped.
func (c *Control) boot(ctx context.Context, sb caisson.Sandbox, op string) (caisson.Sandbox, []caisson.Timing, error) {
	st, timings, err := c.node.Start(ctx, spec(sb))
	if err == nil {
		begin := c.cfg.Clock()
		// What comes too late to stop the start does not undo it.
		out, _, uerr := c.move(context.WithoutCancel(ctx), sb, lifecycle.Started, c.started(st))
		if uerr == nil {
			return out, append(timings, caisson.Timing{Name: "commit", Dur: c.cfg.Clock().Sub(begin)}), nil
		}
		err = uerr
		if sb.State == caisson.Waking { // or it runs on beside a row that says it is stopped
			if _, serr := c.node.Stop(context.WithoutCancel(ctx), sb.ID, sb.Epoch); serr != nil {
				c.log.Error("a machine without a record was not stopped", "sandbox", sb.ID, "error", serr)
			}
		}
	}
	c.log.Warn("start failed", "sandbox", sb.ID, "epoch", sb.Epoch, "error", err)
	if cause := context.Cause(ctx); errors.Is(cause, errDeleted) || errors.Is(cause, errStopping) {
		err = cause
	}
	if h := (*caisson.Error)(nil); errors.As(err, &h) && h.Hint == "" && !caisson.Is(err, caisson.Canceled) {
		err = caisson.Hintf(err, "`caisson doctor` checks this host; the server's log has the details")
	}
	uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verbLimit)
	defer cancel()
	failed, actions, merr := c.move(uctx, sb, lifecycle.StartFailed, func(r *caisson.Sandbox) { r.Reason = "start failed: " + shortly(err) })
	if merr == nil && len(actions) > 0 {
		merr = c.remove(uctx, failed, caisson.Event{Type: "sandbox.failed", Data: map[string]string{"reason": shortly(err)}})
	}
	if merr != nil && !caisson.Is(merr, caisson.Conflict) && !caisson.Is(merr, caisson.NotFound) {
		err = errors.Join(err, merr)
	}
	return failed, nil, err
}

// shortly is an error as a reason.
func shortly(err error) string {
	s := err.Error()
	var e *caisson.Error
	if errors.As(err, &e) {
		s = e.User()
	}
	return s[:min(len(s), 300)]
}

// remove deletes a row in state deleting and what the node has of it.
func (c *Control) remove(ctx context.Context, sb caisson.Sandbox, evs ...caisson.Event) error {
	if err := c.node.Delete(ctx, sb.ID, sb.Epoch); err != nil {
		return err
	}
	if _, _, err := lifecycle.Next(sb.State, lifecycle.Deleted); err != nil {
		return err
	}
	err := c.store.Sandboxes().Delete(ctx, sb.ID, append(evs, caisson.Event{Type: "sandbox.deleted"})...)
	if err == nil || caisson.Is(err, caisson.NotFound) {
		c.ledger.release(sb.ID)
		c.feed.wake()
	}
	return err
}

func idempotency(team caisson.TeamID, cfg caisson.SandboxConfig, key string) *store.IdempotencyKey {
	if key == "" {
		return nil
	}
	b, err := json.Marshal(cfg) // maps are sorted
	if err != nil {
		return nil // a config always marshals
	}
	sum := sha256.Sum256(b)
	return &store.IdempotencyKey{Team: team, Key: key, ConfigHash: hex.EncodeToString(sum[:])}
}

// Get implements caisson.Sandboxes.
func (c *Control) Get(ctx context.Context, team caisson.TeamID, idOrName string) (caisson.Sandbox, error) {
	return c.store.Sandboxes().Find(ctx, team, idOrName)
}

// List implements caisson.Sandboxes.
func (c *Control) List(ctx context.Context, team caisson.TeamID, f caisson.SandboxFilter) (caisson.SandboxPage, error) {
	return c.store.Sandboxes().List(ctx, team, f)
}

// Update implements caisson.Sandboxes.
func (c *Control) Update(ctx context.Context, team caisson.TeamID, idOrName string, p caisson.SandboxPatch) (caisson.Sandbox, error) {
	const op = "change sandbox"
	sb, err := c.Get(ctx, team, idOrName)
	if err != nil {
		return sb, err
	}
	out, err := c.store.Sandboxes().Update(ctx, sb.ID, store.Expect{Revision: p.Revision}, func(r *caisson.Sandbox) error {
		if r.State == caisson.Deleting {
			return caisson.E(caisson.Conflict, op, idOrName, "it is deleting", nil)
		}
		if p.Name != nil {
			r.Config.Name = *p.Name
		}
		m := map[string]string{}
		for k, v := range r.Config.Metadata {
			m[k] = v
		}
		for k, v := range p.Metadata {
			if v == nil {
				delete(m, k)
			} else {
				m[k] = *v
			}
		}
		r.Config.Metadata = m
		if p.MaxLifetime != nil {
			r.Config.MaxLifetime, r.ExpiresAt = *p.MaxLifetime, time.Time{}
			if *p.MaxLifetime > 0 {
				r.ExpiresAt = c.cfg.Clock().UTC().Add(*p.MaxLifetime)
			}
		}
		return validate(r.Config, "")
	}, caisson.Event{Type: "sandbox.updated"})
	if err == nil {
		c.feed.wake()
		c.rearmExpiry()
	}
	return out, subject(op, idOrName, err)
}

// Start implements caisson.Sandboxes.
func (c *Control) Start(ctx context.Context, team caisson.TeamID, idOrName string) (caisson.Sandbox, []caisson.Timing, error) {
	const op = "start sandbox"
	sb, err := c.Get(ctx, team, idOrName)
	if err != nil {
		return sb, nil, err
	}
	type outcome struct {
		sb      caisson.Sandbox
		timings []caisson.Timing
	}
	out, err := detached(ctx, c, func() (outcome, error) {
		sb, t, err := c.start(ctx, op, sb.ID)
		return outcome{sb, t}, err
	})
	return out.sb, out.timings, subject(op, idOrName, err)
}

func (c *Control) start(ctx context.Context, op string, id caisson.SandboxID) (caisson.Sandbox, []caisson.Timing, error) {
	wctx, end, err := c.begin(ctx, id, verbLimit, false)
	if err != nil {
		return caisson.Sandbox{}, nil, err
	}
	defer end()
	sb, err := c.store.Sandboxes().Get(wctx, id)
	if err != nil {
		return sb, nil, err
	}
	if _, actions, err := lifecycle.Next(sb.State, lifecycle.Start); err != nil || len(actions) == 0 {
		return sb, nil, err
	}
	cfg := sb.Config
	cfg.Driver = sb.Driver
	err = c.place(wctx, id, cfg, func(schedule.Driver) error {
		sb, _, err = c.move(wctx, sb, lifecycle.Start, func(r *caisson.Sandbox) { r.Epoch++ })
		return err
	})
	if err != nil {
		return sb, nil, err
	}
	return c.boot(wctx, sb, op)
}

// Stop implements caisson.Sandboxes.
func (c *Control) Stop(ctx context.Context, team caisson.TeamID, idOrName string) (caisson.Sandbox, error) {
	const op = "stop sandbox"
	sb, err := c.Get(ctx, team, idOrName)
	if err != nil {
		return sb, err
	}
	out, err := detached(ctx, c, func() (caisson.Sandbox, error) {
		wctx, end, err := c.begin(ctx, sb.ID, stopLimit, false)
		if err != nil {
			return sb, err
		}
		defer end()
		sb, err := c.store.Sandboxes().Get(wctx, sb.ID)
		if err != nil {
			return sb, err
		}
		return c.stop(wctx, sb)
	})
	return out, subject(op, idOrName, err)
}

func (c *Control) stop(ctx context.Context, sb caisson.Sandbox) (caisson.Sandbox, error) {
	next, actions, err := c.move(ctx, sb, lifecycle.Stop, nil)
	if next.State != sb.State && err == nil {
		sb = next
	}
	if err != nil || len(actions) == 0 {
		return sb, err
	}
	st, err := c.node.Stop(ctx, sb.ID, sb.Epoch)
	uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verbLimit)
	defer cancel()
	switch {
	case err == nil, caisson.Is(err, caisson.NotFound):
		out, _, err := c.move(uctx, sb, lifecycle.Stopped, func(r *caisson.Sandbox) { r.Reason = "" })
		return out, err
	case st.Phase == "ended":
		c.move(uctx, sb, lifecycle.EndOf(st.Reason), func(r *caisson.Sandbox) { r.Reason = st.Reason })
		return sb, err
	case errors.Is(context.Cause(ctx), errDeleted):
		return sb, context.Cause(ctx) // Delete goes on from here
	}
	c.move(uctx, sb, lifecycle.StopFailed, nil)
	return sb, err
}

// Delete implements caisson.Sandboxes.
func (c *Control) Delete(ctx context.Context, team caisson.TeamID, idOrName string) error {
	const op = "delete sandbox"
	sb, err := c.Get(ctx, team, idOrName)
	if err != nil {
		return err
	}
	_, err = detached(ctx, c, func() (struct{}, error) { return struct{}{}, c.delete(ctx, sb.ID, lifecycle.Delete) })
	if caisson.Is(err, caisson.NotFound) {
		return nil // another delete was first
	}
	return subject(op, idOrName, err)
}

func (c *Control) delete(ctx context.Context, id caisson.SandboxID, e lifecycle.Event) error {
	wctx, end, err := c.begin(ctx, id, verbLimit, true)
	if err != nil {
		return err
	}
	defer end()
	for {
		sb, err := c.store.Sandboxes().Get(wctx, id)
		if err != nil {
			return err
		}
		if e == lifecycle.Expire && (sb.ExpiresAt.IsZero() || sb.ExpiresAt.After(c.cfg.Clock())) {
			return nil // its lifetime was made longer meanwhile
		}
		sb, _, err = c.move(wctx, sb, e, nil)
		if caisson.Is(err, caisson.Conflict) && wctx.Err() == nil {
			continue // the loop moved it meanwhile
		}
		if err != nil {
			return err
		}
		return c.remove(wctx, sb)
	}
}

// Guest implements caisson.Sandboxes.
func (c *Control) Guest(ctx context.Context, team caisson.TeamID, idOrName string) (caisson.Guest, error) {
	sb, err := c.Get(ctx, team, idOrName)
	if err != nil {
		return nil, err
	}
	g, err := c.node.Guest(ctx, sb.ID, sb.Epoch)
	switch {
	case err != nil && sb.State != caisson.Running:
		return nil, notRunning(sb)
	case err != nil:
		return nil, err
	case sb.State != caisson.Running:
		return &asleep{Guest: g, sb: sb}, nil
	}
	return g, nil
}
