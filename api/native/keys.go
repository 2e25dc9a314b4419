package native

import (
	"context"
	"fmt"
	"net/http"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

type keyInput struct{ Body v1.KeyCreate }
type keyOutput struct{ Body v1.Key }
type keyListOutput struct{ Body v1.KeyList }
type keyPath struct {
	ID string `path:"key" doc:"The key's id." maxLength:"64"`
}

func (s *server) keyRoutes() {
	const tag = "keys"
	add(s, caisson.ScopeAdmin, route{id: "createKey", method: http.MethodPost, path: "/v1/keys", tag: tag, summary: "Make an API key", status: http.StatusCreated, errors: []int{409},
		text: "The answer has the key itself, once: the server keeps a hash of it."},
		func(ctx context.Context, p caisson.Principal, in *keyInput) (*keyOutput, error) {
			var scopes []caisson.Scope
			for _, sc := range in.Body.Scopes {
				switch sc := caisson.Scope(sc); sc {
				case caisson.ScopeRead, caisson.ScopeWrite, caisson.ScopeAdmin:
					scopes = append(scopes, sc)
				default:
					return nil, invalid("create key", "", fmt.Sprintf("%q is not a scope", clip(string(sc), 32)), "read, write and admin are")
				}
			}
			if in.Body.TTL < 0 {
				return nil, invalid("create key", "", "ttl is negative", "0 means until deleted")
			}
			k, text, err := s.cfg.Keys.Create(ctx, p.Team, in.Body.Name, scopes, in.Body.TTL.D())
			if err != nil {
				return nil, err
			}
			out := &keyOutput{Body: keyOut(k)}
			out.Body.Key = text
			return out, nil
		})
	add(s, caisson.ScopeAdmin, route{id: "listKeys", method: http.MethodGet, path: "/v1/keys", tag: tag, summary: "List API keys"},
		func(ctx context.Context, p caisson.Principal, _ *struct{}) (*keyListOutput, error) {
			ks, err := s.cfg.Keys.List(ctx, p.Team)
			if err != nil {
				return nil, err
			}
			out := &keyListOutput{Body: v1.KeyList{Keys: make([]v1.Key, 0, len(ks))}}
			for _, k := range ks {
				out.Body.Keys = append(out.Body.Keys, keyOut(k))
			}
			return out, nil
		})
	add(s, caisson.ScopeAdmin, route{id: "deleteKey", method: http.MethodDelete, path: "/v1/keys/{key}", tag: tag, summary: "Delete an API key", status: http.StatusNoContent,
		text: "Requests with it are refused from now on; streams that are open go on."},
		func(ctx context.Context, p caisson.Principal, in *keyPath) (*struct{}, error) {
			return nil, s.cfg.Keys.Delete(ctx, p.Team, caisson.KeyID(in.ID))
		})
}
