// Package ingress takes requests for a port of a sandbox and passes them on: HTTP/1.1, HTTP/2, WebSocket and
// server-sent events.
//
// A request names the port by its host, {port}-{id}.{domain}, or by the headers X-Caisson-Sandbox and X-Caisson-Port. It
// needs a key with the scope write, in X-Caisson-Api-Key, in the cookie caisson_key or, when the headers name the port, in
// Authorization; a peer of the unix socket that the API trusts needs none. The credential is taken out before the
// request goes on: a program in a sandbox never sees it.
//
// What answers is hostile: its headers are bounded, and its cookies stay on its own host.
package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/internal/peercred"
	"github.com/caisson-sandbox/caisson/internal/ratelimit"
)

const (
	answerLimit = 5 * time.Minute // for the program's first header
	idleLimit   = 30 * time.Second
	maxHeader   = 64 << 10 // bytes of the program's header
	failures    = 30       // wrong credentials a minute from one address
)

// Config of the ingress. Sandboxes and Keys are needed.
type Config struct {
	Sandboxes caisson.Sandboxes
	Keys      caisson.Keys
	Domain    string // "": ports are reached by headers alone
	Log       *slog.Logger
}

// Ingress is the handler.
type Ingress struct {
	cfg    Config
	proxy  *httputil.ReverseProxy
	failed *ratelimit.Limiter
	euid   int
}

// New makes the ingress.
func New(c Config) *Ingress {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Domain = strings.ToLower(strings.Trim(c.Domain, "."))
	i := &Ingress{cfg: c, failed: ratelimit.New(failures/60.0, failures, 10000), euid: os.Geteuid()}
	i.proxy = &httputil.ReverseProxy{
		Transport: newTransport(), FlushInterval: -1, Rewrite: rewrite, ModifyResponse: i.modify, ErrorHandler: i.fail,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	return i
}

// target is a port of a sandbox.
type target struct {
	sandbox string // id or name
	port    uint16
	byHost  bool
}

// parse finds the target; ok is false when the request is none of ours. A request of ours that names no good port has an error.
func (i *Ingress) parse(r *http.Request) (t target, ok bool, err error) {
	if id, port := r.Header.Get(v1.HeaderSandbox), r.Header.Get(v1.HeaderPort); id != "" || port != "" {
		n, perr := strconv.ParseUint(port, 10, 16)
		if perr != nil || n == 0 || id == "" {
			return t, true, caisson.E(caisson.Invalid, "reach port", port, v1.HeaderSandbox+" and "+v1.HeaderPort+" name a sandbox and a port from 1 to 65535", nil)
		}
		return target{sandbox: id, port: uint16(n)}, true, nil
	}
	if i.cfg.Domain == "" {
		return t, false, nil
	}
	host := strings.ToLower(r.Host)
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	label, found := strings.CutSuffix(strings.TrimSuffix(host, "."), "."+i.cfg.Domain)
	if !found || strings.Contains(label, ".") {
		return t, false, nil
	}
	port, id, _ := strings.Cut(label, "-")
	n, perr := strconv.ParseUint(port, 10, 16)
	if perr != nil || n == 0 || id == "" {
		return t, true, caisson.E(caisson.Invalid, "reach port", label, "the host is not {port}-{id}."+i.cfg.Domain, nil)
	}
	return target{sandbox: id, port: uint16(n), byHost: true}, true, nil
}

// Match reports whether the request is for a port of a sandbox.
func (i *Ingress) Match(r *http.Request) bool {
	_, ok, _ := i.parse(r)
	return ok
}

type guestKey struct{}

// reach is what the transport dials.
type reach struct {
	guest caisson.Guest
	port  uint16
	name  string // unlike any other's: connections are kept by it
}

func (i *Ingress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, _, err := i.parse(r)
	if err != nil {
		answer(w, err)
		return
	}
	p, err := i.authenticate(r, t)
	if err != nil {
		answer(w, err)
		return
	}
	sb, err := i.cfg.Sandboxes.Get(r.Context(), p.Team, t.sandbox)
	if err != nil {
		answer(w, err)
		return
	}
	g, err := i.cfg.Sandboxes.Guest(r.Context(), p.Team, string(sb.ID))
	if err != nil {
		answer(w, err)
		return
	}
	re := &reach{guest: g, port: t.port, name: fmt.Sprintf("%s-%d-%d", sb.ID, sb.Epoch, t.port)}
	i.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), guestKey{}, re)))
}

var errDenied = caisson.E(caisson.Denied, "reach port", "", "the request has no good API key for this port", nil).
	WithHint("send " + v1.HeaderAPIKey + ": csn_… with the scope write")

func (i *Ingress) authenticate(r *http.Request, t target) (caisson.Principal, error) {
	if peer, ok := peercred.From(r.Context()); ok {
		if !peercred.Trusted(r.Context(), i.euid) {
			return caisson.Principal{}, errDenied
		}
		return caisson.Principal{Team: caisson.DefaultTeam, Scopes: []caisson.Scope{caisson.ScopeAdmin}, Name: fmt.Sprintf("uid:%d", peer.UID)}, nil
	}
	addr, _, _ := net.SplitHostPort(r.RemoteAddr)
	if _, ok := i.failed.Peek(addr, time.Now()); !ok {
		return caisson.Principal{}, caisson.E(caisson.Exhausted, "reach port", "", "too many failed credentials from this address", nil)
	}
	key := r.Header.Get(v1.HeaderAPIKey)
	if c, err := r.Cookie(v1.CookieAPIKey); key == "" && err == nil {
		key = c.Value
	}
	if scheme, k, _ := strings.Cut(r.Header.Get("Authorization"), " "); key == "" && !t.byHost && strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(k)
		r.Header.Del("Authorization")
	}
	if key == "" || len(key) > 256 {
		i.failed.Take(addr, time.Now())
		return caisson.Principal{}, errDenied
	}
	p, err := i.cfg.Keys.Authenticate(r.Context(), key)
	if err != nil {
		if caisson.Is(err, caisson.Denied) || caisson.Is(err, caisson.NotFound) {
			i.failed.Take(addr, time.Now())
			return p, errDenied
		}
		return p, err
	}
	if !p.Has(caisson.ScopeWrite) {
		return p, errDenied
	}
	return p, nil
}

// newTransport speaks HTTP/1.1 to programs, and HTTP/2 where the caller's protocol cannot do without.
func newTransport() http.RoundTripper {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		re, ok := ctx.Value(guestKey{}).(*reach)
		if !ok {
			return nil, errors.New("no sandbox in the request")
		}
		return re.guest.Dial(ctx, re.port)
	}
	one := &http.Transport{
		DialContext: dial, DisableCompression: true, ResponseHeaderTimeout: answerLimit, IdleConnTimeout: idleLimit,
		MaxIdleConnsPerHost: 8, MaxResponseHeaderBytes: maxHeader,
	}
	two := one.Clone()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	two.Protocols = &p
	return split{one, two}
}

type split struct{ one, two http.RoundTripper }

func (s split) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return s.two.RoundTrip(r)
	}
	return s.one.RoundTrip(r)
}

// rewrite makes the request that the program sees.
func rewrite(pr *httputil.ProxyRequest) {
	re := pr.In.Context().Value(guestKey{}).(*reach)
	pr.Out.URL.Scheme, pr.Out.URL.Host = "http", re.name
	pr.Out.Host = pr.In.Host
	pr.SetXForwarded()
	for _, h := range []string{v1.HeaderAPIKey, v1.HeaderSandbox, v1.HeaderPort} {
		pr.Out.Header.Del(h)
	}
	cookies := pr.Out.Cookies()
	pr.Out.Header.Del("Cookie")
	for _, c := range cookies {
		if c.Name != v1.CookieAPIKey {
			pr.Out.AddCookie(c)
		}
	}
}

// modify keeps a program's cookies on its own host.
func (i *Ingress) modify(res *http.Response) error {
	set := res.Header.Values("Set-Cookie")
	if len(set) == 0 {
		return nil
	}
	res.Header.Del("Set-Cookie")
	for _, line := range set {
		c, err := http.ParseSetCookie(line)
		if err != nil || c.Name == v1.CookieAPIKey || c.Domain != "" {
			continue
		}
		res.Header.Add("Set-Cookie", line)
	}
	return nil
}

func (i *Ingress) fail(w http.ResponseWriter, r *http.Request, err error) {
	re, _ := r.Context().Value(guestKey{}).(*reach)
	if r.Context().Err() != nil {
		return // the caller is gone
	}
	var own *caisson.Error
	if !errors.As(err, &own) {
		own = caisson.E(caisson.Unavailable, "reach port", strconv.Itoa(int(re.port)), "the program on this port gave no proper answer", err)
	}
	i.cfg.Log.Debug("ingress failed", "target", re.name, "error", err)
	answer(w, own)
}

// answer writes an error as a problem.
func answer(w http.ResponseWriter, err error) {
	kind := caisson.KindOf(err)
	p := v1.Problem{Type: "about:blank", Title: "The port cannot be reached", Status: kind.HTTPStatus(), Code: string(kind), Detail: "the port cannot be reached"}
	var own *caisson.Error
	if errors.As(err, &own) {
		p.Detail, p.Hint = own.User(), own.Hint
	}
	switch kind {
	case caisson.Denied:
		p.Status, p.Code = http.StatusUnauthorized, "unauthenticated"
	case caisson.Unavailable:
		p.Status = http.StatusBadGateway
	}
	b, jerr := json.Marshal(p)
	if jerr != nil {
		b = []byte("{}") // strings and numbers always marshal
	}
	w.Header().Set("Content-Type", v1.MediaProblem)
	w.WriteHeader(p.Status)
	w.Write(append(b, '\n'))
}
