package control

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/caisson-sandbox/caisson"
)

// Limits of a configuration; those of Resources are with their docs in package caisson.
const (
	maxMetadata      = 64
	maxMetadataKey   = 128
	maxMetadataValue = 1 << 10
	maxEnv           = 128 << 10 // bytes of names and values together
	maxText          = 4096      // bytes of user and directory
	maxIdempotency   = 128
)

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// validate reports all that is wrong with a configuration.
func validate(cfg caisson.SandboxConfig, idempotencyKey string) error {
	var bad []string
	no := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if n := cfg.Name; n != "" && !nameForm.MatchString(n) {
		no("name: lower-case letters, digits and dashes, at most 63, neither end a dash")
	} else if caisson.SandboxID(n).Valid() {
		no("name: it has the form of an id")
	}
	if len(cfg.Metadata) > maxMetadata {
		no("metadata: %d entries, at most %d", len(cfg.Metadata), maxMetadata)
	}
	for k, v := range cfg.Metadata {
		if k == "" || len(k) > maxMetadataKey || len(v) > maxMetadataValue {
			no("metadata %.40q: keys have 1 to %d bytes, values at most %d", k, maxMetadataKey, maxMetadataValue)
		}
	}
	size := 0
	for k, v := range cfg.Env {
		size += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			no("env %.40q: names are not empty and without '=', values without NUL", k)
		}
	}
	if size > maxEnv {
		no("env: %d bytes, at most %d", size, maxEnv)
	}
	for _, r := range []struct {
		name          string
		n, least, top int
	}{
		{"vcpus", cfg.Resources.VCPUs, 1, 64}, {"memory_mib", cfg.Resources.MemoryMiB, 64, 16 << 20},
		{"disk_mib", cfg.Resources.DiskMiB, 16, 1 << 30}, {"pids", cfg.Resources.PIDs, 16, 4 << 20},
	} {
		if r.n != 0 && (r.n < r.least || r.n > r.top) {
			no("resources.%s: %d is not from %d to %d", r.name, r.n, r.least, r.top)
		}
	}
	if cfg.MaxLifetime < 0 {
		no("max_lifetime: negative")
	}
	for name, v := range map[string]string{"user": cfg.User, "cwd": cfg.Cwd} {
		if len(v) > maxText || strings.Contains(v, "\x00") {
			no("%s: at most %d bytes, without NUL", name, maxText)
		}
	}
	if len(idempotencyKey) > maxIdempotency {
		no("idempotency key: at most %d bytes", maxIdempotency)
	}
	if len(bad) == 0 {
		return nil
	}
	return caisson.E(caisson.Invalid, "check sandbox", cfg.Name, strings.Join(bad, "; "), nil)
}

// withDefaults fills in what the template and the product say.
func withDefaults(cfg caisson.SandboxConfig, t caisson.Template) caisson.SandboxConfig {
	cfg.Resources = cfg.Resources.WithDefaults()
	if cfg.User == "" {
		cfg.User = t.User
	}
	if cfg.Cwd == "" {
		cfg.Cwd = t.Cwd
	}
	if len(t.Env) > 0 {
		env := map[string]string{}
		for _, m := range []map[string]string{t.Env, cfg.Env} {
			for k, v := range m {
				env[k] = v
			}
		}
		cfg.Env = env
	}
	return cfg
}
