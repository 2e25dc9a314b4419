package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// fakeServer answers a run of a command with what its first argument asks for.
func fakeServer(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/info", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(v1.Info{Version: "x", DefaultDriver: "fake", Drivers: []v1.Driver{{Name: "fake", Available: true}}})
	})
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		var in v1.SandboxCreate
		json.NewDecoder(r.Body).Decode(&in)
		w.WriteHeader(201)
		json.NewEncoder(w).Encode(v1.Sandbox{ID: "sb1", Name: in.Name, Metadata: in.Metadata, Env: in.Env, Resources: in.Resources, CreatedAt: time.Now()})
	})
	mux.HandleFunc("DELETE /v1/sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "none" {
			w.WriteHeader(404)
			fmt.Fprint(w, `{"code":"not_found","detail":"there is no sandbox none"}`)
			return
		}
		w.WriteHeader(204)
	})
	mux.HandleFunc("POST /v1/sandboxes/{id}/commands", func(w http.ResponseWriter, r *http.Request) {
		var in v1.CommandCreate
		json.NewDecoder(r.Body).Decode(&in)
		if in.Detach {
			w.WriteHeader(201)
			json.NewEncoder(w).Encode(v1.Command{ID: "cmd1", Argv: in.Argv})
			return
		}
		if r.PathValue("id") == "stopped" {
			w.WriteHeader(409)
			fmt.Fprint(w, `{"code":"conflict","detail":"the sandbox is stopped","hint":"start it"}`)
			return
		}
		exits := map[string]v1.Exit{
			"ok": {Reason: "exited"}, "seven": {Code: 7, Reason: "exited"}, "killed": {Code: 137, Signal: "SIGKILL", Reason: "signaled"},
			"slow": {Code: 137, Reason: "timeout"}, "missing": {Code: 127, Reason: "not_started", Error: "no such file"},
			"gone": {Code: 137, Reason: "sandbox_gone"}, "oom": {Code: 137, Reason: "oom"},
		}
		x := exits[in.Argv[0]]
		w.Header().Set(v1.HeaderCommand, "cmd1")
		var b []byte
		for _, e := range []v1.CommandEvent{{Seq: 1, Type: v1.EventStarted}, {Seq: 2, Type: v1.EventStdout, Data: []byte("out " + strings.Join(in.Argv[1:], ","))},
			{Seq: 3, Type: v1.EventStderr, Data: []byte("err")}, {Seq: 4, Type: v1.EventExit, Exit: &x}} {
			b, _ = v1.AppendFrame(b, &e)
		}
		w.Write(b)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func cli(t *testing.T, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(t.Context(), args, stdio{strings.NewReader(""), &o, &e})
	return code, o.String(), e.String()
}

func TestExitCodes(t *testing.T) {
	s := fakeServer(t)
	t.Setenv("CAISSON_URL", s.URL)
	t.Setenv("CAISSON_STATE_DIR", t.TempDir())
	for _, c := range []struct {
		args     string
		code     int
		out, err string // err: "" for none of our own
	}{
		{"exec sb1 -- ok a -b --c", 0, "out a,-b,--c", "err"},
		{"exec sb1 ok -- -x", 0, "out --,-x", "err"},
		{"exec sb1 -- seven", 7, "out ", "err"},
		{"exec sb1 -- killed", 137, "out ", "err"},
		{"exec --timeout 1s sb1 -- slow", 124, "out ", "timeout"},
		{"exec sb1 -- missing", 127, "out ", "no such file"},
		{"exec sb1 -- gone", 125, "out ", "sandbox ended"},
		{"exec sb1 -- oom", 137, "out ", "out of memory"},
		{"exec stopped -- ok", 125, "", "stopped (start it)"},
		{"exec sb1", 125, "", "name the command"},
		{"exec --no-such sb1 -- ok", 125, "", "no-such"},
		{"exec -d sb1 -- ok", 0, "cmd1\n", ""},
		{"run --rm -- seven x", 7, "out x", "err"},
		{"run --memory much -- ok", 125, "", "not a size"},
		{"run -d -- ok", 0, "sb1 cmd1\n", ""},
		{"logs one", 125, "", "accepts 2 arg"},
		{"create --name n", 0, "sb1\n", ""},
		{"create --metadata x", 1, "", "KEY=VALUE"},
		{"rm a b", 0, "a\nb\n", ""},
		{"rm none a", 1, "a\n", "no sandbox none"},
		{"rm", 1, "", "name sandboxes"},
		{"no-such", 1, "", "unknown command"},
		{"cp a b", 1, "", "ID:PATH"},
		{"version", 0, "caisson dev", ""},
		{"doctor", 0, "ok    server", ""},
	} {
		code, out, errs := cli(t, strings.Fields(c.args)...)
		if code != c.code || !strings.HasPrefix(out, c.out) || !strings.Contains(errs, c.err) || c.err == "" && errs != "" {
			t.Errorf("%s: code %d, want %d; stdout %q, stderr %q", c.args, code, c.code, out, errs)
		}
	}
	t.Setenv("CAISSON_URL", "http://127.0.0.1:1")
	if code, _, errs := cli(t, "run", "--", "ok"); code != 125 || !strings.Contains(errs, "CAISSON_URL") {
		t.Errorf("no server: code %d, %q", code, errs)
	}
}

func TestCreateFlags(t *testing.T) {
	t.Setenv("CAISSON_URL", fakeServer(t).URL)
	t.Setenv("PASSED", "on")
	code, out, errs := cli(t, "--json", "create", "base", "--name", "n", "--metadata", "a=b=c", "-e", "X=1", "-e", "PASSED", "-e", "NOT_SET_ANYWHERE",
		"--memory", "1g", "--disk", "512m", "--cpus", "2", "--pids", "99")
	var b v1.Sandbox
	if err := json.Unmarshal([]byte(out), &b); code != 0 || err != nil {
		t.Fatalf("%d %q %q %v", code, out, errs, err)
	}
	if b.Name != "n" || b.Metadata["a"] != "b=c" || len(b.Env) != 2 || b.Env["PASSED"] != "on" || b.Resources != (v1.Resources{VCPUs: 2, MemoryMiB: 1024, DiskMiB: 512, PIDs: 99}) {
		t.Errorf("%+v", b)
	}
	for s, want := range map[string]mib{"1024": 1024, "512m": 512, "1g": 1024, "1.5GiB": 1536, "2048K": 2, "1t": 1 << 20} {
		var m mib
		if err := m.Set(s); err != nil || m != want {
			t.Errorf("%s: %d %v", s, m, err)
		}
	}
	for _, s := range []string{"", "m", "-1", "NaN", "1x", "1e300g"} {
		var m mib
		if m.Set(s) == nil {
			t.Errorf("%q is %d", s, m)
		}
	}
}

func TestStamps(t *testing.T) {
	var b bytes.Buffer
	w := &stamped{w: &b, now: time.Unix(0, 5)}
	for _, s := range []string{"a", "b\nc\n", "d"} {
		w.Write([]byte(s))
	}
	const at = "1970-01-01T00:00:00.000000005Z "
	if want := at + "ab\n" + at + "c\n" + at + "d"; b.String() != want {
		t.Errorf("%q", b.String())
	}
}
