package native

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/caisson-sandbox/caisson"
	"github.com/caisson-sandbox/caisson/api/spec"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type infoOutput struct{ Body v1.Info }

// serverRoutes are about the server itself. The ones with no scope tell nothing that is not public.
func (s *server) serverRoutes() {
	const tag = "server"
	add(s, caisson.ScopeRead, route{id: "getInfo", method: http.MethodGet, path: "/v1/info", tag: tag, summary: "Describe the server",
		text: "Version, drivers and the isolation they give, and who the caller is."},
		func(ctx context.Context, p caisson.Principal, _ *struct{}) (*infoOutput, error) {
			i, err := s.cfg.Info(ctx)
			if err != nil {
				return nil, err
			}
			i.Version, i.API, i.Domain, i.Principal = s.cfg.Version, "v1", s.cfg.Domain, p.Name
			return &infoOutput{Body: i}, nil
		})
	promHandler := promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{Timeout: 10 * time.Second, MaxRequestsInFlight: 4})
	addStream(s, caisson.ScopeAdmin, route{id: "metrics", method: http.MethodGet, path: "/metrics", tag: tag, summary: "Prometheus metrics",
		produces: map[string]*huma.MediaType{"text/plain": media(&huma.Schema{Type: huma.TypeString})}},
		func(_ context.Context, _ caisson.Principal, _ *struct{}, w http.ResponseWriter, r *http.Request) error {
			promHandler.ServeHTTP(w, r)
			return nil
		})
	text := func(contentType string, content []byte) func(context.Context, caisson.Principal, *struct{}, http.ResponseWriter, *http.Request) error {
		return func(_ context.Context, _ caisson.Principal, _ *struct{}, w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'")
			_, err := w.Write(content)
			return err
		}
	}
	addStream(s, "", route{id: "healthz", method: http.MethodGet, path: "/healthz", tag: tag, summary: "Is the server alive",
		produces: map[string]*huma.MediaType{v1.MediaJSON: media(schemaOf[v1.Health](s))}}, s.health)
	addStream(s, "", route{id: "readyz", method: http.MethodGet, path: "/readyz", tag: tag, summary: "Can the server do its work", errors: []int{503},
		produces: map[string]*huma.MediaType{v1.MediaJSON: media(schemaOf[v1.Health](s))}, text: "The reason is in the server's log."}, s.ready)
	addStream(s, "", route{id: "openapi", method: http.MethodGet, path: "/openapi.json", tag: tag, summary: "This document",
		produces: map[string]*huma.MediaType{v1.MediaJSON: media(&huma.Schema{Type: huma.TypeObject})}}, text(v1.MediaJSON, spec.JSON))
	addStream(s, "", route{id: "docs", method: http.MethodGet, path: "/docs", tag: tag, summary: "This document as a page",
		produces: map[string]*huma.MediaType{"text/html": media(&huma.Schema{Type: huma.TypeString})}, text: "Needs nothing but this server."}, text("text/html; charset=utf-8", spec.Reference))
}

func (s *server) health(_ context.Context, _ caisson.Principal, _ *struct{}, w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, v1.Health{Status: "ok"})
}

func (s *server) ready(ctx context.Context, _ caisson.Principal, _ *struct{}, w http.ResponseWriter, _ *http.Request) error {
	if s.cfg.Ready == nil {
		return writeJSON(w, http.StatusOK, v1.Health{Status: "ok"})
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.cfg.Ready(ctx); err != nil {
		requestOf(ctx).note(err)
		return writeJSON(w, http.StatusServiceUnavailable, v1.Health{Status: "unavailable"})
	}
	return writeJSON(w, http.StatusOK, v1.Health{Status: "ok"})
}
