package native

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// maxBatch is when the reading side of a stream waits for the client. One more event may come on top of it.
const maxBatch = 256 << 10

// codec writes the events of one stream in one format.
type codec[T any] struct {
	next  func(ctx context.Context) (T, error) // io.EOF is the good end
	event func(buf []byte, e *T) ([]byte, error)
	ping  func(buf []byte) []byte
	fail  func(buf []byte, p *v1.Problem) []byte
}

// batch is what the reader has encoded and the writer has not yet taken. While one buffer is written, the other fills: under
// load many events go out in one write and one flush, and a lone event goes out at once.
type batch struct {
	ready chan struct{} // something to take, or the end
	room  chan struct{} // taken

	mu  sync.Mutex
	buf []byte
	end error // io.EOF or why the stream ended; nil while it goes on
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (b *batch) put(grow func([]byte) ([]byte, error)) (full bool, err error) {
	b.mu.Lock()
	b.buf, err = grow(b.buf)
	full = len(b.buf) >= maxBatch
	b.mu.Unlock()
	signal(b.ready)
	return full, err
}

func (b *batch) take(empty []byte) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.buf
	b.buf = empty[:0]
	signal(b.room)
	return full, b.end
}

func (b *batch) finish(err error) {
	b.mu.Lock()
	b.end = err
	b.mu.Unlock()
	signal(b.ready)
}

func fill[T any](ctx context.Context, b *batch, c codec[T]) error {
	for {
		e, err := c.next(ctx)
		if err != nil {
			return err
		}
		full, err := b.put(func(buf []byte) ([]byte, error) { return c.event(buf, &e) })
		if err != nil {
			return err
		}
		for full {
			select {
			case <-b.room:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			b.mu.Lock()
			full = len(b.buf) >= maxBatch
			b.mu.Unlock()
		}
	}
}

// stream writes events until their end. It returns nil when all was written, the client's end included: what went wrong
// in between was told in the stream.
func stream[T any](s *server, w http.ResponseWriter, r *http.Request, mediaType, name string, c codec[T]) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for nginx in front
	out := s.progressWriter(w)
	w.WriteHeader(http.StatusOK)
	if err := out.flush(); err != nil {
		return nil
	}
	b := &batch{ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() { // waited for below, after cancel
		defer close(done)
		b.finish(fill(ctx, b, c))
	}()
	defer func() { cancel(); <-done }()

	bytes := s.metrics.streamed.WithLabelValues(name)
	quiet := time.NewTimer(s.limits.Ping)
	defer quiet.Stop()
	var spare []byte
	for {
		var buf []byte
		var end error
		select {
		case <-b.ready:
			buf, end = b.take(spare)
		case <-quiet.C:
			buf = c.ping(nil)
		}
		if end != nil && !errors.Is(end, io.EOF) {
			buf = c.fail(buf, s.streamProblem(r.Context(), end))
		}
		if len(buf) > 0 {
			if _, err := out.Write(buf); err != nil {
				return nil // the client is gone; it can re-attach
			}
			if err := out.flush(); err != nil {
				return nil
			}
			bytes.Add(float64(len(buf)))
		}
		if end != nil {
			return nil
		}
		spare = buf
		quiet.Reset(s.limits.Ping)
	}
}

// streamProblem says why a stream ended early.
func (s *server) streamProblem(ctx context.Context, err error) *v1.Problem {
	if ctx.Err() != nil { // the client left (and reads none of this), or the server stops
		err = caisson.E(caisson.Unavailable, "stream", "", "the server is going away", err).
			WithHint("the command goes on; re-attach with from, as soon as the server is back")
	}
	return problemOf(ctx, err)
}

// progress is a writer that gives each write its own deadline. Without one pending there is none, so that a silent stream may
// live for ever.
type progress struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	limit time.Duration
}

func (s *server) progressWriter(w http.ResponseWriter) *progress {
	return &progress{w: w, c: http.NewResponseController(w), limit: s.limits.Inactivity}
}

func (p *progress) deadline(t time.Time) error {
	if err := p.c.SetWriteDeadline(t); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Write writes in pieces: each must get through within the limit.
func (p *progress) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		piece := b[:min(len(b), 64<<10)]
		if err := p.deadline(time.Now().Add(p.limit)); err != nil {
			return written, err
		}
		n, err := p.w.Write(piece)
		written += n
		if err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, p.deadline(time.Time{})
}

func (p *progress) flush() error {
	if err := p.deadline(time.Now().Add(p.limit)); err != nil {
		return err
	}
	if err := p.c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return p.deadline(time.Time{})
}

// body is a request body whose every read has a deadline, so that a half-open client does not hold an upload for ever.
type body struct {
	r     io.Reader
	c     *http.ResponseController
	limit time.Duration
	count func(int)
}

func (s *server) progressBody(w http.ResponseWriter, r *http.Request, name string) *body {
	n := s.metrics.streamed.WithLabelValues(name)
	return &body{r: r.Body, c: http.NewResponseController(w), limit: s.limits.Inactivity, count: func(k int) { n.Add(float64(k)) }}
}

func (b *body) Read(p []byte) (int, error) {
	b.c.SetReadDeadline(time.Now().Add(b.limit)) //nolint:errcheck // a writer without deadlines serves tests alone
	n, err := b.r.Read(p)
	b.c.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	b.count(n)
	return n, err
}

// jsonCodec is ndjson or server-sent events for any type. id gives the SSE id, 0 for none.
func jsonCodec[T any](mediaType string, next func(context.Context) (T, error), appendJSON func([]byte, *T) ([]byte, error), id func(*T) uint64, ping, fail func(p *v1.Problem) T) codec[T] {
	c := codec[T]{next: next}
	sse := mediaType == v1.MediaSSE
	c.event = func(buf []byte, e *T) ([]byte, error) {
		if sse {
			if n := id(e); n != 0 {
				buf = appendSSEID(buf, n)
			}
			buf = append(buf, "data: "...)
		}
		buf, err := appendJSON(buf, e)
		buf = append(buf, '\n')
		if sse {
			buf = append(buf, '\n')
		}
		return buf, err
	}
	must := func(buf []byte, e T) []byte {
		out, err := c.event(buf, &e)
		if err != nil {
			return buf
		}
		return out
	}
	c.ping = func(buf []byte) []byte {
		if sse {
			return append(buf, ": ping\n\n"...)
		}
		return must(buf, ping(nil))
	}
	c.fail = func(buf []byte, p *v1.Problem) []byte { return must(buf, fail(p)) }
	return c
}

// appendMarshal is the append form of json.Marshal.
func appendMarshal[T any](buf []byte, e *T) ([]byte, error) {
	b, err := json.Marshal(e)
	return append(buf, b...), err
}
