package fake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/machine/fake"
	"github.com/caisson-sandbox/caisson/machine/machinetest"
)

func TestContract(t *testing.T) {
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	machinetest.Run(t, machinetest.Config{
		Driver: func(*testing.T) machine.Driver { return &fake.Driver{} }, Root: image, Agent: image,
	})
}
