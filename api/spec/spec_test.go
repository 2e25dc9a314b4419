package spec_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/caisson-sandbox/caisson/api/native"
	"github.com/caisson-sandbox/caisson/api/spec"
)

var update = flag.Bool("update", false, "write openapi.json")

func TestDocumentIsFresh(t *testing.T) {
	got, err := native.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("openapi.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(got, spec.JSON) {
		t.Fatal("openapi.json is stale; run: go test ./api/spec/... -update")
	}
}

type operation struct {
	OperationID string `json:"operationId"`
	Summary     string
	Security    []map[string][]string
	Parameters  []struct{ Name, Description string }
	Responses   map[string]struct {
		Description string
		Content     map[string]struct{ Schema json.RawMessage }
	}
}

type schema struct {
	Description string
	Ref         string `json:"$ref"`
	Properties  map[string]schema
}

// TestEverythingIsDescribed: a field, parameter or operation without words, or a route without a scope that is not one of
// the four public ones, does not pass.
func TestEverythingIsDescribed(t *testing.T) {
	b, err := native.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths      map[string]map[string]operation
		Components struct{ Schemas map[string]schema }
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	open := map[string]bool{"healthz": true, "readyz": true, "openapi": true, "docs": true}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			name := method + " " + path
			if op.Summary == "" || op.OperationID == "" {
				t.Errorf("%s has no summary or id", name)
			}
			if len(op.Security) == 0 && !open[op.OperationID] {
				t.Errorf("%s needs no key", name)
			}
			for _, p := range op.Parameters {
				if p.Description == "" {
					t.Errorf("%s: parameter %s is not described", name, p.Name)
				}
			}
			for status, r := range op.Responses {
				if strings.HasPrefix(status, "2") && status != "204" && len(r.Content) == 0 {
					t.Errorf("%s: what %s holds is not described", name, status)
				}
			}
		}
	}
	for name, s := range doc.Components.Schemas {
		for f, p := range s.Properties {
			if p.Description == "" && p.Ref == "" {
				t.Errorf("field %s.%s is not described", name, f)
			}
		}
	}
}

// TestPageNeedsNoNetwork: nothing in the page may point elsewhere.
func TestPageNeedsNoNetwork(t *testing.T) {
	for _, bad := range []string{"http://", "https://", "//cdn", "@import", "src=\""} {
		if bytes.Contains(spec.Reference, []byte(bad)) {
			t.Errorf("reference.html contains %q", bad)
		}
	}
}
