#!/bin/sh
# Installs what the tests need (as root on Debian; an ordinary user is told what will not run) and runs everything.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
export CAISSON_TEST_CACHE="${CAISSON_TEST_CACHE:-$PWD/.cache}"
mkdir -p "$CAISSON_TEST_CACHE"
sh test/install.sh
exec go test -timeout 30m -count=1 ./...
