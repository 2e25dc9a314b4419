package native

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/internal/peercred"
)

// maxKey bounds what is taken for a key before anything is computed from it.
const maxKey = 256

// ConnContext is for http.Server.ConnContext: it notes the peer of a unix socket, whose user id is its credential.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return peercred.ConnContext(ctx, c)
}

func ownEUID() int { return os.Geteuid() }

// authenticate finds who calls, or the problem to answer with. Header values for the answer are set on w.
func (s *server) authenticate(w http.ResponseWriter, r *http.Request) (caisson.Principal, *v1.Problem) {
	ctx := r.Context()
	if peer, ok := peercred.From(ctx); ok {
		if !peercred.Trusted(ctx, s.cfg.EUID) {
			return caisson.Principal{}, problem(http.StatusForbidden, string(caisson.Denied), kindTitles[caisson.Denied],
				"the unix socket serves root and the server's own user alone", "use the TCP address and an API key")
		}
		return caisson.Principal{Team: caisson.DefaultTeam, Scopes: []caisson.Scope{caisson.ScopeAdmin}, Name: fmt.Sprintf("uid:%d", peer.UID)}, nil
	}
	addr := remoteIP(r)
	if wait, ok := s.failed.Peek(addr, time.Now()); !ok {
		p, after := tooMany("too many failed credentials from this address", "wait, then use a key that is good", wait)
		w.Header().Set("Retry-After", after)
		return caisson.Principal{}, p
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	key = strings.TrimSpace(key)
	refuse := func(detail string) (caisson.Principal, *v1.Problem) {
		s.failed.Take(addr, time.Now())
		w.Header().Set("WWW-Authenticate", `Bearer realm="caisson"`)
		return caisson.Principal{}, problem(http.StatusUnauthorized, "unauthenticated", "Unauthenticated", detail,
			"send Authorization: Bearer csn_…; `caisson key create` makes a key")
	}
	switch {
	case r.Header.Get("Authorization") == "":
		return refuse("the request has no API key")
	case !strings.EqualFold(scheme, "Bearer") || key == "" || len(key) > maxKey:
		return refuse("the Authorization header is not \"Bearer KEY\"")
	}
	p, err := s.cfg.Keys.Authenticate(ctx, key)
	switch {
	case err == nil:
		return p, nil
	case caisson.Is(err, caisson.Denied) || caisson.Is(err, caisson.NotFound):
		return refuse("the API key is unknown or has expired")
	}
	return caisson.Principal{}, problemOf(ctx, err)
}

func remoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		return ip.Mask(net.CIDRMask(64, 128)).String() // one IPv6 customer has a /64 at least
	}
	return host
}

// guard is the middleware of every route with a scope: who calls, may he, is he too fast.
func (s *server) guard(scope caisson.Scope) func(huma.Context, func(huma.Context)) {
	return func(hc huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(hc)
		q := requestOf(r.Context())
		q.route = hc.Operation().OperationID
		p, bad := s.authenticate(w, r)
		if bad != nil {
			writeProblem(w, r, bad)
			return
		}
		q.principal = p
		if !p.Has(scope) {
			writeProblem(w, r, problem(http.StatusForbidden, string(caisson.Denied), kindTitles[caisson.Denied],
				fmt.Sprintf("%s does not have the scope %q", p.Name, scope), "use a key with that scope; GET /v1/info shows who you are"))
			return
		}
		if _, local := peercred.From(r.Context()); !local {
			if wait, ok := s.rate.Take(p.Name, time.Now()); !ok {
				bad, after := tooMany(fmt.Sprintf("more than %g requests per second", s.limits.Rate), "slow down; wait as Retry-After says", wait)
				w.Header().Set("Retry-After", after)
				writeProblem(w, r, bad)
				return
			}
		}
		next(hc)
	}
}

// open is the middleware of the few routes without a scope.
func (s *server) open(hc huma.Context, next func(huma.Context)) {
	requestOf(hc.Context()).route = hc.Operation().OperationID
	next(hc)
}
