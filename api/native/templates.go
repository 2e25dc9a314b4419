package native

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type templatePath struct {
	Name string `path:"name" doc:"name or name:tag; a missing tag means latest." maxLength:"256"`
}

type templateOutput struct{ Body v1.Template }
type templateListOutput struct{ Body v1.TemplateList }

func (s *server) templateRoutes() {
	const tag, one = "templates", "/v1/templates/{name}"
	add(s, caisson.ScopeRead, route{id: "listTemplates", method: http.MethodGet, path: "/v1/templates", tag: tag, summary: "List templates"},
		func(ctx context.Context, _ caisson.Principal, _ *struct{}) (*templateListOutput, error) {
			ts, err := s.cfg.Templates.List(ctx)
			if err != nil {
				return nil, err
			}
			out := &templateListOutput{Body: v1.TemplateList{Templates: make([]v1.Template, 0, len(ts))}}
			for _, t := range ts {
				out.Body.Templates = append(out.Body.Templates, templateOut(t))
			}
			return out, nil
		})
	add(s, caisson.ScopeRead, route{id: "getTemplate", method: http.MethodGet, path: one, tag: tag, summary: "Resolve a template", text: "Takes a digest, too."},
		func(ctx context.Context, _ caisson.Principal, in *templatePath) (*templateOutput, error) {
			t, err := s.cfg.Templates.Resolve(ctx, in.Name)
			return &templateOutput{Body: templateOut(t)}, err
		})
	addStream(s, caisson.ScopeAdmin, route{id: "importTemplate", method: http.MethodPut, path: one, tag: tag, summary: "Import a template", status: http.StatusCreated, errors: []int{409},
		body:     rawBody("A root filesystem as a tar stream: plain, gzip or zstd; of any size.", v1.MediaTar, v1.MediaBytes),
		produces: map[string]*huma.MediaType{v1.MediaJSON: media(schemaOf[v1.Template](s))},
		text:     "Makes a template, or points its name to a new image. Sandboxes that exist keep theirs."},
		func(ctx context.Context, _ caisson.Principal, in *templatePath, w http.ResponseWriter, r *http.Request) error {
			t, err := s.cfg.Templates.Import(ctx, in.Name, s.progressBody(w, r, "template"))
			if err != nil {
				return err
			}
			return writeJSON(w, http.StatusCreated, templateOut(t))
		})
	add(s, caisson.ScopeAdmin, route{id: "removeTemplate", method: http.MethodDelete, path: one, tag: tag, summary: "Remove a template", status: http.StatusNoContent, errors: []int{409},
		text: "Forgets the name; the image goes when no sandbox needs it."},
		func(ctx context.Context, _ caisson.Principal, in *templatePath) (*struct{}, error) {
			return nil, s.cfg.Templates.Remove(ctx, in.Name)
		})
}
