package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// finding is one thing doctor looked at.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, warn, fail
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

func newDoctor(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Look for what would keep Caisson from working here",
		Long: `Look for what would keep Caisson from working here: ask the server if there is one, and look at this machine if the
server is, or would be, on it. Ends with 1 if something must be fixed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fs := g.askServer(cmd.Context())
			if g.url == "" {
				fs = append(fs, g.lookHere()...)
			}
			failed := false
			for _, f := range fs {
				failed = failed || f.Status == "fail"
			}
			if g.json {
				if err := g.printJSON(fs); err != nil {
					return err
				}
			} else {
				for _, f := range fs {
					fmt.Fprintf(g.out, "%-4s  %-16s %s\n", f.Status, f.Check, printable(f.Detail))
					if f.Fix != "" && f.Status != "ok" {
						fmt.Fprintf(g.out, "      %-16s fix: %s\n", "", f.Fix)
					}
				}
			}
			if failed {
				return &exitError{code: 1}
			}
			return nil
		},
	}
}

func (g *globals) askServer(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := g.client()
	if err != nil {
		return []finding{{"server", "fail", err.Error(), "correct --url or CAISSON_URL"}}
	}
	defer c.Close()
	i, err := c.Info(ctx)
	if err != nil {
		status, fix := "warn", "start one with `caisson serve` (`caisson run` needs none)"
		if g.url != "" {
			status, fix = "fail", "check CAISSON_URL, CAISSON_API_KEY and that the server runs"
		}
		return []finding{{"server", status, err.Error(), fix}}
	}
	fs := []finding{{"server", "ok", fmt.Sprintf("version %s at %s, you are %s", i.Version, c.Server(), i.Principal), ""}}
	for _, d := range i.Drivers {
		f := finding{"driver " + d.Name, "ok", strings.TrimSpace(d.Version + " isolation " + d.Isolation), ""}
		if !d.Available {
			f.Status, f.Detail, f.Fix = "warn", d.Reason, "needed only for sandboxes with --driver "+d.Name
			if d.Name == i.DefaultDriver || i.DefaultDriver == "" {
				f.Status, f.Fix = "fail", "see the reason; `caisson serve` logs more"
			}
		}
		fs = append(fs, f)
	}
	m := finding{"sandbox memory", "ok", fmt.Sprintf("%d of %d MiB given to sandboxes", i.MemoryUsedMiB, i.MemoryMiB), ""}
	if i.MemoryMiB-i.MemoryUsedMiB < 512 {
		m.Status, m.Fix = "warn", "delete sandboxes (caisson ls, caisson rm), or give the server more memory"
	}
	l := finding{"limits", "ok", "cgroup " + i.Cgroup, ""}
	if strings.HasPrefix(i.Cgroup, "none") || i.Cgroup == "" {
		l.Status, l.Detail, l.Fix = "warn", "limits of sandboxes are not enforced by cgroups: "+i.Cgroup, "run the server as root, or in a systemd unit with Delegate=yes"
	}
	return append(fs, m, l)
}

// lookHere checks this machine.
func (g *globals) lookHere() []finding {
	if runtime.GOOS != "linux" {
		return []finding{{"system", "warn", runtime.GOOS + " runs the command line alone", "run the server on Linux and set CAISSON_URL and CAISSON_API_KEY"}}
	}
	return []finding{checkKVM(), checkNamespaces(), checkCgroup(), checkWritable(g.stateDir), checkMemory()}
}

func checkKVM() finding {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		f.Close()
		return finding{"kvm", "ok", "/dev/kvm can be used", ""}
	}
	if os.IsPermission(err) {
		return finding{"kvm", "warn", err.Error(), "add this user to the group kvm; without it sandboxes use gVisor, which needs no KVM"}
	}
	return finding{"kvm", "warn", "no /dev/kvm: sandboxes use gVisor, which needs none", "turn virtualization on in the firmware, or nested virtualization in the cloud, and load kvm_intel or kvm_amd"}
}

func readNumber(path string) (int, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil
}

func checkNamespaces() finding {
	f := finding{Check: "user namespaces", Status: "ok", Detail: "can be made"}
	if os.Geteuid() == 0 {
		f.Detail = "can be made (root)"
	}
	bad := "warn" // root needs none
	if os.Geteuid() != 0 {
		bad = "fail"
	}
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		return finding{f.Check, bad, "the kernel has none", "use a kernel with CONFIG_USER_NS"}
	}
	for _, c := range []struct {
		path string
		off  int
		fix  string
	}{
		{"/proc/sys/user/max_user_namespaces", 0, "sysctl user.max_user_namespaces=15000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", 0, "sysctl kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 1, "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for caisson"},
	} {
		if n, ok := readNumber(c.path); ok && n == c.off && (os.Geteuid() != 0 || strings.HasPrefix(c.path, "/proc/sys/user/")) {
			return finding{f.Check, bad, fmt.Sprintf("%s is %d", c.path, n), c.fix}
		}
	}
	return f
}

func checkCgroup() finding {
	if b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		f := finding{"cgroup", "ok", "v2 with " + strings.TrimSpace(string(b)), ""}
		for _, c := range []string{"memory", "pids", "cpu"} {
			if !strings.Contains(" "+string(b)+" ", c) {
				f.Status, f.Fix = "warn", "the controller "+c+" is missing: limits on it are not enforced from outside"
			}
		}
		return f
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		return finding{"cgroup", "ok", "v1", ""}
	}
	return finding{"cgroup", "warn", "none is mounted at /sys/fs/cgroup", "mount one: mount -t cgroup2 none /sys/fs/cgroup"}
}

// checkWritable looks at the state directory, or at the nearest parent there is.
func checkWritable(dir string) finding {
	at := dir
	for {
		if st, err := os.Stat(at); err == nil {
			if !st.IsDir() {
				return finding{"state directory", "fail", at + " is not a directory", "choose another with --state-dir"}
			}
			break
		}
		if at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	f, err := os.CreateTemp(at, ".caisson-doctor-")
	if err != nil {
		return finding{"state directory", "fail", err.Error(), "choose one that this user can write with --state-dir, or change its owner"}
	}
	f.Close()
	os.Remove(f.Name())
	if inMemory(at) {
		return finding{"state directory", "warn", at + " is in memory (tmpfs): sandboxes are lost when the host restarts, and what they write counts as their memory", "choose a directory on a disk with --state-dir"}
	}
	return finding{"state directory", "ok", dir + " can be written", ""}
}

func checkMemory() finding {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return finding{"memory", "warn", err.Error(), "mount /proc"}
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		var kb int
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
			f := finding{"memory", "ok", fmt.Sprintf("%d MiB available", kb>>10), ""}
			if kb>>10 < 1024 {
				f.Status, f.Fix = "warn", "a sandbox has 512 MiB by default: free some memory, or create with --memory 128m"
			}
			return f
		}
	}
	return finding{"memory", "warn", "the kernel does not say how much is available", ""}
}
