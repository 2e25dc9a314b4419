// Package ratelimit limits how often, and how many at once, by name.
//
// Both forms are bounded: a caller who makes up names cannot make them grow. Time is given by the caller.
package ratelimit

import (
	"sync"
	"time"
)

// Limiter is a token bucket for each name.
type Limiter struct {
	rate  float64 // tokens per second
	burst float64
	max   int // names kept

	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

// New makes a Limiter of rate tokens per second and burst tokens at most, which keeps max names. When there are more, those
// with a full bucket are forgotten, then any: forgetting gives a name its burst back and costs nothing else.
func New(rate float64, burst, max int) *Limiter {
	return &Limiter{rate: rate, burst: float64(burst), max: max, buckets: map[string]*bucket{}}
}

// Take takes one token of name. Without one it says how long until there is.
func (l *Limiter) Take(name string, now time.Time) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.refill(name, now)
	if b.tokens < 1 {
		return l.wait(b), false
	}
	b.tokens--
	return 0, true
}

// Peek says whether Take would succeed, and takes nothing.
func (l *Limiter) Peek(name string, now time.Time) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.buckets[name]; !known {
		return 0, true
	}
	b := l.refill(name, now)
	return l.wait(b), b.tokens >= 1
}

func (l *Limiter) wait(b *bucket) time.Duration {
	return time.Duration((1 - b.tokens) / l.rate * float64(time.Second))
}

func (l *Limiter) refill(name string, now time.Time) *bucket {
	b := l.buckets[name]
	if b == nil {
		if len(l.buckets) >= l.max {
			l.evict(now)
		}
		b = &bucket{tokens: l.burst, at: now}
		l.buckets[name] = b
	}
	if d := now.Sub(b.at); d > 0 {
		b.tokens, b.at = min(l.burst, b.tokens+d.Seconds()*l.rate), now
	}
	return b
}

func (l *Limiter) evict(now time.Time) {
	for n, b := range l.buckets {
		if b.tokens+now.Sub(b.at).Seconds()*l.rate >= l.burst {
			delete(l.buckets, n)
		}
	}
	for n := range l.buckets {
		if len(l.buckets) < l.max-l.max/8 {
			return
		}
		delete(l.buckets, n)
	}
}

// Gauge counts what is open for each name.
type Gauge struct {
	max int

	mu   sync.Mutex
	open map[string]int
}

// NewGauge makes a Gauge that allows max at once for each name.
func NewGauge(max int) *Gauge { return &Gauge{max: max, open: map[string]int{}} }

// Enter counts one more, unless there are max already. Each success needs one Leave.
func (g *Gauge) Enter(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[name] >= g.max {
		return false
	}
	g.open[name]++
	return true
}

// Leave counts one less.
func (g *Gauge) Leave(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[name]--; g.open[name] <= 0 {
		delete(g.open, name)
	}
}
