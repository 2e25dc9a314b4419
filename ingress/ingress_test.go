package ingress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type boxes struct {
	caisson.Sandboxes
	addr string
}

func (b boxes) Get(_ context.Context, team caisson.TeamID, id string) (caisson.Sandbox, error) {
	if team != caisson.DefaultTeam || id != "box" {
		return caisson.Sandbox{}, caisson.E(caisson.NotFound, "get sandbox", id, "it does not exist", nil)
	}
	return caisson.Sandbox{ID: "box", Epoch: 1}, nil
}

func (b boxes) Guest(context.Context, caisson.TeamID, string) (caisson.Guest, error) {
	return dialer{addr: b.addr}, nil
}

type dialer struct {
	caisson.Guest
	addr string
}

func (d dialer) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if port != 80 {
		return nil, caisson.E(caisson.Unavailable, "reach port", fmt.Sprint(port), "nothing in the sandbox listens on this port", nil)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", d.addr)
}

type keys struct{ caisson.Keys }

func (keys) Authenticate(_ context.Context, k string) (caisson.Principal, error) {
	switch k {
	case "csn_good":
		return caisson.Principal{Team: caisson.DefaultTeam, Scopes: []caisson.Scope{caisson.ScopeWrite}}, nil
	case "csn_reader":
		return caisson.Principal{Team: caisson.DefaultTeam, Scopes: []caisson.Scope{caisson.ScopeRead}}, nil
	case "csn_other":
		return caisson.Principal{Team: "other", Scopes: []caisson.Scope{caisson.ScopeWrite}}, nil
	}
	return caisson.Principal{}, caisson.E(caisson.Denied, "authenticate", "", "unknown", nil)
}

// newRig gives the address of an ingress before a program.
func newRig(t *testing.T, program http.HandlerFunc) string {
	t.Helper()
	in := httptest.NewServer(program)
	t.Cleanup(in.Close)
	out := httptest.NewServer(New(Config{Sandboxes: boxes{addr: in.Listener.Addr().String()}, Keys: keys{}, Domain: "x.test"}))
	t.Cleanup(out.Close)
	return out.URL
}

func do(t *testing.T, url string, edit func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	edit(r)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res, string(b)
}

func TestWhoMayReachWhat(t *testing.T) {
	url := newRig(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "program") })
	for name, c := range map[string]struct {
		host, key string
		want      int
	}{
		"good":          {"80-box.x.test", "csn_good", 200},
		"upper case":    {"80-BOX.X.TEST", "csn_good", 200},
		"no key":        {"80-box.x.test", "", 401},
		"wrong key":     {"80-box.x.test", "csn_bad", 401},
		"reader":        {"80-box.x.test", "csn_reader", 401},
		"other team":    {"80-box.x.test", "csn_other", 404},
		"other sandbox": {"80-none.x.test", "csn_good", 404},
		"silent port":   {"81-box.x.test", "csn_good", 502},
		"no port":       {"box.x.test", "csn_good", 400},
		"port 0":        {"0-box.x.test", "csn_good", 400},
		"large port":    {"70000-box.x.test", "csn_good", 400},
	} {
		res, body := do(t, url, func(r *http.Request) {
			r.Host = c.host
			if c.key != "" {
				r.Header.Set(v1.HeaderAPIKey, c.key)
			}
		})
		if res.StatusCode != c.want || (c.want == 200) != (body == "program") {
			t.Errorf("%s: %d %q, want %d", name, res.StatusCode, body, c.want)
		}
	}
}

// TestCredentialsStayOutside: the program sees no credential of ours, and its own as they are.
func TestCredentialsStayOutside(t *testing.T) {
	seen := make(chan *http.Request, 1)
	url := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.Header().Add("Set-Cookie", "own=1; Path=/")
		w.Header().Add("Set-Cookie", v1.CookieAPIKey+"=stolen")
		w.Header().Add("Set-Cookie", "wide=1; Domain=x.test")
	})
	res, _ := do(t, url, func(r *http.Request) {
		r.Host = "80-box.x.test"
		r.Header.Set("Authorization", "Bearer of-the-program")
		r.AddCookie(&http.Cookie{Name: v1.CookieAPIKey, Value: "csn_good"})
		r.AddCookie(&http.Cookie{Name: "theirs", Value: "2"})
	})
	r := <-seen
	all := fmt.Sprint(r.Header)
	if strings.Contains(all, "csn_") || r.Header.Get("Authorization") != "Bearer of-the-program" || !strings.Contains(r.Header.Get("Cookie"), "theirs=2") || r.Host != "80-box.x.test" {
		t.Errorf("the program saw %s, host %s", all, r.Host)
	}
	if got := res.Header.Values("Set-Cookie"); len(got) != 1 || !strings.HasPrefix(got[0], "own=") {
		t.Errorf("cookies %q", got)
	}
	res, _ = do(t, url, func(r *http.Request) {
		r.Header.Set(v1.HeaderSandbox, "box")
		r.Header.Set(v1.HeaderPort, "80")
		r.Header.Set("Authorization", "Bearer csn_good")
	})
	if r := <-seen; res.StatusCode != 200 || strings.Contains(fmt.Sprint(r.Header), "csn_") || r.Header.Get(v1.HeaderSandbox) != "" {
		t.Errorf("by headers: %d %v", res.StatusCode, r.Header)
	}
}

func TestServerSentEventsComeAtOnce(t *testing.T) {
	wait := make(chan struct{})
	url := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: first\n\n")
		w.(http.Flusher).Flush()
		<-wait
	})
	defer close(wait)
	r, _ := http.NewRequest("GET", url, nil)
	r.Host = "80-box.x.test"
	r.Header.Set(v1.HeaderAPIKey, "csn_good")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if line != "data: first\n" || err != nil {
		t.Errorf("%q %v", line, err)
	}
}

func TestWebSocket(t *testing.T) {
	url := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		for {
			typ, b, err := ws.Read(r.Context())
			if err != nil {
				return
			}
			ws.Write(r.Context(), typ, append([]byte("echo "), b...))
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{Host: "80-box.x.test", HTTPHeader: http.Header{v1.HeaderAPIKey: {"csn_good"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if err := ws.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := ws.Read(ctx); string(b) != "echo hello" || err != nil {
		t.Errorf("%q %v", b, err)
	}
}
