//go:build linux

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// echo is a command with a terminal that shows what is typed, in upper case, and ends with 3 at "x".
func echo(t *testing.T, sizes chan<- v1.TTY) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes/{id}/commands", func(w http.ResponseWriter, r *http.Request) {
		var in v1.CommandCreate
		json.NewDecoder(r.Body).Decode(&in)
		sizes <- *in.TTY
		w.WriteHeader(201)
		json.NewEncoder(w).Encode(v1.Command{ID: "cmd1", TTY: in.TTY})
	})
	mux.HandleFunc("GET /v1/sandboxes/{id}/commands/cmd1/attach", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		text := func(f v1.AttachFrame) {
			b, _ := json.Marshal(f)
			ws.Write(r.Context(), websocket.MessageText, b)
		}
		text(v1.AttachFrame{Type: v1.EventStarted, Seq: 1})
		ws.Write(r.Context(), websocket.MessageBinary, []byte("ready"))
		for {
			kind, b, err := ws.Read(r.Context())
			if err != nil {
				return
			}
			if kind == websocket.MessageText {
				var f v1.AttachFrame
				json.Unmarshal(b, &f)
				sizes <- v1.TTY{Rows: f.Rows, Cols: f.Cols}
				continue
			}
			if string(b) == "x" {
				text(v1.AttachFrame{Type: v1.EventExit, Seq: 9, Exit: &v1.Exit{Code: 3, Reason: "exited"}})
				ws.Close(websocket.StatusNormalClosure, "exit")
				return
			}
			ws.Write(r.Context(), websocket.MessageBinary, []byte(strings.ToUpper(string(b))))
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestTerminal(t *testing.T) {
	sizes := make(chan v1.TTY, 16)
	t.Setenv("CAISSON_URL", echo(t, sizes).URL)
	for _, c := range []struct {
		last string
		code int
	}{{"x", 3}, {"\x10\x11", 130}} {
		ptm, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		pty.Setsize(ptm, &pty.Winsize{Rows: 33, Cols: 111})
		var mu sync.Mutex
		var screen strings.Builder
		go func() { // ends when the terminal is closed
			b := make([]byte, 1024)
			for {
				n, err := ptm.Read(b)
				mu.Lock()
				screen.Write(b[:n])
				mu.Unlock()
				if err != nil {
					return
				}
			}
		}()
		wait := func(s string) {
			t.Helper()
			for range 500 {
				mu.Lock()
				ok := strings.Contains(screen.String(), s)
				mu.Unlock()
				if ok {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Errorf("the screen does not show %q: %q", s, screen.String())
		}
		code := make(chan int, 1)
		go func() { // waited for below
			code <- run(t.Context(), []string{"exec", "-it", "sb1", "--", "echo"}, stdio{tty, tty, io.Discard})
		}()
		wait("ready")
		if got := <-sizes; got != (v1.TTY{Rows: 33, Cols: 111}) {
			t.Errorf("size %+v", got)
		}
		<-sizes
		io.WriteString(ptm, "\x03a") // an interrupt is a byte like others
		wait("\x03A")
		pty.Setsize(ptm, &pty.Winsize{Rows: 44, Cols: 122})
		p, _ := os.FindProcess(os.Getpid())
		p.Signal(resized)
		if got := <-sizes; got != (v1.TTY{Rows: 44, Cols: 122}) {
			t.Errorf("size %+v after a resize", got)
		}
		io.WriteString(ptm, c.last)
		select {
		case got := <-code:
			if got != c.code {
				t.Errorf("code %d, want %d", got, c.code)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%q did not end it", c.last)
		}
		tty.Close()
		ptm.Close()
	}
}
