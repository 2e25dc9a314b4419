package caisson_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/caisson-sandbox/caisson"

// rooms says which rooms a room may import, by their paths below the module; "caisson" is the root package. A room that
// is not here fails: a new room is decided, not accreted. "internal" stands for every package below internal/.
var rooms = map[string][]string{
	"caisson": {},

	"api/v1":     {},
	"api/native": {"caisson", "api/v1", "api/spec", "internal"},
	"api/spec":   {"caisson", "api/v1", "internal"},
	"client":     {"api/v1", "internal"},
	"ingress":    {"caisson", "api/v1", "internal"},

	"control":           {"caisson", "store", "node", "control/lifecycle", "control/schedule", "internal"},
	"control/lifecycle": {"caisson"},
	"control/schedule":  {"caisson"},
	"store":             {"caisson"},
	"store/sqlite":      {"caisson", "store", "internal"},
	"store/storetest":   {"caisson", "store"},

	"node":       {"caisson", "machine", "guest/wire", "shim/wire", "transcript", "internal"},
	"transcript": {"caisson", "internal"},

	"shim":            {"caisson", "machine", "egress/netstack", "guest/dial", "guest/wire", "shim/wire", "transcript", "internal"},
	"shim/wire":       {},
	"egress/netstack": {"caisson", "internal"},
	"guest/wire":      {},
	"guest/agent":     {"guest/wire", "internal"},
	"guest/dial":      {"caisson", "guest/wire", "internal"},

	"machine":                          {"caisson"},
	"machine/machinetest":              {"caisson", "machine"},
	"machine/fake":                     {"caisson", "machine"},
	"machine/gvisor":                   {"caisson", "machine", "machine/gvisor/wire", "internal"},
	"machine/gvisor/wire":              {},
	"machine/gvisor/caller":            {"machine/gvisor/wire", "internal"},
	"machine/gvisor/caller/precompile": {},

	"image":        {"caisson", "image/rootfs", "internal"},
	"image/rootfs": {"caisson", "internal"},
	"bundle":       {"caisson", "internal"},
	"bundle/pack":  {"caisson", "bundle", "image/rootfs", "internal"},
	"bench":        {"api/v1", "client", "internal"},

	"cmd/caisson":        {"*"},
	"cmd/caisson-shim":   {"caisson", "shim", "shim/wire", "machine", "machine/gvisor", "internal"},
	"cmd/caisson-sentry": {"machine/gvisor/caller"},
	"cmd/caisson-guest":  {"guest/agent", "internal"},
	"cmd/caisson-base":   {"internal"},

	"test/testkit": {"*"},
	"test/e2e":     {"*"},
}

// internalRooms may import the standard library, other modules and each other, never a noun.
const internalRooms = "internal/"

// file is one parsed Go file of the module.
type file struct {
	path string // relative
	room string
	ast  *ast.File
	test bool
}

// files parses every Go file itself: what `go list` says is hidden by the test cache.
func files(t *testing.T) []file {
	t.Helper()
	var all []file
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "node_modules" || p == "tools") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		room := filepath.ToSlash(filepath.Dir(p))
		if room == "." {
			room = "caisson"
		}
		all = append(all, file{path: p, room: room, ast: f, test: strings.HasSuffix(name, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRoomsImportWhatTheyMay holds every package to the table.
func TestRoomsImportWhatTheyMay(t *testing.T) {
	used := map[string]bool{}
	for _, f := range files(t) {
		allowed, ok := rooms[f.room]
		if strings.HasPrefix(f.room, internalRooms) {
			allowed, ok = []string{"internal"}, true
		}
		if !ok {
			t.Errorf("%s: room %q is not in the table of rooms_test.go; decide where it belongs", f.path, f.room)
			continue
		}
		used[f.room] = true
		if f.test {
			continue // tests may use the suites and fakes of other rooms
		}
		for _, im := range f.ast.Imports {
			target, ok := strings.CutPrefix(strings.Trim(im.Path.Value, `"`), module)
			if !ok {
				continue
			}
			target = strings.TrimPrefix(target, "/")
			if target == "" {
				target = "caisson"
			}
			if strings.HasPrefix(target, internalRooms) {
				target = "internal"
			}
			if target != f.room && !slices.Contains(allowed, target) && !slices.Contains(allowed, "*") {
				t.Errorf("%s: room %s may not import %s", f.path, f.room, target)
			}
		}
	}
	for room := range rooms {
		if !used[room] {
			t.Errorf("room %q is in the table and has no Go file", room)
		}
	}
}

// TestRootImportsOnlyTheStandardLibrary holds for the rooms that must stay light.
func TestRootImportsOnlyTheStandardLibrary(t *testing.T) {
	for _, f := range files(t) {
		if f.test || f.room != "caisson" && f.room != "api/v1" && f.room != "control/lifecycle" && f.room != "control/schedule" {
			continue
		}
		for _, im := range f.ast.Imports {
			p := strings.Trim(im.Path.Value, `"`)
			if first, _, _ := strings.Cut(p, "/"); strings.Contains(first, ".") && !strings.HasPrefix(p, module) {
				t.Errorf("%s imports %s", f.path, p)
			}
		}
	}
}

// TestPureRoomsAskNothing: what may follow what, and what goes where, are functions of their arguments.
func TestPureRoomsAskNothing(t *testing.T) {
	for _, f := range files(t) {
		if f.test || f.room != "control/lifecycle" && f.room != "control/schedule" {
			continue
		}
		for _, im := range f.ast.Imports {
			switch p := strings.Trim(im.Path.Value, `"`); p {
			case "os", "net", "context", "net/http", "math/rand", "math/rand/v2", "crypto/rand":
				t.Errorf("%s imports %s", f.path, p)
			}
		}
	}
}

// TestEveryPackageIsDocumented wants a package comment on every package that is not only tests.
func TestEveryPackageIsDocumented(t *testing.T) {
	documented, path := map[string]bool{}, map[string]string{}
	for _, f := range files(t) {
		if f.test {
			continue
		}
		path[f.room] = f.path
		if f.ast.Doc != nil && len(strings.TrimSpace(f.ast.Doc.Text())) > 20 {
			documented[f.room] = true
		}
	}
	for room, p := range path {
		if !documented[room] {
			t.Errorf("package %s has no package comment (%s)", room, p)
		}
	}
}

// TestNothingOfThisMachineIsCommitted looks for paths of a developer's machine and registry addresses in tracked text.
func TestNothingOfThisMachineIsCommitted(t *testing.T) {
	bad := []string{"/ho" + "me/runner", "/wo" + "rk/main", "/Us" + "ers/", `"resolved": "ht` + `tp`, "proxy.go" + "lang.org", "registry.np" + "mjs.org", "deb.deb" + "ian.org"}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" || p == "bin" || p == filepath.Join("bundle", "files")) {
				return filepath.SkipDir
			}
			return nil
		}
		if st, err := d.Info(); err != nil || st.Size() > 1<<20 || !st.Mode().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		for _, s := range bad {
			if strings.Contains(string(b), s) {
				t.Errorf("%s contains %q", p, s)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
