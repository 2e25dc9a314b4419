package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// Info describes the server.
func (c *Client) Info(ctx context.Context) (i v1.Info, err error) {
	_, err = c.do(ctx, get("info"), &i)
	return i, err
}

// Create makes a sandbox and waits until commands can be run in it. With an idempotencyKey (printable ASCII, at most 128
// bytes) the same call can be made again after a lost answer. timing is the Server-Timing header.
func (c *Client) Create(ctx context.Context, s v1.SandboxCreate, idempotencyKey string) (b v1.Sandbox, timing string, err error) {
	k := post(s, "sandboxes")
	if idempotencyKey != "" {
		k.header = map[string]string{v1.HeaderIdempotency: idempotencyKey}
	}
	h, err := c.do(ctx, k, &b)
	return b, h.Get(v1.HeaderTiming), err
}

// Get gives one sandbox by id or name, as all calls about one do.
func (c *Client) Get(ctx context.Context, sandbox string) (b v1.Sandbox, err error) {
	_, err = c.do(ctx, get("sandboxes", sandbox), &b)
	return b, err
}

// Filter says which sandboxes List gives; the zero value means all.
type Filter struct {
	Name     string
	States   []string
	Metadata map[string]string
	Limit    int    // sandboxes on a page; 0: the server's default
	Cursor   string // Next of the page before
}

// List gives one page, newest first. While its Next is set there is another: List again with that as the Cursor.
func (c *Client) List(ctx context.Context, f Filter) (l v1.SandboxList, err error) {
	q := query("name", f.Name, "state", strings.Join(f.States, ","), "cursor", f.Cursor)
	for k, v := range f.Metadata {
		q.Set("metadata."+k, v)
	}
	if f.Limit > 0 {
		q.Set("limit", number(f.Limit))
	}
	_, err = c.do(ctx, get("sandboxes").with(q), &l)
	return l, err
}

// ListAll gives the sandboxes of all pages.
func (c *Client) ListAll(ctx context.Context, f Filter) ([]v1.Sandbox, error) {
	all := []v1.Sandbox{}
	for {
		l, err := c.List(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, l.Sandboxes...)
		if l.Next == "" || l.Next == f.Cursor {
			return all, nil
		}
		f.Cursor = l.Next
	}
}

// Update changes the record of a sandbox.
func (c *Client) Update(ctx context.Context, sandbox string, p v1.SandboxPatch) (b v1.Sandbox, err error) {
	_, err = c.do(ctx, call{method: http.MethodPatch, path: []string{"sandboxes", sandbox}, body: p}, &b)
	return b, err
}

// Start boots a stopped sandbox; timing is the Server-Timing header.
func (c *Client) Start(ctx context.Context, sandbox string) (b v1.Sandbox, timing string, err error) {
	h, err := c.do(ctx, post(nil, "sandboxes", sandbox, "start"), &b)
	return b, h.Get(v1.HeaderTiming), err
}

// Stop ends all commands of a sandbox and keeps its disk.
func (c *Client) Stop(ctx context.Context, sandbox string) (b v1.Sandbox, err error) {
	_, err = c.do(ctx, post(nil, "sandboxes", sandbox, "stop"), &b)
	return b, err
}

// Delete returns when nothing is left of the sandbox.
func (c *Client) Delete(ctx context.Context, sandbox string) error {
	_, err := c.do(ctx, remove("sandboxes", sandbox), nil)
	return err
}

// Metrics is what a running sandbox uses now.
func (c *Client) Metrics(ctx context.Context, sandbox string) (m v1.Metrics, err error) {
	_, err = c.do(ctx, get("sandboxes", sandbox, "metrics"), &m)
	return m, err
}

// Keys lists the API keys.
func (c *Client) Keys(ctx context.Context) ([]v1.Key, error) {
	var l v1.KeyList
	_, err := c.do(ctx, get("keys"), &l)
	return l.Keys, err
}

// CreateKey makes an API key; the answer alone has the key itself.
func (c *Client) CreateKey(ctx context.Context, k v1.KeyCreate) (out v1.Key, err error) {
	_, err = c.do(ctx, post(k, "keys"), &out)
	return out, err
}

// DeleteKey deletes an API key by its id.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	_, err := c.do(ctx, remove("keys", id), nil)
	return err
}

// EventFilter says which events of the server are wanted.
type EventFilter struct {
	After   uint64 // those with a greater number
	Sandbox string // of this sandbox alone; its id
	Limit   int    // of one page; 0: the server's default
}

func (f EventFilter) query() url.Values {
	q := query("sandbox", f.Sandbox)
	if f.After > 0 {
		q.Set("after", unsigned(f.After))
	}
	if f.Limit > 0 {
		q.Set("limit", number(f.Limit))
	}
	return q
}

// Events gives one page of the server's events, oldest first.
func (c *Client) Events(ctx context.Context, f EventFilter) (l v1.EventList, err error) {
	_, err = c.do(ctx, get("events").with(f.query()).accepts(v1.MediaJSON), &l)
	return l, err
}
