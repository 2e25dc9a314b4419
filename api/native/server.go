package native

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Server makes the http.Server for a handler, with the limits that protect it: time for headers, their size, HTTP/2
// frames, idle connections. It speaks HTTP/1.1 and HTTP/2, over TLS when it is given a certificate, else with prior knowledge
// (h2c). One server may serve TCP and unix listeners at once. Contexts of requests come from base: canceling it ends
// every stream with an error event that tells clients to re-attach.
//
// There is no read or write timeout for a whole request, because streams have no end; handlers renew deadlines as a
// body or stream makes progress.
func Server(h http.Handler, base context.Context, limits Limits, log *slog.Logger) *http.Server {
	l := limits.withDefaults()
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: l.ReadHeader,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    l.MaxHeaderBytes,
		Protocols:         &p,
		ConnContext:       ConnContext,
		BaseContext:       func(net.Listener) context.Context { return base },
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          1000,
			MaxReceiveBufferPerConnection: 4 << 20,
			MaxReceiveBufferPerStream:     1 << 20,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   15 * time.Second,
			WriteByteTimeout:              l.Inactivity,
		},
	}
	if log != nil {
		srv.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return srv
}
