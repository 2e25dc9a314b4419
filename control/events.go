package control

import (
	"context"
	"sync"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/store"
)

// events implements caisson.Events.
type events struct {
	store store.Store

	mu     sync.Mutex
	change chan struct{} // closed at the next event
}

func (e *events) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.change)
	e.change = make(chan struct{})
}

// List implements caisson.Events.
func (e *events) List(ctx context.Context, team caisson.TeamID, after uint64, sandbox caisson.SandboxID, limit int) ([]caisson.Event, error) {
	return e.store.Events().List(ctx, team, after, sandbox, limit)
}

// Wait implements caisson.Events.
func (e *events) Wait(ctx context.Context, after uint64) error {
	e.mu.Lock()
	change := e.change
	e.mu.Unlock()
	if last, err := e.store.Events().Last(ctx); err != nil || last > after {
		return err
	}
	select {
	case <-change:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
