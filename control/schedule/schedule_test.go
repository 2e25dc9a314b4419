package schedule

import (
	"strings"
	"testing"

	"github.com/caisson-sandbox/caisson"
)

func TestPlace(t *testing.T) {
	good, bad := Driver{Name: "gvisor"}, Driver{Name: "firecracker", Err: "no /dev/kvm"}
	v := View{Drivers: []Driver{bad, good}, Default: "gvisor", MemoryMiB: 1000, MemoryUsedMiB: 600}
	for _, c := range []struct {
		name string
		v    View
		r    Request
		want string
		kind caisson.Kind
		text string
	}{
		{"default", v, Request{MemoryMiB: 400}, "gvisor", "", ""},
		{"named", v, Request{Driver: "gvisor", MemoryMiB: 1}, "gvisor", "", ""},
		{"full", v, Request{MemoryMiB: 401}, "", caisson.Exhausted, "400 MiB are free"},
		{"never", v, Request{MemoryMiB: 1001}, "", caisson.Exhausted, "1000 MiB"},
		{"cannot", v, Request{Driver: "firecracker", MemoryMiB: 1}, "", caisson.Unsupported, "no /dev/kvm"},
		{"unknown", v, Request{Driver: "docker", MemoryMiB: 1}, "", caisson.Unsupported, "no such driver"},
		{"none", View{Drivers: []Driver{bad}}, Request{MemoryMiB: 1}, "", caisson.Unsupported, "no /dev/kvm"},
		{"nothing", View{}, Request{}, "", caisson.Unsupported, "no driver"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Place(c.v, c.r)
			if d.Name != c.want || caisson.KindOf(err) != c.kind || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

func FuzzPlace(f *testing.F) {
	f.Add("gvisor", "gvisor", "", 100, 50, 60)
	f.Fuzz(func(t *testing.T, def, have, want string, total, used, ask int) {
		d, err := Place(View{Drivers: []Driver{{Name: have}}, Default: def, MemoryMiB: total, MemoryUsedMiB: used}, Request{Driver: want, MemoryMiB: ask})
		if err == nil && total > 0 && ask > 0 && used >= 0 && used <= 1<<40 && (ask > total || used > total-ask) {
			t.Errorf("placed %v: %d of %d are used, %d are asked for", d, used, total, ask)
		}
	})
}
