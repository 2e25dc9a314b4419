// Package client talks to a Caisson server over its native HTTP API, on TCP with an API key or on the server's unix socket.
//
// Every error is a *v1.Problem, except that a call whose context ended returns the context's error. A problem with Status 0
// and code "unavailable" is the client's own: the server could not be reached, or the connection broke.
//
// What streams a command's events (Run, Follow, FollowTerminal) survives the loss of the connection and of the server: it
// re-attaches after the last event it gave, so that no byte is lost or given twice, and gives up when a minute has passed
// without a sign of life.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/internal/unixsock"
)

// Codes of v1.Problem that the client acts on.
const (
	codeUnavailable = "unavailable"
	codeCanceled    = "canceled"
	codeTimeout     = "timeout"
	codeExhausted   = "exhausted"
	codeInternal    = "internal"
)

// Options say where the server is. One of URL and Socket is set.
type Options struct {
	URL        string       // http://HOST:PORT or https://…; unix:///PATH is Socket
	APIKey     string       // for URL; sent as a bearer token, never to another host
	Socket     string       // path of the server's unix socket, of any length
	HTTPClient *http.Client // instead of one made here; it must dial Socket itself
	UserAgent  string
	Patience   time.Duration // how long a stream tries to re-attach without a sign of life; default 60 s
	// OnLost is told why a stream is being re-attached, once for each loss. It may be called from any goroutine.
	OnLost func(error)
}

// Client is safe for concurrent use.
type Client struct {
	base *url.URL
	http *http.Client
	o    Options
	// idle is how long a stream may be silent before its connection counts as lost.
	idle time.Duration
}

// New makes a client. It does not connect.
func New(o Options) (*Client, error) {
	if p, ok := strings.CutPrefix(o.URL, "unix://"); ok {
		o.URL, o.Socket = "", p
	}
	if (o.URL == "") == (o.Socket == "") {
		return nil, &v1.Problem{Type: "about:blank", Title: "Invalid request", Code: "invalid", Detail: "one of a URL and a unix socket is needed"}
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.UserAgent == "" {
		o.UserAgent = "caisson-client"
	}
	c := &Client{o: o, http: o.HTTPClient, idle: 3 * v1.PingEverySeconds * time.Second}
	raw := o.URL
	if o.Socket != "" {
		raw = "http://caisson"
	}
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return nil, &v1.Problem{Type: "about:blank", Title: "Invalid request", Code: "invalid",
			Detail: fmt.Sprintf("%q is not the URL of a server", o.URL), Hint: "write http://HOST:PORT or https://HOST"}
	}
	c.base = u
	if c.http == nil {
		c.http = &http.Client{Transport: transport(o.Socket), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return c, nil
}

func transport(socket string) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true
	t.MaxIdleConnsPerHost = 64
	if socket != "" {
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return unixsock.Dial(ctx, socket) }
	}
	return t
}

// Close drops the connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Server says where the client looks for the server, for messages.
func (c *Client) Server() string {
	if c.o.Socket != "" {
		return c.o.Socket
	}
	return c.base.String()
}

// call is one request.
type call struct {
	method string
	path   []string // elements below /v1, escaped here
	query  url.Values
	body   any // marshaled as JSON, or an io.Reader
	kind   string
	accept string
	header map[string]string
}

func (c *Client) url(path []string, q url.Values) string {
	var b strings.Builder
	b.WriteString(c.base.String())
	b.WriteString("/v1")
	for _, p := range path {
		b.WriteString("/" + url.PathEscape(p))
	}
	if len(q) > 0 {
		b.WriteString("?" + q.Encode())
	}
	return b.String()
}

// send does the request; any status but 2xx is a problem. The caller closes the body.
func (c *Client) send(ctx context.Context, k call) (*http.Response, error) {
	for _, p := range k.path {
		if p == "" || p == "." || p == ".." {
			return nil, &v1.Problem{Type: "about:blank", Title: "Invalid request", Status: http.StatusBadRequest, Code: "invalid", Detail: fmt.Sprintf("%q is not an id or name", p)}
		}
	}
	var body io.Reader
	switch b := k.body.(type) {
	case nil:
	case io.Reader:
		body = b
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return nil, &v1.Problem{Type: "about:blank", Title: "Invalid request", Code: "invalid", Detail: err.Error()}
		}
		body, k.kind = bytes.NewReader(j), v1.MediaJSON
	}
	r, err := http.NewRequestWithContext(ctx, k.method, c.url(k.path, k.query), body)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	c.authorize(r.Header)
	if k.kind != "" {
		r.Header.Set("Content-Type", k.kind)
	}
	if k.accept != "" {
		r.Header.Set("Accept", k.accept)
	}
	for name, v := range k.header {
		r.Header.Set(name, v)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	if res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, problemOf(res)
	}
	return res, nil
}

func (c *Client) authorize(h http.Header) {
	h.Set("User-Agent", c.o.UserAgent)
	if c.o.APIKey != "" {
		h.Set("Authorization", "Bearer "+c.o.APIKey)
	}
}

// do sends and reads a JSON answer into out, if there is one.
func (c *Client) do(ctx context.Context, k call, out any) (http.Header, error) {
	res, err := c.send(ctx, k)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if out == nil {
		io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection is used again
		return res.Header, nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return nil, c.broken(ctx, fmt.Errorf("reading the answer: %w", err))
	}
	return res.Header, nil
}

// broken makes an error of the connection a problem.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var p *v1.Problem
	if errors.As(err, &p) {
		return p
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &v1.Problem{Type: "about:blank", Title: "Unavailable", Code: codeUnavailable, Detail: fmt.Sprintf("no connection to the server at %s: %v", c.Server(), err)}
}

// Unreachable reports whether the error is the client's own: there was no server, or no connection any more.
func Unreachable(err error) bool {
	var p *v1.Problem
	return errors.As(err, &p) && p.Status == 0 && p.Code == codeUnavailable
}

// NotFound reports whether the error says that the object does not exist.
func NotFound(err error) bool {
	var p *v1.Problem
	return errors.As(err, &p) && p.Code == "not_found"
}

// problemOf reads a problem, or makes one of what something in between answered.
func problemOf(res *http.Response) *v1.Problem {
	b, _ := io.ReadAll(io.LimitReader(res.Body, v1.MaxFrameJSON))
	p := &v1.Problem{}
	if json.Unmarshal(b, p) == nil && p.Code != "" {
		p.Status = res.StatusCode
		return p
	}
	p = &v1.Problem{Type: "about:blank", Title: http.StatusText(res.StatusCode), Status: res.StatusCode, Code: codeInternal,
		Detail: fmt.Sprintf("the server answered %s", res.Status), Hint: "is this the address of a Caisson server?"}
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		p.Code = codeUnavailable
	case http.StatusGatewayTimeout:
		p.Code = codeTimeout
	case http.StatusTooManyRequests:
		p.Code = codeExhausted
	case http.StatusNotFound:
		p.Code = "not_found"
	}
	return p
}

func get(path ...string) call          { return call{method: http.MethodGet, path: path} }
func post(b any, path ...string) call  { return call{method: http.MethodPost, path: path, body: b} }
func remove(path ...string) call       { return call{method: http.MethodDelete, path: path} }
func (k call) with(q url.Values) call  { k.query = q; return k }
func (k call) accepts(t string) call   { k.accept = t; return k }
func number[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }
func query(kv ...string) (q url.Values) { // pairs; empty values are left out
	q = url.Values{}
	for i := 0; i+1 < len(kv); i += 2 {
		if kv[i+1] != "" {
			q.Set(kv[i], kv[i+1])
		}
	}
	return q
}
func flag(b bool) string {
	if b {
		return "true"
	}
	return ""
}
