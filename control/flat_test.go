package control

import (
	"context"
	"testing"

	"github.com/caisson-sandbox/caisson"
)

// BenchmarkCreate shows that a create costs the same among many records.
func BenchmarkCreate(b *testing.B) {
	for _, c := range []struct {
		name string
		rows int
	}{{"among 1", 1}, {"among 10000", 10000}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b)
			ctx := context.Background()
			for range c.rows {
				sb := caisson.Sandbox{ID: caisson.NewSandboxID(), Team: caisson.DefaultTeam, State: caisson.Stopped, Epoch: 1, Config: caisson.SandboxConfig{Resources: caisson.Resources{}.WithDefaults()}}
				if _, _, err := r.store.Sandboxes().Create(ctx, sb, nil); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				sb, _, err := r.Create(ctx, caisson.DefaultTeam, caisson.SandboxConfig{}, "")
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := r.Delete(ctx, caisson.DefaultTeam, string(sb.ID)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
