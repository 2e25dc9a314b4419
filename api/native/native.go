// Package native serves the native HTTP API, version 1, over the interfaces of package caisson.
//
// [New] makes the handler and [Server] the http.Server for it. Every route names the scope it needs, because the one way to
// write a route asks for it (route.go). The OpenAPI document is generated from the Go types of api/v1, committed in
// api/spec, and a test there fails when it is stale.
//
// A request passes: request id, log and metrics (middleware.go) → ingress, if it is for a port of a sandbox → credentials,
// scope and rate limit (auth.go) → validation of parameters and body → handler. Errors of the rooms below become
// problem+json in one place (problem.go); their causes are logged and never sent.
//
// Streams (stream.go) are bounded in memory at any rate: what a slow client does not take stays in the command's log.
package native

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/internal/ratelimit"
)

// Limits protect the server. The zero value of a field means its default.
type Limits struct {
	Rate           float64       // requests per second of a key; default 200. The unix socket has no such limit.
	Burst          int           // default 400
	Streams        int           // open streams and uploads of a key; default 2000
	FailedAuth     int           // failed credentials per minute of an address, before 429; default 30
	Inactivity     time.Duration // a body or stream without progress this long ends; default 60 s
	Ping           time.Duration // silence after which a stream gets a ping; default 15 s
	ReadHeader     time.Duration // time to send the header; default 10 s
	MaxHeaderBytes int           // default 64 KiB
}

func (l Limits) withDefaults() Limits {
	if l.Rate == 0 {
		l.Rate = 200
	}
	for _, f := range []struct {
		p *int
		d int
	}{{&l.Burst, 400}, {&l.Streams, 2000}, {&l.FailedAuth, 30}, {&l.MaxHeaderBytes, 64 << 10}} {
		if *f.p == 0 {
			*f.p = f.d
		}
	}
	for _, f := range []struct {
		p *time.Duration
		d time.Duration
	}{
		{&l.Inactivity, 60 * time.Second}, {&l.Ping, v1.PingEverySeconds * time.Second}, {&l.ReadHeader, 10 * time.Second},
	} {
		if *f.p == 0 {
			*f.p = f.d
		}
	}
	return l
}

// Ingress takes the requests that are for ports of sandboxes.
type Ingress interface {
	http.Handler
	// Match reports whether the request is for a port of a sandbox.
	Match(r *http.Request) bool
}

// Config is what the API is served from. Sandboxes, Keys, Events, Templates and Info are needed.
type Config struct {
	Sandboxes caisson.Sandboxes
	Keys      caisson.Keys
	Events    caisson.Events
	Templates caisson.Templates
	// Info describes the server; Version, API, Domain and Principal are filled in.
	Info func(ctx context.Context) (v1.Info, error)
	// Ready says why the server cannot do its work, for /readyz. Nil: it can.
	Ready func(ctx context.Context) error
	// Stats counts sandboxes by state, for /metrics. Nil: not shown.
	Stats func(ctx context.Context) (map[caisson.State]int, error)
	// Ingress takes requests for ports of sandboxes. Nil: none.
	Ingress  Ingress
	Log      *slog.Logger         // default: none
	Registry *prometheus.Registry // default: a new one
	Limits   Limits
	Version  string
	Domain   string // shown in Info
	EUID     int    // the user whom the unix socket trusts beside root; default: os.Geteuid()
}

type server struct {
	cfg     Config
	log     *slog.Logger
	mux     *http.ServeMux
	api     huma.API
	limits  Limits
	rate    *ratelimit.Limiter
	failed  *ratelimit.Limiter
	streams *ratelimit.Gauge
	metrics *metrics
}

// New makes the handler of the API. It fails when something needed is missing.
func New(cfg Config) (http.Handler, error) {
	if cfg.Sandboxes == nil || cfg.Keys == nil || cfg.Events == nil || cfg.Templates == nil || cfg.Info == nil {
		return nil, errors.New("native API: Sandboxes, Keys, Events, Templates and Info are needed")
	}
	return build(cfg), nil
}

func build(cfg Config) *server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.EUID == 0 {
		cfg.EUID = ownEUID()
	}
	l := cfg.Limits.withDefaults()
	s := &server{
		cfg: cfg, log: cfg.Log, limits: l,
		rate:    ratelimit.New(l.Rate, l.Burst, 10000),
		failed:  ratelimit.New(float64(l.FailedAuth)/60, l.FailedAuth, 10000),
		streams: ratelimit.NewGauge(l.Streams),
		metrics: newMetrics(cfg.Registry, cfg.Stats),
	}
	s.newAPI()
	s.sandboxRoutes()
	s.commandRoutes()
	s.stdinRoutes()
	s.fileRoutes()
	s.treeRoutes()
	s.archiveRoutes()
	s.keyRoutes()
	s.eventRoutes()
	s.templateRoutes()
	s.serverRoutes()
	return s
}
