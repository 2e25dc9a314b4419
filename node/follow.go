package node

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson/shim/wire"
)

const (
	helloLimit = 3 * time.Second
	silent     = 10 * time.Second // a shim whose process lives may take this long to answer before it is looked at again
)

// followShim reads the shim's status until its machine is gone or the shim is, and reports that.
func (b *box) followShim(ctx context.Context, c *shimClient, epoch uint64) {
	var last *wire.Status
	for ctx.Err() == nil {
		st, err := c.shim.Watch(ctx, connect.NewRequest(&wire.WatchRequest{}))
		if err == nil {
			for st.Receive() {
				last = st.Msg()
			}
			st.Close()
		}
		if ctx.Err() != nil {
			return
		}
		if last != nil && last.State == "gone" {
			break
		}
		// The stream broke. Is the shim there?
		hctx, cancel := context.WithTimeout(ctx, helloLimit)
		_, err = c.hello(hctx, b.id, epoch)
		cancel()
		if err == nil {
			continue
		}
		if len(b.n.shims(b.id)) == 0 {
			break
		}
		select {
		case <-time.After(silent / 10):
		case <-ctx.Done():
			return
		}
	}
	if ctx.Err() != nil {
		return
	}
	b.ended(epoch)
}

// ended cleans up after a life that ended by itself. A verb that runs, such as Stop, is what ended it, and comes first.
func (b *box) ended(epoch uint64) {
	ctx, end := b.begin(b.n.ctx)
	defer end()
	st := b.peek()
	if st.Epoch != epoch || st.Phase != Up {
		return
	}
	b.waitForShim(ctx)
	if err := b.clean(ctx); err != nil {
		b.n.log.Error("clean-up failed; the sweeper goes on", "sandbox", b.id, "error", err)
	}
	st = b.set(func(s *Status) { endOf(s, lastStatus(b.dir)) })
	b.n.log.Info("sandbox ended by itself", "sandbox", b.id, "epoch", epoch, "reason", st.Reason, "detail", st.Detail)
	b.n.publish(st)
}

// waitForShim gives the shim time to write down the end and to serve it to its readers.
func (b *box) waitForShim(ctx context.Context) {
	for deadline := time.Now().Add(farewell); time.Now().Before(deadline) && len(b.n.shims(b.id)) > 0; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

const farewell = 12 * time.Second // a little more than the shim's own

// endOf says how a life ended, from what its shim left.
func endOf(s *Status, w *wire.Status) {
	switch {
	case w == nil:
		s.Phase, s.Reason, s.Detail = Ended, "shim lost", "the shim's process ended without a word"
	case w.Reason == "stopped":
		s.Phase, s.Reason, s.Detail = Down, "", ""
	default:
		s.Phase, s.Reason, s.Detail = Ended, w.Reason, w.Detail
	}
	if w != nil {
		s.Driver, s.DriverVersion, s.DiskDurability = w.Driver, w.DriverVersion, w.DiskDurability
	}
}
