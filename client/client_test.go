package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/internal/unixsock"
)

const cmdID = "cmd0123456789abcdefgh"

// script is a command whose events are known from the start.
func script(n int) (events []v1.CommandEvent, out string) {
	events = append(events, v1.CommandEvent{Seq: 1, Type: v1.EventStarted, PID: 7})
	for i := 2; i < n; i++ {
		s := fmt.Sprintf("line %d\n", i)
		events = append(events, v1.CommandEvent{Seq: uint64(i), Type: v1.EventStdout, Data: []byte(s)})
		out += s
	}
	return append(events, v1.CommandEvent{Seq: uint64(n), Type: v1.EventExit, Exit: &v1.Exit{Code: 5, Reason: "exited"}}), out
}

func frame(t testing.TB, e v1.CommandEvent) []byte {
	b, err := v1.AppendFrame(nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// flaky serves a script in pieces; each connection ends in another way.
type flaky struct {
	t      testing.TB
	events []v1.CommandEvent
	piece  int
	conns  atomic.Int64
	froms  sync.Map
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := f.conns.Add(1)
	from := uint64(1)
	if r.Method == http.MethodGet {
		from, _ = strconv.ParseUint(r.URL.Query().Get("from"), 10, 64)
		if r.URL.Query().Get("follow") != "true" {
			f.t.Errorf("not following: %s", r.URL)
		}
		if _, again := f.froms.LoadOrStore(from, n); again && n%6 != 2 && n%6 != 3 {
			f.t.Logf("from %d twice", from)
		}
	}
	if n%6 == 2 {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	w.Header().Set(v1.HeaderCommand, cmdID)
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	if n%6 == 3 {
		w.Write(frame(f.t, v1.CommandEvent{Type: v1.EventError, Error: &v1.Problem{Code: "unavailable", Detail: "going away"}}))
		return
	}
	sent := 0
	for _, e := range f.events {
		if e.Seq < from {
			continue
		}
		if sent == f.piece {
			switch n % 6 {
			case 1: // cut in the middle of a frame
				b := frame(f.t, e)
				w.Write(b[:len(b)-2])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			case 4:
				w.Write(frame(f.t, v1.CommandEvent{Type: v1.EventError, Error: &v1.Problem{Code: "canceled"}}))
			case 5: // repeats what was sent, then cuts
				w.Write(frame(f.t, f.events[e.Seq-2]))
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			return // 0: a clean end too early
		}
		w.Write(frame(f.t, v1.CommandEvent{Type: v1.EventPing}))
		w.Write(frame(f.t, e))
		sent++
	}
}

func collect(f interface {
	Next() (v1.CommandEvent, error)
}) (out string, exit *v1.Exit, err error) {
	for {
		e, err := f.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return out, exit, err
		}
		switch e.Type {
		case v1.EventStdout:
			out += string(e.Data)
		case v1.EventExit:
			exit = e.Exit
		case v1.EventStarted, v1.EventGap:
		default:
			return out, exit, fmt.Errorf("event %s came out", e.Type)
		}
	}
}

func newClient(t testing.TB, o Options) *Client {
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestRunSurvivesEveryLoss(t *testing.T) {
	events, want := script(60)
	h := &flaky{t: t, events: events, piece: 7}
	s := httptest.NewServer(h)
	s.Config.ErrorLog = nil
	defer s.Close()
	losses := 0
	c := newClient(t, Options{URL: s.URL, OnLost: func(error) { losses++ }})
	f, err := c.Run(t.Context(), "sb", v1.CommandCreate{Argv: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Command != cmdID {
		t.Errorf("command %q", f.Command)
	}
	out, exit, err := collect(f)
	if err != nil || out != want || exit == nil || exit.Code != 5 {
		t.Errorf("exit %v, error %v, output right: %v\n%s", exit, err, out == want, out)
	}
	if losses < 5 {
		t.Errorf("%d losses", losses)
	}
	if _, err := f.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the exit: %v", err)
	}
}

func TestServerRestartOnASocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 80))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(dir, "caisson.sock") // longer than a socket address
	events, want := script(30)
	serve := func(piece int, hold chan struct{}) *http.Server {
		os.Remove(sock)
		l, err := unixsock.Listen(sock)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			from, _ := strconv.ParseUint(r.URL.Query().Get("from"), 10, 64)
			for _, e := range events {
				if e.Seq >= from && piece > 0 {
					w.Write(frame(t, e))
					piece--
				}
			}
			w.(http.Flusher).Flush()
			if hold != nil {
				<-hold
			}
		})}
		go s.Serve(l) // ends with Close
		return s
	}
	hold := make(chan struct{})
	first := serve(11, hold)
	c := newClient(t, Options{Socket: sock})
	f := c.Follow(t.Context(), "sb", cmdID, 0)
	go func() { // a kill, and a restart a while later; ends by itself
		time.Sleep(100 * time.Millisecond)
		first.Close()
		close(hold)
		time.Sleep(300 * time.Millisecond)
		second := serve(100, nil)
		t.Cleanup(func() { second.Close() })
	}()
	out, exit, err := collect(f)
	if err != nil || out != want || exit == nil {
		t.Errorf("exit %v, error %v, output\n%s", exit, err, out)
	}
}

func TestSilenceIsALoss(t *testing.T) {
	events, want := script(10)
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := n.Add(1) == 1
		for _, e := range events {
			if from, _ := strconv.ParseUint(r.URL.Query().Get("from"), 10, 64); e.Seq >= from && (!first || e.Seq < 5) {
				w.Write(frame(t, e))
			}
		}
		w.(http.Flusher).Flush()
		if first {
			<-r.Context().Done()
		}
	}))
	defer s.Close()
	c := newClient(t, Options{URL: s.URL})
	c.idle = 100 * time.Millisecond
	if out, exit, err := collect(c.Follow(t.Context(), "sb", cmdID, 0)); err != nil || out != want || exit == nil {
		t.Errorf("exit %v, error %v, output %q", exit, err, out)
	}
}

func TestFollowGivesUp(t *testing.T) {
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		w.Header().Set("Content-Type", v1.MediaProblem)
		code, status := "unavailable", 503
		if strings.Contains(r.URL.Path, "gone") {
			code, status = "not_found", 404
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"status":%d,"code":%q,"detail":"told"}`, status, code)
	}))
	defer s.Close()
	c := newClient(t, Options{URL: s.URL, Patience: 300 * time.Millisecond})
	_, err := c.Follow(t.Context(), "gone", cmdID, 0).Next()
	var p *v1.Problem
	if !errors.As(err, &p) || p.Code != "not_found" || n.Load() != 1 || !NotFound(err) {
		t.Errorf("%v after %d tries", err, n.Load())
	}
	start := time.Now()
	_, err = c.Follow(t.Context(), "sb", cmdID, 0).Next()
	if !errors.As(err, &p) || p.Code != "unavailable" || n.Load() < 3 || time.Since(start) > 5*time.Second {
		t.Errorf("%v after %d tries, %s", err, n.Load(), time.Since(start))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err = newClient(t, Options{URL: s.URL}).Follow(ctx, "sb", cmdID, 0).Next(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with an ended context: %v", err)
	}
}

func TestReplayEndsWithWhatIsThere(t *testing.T) {
	events, _ := script(10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("follow") {
			t.Error("follows")
		}
		for _, e := range events[2:5] {
			w.Write(frame(t, e))
		}
	}))
	defer s.Close()
	out, exit, err := collect(newClient(t, Options{URL: s.URL}).Replay(t.Context(), "sb", cmdID, 3))
	if err != nil || exit != nil || out != "line 3\nline 4\nline 5\n" {
		t.Errorf("%q %v %v", out, exit, err)
	}
}

// slow gives its pieces with pauses.
type slow struct{ pieces []string }

func (s *slow) Read(p []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.pieces[0])
	s.pieces = s.pieces[1:]
	time.Sleep(20 * time.Millisecond)
	return n, nil
}

func TestStdin(t *testing.T) {
	var mu sync.Mutex
	got := sha256.New()
	var total, closes, refused int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if refused == 0 { // before anything of the body is read
			refused++
			c, _, _ := w.(http.Hijacker).Hijack()
			c.Close()
			return
		}
		n, err := io.Copy(got, r.Body)
		total += int(n)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Query().Get("close") == "true" {
			closes++
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer s.Close()
	c := newClient(t, Options{URL: s.URL})
	refused = 1
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	if err := c.Stdin(t.Context(), "sb", cmdID, bytes.NewReader(big), true); err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256(big); total != len(big) || !bytes.Equal(got.Sum(nil), want[:]) || closes != 1 {
		t.Errorf("%d bytes of %d, closed %d times", total, len(big), closes)
	}
	got.Reset()
	if err := c.Stdin(t.Context(), "sb", cmdID, &slow{[]string{"a", "b", "c"}}, false); err != nil || closes != 1 {
		t.Errorf("%v, %d", err, closes)
	}
	refused = 0 // an empty input is tried again
	if err := c.Stdin(t.Context(), "sb", cmdID, strings.NewReader(""), true); err != nil || closes != 2 {
		t.Errorf("%v, %d", err, closes)
	}
}

func TestStdinWaitsForTheServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	body := make(chan string, 2)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body <- string(b)
		w.WriteHeader(http.StatusNoContent)
	})}
	defer s.Close()
	time.AfterFunc(200*time.Millisecond, func() {
		if l, err := net.Listen("tcp", addr); err == nil {
			s.Serve(l)
		}
	})
	if err := newClient(t, Options{URL: "http://" + addr}).Stdin(t.Context(), "sb", cmdID, strings.NewReader("kept"), false); err != nil {
		t.Fatal(err)
	}
	if b := <-body; b != "kept" {
		t.Errorf("got %q", b)
	}
}

func TestTerminalAttachesAgain(t *testing.T) {
	events, want := script(20)
	var n atomic.Int64
	typed := make(chan string, 8)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := n.Add(1) == 1
		from, _ := strconv.ParseUint(r.URL.Query().Get("from"), 10, 64)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		for _, e := range events {
			if e.Seq < from || first && e.Seq > 9 {
				continue
			}
			if e.Type == v1.EventStdout {
				ws.Write(r.Context(), websocket.MessageBinary, e.Data)
				continue
			}
			if e.Type == v1.EventExit {
				for range 2 { // the size, then what was typed
					kind, b, err := ws.Read(r.Context())
					if err != nil {
						return
					}
					typed <- fmt.Sprint(kind) + " " + string(b)
				}
			}
			b, _ := json.Marshal(v1.AttachFrame{Type: e.Type, Seq: e.Seq, PID: e.PID, Exit: e.Exit})
			ws.Write(r.Context(), websocket.MessageText, b)
		}
		if !first {
			ws.Close(websocket.StatusNormalClosure, "exit")
		}
	}))
	defer s.Close()
	term := newClient(t, Options{URL: s.URL}).FollowTerminal(t.Context(), "sb", cmdID, 0)
	defer term.Close()
	term.Resize(v1.TTY{Rows: 30, Cols: 100})
	done := make(chan struct{})
	go func() { // ends with the write; waited for below
		defer close(done)
		for n.Load() < 2 {
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		io.WriteString(term, "typed")
	}()
	out, exit, err := collect(term)
	<-done
	if err != nil || out != want || exit == nil || exit.Code != 5 {
		t.Errorf("exit %v, error %v, output\n%s", exit, err, out)
	}
	if a, b := <-typed, <-typed; a != `MessageText {"type":"resize","rows":30,"cols":100}` || b != "MessageBinary typed" {
		t.Errorf("server got %q and %q", a, b)
	}
}

func TestProblems(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer csn_x" {
			w.WriteHeader(401)
			io.WriteString(w, `{"code":"unauthenticated","detail":"no key"}`)
			return
		}
		http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
	}))
	var p *v1.Problem
	if _, err := newClient(t, Options{URL: s.URL}).Info(t.Context()); !errors.As(err, &p) || p.Status != 401 || p.Code != "unauthenticated" {
		t.Errorf("%v", err)
	}
	if _, err := newClient(t, Options{URL: s.URL, APIKey: "csn_x"}).Info(t.Context()); !errors.As(err, &p) || p.Status != 302 || Unreachable(err) {
		t.Errorf("a redirect: %v", err)
	}
	s.Close()
	if _, err := newClient(t, Options{URL: s.URL}).Info(t.Context()); !Unreachable(err) {
		t.Errorf("a closed server: %v", err)
	}
	if _, err := newClient(t, Options{Socket: filepath.Join(t.TempDir(), "none")}).Get(t.Context(), "sb"); !Unreachable(err) {
		t.Errorf("no socket: %v", err)
	}
	for _, o := range []Options{{}, {URL: "ftp://x"}, {URL: "http://x", Socket: "y"}, {URL: "::"}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	if _, err := newClient(t, Options{URL: s.URL}).Get(t.Context(), ".."); !errors.As(err, &p) || p.Code != "invalid" {
		t.Errorf("id ..: %v", err)
	}
}

func TestListAll(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("metadata.a b") != "c&d" || q.Get("state") != "running,stopped" {
			t.Errorf("query %v", q)
		}
		l := v1.SandboxList{Sandboxes: []v1.Sandbox{{ID: "sb" + q.Get("cursor")}}}
		if q.Get("cursor") != "2" {
			l.Next = strconv.Itoa(len(q.Get("cursor")) + 1)
		}
		json.NewEncoder(w).Encode(l)
	}))
	defer s.Close()
	all, err := newClient(t, Options{URL: s.URL}).ListAll(t.Context(), Filter{States: []string{"running", "stopped"}, Metadata: map[string]string{"a b": "c&d"}})
	if err != nil || len(all) != 3 || all[2].ID != "sb2" {
		t.Errorf("%v %v", all, err)
	}
}

func TestFollowEvents(t *testing.T) {
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after, _ := strconv.Atoi(r.URL.Query().Get("after"))
		for i := after + 1; i <= after+3; i++ {
			fmt.Fprintf(w, `{"type":"ping"}`+"\n"+`{"seq":%d,"type":"sandbox.created"}`+"\n", i)
		}
		w.(http.Flusher).Flush()
		if n.Add(1)%2 == 0 {
			fmt.Fprintln(w, `{"type":"error","error":{"code":"unavailable"}}`)
			return
		}
		fmt.Fprint(w, `{"seq":`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer s.Close()
	f := newClient(t, Options{URL: s.URL}).FollowEvents(t.Context(), EventFilter{After: 4})
	for want := uint64(5); want < 15; want++ {
		if e, err := f.Next(); err != nil || e.Seq != want {
			t.Fatalf("event %v, %v, want %d", e, err, want)
		}
	}
}
