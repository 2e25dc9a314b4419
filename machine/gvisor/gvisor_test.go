package gvisor_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-sandbox/caisson/bundle"
	"github.com/caisson-sandbox/caisson/machine"
	"github.com/caisson-sandbox/caisson/machine/gvisor"
	"github.com/caisson-sandbox/caisson/machine/machinetest"
)

// parts are the sentry, the base root and the agent, as the product unpacks them.
func parts(t *testing.T) (sentry, root, agent string) {
	t.Helper()
	dir := t.TempDir()
	p, err := bundle.Unpack(dir)
	if err != nil {
		t.Fatalf("%v; run `make parts`", err)
	}
	r, _, _, err := bundle.Base()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	root = filepath.Join(dir, "base.erofs")
	f, err := os.OpenFile(root, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		t.Fatal(err)
	}
	return p.Sentry, root, p.Guest
}

func TestContract(t *testing.T) {
	sentry, root, agent := parts(t)
	machinetest.Run(t, machinetest.Config{
		Driver: func(*testing.T) machine.Driver { return gvisor.New(gvisor.Config{Sentry: sentry}) }, Root: root, Agent: agent,
	})
}

func TestCheck(t *testing.T) {
	sentry, _, _ := parts(t)
	if err := gvisor.New(gvisor.Config{Sentry: sentry}).Check(context.Background()); err != nil {
		t.Error(err)
	}
	if err := gvisor.New(gvisor.Config{Sentry: "/nowhere"}).Check(context.Background()); err == nil {
		t.Error("a missing sentry passes")
	}
}

// TestVersion holds the constant to what is linked.
func TestVersion(t *testing.T) {
	b, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`gvisor\.dev/gvisor v0\.0\.0-(\d{8})`).FindSubmatch(b)
	if m == nil || string(m[1])+".0" != gvisor.Version {
		t.Errorf("gvisor.Version is %s, go.mod has %s", gvisor.Version, m)
	}
}

// TestConfinement reads /proc to say what a sentry holds: no capability, its seccomp filter, and no file but its own.
func TestConfinement(t *testing.T) {
	sentry, root, agent := parts(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	dir := t.TempDir()
	os.Chmod(dir, 0o700)
	m, err := gvisor.New(gvisor.Config{Sentry: sentry}).Start(context.Background(), machine.Spec{
		ID: "sbconfinement", Dir: dir, VCPUs: 1, MemoryMiB: 128, DiskMiB: 64, PIDs: 64, Root: root, Agent: agent, Hostname: "x", Console: "console.log",
		Link: machine.Link{File: os.NewFile(uintptr(fds[1]), "nic"), MTU: 1500, Address: "10.0.2.2/24", Gateway: "10.0.2.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	time.Sleep(300 * time.Millisecond) // the agent runs
	st, err := m.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`CapEff:\t0{16}\n`, `CapPrm:\t0{16}\n`, `CapBnd:\t0{16}\n`, `CapInh:\t0{16}\n`, `CapAmb:\t0{16}\n`, `NoNewPrivs:\t1\n`, `Seccomp:\t2\n`} {
		if !regexp.MustCompile(want).Match(status) {
			t.Errorf("the sentry's status does not match %s:\n%s", want, status)
		}
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", st.PID))
	if err != nil || len(links) == 0 {
		if os.Geteuid() != 0 {
			t.Skip("an ordinary user may not list the descriptors of a sentry")
		}
		t.Fatal("no descriptors can be listed")
	}
	own := []string{"pipe:", "socket:", "anon_inode:", "/memfd:", "/proc", "/sys/devices/system/cpu"}
	// Files are told by what they are: a sentry that left a chroot has other names for them.
	var files []os.FileInfo
	for _, name := range []string{"/dev/null", root, agent, filepath.Join(dir, "sentry.log")} {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, st)
	}
	for _, l := range links {
		target, err := os.Readlink(l)
		if err != nil {
			continue
		}
		ok := strings.HasSuffix(target, "(deleted)") // the writable layer has no name
		for _, a := range own {
			ok = ok || strings.HasPrefix(target, a)
		}
		if st, err := os.Stat(l); err == nil {
			for _, f := range files {
				ok = ok || os.SameFile(st, f)
			}
		}
		if !ok {
			t.Errorf("the sentry holds %s (descriptor %s)", target, filepath.Base(l))
		}
		t.Logf("%s → %s", filepath.Base(l), target)
	}
}
