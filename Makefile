# Two commands are all a new machine needs: `make demo` and `make test`.
GO      ?= go
export CGO_ENABLED = 0
GVISOR  := $(shell $(GO) list -m -f '{{.Version}}' gvisor.dev/gvisor 2>/dev/null)
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
# gVisor compares this string when it reads a saved disk back.
SENTRY_LDFLAGS := -s -w -X gvisor.dev/gvisor/runsc/version.version=$(GVISOR)
PARTS   := bin/parts

.PHONY: build demo test check generate clean parts

build: bin/caisson

# The parts that run once per sandbox are lean executables of their own, carried inside the one binary.
parts:
	@mkdir -p $(PARTS)
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(PARTS)/ ./cmd/caisson-shim ./cmd/caisson-guest ./cmd/caisson-base
	$(GO) build -trimpath -ldflags '$(SENTRY_LDFLAGS)' -o $(PARTS)/ ./cmd/caisson-sentry
	$(GO) run ./bundle/pack -out bundle/files -shim $(PARTS)/caisson-shim -sentry $(PARTS)/caisson-sentry \
		-guest $(PARTS)/caisson-guest -base $(PARTS)/caisson-base

.PHONY: bin/caisson
bin/caisson: parts
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/caisson ./cmd/caisson

# What bench compares with: gVisor's own command, from the same module.
.PHONY: runsc
runsc:
	$(GO) build -trimpath -ldflags '$(SENTRY_LDFLAGS)' -o bin/runsc gvisor.dev/gvisor/runsc

demo: build
	@sh deploy/demo.sh

test: build
	@sh test/run.sh

check:
	@sh test/check.sh

generate:
	$(GO) tool -modfile=tools/go.mod buf generate
	$(GO) test ./api/spec/... -update

clean:
	rm -rf bin bundle/files/*.zst bundle/files/manifest.json
