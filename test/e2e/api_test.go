package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caisson-sandbox/caisson/test/testkit"
)

// freePort is a port that nobody listens on now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func request(t *testing.T, method, url, key, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	res, err := (&http.Client{Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res, string(b)
}

// TestKeys: no port without a key, scopes hold, a deleted key is no key.
func TestKeys(t *testing.T) {
	addr := freePort(t)
	s := testkit.Serve(t, "--listen", addr)
	base := "http://" + addr
	if res, body := request(t, "GET", base+"/v1/sandboxes", "", ""); res.StatusCode != 401 || !strings.Contains(body, "unauthenticated") {
		t.Errorf("without a key: %d %s", res.StatusCode, body)
	}
	if res, _ := request(t, "GET", base+"/v1/sandboxes", "csn_wrong", ""); res.StatusCode != 401 {
		t.Errorf("with a wrong key: %d", res.StatusCode)
	}
	var made struct{ ID, Key string }
	if err := json.Unmarshal([]byte(s.OK(t, "--json", "key", "create", "reader", "--scope", "read")), &made); err != nil {
		t.Fatal(err)
	}
	if res, body := request(t, "GET", base+"/v1/sandboxes", made.Key, ""); res.StatusCode != 200 {
		t.Errorf("with a key: %d %s", res.StatusCode, body)
	}
	if res, body := request(t, "POST", base+"/v1/sandboxes", made.Key, "{}", "Content-Type", "application/json"); res.StatusCode != 403 {
		t.Errorf("a reader creates: %d %s", res.StatusCode, body)
	}
	s.OK(t, "key", "rm", made.ID)
	if res, _ := request(t, "GET", base+"/v1/sandboxes", made.Key, ""); res.StatusCode != 401 {
		t.Errorf("with a deleted key: %d", res.StatusCode)
	}
	for _, path := range []string{"/healthz", "/readyz", "/openapi.json", "/docs"} {
		if res, _ := request(t, "GET", base+path, "", ""); res.StatusCode != 200 {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
}

// TestIngress reaches a program in a sandbox by header and by host name, and not without a key.
func TestIngress(t *testing.T) {
	addr := freePort(t)
	s := testkit.Serve(t, "--listen", addr, "--domain", "sandbox.test")
	id := s.Create(t)
	s.Sh(t, id, "mkdir /www && echo from inside > /www/index.html")
	s.OK(t, "exec", "--detach", id, "--", "httpd", "-p", "8080", "-h", "/www")
	key := s.OK(t, "key", "create", "ingress", "--scope", "write")
	if i := strings.Index(key, "csn_"); i >= 0 {
		key = strings.Fields(key[i:])[0]
	}
	base := "http://" + addr + "/"
	var res *http.Response
	var body string
	for range 50 { // the program takes a moment to listen
		res, body = request(t, "GET", base, key, "", "X-Caisson-Sandbox", id, "X-Caisson-Port", "8080")
		if res.StatusCode == 200 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if res.StatusCode != 200 || body != "from inside\n" {
		t.Errorf("by header: %d %q", res.StatusCode, body)
	}
	if res, body := request(t, "GET", base, "", "", "Host", fmt.Sprintf("8080-%s.sandbox.test", id), "X-Caisson-Api-Key", key); res.StatusCode != 200 || body != "from inside\n" {
		t.Errorf("by host: %d %q", res.StatusCode, body)
	}
	if res, _ := request(t, "GET", base, "", "", "Host", fmt.Sprintf("8080-%s.sandbox.test", id)); res.StatusCode != 401 {
		t.Errorf("without a key: %d", res.StatusCode)
	}
	if res, body := request(t, "GET", base, key, "", "X-Caisson-Sandbox", id, "X-Caisson-Port", "9999"); res.StatusCode != 502 || !strings.Contains(body, "listens") {
		t.Errorf("a port nobody listens on: %d %q", res.StatusCode, body)
	}
}

// TestNonsense: every bad request has an answer, and the server goes on.
func TestNonsense(t *testing.T) {
	addr := freePort(t)
	s := testkit.Serve(t, "--listen", addr)
	id := s.Create(t)
	c := s.HTTP()
	for _, x := range []struct {
		name, method, path, body string
		status                   int
	}{
		{"bad JSON", "POST", "/v1/sandboxes", "{", 400},
		{"wrong type", "POST", "/v1/sandboxes", `{"template":1}`, 400},
		{"unknown field", "POST", "/v1/sandboxes", `{"nonsense":1}`, 400},
		{"negative", "POST", "/v1/sandboxes", `{"resources":{"memory_mib":-1}}`, 400},
		{"too small", "POST", "/v1/sandboxes", `{"resources":{"memory_mib":1}}`, 400},
		{"too much", "POST", "/v1/sandboxes", `{"resources":{"memory_mib":16000000}}`, 429},
		{"no such template", "POST", "/v1/sandboxes", `{"template":"nowhere"}`, 404},
		{"huge body", "POST", "/v1/sandboxes", `{"name":"` + strings.Repeat("x", 2<<20) + `"}`, 413},
		{"bad name", "POST", "/v1/sandboxes", `{"name":"../../etc"}`, 400},
		{"bad id", "GET", "/v1/sandboxes/..%2f..%2fetc", "", 404},
		{"no such id", "GET", "/v1/sandboxes/sb000000000000000000", "", 404},
		{"argv and shell", "POST", "/v1/sandboxes/" + id + "/commands", `{"argv":["a"],"shell":"b"}`, 400},
		{"neither", "POST", "/v1/sandboxes/" + id + "/commands", `{}`, 400},
		{"bad command id", "GET", "/v1/sandboxes/" + id + "/commands/..%2f..%2fx", "", 404},
		{"NUL in a path", "GET", "/v1/sandboxes/" + id + "/files?path=/a%00b", "", 400},
		{"no path", "GET", "/v1/sandboxes/" + id + "/files", "", 400},
		{"no such route", "GET", "/v2/nothing", "", 404},
		{"wrong method", "DELETE", "/v1/sandboxes", "", 405},
	} {
		req, err := http.NewRequest(x.method, "http://caisson"+x.path, strings.NewReader(x.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := c.Do(req)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != x.status || !strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
			t.Errorf("%s: %d %s, want %d: %.300s", x.name, res.StatusCode, res.Header.Get("Content-Type"), x.status, b)
		}
	}
	// Half-open connections and floods of headers do not hold the server.
	for range 50 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n")
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n")
	for i := range 20000 {
		if _, err := fmt.Fprintf(conn, "X-%d: %s\r\n", i, strings.Repeat("y", 100)); err != nil {
			break
		}
	}
	if got := s.Sh(t, id, "echo still here"); got != "still here" {
		t.Errorf("%q", got)
	}
}

// TestSlowReader: one that does not read stalls nobody else.
func TestSlowReader(t *testing.T) {
	s := testkit.Serve(t)
	id := s.Create(t)
	req, _ := http.NewRequest("POST", "http://caisson/v1/sandboxes/"+id+"/commands", strings.NewReader(`{"shell":"yes | head -c 50000000"}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/x-ndjson")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	res, err := s.HTTP().Do(req.WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() // never read
	for i := range 5 {
		if got := s.Sh(t, id, fmt.Sprintf("echo %d", i)); got != fmt.Sprint(i) {
			t.Errorf("%q", got)
		}
	}
}

// TestDebian runs a real distribution's tools.
func TestDebian(t *testing.T) {
	testkit.Needs(t, testkit.Debian)
	s := testkit.Serve(t)
	s.OK(t, "template", "import", "debian", testkit.DebianTar())
	id := s.Create(t, "--memory", "1024", "debian")
	for _, c := range []struct{ name, script, want string }{
		{"bash", `bash -c 'a=(1 2 3); echo ${#a[@]}'`, "3"},
		{"python", `python3 -c 'print(sum(range(10)))'`, "45"},
		{"gcc", `cd /tmp && printf '#include <stdio.h>\nint main(){puts("compiled");}' > a.c && gcc a.c -o a && ./a`, "compiled"},
		{"git", `cd /tmp && git init -q r && cd r && git -c user.name=x -c user.email=x@x commit -q --allow-empty -m first && git log --format=%s`, "first"},
		{"apt", `apt-cache policy >/dev/null && dpkg -s bash | grep -c '^Status: install ok'`, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := s.Sh(t, id, c.script); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestRunWithoutServer: `caisson run` needs nothing.
func TestRunWithoutServer(t *testing.T) {
	dir := t.TempDir()
	cmd := testkit.CLI(t, "run", "--", "sh", "-c", "echo alone; exit 4")
	cmd.Env = append(cmd.Env, "HOME="+dir, "XDG_DATA_HOME="+dir, "CAISSON_STATE_DIR=")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run()
	if out.String() != "alone\n" || cmd.ProcessState.ExitCode() != 4 {
		t.Errorf("code %d, %q, %q", cmd.ProcessState.ExitCode(), out.String(), errs.String())
	}
}
