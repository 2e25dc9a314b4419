package native

import (
	"context"
	"net/http"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type listFilesInput struct {
	FilePath
	Depth int `query:"depth" doc:"How deep to go; 1: the directory's own entries." default:"1" minimum:"1" maximum:"64"`
}

type watchInput struct {
	FilePath
	Recursive bool `query:"recursive" doc:"Watch all directories below, too." default:"false"`
}

type mkdirInput struct {
	SandboxPath
	Body v1.Mkdir
}

type moveInput struct {
	SandboxPath
	Body v1.Move
}

type fileListOutput struct{ Body v1.FileList }

// treeRoutes are about names: list, stat, make, move, watch.
func (s *server) treeRoutes() {
	const tag, path = "files", "/v1/sandboxes/{id}/files"
	add(s, caisson.ScopeRead, route{id: "listFiles", method: http.MethodGet, path: path + "/list", tag: tag, summary: "List a directory", errors: []int{409}}, s.listFiles)
	add(s, caisson.ScopeRead, route{id: "statFile", method: http.MethodGet, path: path + "/stat", tag: tag, summary: "Describe a file", errors: []int{409}},
		func(ctx context.Context, p caisson.Principal, in *FilePath) (*fileOutput, error) {
			if err := in.check("stat file"); err != nil {
				return nil, err
			}
			return s.oneFile(ctx, p, in.ID, func(g caisson.Guest) (caisson.FileInfo, error) { return g.StatFile(ctx, in.Path, in.User) })
		})
	add(s, caisson.ScopeWrite, route{id: "makeDirectory", method: http.MethodPost, path: path + "/mkdir", tag: tag, summary: "Make a directory", status: http.StatusCreated, errors: []int{409}},
		func(ctx context.Context, p caisson.Principal, in *mkdirInput) (*fileOutput, error) {
			b := in.Body
			if err := checkPath("make directory", b.RawPath()); err != nil {
				return nil, err
			}
			if b.Mode == 0 {
				b.Mode = 0o755
			}
			return s.oneFile(ctx, p, in.ID, func(g caisson.Guest) (caisson.FileInfo, error) {
				return g.Mkdir(ctx, b.RawPath(), b.User, uint32(b.Mode), b.Parents)
			})
		})
	add(s, caisson.ScopeWrite, route{id: "moveFile", method: http.MethodPost, path: path + "/move", tag: tag, summary: "Move a file", errors: []int{409},
		text: "Renames a file or directory. A file at the new path is replaced."},
		func(ctx context.Context, p caisson.Principal, in *moveInput) (*fileOutput, error) {
			b := in.Body
			for _, f := range []string{b.RawFrom(), b.RawTo()} {
				if err := checkPath("move file", f); err != nil {
					return nil, err
				}
			}
			return s.oneFile(ctx, p, in.ID, func(g caisson.Guest) (caisson.FileInfo, error) { return g.Move(ctx, b.RawFrom(), b.RawTo(), b.User) })
		})
	addStream(s, caisson.ScopeRead, route{id: "watchFiles", method: http.MethodGet, path: path + "/watch", tag: tag, summary: "Watch a directory", errors: []int{406, 409},
		produces: s.eventContent(schemaOf[v1.FileEvent](s), v1.MediaSSE, v1.MediaNDJSON),
		text:     "Streams changes until the client leaves. The default format is application/x-ndjson. The answer's header is sent when the watch is in place."}, s.watch)
}

func (s *server) oneFile(ctx context.Context, p caisson.Principal, id string, do func(caisson.Guest) (caisson.FileInfo, error)) (*fileOutput, error) {
	g, err := s.guest(ctx, p, id)
	if err != nil {
		return nil, err
	}
	f, err := do(g)
	return &fileOutput{Body: fileOut(f)}, err
}

func (s *server) listFiles(ctx context.Context, p caisson.Principal, in *listFilesInput) (*fileListOutput, error) {
	if err := in.check("list files"); err != nil {
		return nil, err
	}
	g, err := s.guest(ctx, p, in.ID)
	if err != nil {
		return nil, err
	}
	fs, err := g.ListFiles(ctx, in.Path, in.User, in.Depth)
	if err != nil {
		return nil, err
	}
	out := &fileListOutput{Body: v1.FileList{Files: make([]v1.FileInfo, 0, len(fs))}}
	for _, f := range fs {
		out.Body.Files = append(out.Body.Files, fileOut(f))
	}
	return out, nil
}

func (s *server) watch(ctx context.Context, p caisson.Principal, in *watchInput, w http.ResponseWriter, r *http.Request) error {
	if err := in.check("watch files"); err != nil {
		return err
	}
	format, err := accepted(r, v1.MediaNDJSON, v1.MediaNDJSON, v1.MediaSSE)
	if err != nil {
		return err
	}
	g, err := s.guest(ctx, p, in.ID)
	if err != nil {
		return err
	}
	es, err := g.WatchFiles(ctx, in.Path, in.User, in.Recursive)
	if err != nil {
		return err
	}
	defer es.Close()
	next := func(ctx context.Context) (v1.FileEvent, error) {
		e, err := es.Next(ctx)
		o := v1.FileEvent{Op: e.Op}
		o.Path, o.PathB64 = utf8Of(e.Path)
		return o, err
	}
	return stream(s, w, r, format, "events", jsonCodec(format, next, appendMarshal[v1.FileEvent],
		func(*v1.FileEvent) uint64 { return 0 },
		func(*v1.Problem) v1.FileEvent { return v1.FileEvent{Op: "ping"} },
		func(p *v1.Problem) v1.FileEvent { return v1.FileEvent{Op: "error", Error: p} }))
}
