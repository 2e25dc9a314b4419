package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"

	guestwire "github.com/caisson-sandbox/caisson/guest/wire"
)

// fileService passes guestwire.Files on to the agent and holds its answers to the protocol.
type fileService struct{ *shim }

const (
	maxPath    = 4096
	maxEntries = 100_000
	maxChunk   = 256 << 10
)

// sound checks what the guest says of a file.
func sound(f *guestwire.FileInfo) error {
	switch {
	case f == nil:
		return lie("no description of the file")
	case len(f.Path) > maxPath || len(f.Name) > 255 || len(f.Target) > maxPath || len(f.User) > 256 || len(f.Group) > 256:
		return lie("a name is too long")
	case strings.IndexByte(string(f.Path), 0) >= 0 || strings.IndexByte(string(f.Name), 0) >= 0 || strings.IndexByte(string(f.Target), 0) >= 0:
		return lie("a name holds NUL")
	case f.Type != "file" && f.Type != "dir" && f.Type != "symlink" && f.Type != "other":
		return lie(fmt.Sprintf("no type of file %.20q", f.Type))
	case f.Size < 0:
		return lie("a negative size")
	}
	f.Mode &= 0o7777
	return nil
}

func lie(text string) error {
	return connect.NewError(connect.CodeInternal, errors.New("the sandbox's agent broke the protocol: "+text))
}

// files is the agent's file service while the machine runs.
func (s fileService) files() (guestwire.FilesClient, error) {
	a, err := s.guest()
	if err != nil {
		return nil, err
	}
	return a.Files(), nil
}

// pass copies a stream of answers, each checked.
func pass[T any](op string, path []byte, in *connect.ServerStreamForClient[T], out *connect.ServerStream[T], check func(*T) error) error {
	defer in.Close()
	for in.Receive() {
		if err := check(in.Msg()); err != nil {
			return err
		}
		if err := out.Send(in.Msg()); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, io.EOF) {
		return fromAgent(op, string(path), err)
	}
	return nil
}

func (s fileService) Read(ctx context.Context, r *connect.Request[guestwire.ReadRequest], out *connect.ServerStream[guestwire.ReadResponse]) error {
	f, err := s.files()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := f.Read(ctx, connect.NewRequest(r.Msg))
	if err != nil {
		return fromAgent("read file", string(r.Msg.Path), err)
	}
	first := true
	return pass("read file", r.Msg.Path, in, out, func(m *guestwire.ReadResponse) error {
		if first {
			first = false
			return sound(m.Info)
		}
		m.Info = nil
		if len(m.Data) > maxChunk {
			return lie("a chunk is too large")
		}
		return nil
	})
}

func (s fileService) Write(ctx context.Context, in *connect.ClientStream[guestwire.WriteRequest]) (*connect.Response[guestwire.WriteResponse], error) {
	f, err := s.files()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := f.Write(ctx)
	path := ""
	for in.Receive() {
		if h := in.Msg().Header; h != nil {
			path = string(h.Path)
		}
		if err := out.Send(in.Msg()); err != nil {
			break // the reason comes with the answer
		}
	}
	if err := in.Err(); err != nil {
		cancel()
		out.CloseAndReceive()
		return nil, err
	}
	res, err := out.CloseAndReceive()
	if err != nil {
		return nil, fromAgent("write file", path, err)
	}
	return connect.NewResponse(res.Msg), sound(res.Msg.Info)
}

func (s fileService) List(ctx context.Context, r *connect.Request[guestwire.ListRequest], out *connect.ServerStream[guestwire.ListResponse]) error {
	f, err := s.files()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := f.List(ctx, connect.NewRequest(r.Msg))
	if err != nil {
		return fromAgent("list files", string(r.Msg.Path), err)
	}
	n := 0
	return pass("list files", r.Msg.Path, in, out, func(m *guestwire.ListResponse) error {
		if n += len(m.Entries); n > maxEntries {
			return lie("more than 100,000 entries")
		}
		for _, e := range m.Entries {
			if err := sound(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// one passes a call with one answer on; method names it, info checks its answer.
func one[Q, R any](ctx context.Context, s fileService, op string, path []byte, q *connect.Request[Q],
	method func(guestwire.FilesClient) func(context.Context, *connect.Request[Q]) (*connect.Response[R], error), info func(*R) error,
) (*connect.Response[R], error) {
	f, err := s.files()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	res, err := method(f)(ctx, connect.NewRequest(q.Msg))
	if err != nil {
		return nil, fromAgent(op, string(path), err)
	}
	if err := info(res.Msg); err != nil {
		return nil, err
	}
	return connect.NewResponse(res.Msg), nil
}

func (s fileService) Stat(ctx context.Context, r *connect.Request[guestwire.StatRequest]) (*connect.Response[guestwire.StatResponse], error) {
	return one(ctx, s, "stat file", r.Msg.Path, r, func(f guestwire.FilesClient) func(context.Context, *connect.Request[guestwire.StatRequest]) (*connect.Response[guestwire.StatResponse], error) {
		return f.Stat
	}, func(m *guestwire.StatResponse) error { return sound(m.Info) })
}

func (s fileService) Mkdir(ctx context.Context, r *connect.Request[guestwire.MkdirRequest]) (*connect.Response[guestwire.MkdirResponse], error) {
	return one(ctx, s, "make directory", r.Msg.Path, r, func(f guestwire.FilesClient) func(context.Context, *connect.Request[guestwire.MkdirRequest]) (*connect.Response[guestwire.MkdirResponse], error) {
		return f.Mkdir
	}, func(m *guestwire.MkdirResponse) error { return sound(m.Info) })
}

func (s fileService) Move(ctx context.Context, r *connect.Request[guestwire.MoveRequest]) (*connect.Response[guestwire.MoveResponse], error) {
	return one(ctx, s, "move file", r.Msg.From, r, func(f guestwire.FilesClient) func(context.Context, *connect.Request[guestwire.MoveRequest]) (*connect.Response[guestwire.MoveResponse], error) {
		return f.Move
	}, func(m *guestwire.MoveResponse) error { return sound(m.Info) })
}

func (s fileService) Remove(ctx context.Context, r *connect.Request[guestwire.RemoveRequest]) (*connect.Response[guestwire.RemoveResponse], error) {
	return one(ctx, s, "remove file", r.Msg.Path, r, func(f guestwire.FilesClient) func(context.Context, *connect.Request[guestwire.RemoveRequest]) (*connect.Response[guestwire.RemoveResponse], error) {
		return f.Remove
	}, func(*guestwire.RemoveResponse) error { return nil })
}

func (s fileService) Watch(ctx context.Context, r *connect.Request[guestwire.WatchRequest], out *connect.ServerStream[guestwire.WatchResponse]) error {
	f, err := s.files()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := f.Watch(ctx, connect.NewRequest(r.Msg))
	if err != nil {
		return fromAgent("watch files", string(r.Msg.Path), err)
	}
	return pass("watch files", r.Msg.Path, in, out, func(m *guestwire.WatchResponse) error {
		if len(m.Path) > maxPath || strings.IndexByte(string(m.Path), 0) >= 0 || len(m.Op) > 16 {
			return lie("a change that means nothing")
		}
		return nil
	})
}

func (s fileService) Archive(ctx context.Context, r *connect.Request[guestwire.ArchiveRequest], out *connect.ServerStream[guestwire.ArchiveResponse]) error {
	f, err := s.files()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := f.Archive(ctx, connect.NewRequest(r.Msg))
	if err != nil {
		return fromAgent("read archive", string(r.Msg.Path), err)
	}
	return pass("read archive", r.Msg.Path, in, out, func(m *guestwire.ArchiveResponse) error {
		if len(m.Data) > maxChunk {
			return lie("a chunk is too large")
		}
		return nil
	})
}

func (s fileService) Extract(ctx context.Context, in *connect.ClientStream[guestwire.ExtractRequest]) (*connect.Response[guestwire.ExtractResponse], error) {
	f, err := s.files()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := f.Extract(ctx)
	path := ""
	for in.Receive() {
		if len(in.Msg().Path) > 0 {
			path = string(in.Msg().Path)
		}
		if err := out.Send(in.Msg()); err != nil {
			break // the reason comes with the answer
		}
	}
	if err := in.Err(); err != nil {
		cancel()
		out.CloseAndReceive()
		return nil, err
	}
	res, err := out.CloseAndReceive()
	if err != nil {
		return nil, fromAgent("write archive", path, err)
	}
	return connect.NewResponse(res.Msg), nil
}
