package ratelimit

import (
	"strconv"
	"testing"
	"time"
)

func TestTakeRefillsWithTime(t *testing.T) {
	l, now := New(10, 2, 100), time.Unix(1000, 0)
	for i := range 2 {
		if _, ok := l.Take("a", now); !ok {
			t.Fatalf("token %d of the burst refused", i)
		}
	}
	wait, ok := l.Take("a", now)
	if ok || wait <= 0 || wait > 100*time.Millisecond {
		t.Fatalf("third token: ok %v, wait %v", ok, wait)
	}
	if _, ok := l.Take("b", now); !ok {
		t.Fatal("another name shares the bucket")
	}
	if _, ok := l.Take("a", now.Add(101*time.Millisecond)); !ok {
		t.Fatal("no token after its time")
	}
}

func TestPeekTakesNothing(t *testing.T) {
	l, now := New(1, 1, 10), time.Unix(1000, 0)
	for range 5 {
		if _, ok := l.Peek("a", now); !ok {
			t.Fatal("peek took")
		}
	}
	l.Take("a", now)
	if _, ok := l.Peek("a", now); ok {
		t.Fatal("peek sees a token that is gone")
	}
}

func TestNamesAreBounded(t *testing.T) {
	l, now := New(1, 5, 64), time.Unix(1000, 0)
	for i := range 10000 {
		l.Take(strconv.Itoa(i), now)
		if len(l.buckets) > 64 {
			t.Fatalf("%d names kept", len(l.buckets))
		}
	}
}

func TestGauge(t *testing.T) {
	g := NewGauge(2)
	for i, want := range []bool{true, true, false} {
		if g.Enter("a") != want {
			t.Fatalf("entry %d of a: not %v", i+1, want)
		}
	}
	if !g.Enter("b") {
		t.Fatal("b is kept out by a")
	}
	g.Leave("a")
	if !g.Enter("a") {
		t.Fatal("no room after Leave")
	}
	g.Leave("a")
	g.Leave("a")
	g.Leave("b")
	if len(g.open) != 0 {
		t.Fatalf("left over: %v", g.open)
	}
}
