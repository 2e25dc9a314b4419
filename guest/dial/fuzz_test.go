package dial_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/guest/dial"
	"github.com/caisson-sandbox/caisson/guest/wire"
)

// What is called.
const (
	callRun = iota
	callUnary
	callRead
	callPort
	calls
)

// How the bytes are dressed.
const (
	asRaw     = iota // the whole HTTP answer
	asStream         // the body of a streaming answer
	asUnary          // the body of a unary answer
	asRefusal        // the body of an answer that is an error
	shapes
)

// What follows them.
const (
	thenClose  = iota
	thenHold   // the connection stays open and silent
	thenRepeat // the bytes again, without end; of a body the body alone
	ends
)

// anyError is the kind of an answer whose error may be of any kind.
const anyError = caisson.Kind("any")

var heads = [shapes]string{
	asStream:  "HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\nConnection: close\r\n\r\n",
	asUnary:   "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nConnection: close\r\n\r\n",
	asRefusal: "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n",
}

// hostile answers every call on every connection with the same bytes.
type hostile struct {
	head  string
	body  []byte
	then  int
	again context.CancelFunc // called when Run comes back: the second answer would be the first
	runs  atomic.Int64
	wg    sync.WaitGroup

	mu    sync.Mutex
	gone  bool
	conns []net.Conn
}

func (h *hostile) dial(_ context.Context, port uint16) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return nil, errors.New("the machine is gone")
	}
	ours, theirs := net.Pipe()
	h.conns = append(h.conns, ours)
	h.wg.Go(func() {
		defer ours.Close()
		br := bufio.NewReader(ours)
		if port == 2 {
			br.ReadString('\n')
		} else if q, err := http.ReadRequest(br); err != nil {
			return
		} else if strings.HasSuffix(q.URL.Path, "/Run") && h.runs.Add(1) > 1 {
			h.again()
			return
		}
		closed := make(chan struct{})
		h.wg.Go(func() { // ends when either side closes
			io.Copy(io.Discard, br)
			close(closed)
		})
		if _, err := io.WriteString(ours, h.head); err != nil {
			return
		}
		for {
			if _, err := ours.Write(h.body); err != nil || h.then == thenClose {
				return
			}
			if h.then == thenHold || len(h.body) == 0 {
				<-closed
				return
			}
		}
	})
	return theirs, nil
}

// close cuts every connection, as the end of a machine does.
func (h *hostile) close() {
	h.mu.Lock()
	h.gone = true
	for _, c := range h.conns {
		c.Close()
	}
	h.mu.Unlock()
}

var errEnough = errors.New("the caller has enough")

// call makes one call and reads at most a few messages. It must give an error or a whole answer.
func call(ctx context.Context, c *dial.Client, which int) error {
	const enough = 64
	n := 0
	switch which {
	case callRun:
		ended := false
		err := c.Run(ctx, &wire.StartProcess{Id: "x"}, func(e *wire.ProcessEvent) error {
			if ended {
				return errors.New("FAULT: an event after the exit")
			}
			if n++; e.Seq != uint64(n) {
				return errors.New("FAULT: an event out of order")
			}
			if ended = e.GetExit() != nil; n == enough {
				return errEnough
			}
			return nil
		})
		if err == nil && !ended {
			return errors.New("FAULT: a command without an end")
		}
		return err
	case callUnary:
		m, err := c.Metrics(ctx)
		if err == nil && m == nil {
			return errors.New("FAULT: neither an answer nor an error")
		}
		return err
	case callRead:
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		st, err := c.Files().Read(ctx, connect.NewRequest(&wire.ReadRequest{Path: []byte("/x")}))
		if err != nil {
			return err
		}
		for st.Receive() {
			if n++; n == enough {
				return errEnough
			}
		}
		cancel()
		st.Close()
		return st.Err()
	}
	conn, err := c.DialPort(ctx, 80)
	if err == nil {
		conn.Close()
	}
	return err
}

// attack lets an agent answer one call with these bytes, and holds the client to its word: it returns before its
// deadline and what it allocates is in proportion to what one message may be.
func attack(t *testing.T, which, shape, then int, body []byte) error {
	t.Helper()
	wait := 20 * time.Second
	if then != thenClose {
		wait = 30 * time.Millisecond // nothing but the deadline ends some of these
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	h := &hostile{head: heads[shape], body: body, then: then, again: cancel}
	c := dial.New(h.dial)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	done := make(chan error, 1)
	go func() { done <- call(ctx, c, which) }() // waited for below
	var err error
	select {
	case err = <-done:
	case <-time.After(wait + 20*time.Second):
		buf := make([]byte, 1<<20)
		t.Fatalf("the call outlived its deadline\n%s", buf[:runtime.Stack(buf, true)])
	}
	runtime.ReadMemStats(&after)
	h.close()
	c.Close()
	h.wg.Wait()
	if err != nil && strings.HasPrefix(err.Error(), "FAULT") {
		t.Error(err)
	}
	// 64 messages of 1 MiB in the worst case, and what the smallest events take when they are unpacked.
	if most, got := uint64(256<<20), after.TotalAlloc-before.TotalAlloc; got > most {
		t.Errorf("%d MiB were allocated", got>>20)
	}
	return err
}

// frame is an enveloped message of the Connect protocol.
func frame(flags byte, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b))), b...)
}

func message(flags byte, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return frame(flags, b)
}

func event(seq uint64, e *wire.ProcessEvent) *wire.ProcessEvent {
	e.Seq = seq
	return e
}

var (
	started  = &wire.ProcessEvent_Started{Started: &wire.Started{Pid: 7}}
	exited   = &wire.ProcessEvent_Exit{Exit: &wire.Exit{Reason: "exited"}}
	trailers = frame(2, []byte("{}"))
	whole    = message(0, &wire.RunResponse{Events: []*wire.ProcessEvent{
		event(1, &wire.ProcessEvent{What: started}), event(2, &wire.ProcessEvent{What: &wire.ProcessEvent_Stdout{Stdout: []byte("hi\n")}}),
		event(3, &wire.ProcessEvent{What: exited}),
	}})
	file = append(message(0, &wire.ReadResponse{Info: &wire.FileInfo{Path: []byte("/x"), Type: "file"}}), message(0, &wire.ReadResponse{Data: []byte("data")})...)
)

// hostileAnswers are the lies we know; want is the kind of error they give, "" for none.
var hostileAnswers = []struct {
	name              string
	call, shape, then int
	body              []byte
	want              caisson.Kind
}{
	{"an honest run", callRun, asStream, thenClose, append(bytes.Clone(whole), trailers...), ""},
	{"a run without trailers", callRun, asStream, thenClose, whole, ""},
	{"a run that is held open", callRun, asStream, thenHold, whole, ""},
	{"a start without an end", callRun, asStream, thenClose, message(0, &wire.RunResponse{Events: []*wire.ProcessEvent{event(1, &wire.ProcessEvent{What: started})}}), caisson.Canceled},
	{"an event from the middle", callRun, asStream, thenClose, message(0, &wire.RunResponse{Events: []*wire.ProcessEvent{event(2, &wire.ProcessEvent{What: exited})}}), caisson.Internal},
	{"an exit before the start", callRun, asStream, thenClose, message(0, &wire.RunResponse{Events: []*wire.ProcessEvent{event(1, &wire.ProcessEvent{What: exited})}}), caisson.Internal},
	{"an event of no kind", callRun, asStream, thenClose, message(0, &wire.RunResponse{Events: []*wire.ProcessEvent{event(1, &wire.ProcessEvent{})}}), caisson.Internal},
	{"a message without events", callRun, asStream, thenClose, frame(0, nil), caisson.Internal},
	{"messages without end", callRun, asStream, thenRepeat, frame(0, nil), caisson.Internal},
	{"the same run without end", callRun, asStream, thenRepeat, whole, ""},
	{"a mebibyte of empty events", callRun, asStream, thenClose, frame(0, bytes.Repeat([]byte{0x0a, 0}, 1<<19)), caisson.Internal},
	{"too much output in an event", callRun, asStream, thenClose, message(0, &wire.RunResponse{Events: []*wire.ProcessEvent{
		event(1, &wire.ProcessEvent{What: started}), event(2, &wire.ProcessEvent{What: &wire.ProcessEvent_Stderr{Stderr: make([]byte, 64<<10+1)}}),
	}}), caisson.Internal},
	{"an unpacked gzip frame", callRun, asStream, thenClose, append(frame(1, []byte("\x1f\x8b\x08")), trailers...), caisson.Canceled},
	{"a message of another kind", callRun, asStream, thenClose, file, anyError},
	{"no trailers in the trailers", callRun, asStream, thenClose, frame(2, []byte(`{"error":7,"metadata":[]`)), caisson.Canceled},
	{"an error of no code", callRun, asStream, thenClose, frame(2, []byte(`{"error":{"code":"nonsense"}}`)), caisson.Canceled},
	{"an answer of another protocol", callRun, asRaw, thenClose, []byte("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"), caisson.Canceled},
	{"a redirect", callRun, asRaw, thenClose, []byte("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"), caisson.Canceled},

	{"an honest answer", callUnary, asUnary, thenClose, nil, ""},
	{"an answer that does not come", callUnary, asRaw, thenHold, nil, caisson.Timeout},
	{"an answer that does not end", callUnary, asUnary, thenHold, nil, caisson.Timeout},
	{"an answer without end", callUnary, asUnary, thenRepeat, make([]byte, 64<<10), anyError},
	{"an error without end", callUnary, asRefusal, thenRepeat, bytes.Repeat([]byte(`{"code":`), 8<<10), anyError},
	{"an error with a long text", callUnary, asRefusal, thenClose, []byte(`{"code":"not_found","message":"` + strings.Repeat("x", 1<<19) + `"}`), caisson.NotFound},
	{"an error that says nothing", callUnary, asRefusal, thenClose, []byte(`null`), caisson.Unavailable},
	{"a length that is a lie", callUnary, asRaw, thenClose, []byte("HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 9223372036854775807\r\n\r\nx"), caisson.Internal},
	{"a length below zero", callUnary, asRaw, thenClose, []byte("HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: -1\r\n\r\n"), caisson.Unavailable},
	{"headers without end", callUnary, asRaw, thenRepeat, []byte("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 1<<10) + "\r\n"), caisson.Unavailable},
	{"interim answers without end", callUnary, asRaw, thenRepeat, []byte("HTTP/1.1 103 Early Hints\r\n\r\n"), caisson.Unavailable},
	{"no HTTP", callUnary, asRaw, thenClose, []byte("SSH-2.0-OpenSSH_9.9\r\n"), caisson.Unavailable},
	{"nothing at all", callUnary, asRaw, thenClose, nil, caisson.Unavailable},
	{"a gzip answer nobody asked for", callUnary, asRaw, thenClose, []byte("HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"), caisson.Internal},
	{"a switch of protocols", callUnary, asRaw, thenClose, []byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), caisson.Internal},

	{"an honest file", callRead, asStream, thenClose, append(bytes.Clone(file), trailers...), ""},
	{"a file without end", callRead, asStream, thenRepeat, file, ""},
	{"a truncated frame", callRead, asStream, thenClose, file[:len(file)-1], ""},
	{"a truncated prefix", callRead, asStream, thenClose, []byte{0, 0, 0}, ""},
	{"the longest frame", callRead, asStream, thenClose, []byte{0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3}, ""},
	{"the longest trailers", callRead, asStream, thenHold, []byte{2, 0xff, 0xff, 0xff, 0xff, '{'}, ""},
	{"trailers twice", callRead, asStream, thenClose, append(bytes.Clone(trailers), trailers...), ""},
	{"a chunk of a length that is a lie", callRead, asRaw, thenClose, []byte("HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx"), ""},

	{"an honest port", callPort, asRaw, thenClose, []byte("OK\n"), ""},
	{"a port that says no", callPort, asRaw, thenClose, []byte("ERR connection refused\n"), caisson.Unavailable},
	{"a port that never ends its line", callPort, asRaw, thenRepeat, []byte("OK"), caisson.Unavailable},
	{"a port that says nothing", callPort, asRaw, thenHold, nil, caisson.Unavailable},
}

// TestHostileAnswers: each lie we know is an error of the one call, of a kind that a caller can act on.
func TestHostileAnswers(t *testing.T) {
	for _, c := range hostileAnswers {
		t.Run(c.name, func(t *testing.T) {
			err := attack(t, c.call, c.shape, c.then, c.body)
			if c.call == callRead { // the error of a stream is given as it came; the shim names it
				honest := strings.HasPrefix(c.name, "an honest")
				if (err == nil) != honest {
					t.Errorf("the stream ended with %v", err)
				}
				return
			}
			if c.want == "" && err != nil || c.want == anyError && err == nil || c.want != "" && c.want != anyError && !caisson.Is(err, c.want) {
				t.Errorf("the error is %v, want kind %q", err, c.want)
			}
			if err != nil && len(err.Error()) > 4096 {
				t.Errorf("the error has %d bytes of the agent's", len(err.Error()))
			}
		})
	}
}

// TestEndlessOutput: a command that writes for ever is followed for as long as its caller wants, in bounded memory.
func TestEndlessOutput(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		go io.Copy(io.Discard, ours) // ends with the connection
		io.WriteString(ours, heads[asStream])
		out := make([]byte, 64<<10)
		for seq := uint64(1); ; seq++ {
			e := event(seq, &wire.ProcessEvent{What: &wire.ProcessEvent_Stdout{Stdout: out}})
			if seq == 1 {
				e.What = started
			}
			if _, err := ours.Write(message(0, &wire.RunResponse{Events: []*wire.ProcessEvent{e}})); err != nil {
				return
			}
		}
	})
	var first atomic.Bool
	c := dial.New(func(context.Context, uint16) (net.Conn, error) {
		if first.Swap(true) {
			return nil, errors.New("no acknowledgement is taken")
		}
		return theirs, nil
	})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var n, most uint64
	err := c.Run(ctx, &wire.StartProcess{Id: "x"}, func(e *wire.ProcessEvent) error {
		if n += uint64(len(e.GetStdout())); n >= 256<<20 {
			return errEnough
		}
		if e.Seq%256 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Errorf("the run ended with %v", err)
	}
	if most > 128<<20 {
		t.Errorf("the heap grew to %d MiB", most>>20)
	}
}

// FuzzHostileAgent: whatever an agent answers is a value or an error.
func FuzzHostileAgent(f *testing.F) {
	for _, c := range hostileAnswers {
		f.Add(uint8(c.call), uint8(c.shape), uint8(c.then), c.body)
	}
	f.Fuzz(func(t *testing.T, which, shape, then uint8, body []byte) {
		attack(t, int(which%calls), int(shape%shapes), int(then%ends), body)
	})
}
