package client

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"unicode/utf8"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// Paths are absolute or relative to the user's home, and may hold any bytes but NUL. A user is a name or uid[:gid] whose
// rights are used; "" is the sandbox's.

// ReadOptions of ReadFile. Length 0 means to the end.
type ReadOptions struct {
	User           string
	Offset, Length int64
}

// ReadFile streams a file. A reader that ends with an error did not give it whole. The caller closes it.
func (c *Client) ReadFile(ctx context.Context, sandbox, path string, o ReadOptions) (v1.FileInfo, io.ReadCloser, error) {
	k := get("sandboxes", sandbox, "files").with(query("path", path, "user", o.User))
	if o.Offset > 0 || o.Length > 0 {
		last := ""
		if o.Length > 0 {
			last = number(o.Offset + o.Length - 1)
		}
		k.header = map[string]string{"Range": fmt.Sprintf("bytes=%d-%s", o.Offset, last)}
	}
	res, err := c.send(ctx, k)
	if err != nil {
		return v1.FileInfo{}, nil, err
	}
	f, err := v1.DecodeFileInfo(res.Header.Get(v1.HeaderFileInfo))
	if err != nil {
		res.Body.Close()
		return f, nil, c.broken(ctx, err)
	}
	return f, &reader{c, ctx, res.Body}, nil
}

// reader makes the errors of a body problems.
type reader struct {
	c   *Client
	ctx context.Context // of the call the body belongs to
	rc  io.ReadCloser
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.rc.Read(p)
	if err != nil && err != io.EOF {
		err = r.c.broken(r.ctx, err)
	}
	return n, err
}

func (r *reader) Close() error { return r.rc.Close() }

// WriteOptions of WriteFile.
type WriteOptions struct {
	User    string
	Mode    v1.Mode // 0: what the file has, else 0644
	Parents bool    // make missing parent directories
}

// WriteFile replaces a file with what r gives; after an error the old file is still there.
func (c *Client) WriteFile(ctx context.Context, sandbox, path string, r io.Reader, o WriteOptions) (f v1.FileInfo, err error) {
	q := query("path", path, "user", o.User, "parents", flag(o.Parents))
	if o.Mode != 0 {
		q.Set("mode", fmt.Sprintf("%04o", uint32(o.Mode)))
	}
	_, err = c.do(ctx, call{method: http.MethodPut, path: []string{"sandboxes", sandbox, "files"}, query: q, body: r, kind: v1.MediaBytes}, &f)
	return f, err
}

// ListFiles lists a directory down to depth; 1 is its own entries.
func (c *Client) ListFiles(ctx context.Context, sandbox, path, user string, depth int) ([]v1.FileInfo, error) {
	var l v1.FileList
	_, err := c.do(ctx, get("sandboxes", sandbox, "files", "list").with(query("path", path, "user", user, "depth", number(max(depth, 1)))), &l)
	return l.Files, err
}

// Stat describes a file.
func (c *Client) Stat(ctx context.Context, sandbox, path, user string) (f v1.FileInfo, err error) {
	_, err = c.do(ctx, get("sandboxes", sandbox, "files", "stat").with(query("path", path, "user", user)), &f)
	return f, err
}

// Mkdir makes a directory. Its Path may be any bytes.
func (c *Client) Mkdir(ctx context.Context, sandbox string, m v1.Mkdir) (f v1.FileInfo, err error) {
	m.Path, m.PathB64 = encoded(m.Path, m.PathB64)
	_, err = c.do(ctx, post(m, "sandboxes", sandbox, "files", "mkdir"), &f)
	return f, err
}

// Move renames a file or directory; a file at the new path is replaced. From and To may be any bytes.
func (c *Client) Move(ctx context.Context, sandbox string, m v1.Move) (f v1.FileInfo, err error) {
	m.From, m.FromB64 = encoded(m.From, m.FromB64)
	m.To, m.ToB64 = encoded(m.To, m.ToB64)
	_, err = c.do(ctx, post(m, "sandboxes", sandbox, "files", "move"), &f)
	return f, err
}

func encoded(s, b64 string) (string, string) {
	if b64 != "" || utf8.ValidString(s) {
		return s, b64
	}
	return "", base64.StdEncoding.EncodeToString([]byte(s))
}

// Remove removes a file, or with recursive a directory and all that is in it.
func (c *Client) Remove(ctx context.Context, sandbox, path, user string, recursive bool) error {
	_, err := c.do(ctx, remove("sandboxes", sandbox, "files").with(query("path", path, "user", user, "recursive", flag(recursive))), nil)
	return err
}

// Watch is the changes below a directory.
type Watch struct{ s *lines[v1.FileEvent] }

// Watch starts to watch; what happens from its return on is seen. The watch ends with ctx or Close.
func (c *Client) Watch(ctx context.Context, sandbox, path, user string, recursive bool) (*Watch, error) {
	k := get("sandboxes", sandbox, "files", "watch").with(query("path", path, "user", user, "recursive", flag(recursive)))
	s, err := openLines[v1.FileEvent](ctx, c, k)
	if err != nil {
		return nil, err
	}
	return &Watch{s}, nil
}

// Next gives the next change. A watch is not re-attached: after an error changes may have been missed.
func (w *Watch) Next() (v1.FileEvent, error) {
	for {
		e, err := w.s.next()
		switch {
		case err == io.EOF:
			return e, w.s.c.broken(w.s.ctx, io.ErrUnexpectedEOF)
		case err != nil:
			return e, err
		case e.Op == "error" && e.Error != nil:
			return e, e.Error
		case e.Op != "ping":
			return e, nil
		}
	}
}

// Close ends the watch.
func (w *Watch) Close() error { return w.s.close() }

// Archive gives a tree as a tar stream, its entries below the path's base name. The caller closes it.
func (c *Client) Archive(ctx context.Context, sandbox, path, user string) (io.ReadCloser, error) {
	res, err := c.send(ctx, get("sandboxes", sandbox, "archive").with(query("path", path, "user", user)))
	if err != nil {
		return nil, err
	}
	return &reader{c, ctx, res.Body}, nil
}

// Extract unpacks a tar stream below a directory, which is made if it is missing.
func (c *Client) Extract(ctx context.Context, sandbox, dir, user string, r io.Reader) error {
	_, err := c.do(ctx, call{method: http.MethodPut, path: []string{"sandboxes", sandbox, "archive"}, query: query("path", dir, "user", user), body: r, kind: v1.MediaTar}, nil)
	return err
}

// Templates lists the templates.
func (c *Client) Templates(ctx context.Context) ([]v1.Template, error) {
	var l v1.TemplateList
	_, err := c.do(ctx, get("templates"), &l)
	return l.Templates, err
}

// Template resolves a name, name:tag or digest.
func (c *Client) Template(ctx context.Context, name string) (t v1.Template, err error) {
	_, err = c.do(ctx, get("templates", name), &t)
	return t, err
}

// ImportTemplate makes a template of a root filesystem in a tar stream: plain, gzip or zstd.
func (c *Client) ImportTemplate(ctx context.Context, name string, r io.Reader) (t v1.Template, err error) {
	_, err = c.do(ctx, call{method: http.MethodPut, path: []string{"templates", name}, body: r, kind: v1.MediaTar}, &t)
	return t, err
}

// RemoveTemplate forgets a template's name.
func (c *Client) RemoveTemplate(ctx context.Context, name string) error {
	_, err := c.do(ctx, remove("templates", name), nil)
	return err
}
