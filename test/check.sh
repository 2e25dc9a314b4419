#!/bin/sh
# Format, vet, staticcheck, and that generated files are fresh.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
echo "== gofmt"
bad=$(gofmt -l $(git ls-files '*.go'))
[ -z "$bad" ] || { echo "not formatted:"; echo "$bad"; exit 1; }
echo "== go vet"
go vet ./...
echo "== staticcheck"
go tool -modfile=tools/go.mod staticcheck ./...
echo "== generated files"
gen() { cat guest/wire/*.go shim/wire/*.go | sha256sum; }
before=$(gen)
go tool -modfile=tools/go.mod buf generate
[ "$before" = "$(gen)" ] || { echo "generated protocol code was stale: commit what 'make generate' wrote"; git diff --stat -- guest/wire shim/wire; exit 1; }
echo "== builds elsewhere"
for os in darwin windows; do GOOS=$os go build -o /dev/null ./client ./api/v1; done
echo "check passed"
