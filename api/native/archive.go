package native

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// archiveRoutes move whole trees as tar streams.
func (s *server) archiveRoutes() {
	const tag, path = "files", "/v1/sandboxes/{id}/archive"
	addStream(s, caisson.ScopeRead, route{id: "readArchive", method: http.MethodGet, path: path, tag: tag, summary: "Read a tree as a tar stream", errors: []int{409},
		produces: map[string]*huma.MediaType{v1.MediaTar: media(binary())},
		text:     "Entries are below the path's base name; modes, owners and links are kept. A stream that cannot be completed is cut."},
		func(ctx context.Context, p caisson.Principal, in *FilePath, w http.ResponseWriter, r *http.Request) error {
			if err := in.check("read archive"); err != nil {
				return err
			}
			g, err := s.guest(ctx, p, in.ID)
			if err != nil {
				return err
			}
			if r.Method == http.MethodHead {
				_, err := g.StatFile(ctx, in.Path, in.User)
				if err == nil {
					w.Header().Set("Content-Type", v1.MediaTar)
					w.WriteHeader(http.StatusOK)
				}
				return err
			}
			rc, err := g.Archive(ctx, in.Path, in.User)
			if err != nil {
				return err
			}
			defer rc.Close()
			return s.sendTar(w, &firstRead{r: rc})
		})
	addStream(s, caisson.ScopeWrite, route{id: "writeArchive", method: http.MethodPut, path: path, tag: tag, summary: "Unpack a tar stream", status: http.StatusNoContent, errors: []int{409},
		body: rawBody("A tar stream (ustar, pax or GNU), of any size.", v1.MediaTar, v1.MediaBytes),
		text: "Unpacks below the directory. Entries cannot leave it. What was unpacked before an error stays."},
		func(ctx context.Context, p caisson.Principal, in *FilePath, w http.ResponseWriter, r *http.Request) error {
			if err := in.check("write archive"); err != nil {
				return err
			}
			g, err := s.guest(ctx, p, in.ID)
			if err != nil {
				return err
			}
			if err := g.Extract(ctx, in.Path, in.User, s.progressBody(w, r, "archive_write")); err != nil {
				return err
			}
			w.WriteHeader(http.StatusNoContent)
			return nil
		})
}

// sendTar reads once before it says 200, so that a path that is not there is still a problem.
func (s *server) sendTar(w http.ResponseWriter, f *firstRead) error {
	if err := f.peek(); err != nil {
		return err
	}
	w.Header().Set("Content-Type", v1.MediaTar)
	w.WriteHeader(http.StatusOK)
	_, err := s.copyOut(w, f, "archive_read")
	return err
}
