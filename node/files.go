package node

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"connectrpc.com/connect"

	"github.com/caisson-sandbox/caisson"
	guestwire "github.com/caisson-sandbox/caisson/guest/wire"
)

const (
	chunk     = 128 << 10
	callLimit = 60 * time.Second // of a call with one answer
)

func (g *guest) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	c, err := g.up("reach port")
	if err != nil {
		return nil, err
	}
	return c.dial(ctx, port)
}

func fileOf(f *guestwire.FileInfo) caisson.FileInfo {
	if f == nil {
		return caisson.FileInfo{}
	}
	return caisson.FileInfo{
		Path: string(f.Path), Name: string(f.Name), Type: caisson.FileType(f.Type), Size: f.Size, Mode: f.Mode, UID: f.Uid, GID: f.Gid,
		User: f.User, Group: f.Group, ModTime: time.Unix(0, f.ModTimeUnixNano), Target: string(f.Target),
	}
}

// download reads the data of a stream of answers.
type download[T any] struct {
	st     *connect.ServerStreamForClient[T]
	cancel context.CancelFunc
	data   func(*T) []byte
	fail   func(error) error
	rest   []byte
}

func (d *download[T]) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if !d.st.Receive() {
			if err := d.st.Err(); err != nil {
				return 0, d.fail(err)
			}
			return 0, io.EOF
		}
		d.rest = d.data(d.st.Msg())
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// WriteTo spares a copy.
func (d *download[T]) WriteTo(w io.Writer) (total int64, err error) {
	for {
		if len(d.rest) > 0 {
			n, err := w.Write(d.rest)
			total += int64(n)
			d.rest = d.rest[n:]
			if err != nil {
				return total, err
			}
		}
		if !d.st.Receive() {
			if err := d.st.Err(); err != nil {
				return total, d.fail(err)
			}
			return total, nil
		}
		d.rest = d.data(d.st.Msg())
	}
}

func (d *download[T]) Close() error {
	d.cancel()
	d.st.Close()
	return nil
}

func (g *guest) ReadFile(ctx context.Context, path, user string, offset, length int64) (caisson.FileInfo, io.ReadCloser, error) {
	const op = "read file"
	c, err := g.up(op)
	if err != nil {
		return caisson.FileInfo{}, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	st, err := c.files.Read(ctx, connect.NewRequest(&guestwire.ReadRequest{Path: []byte(path), User: user, Offset: offset, Length: length}))
	if err == nil && !st.Receive() {
		if err = st.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
	}
	if err != nil {
		cancel()
		if st != nil {
			st.Close()
		}
		return caisson.FileInfo{}, nil, decode(op, path, err)
	}
	d := &download[guestwire.ReadResponse]{
		st: st, cancel: cancel, rest: st.Msg().Data, data: (*guestwire.ReadResponse).GetData,
		fail: func(err error) error { return decode(op, path, err) },
	}
	return fileOf(st.Msg().Info), d, nil
}

func (g *guest) Archive(ctx context.Context, path, user string) (io.ReadCloser, error) {
	const op = "read archive"
	c, err := g.up(op)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	st, err := c.files.Archive(ctx, connect.NewRequest(&guestwire.ArchiveRequest{Path: []byte(path), User: user}))
	if err != nil {
		cancel()
		return nil, decode(op, path, err)
	}
	return &download[guestwire.ArchiveResponse]{
		st: st, cancel: cancel, data: (*guestwire.ArchiveResponse).GetData, fail: func(err error) error { return decode(op, path, err) },
	}, nil
}

// errSource is the caller's own reader failing.
type errSource struct{ error }

func (e errSource) Unwrap() error { return e.error }

// upload sends r in chunks until its end.
func upload(r io.Reader, send func([]byte) error) error {
	buf := make([]byte, chunk)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if serr := send(buf[:n]); serr != nil {
				return nil // the reason comes with the answer
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return errSource{err}
		}
	}
}

func (g *guest) WriteFile(ctx context.Context, path string, r io.Reader, o caisson.WriteOptions) (caisson.FileInfo, error) {
	const op = "write file"
	c, err := g.up(op)
	if err != nil {
		return caisson.FileInfo{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st := c.files.Write(ctx)
	err = st.Send(&guestwire.WriteRequest{Header: &guestwire.WriteHeader{Path: []byte(path), User: o.User, Mode: o.Mode, Parents: o.Parents}})
	if err == nil {
		if err := upload(&whole{r: r}, func(b []byte) error { return st.Send(&guestwire.WriteRequest{Data: b}) }); err != nil {
			cancel() // without a commit the agent keeps nothing
			st.CloseAndReceive()
			return caisson.FileInfo{}, sourceError(op, path, err)
		}
		st.Send(&guestwire.WriteRequest{Commit: true})
	}
	res, err := st.CloseAndReceive()
	if err != nil {
		return caisson.FileInfo{}, decode(op, path, err)
	}
	return fileOf(res.Msg.Info), nil
}

// whole turns an upload that was cut (io.ErrUnexpectedEOF of an HTTP body) into an error that io.ReadFull does not hide.
type whole struct{ r io.Reader }

var errCut = errors.New("the upload was cut")

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errCut
	}
	return n, err
}

func sourceError(op, path string, err error) error {
	var own *caisson.Error
	if errors.As(err, &own) {
		return own
	}
	kind := caisson.KindOf(err)
	if kind == caisson.Internal {
		kind = caisson.Invalid
	}
	return caisson.E(kind, op, path, "the data to write could not be read to its end", err)
}

func (g *guest) Extract(ctx context.Context, path, user string, r io.Reader) error {
	const op = "write archive"
	c, err := g.up(op)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st := c.files.Extract(ctx)
	if err := st.Send(&guestwire.ExtractRequest{Path: []byte(path), User: user}); err == nil {
		if err := upload(&whole{r: r}, func(b []byte) error { return st.Send(&guestwire.ExtractRequest{Data: b}) }); err != nil {
			cancel()
			st.CloseAndReceive()
			return sourceError(op, path, err)
		}
		st.Send(&guestwire.ExtractRequest{Commit: true})
	}
	_, err = st.CloseAndReceive()
	return decode(op, path, err)
}

func (g *guest) ListFiles(ctx context.Context, path, user string, depth int) ([]caisson.FileInfo, error) {
	const op = "list files"
	c, err := g.up(op)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	st, err := c.files.List(ctx, connect.NewRequest(&guestwire.ListRequest{Path: []byte(path), User: user, Depth: uint32(max(depth, 1))}))
	if err != nil {
		return nil, decode(op, path, err)
	}
	defer st.Close()
	var all []caisson.FileInfo
	for st.Receive() {
		for _, f := range st.Msg().Entries {
			all = append(all, fileOf(f))
		}
	}
	return all, decode(op, path, st.Err())
}

// one makes a call that is answered with a file.
func one[Q, R any](ctx context.Context, g *guest, op, path string, q *Q, call func(*shimClient) func(context.Context, *connect.Request[Q]) (*connect.Response[R], error), info func(*R) *guestwire.FileInfo) (caisson.FileInfo, error) {
	c, err := g.up(op)
	if err != nil {
		return caisson.FileInfo{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	res, err := call(c)(ctx, connect.NewRequest(q))
	if err != nil {
		return caisson.FileInfo{}, decode(op, path, err)
	}
	return fileOf(info(res.Msg)), nil
}

func (g *guest) StatFile(ctx context.Context, path, user string) (caisson.FileInfo, error) {
	return one(ctx, g, "stat file", path, &guestwire.StatRequest{Path: []byte(path), User: user},
		func(c *shimClient) func(context.Context, *connect.Request[guestwire.StatRequest]) (*connect.Response[guestwire.StatResponse], error) {
			return c.files.Stat
		}, (*guestwire.StatResponse).GetInfo)
}

func (g *guest) Mkdir(ctx context.Context, path, user string, mode uint32, parents bool) (caisson.FileInfo, error) {
	return one(ctx, g, "make directory", path, &guestwire.MkdirRequest{Path: []byte(path), User: user, Mode: mode, Parents: parents},
		func(c *shimClient) func(context.Context, *connect.Request[guestwire.MkdirRequest]) (*connect.Response[guestwire.MkdirResponse], error) {
			return c.files.Mkdir
		}, (*guestwire.MkdirResponse).GetInfo)
}

func (g *guest) Move(ctx context.Context, from, to, user string) (caisson.FileInfo, error) {
	return one(ctx, g, "move file", from, &guestwire.MoveRequest{From: []byte(from), To: []byte(to), User: user},
		func(c *shimClient) func(context.Context, *connect.Request[guestwire.MoveRequest]) (*connect.Response[guestwire.MoveResponse], error) {
			return c.files.Move
		}, (*guestwire.MoveResponse).GetInfo)
}

func (g *guest) Remove(ctx context.Context, path, user string, recursive bool) error {
	_, err := one(ctx, g, "remove file", path, &guestwire.RemoveRequest{Path: []byte(path), User: user, Recursive: recursive},
		func(c *shimClient) func(context.Context, *connect.Request[guestwire.RemoveRequest]) (*connect.Response[guestwire.RemoveResponse], error) {
			return c.files.Remove
		}, func(*guestwire.RemoveResponse) *guestwire.FileInfo { return nil })
	return err
}

func (g *guest) WatchFiles(ctx context.Context, path, user string, recursive bool) (caisson.FileEventStream, error) {
	const op = "watch files"
	c, err := g.up(op)
	if err != nil {
		return nil, err
	}
	wctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	st, err := c.files.Watch(wctx, connect.NewRequest(&guestwire.WatchRequest{Path: []byte(path), User: user, Recursive: recursive}))
	if err == nil && !st.Receive() { // ready
		if err = st.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
	}
	stop()
	if err != nil {
		cancel()
		if st != nil {
			st.Close()
		}
		return nil, decode(op, path, err)
	}
	return &fileStream{st: st, cancel: cancel, path: path}, nil
}

type fileStream struct {
	st     *connect.ServerStreamForClient[guestwire.WatchResponse]
	cancel context.CancelFunc
	path   string
}

func (f *fileStream) Close() error {
	f.cancel()
	return f.st.Close()
}

func (f *fileStream) Next(ctx context.Context) (caisson.FileEvent, error) {
	stop := context.AfterFunc(ctx, f.cancel)
	defer stop()
	for f.st.Receive() {
		if m := f.st.Msg(); m.Op != "" {
			return caisson.FileEvent{Path: string(m.Path), Op: m.Op}, nil
		}
	}
	if ctx.Err() != nil {
		return caisson.FileEvent{}, context.Cause(ctx)
	}
	if err := f.st.Err(); err != nil {
		return caisson.FileEvent{}, decode("watch files", f.path, err)
	}
	return caisson.FileEvent{}, io.EOF
}
