// Package spec holds the OpenAPI document of the native API, generated and committed, and the page that shows it.
//
// `go test ./api/spec/... -update` writes openapi.json from the Go types; without -update the test fails when it is stale.
// The page fetches /openapi.json from the server it came from, and needs nothing else.
package spec

import _ "embed"

// JSON is the OpenAPI 3.1 document.
//
//go:embed openapi.json
var JSON []byte

// Reference is an HTML page that shows the document at /openapi.json.
//
//go:embed reference.html
var Reference []byte
