package caller

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/sandbox"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/caisson-sandbox/caisson/machine/gvisor/wire"
)

// agentMount is where the agent's image is mounted in the guest.
const agentMount = "/.caisson"

// start makes a sentry and runs the agent in it; it returns the sentry's pid. On an error no sentry is left.
func start(req wire.Request, next func(string)) (pid int, err error) {
	next("prepare")
	for _, g := range req.Cgroups {
		if err := os.WriteFile(filepath.Join(g, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return 0, fmt.Errorf("enter cgroup: %w", err)
		}
	}
	conf, err := configure()
	if err != nil {
		return 0, err
	}
	if err := sandbox.SetCloExeOnAllFDs(); err != nil {
		return 0, fmt.Errorf("set close-on-exec: %w", err)
	}
	// The library closes nothing that is open and not close-on-exec, so the lifeline reaches the sentry.
	if err := plantLifeline(); err != nil {
		return 0, fmt.Errorf("plant lifeline: %w", err)
	}
	if err := stdio(); err != nil {
		return 0, err
	}
	images, err := openImages(req)
	if err != nil {
		return 0, err
	}
	next("sentry")
	sb, err := newSentry(conf, req, images)
	if err != nil {
		return 0, fmt.Errorf("start sentry: %w%s", err, lastLog())
	}
	defer func() {
		if err != nil {
			unix.Kill(sb.Pid.Load(), unix.SIGKILL)
		}
	}()
	next("boot")
	conn, err := client.ConnectTo(sb.ControlSocketPath)
	if err != nil {
		return 0, fmt.Errorf("connect to sentry: %w", err)
	}
	defer conn.Close()
	netArgs, err := network(req)
	if err != nil {
		return 0, err
	}
	if err := conn.Call(boot.ContMgrSetNetworkArgs, netArgs, nil); err != nil {
		return 0, fmt.Errorf("set up network: %w", err)
	}
	if err := conn.Call(boot.ContMgrRootContainerStart, &sb.ID, nil); err != nil {
		return 0, fmt.Errorf("start agent: %w%s", err, lastLog())
	}
	runtime.KeepAlive(sb)
	return sb.Pid.Load(), nil
}

// openImages opens what the sentry maps.
func openImages(req wire.Request) ([]*os.File, error) {
	var all []*os.File
	for _, image := range []string{req.Root, req.Agent} {
		f, err := os.Open(image)
		if err != nil {
			return nil, fmt.Errorf("open image: %w", err)
		}
		all = append(all, f)
	}
	return all, nil
}

// newSentry makes the sentry's process.
func newSentry(conf *config.Config, req wire.Request, images []*os.File) (*sandbox.Sandbox, error) {
	spec, err := writeBundle(req)
	if err != nil {
		return nil, err
	}
	args := &sandbox.Args{
		ID:         req.ID,
		Spec:       spec,
		BundleDir:  bundleDir,
		Cgroup:     limits{cpus: max(req.VCPUs, leastCPUs), memory: uint64(req.MemoryMiB) << 20},
		MountHints: &boot.PodMountHints{},
		GoferMountConfs: specutils.GoferMountConfFlags{
			{Lower: specutils.Erofs, Upper: specutils.AnonOverlay, Size: strconv.Itoa(req.DiskMiB) + "m"},
			{Lower: specutils.Erofs, Upper: specutils.NoOverlay},
		},
		FSRestoreImagePath: req.DiskImage,
	}
	args.IOFiles = images
	store, err := filestore()
	if err != nil {
		return nil, err
	}
	args.GoferFilestoreFiles = []*os.File{store}
	return sandbox.New(conf, args)
}

const (
	bundleDir = "bundle"
	sentryLog = "sentry.log" // warnings of the call, and the reason of a panic of the sentry
)

// configure makes the library's configuration. State lies in the working directory, by a relative name, because the
// control socket's path must stay short.
func configure() (*config.Config, error) {
	f, err := os.OpenFile(sentryLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: f}})
	log.SetLevel(log.Warning)
	fs := flag.NewFlagSet("gvisor", flag.ContinueOnError)
	config.RegisterFlags(fs)
	args := []string{
		"--root=.", "--platform=systrap", "--network=none", "--directfs=false", "--host-settings=ignore",
		"--overlay2=none", "--ignore-cgroups=true", "--log=/dev/null", "--panic-log=" + sentryLog,
		"--oci-seccomp=false", "--net-raw=false", "--host-uds=none", "--host-fifo=none",
	}
	if os.Geteuid() != 0 {
		args = append(args, "--rootless")
	}
	if err := fs.Parse(args); err != nil {
		return nil, fmt.Errorf("gVisor flags: %w", err)
	}
	return config.NewFromFlags(fs)
}

// stdio sets what becomes the standard streams of the agent. The console is a pipe, so that what the guest prints is
// bounded by who reads it; the reader lives exactly as long as the sentry may.
func stdio() error {
	null, err := os.OpenFile("/dev/null", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	console := os.NewFile(wire.ConsoleFD, "console")
	os.Stdin, os.Stdout, os.Stderr = null, console, console
	return nil
}

// filestore makes the file that holds the writable layer. It has no name, so nothing is left of it when the sentry ends.
func filestore() (*os.File, error) {
	fd, err := unix.Open(".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "disk"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("make disk file: %w", err)
	}
	f, err := os.CreateTemp(".", "disk")
	if err != nil {
		return nil, fmt.Errorf("make disk file: %w", err)
	}
	return f, os.Remove(f.Name())
}

func network(req wire.Request) (*boot.CreateLinksAndRoutesArgs, error) {
	ip, subnet, err := net.ParseCIDR(req.Address)
	if err != nil {
		return nil, fmt.Errorf("guest address: %w", err)
	}
	gw := net.ParseIP(req.Gateway).To4()
	if ip.To4() == nil || gw == nil {
		return nil, fmt.Errorf("guest address %s, gateway %s: must be IPv4", req.Address, req.Gateway)
	}
	ones, _ := subnet.Mask.Size()
	link := boot.FDBasedLink{
		Name: "eth0", MTU: req.MTU, NumChannels: 1,
		Addresses:  []boot.IPWithPrefix{{Address: ip.To4(), PrefixLen: ones}},
		Routes:     []boot.Route{{Destination: *subnet}},
		GSOMaxSize: stack.GVisorGSOMaxSize, GVisorGSOEnabled: true,
		TXChecksumOffload: true, RXChecksumOffload: true, QDisc: config.QDiscNone,
	}
	return &boot.CreateLinksAndRoutesArgs{
		LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
		FDBasedLinks:  []boot.FDBasedLink{link},
		Defaultv4Gateway: boot.DefaultRoute{Name: "eth0", Route: boot.Route{
			Destination: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Gateway: gw}},
		FilePayload: urpc.FilePayload{Files: []*os.File{os.NewFile(wire.NICFD, "nic")}},
	}, nil
}

// writeBundle writes the OCI bundle the sentry reads. The agent gets every capability but those that would open raw
// sockets on the link; the guest's root is the adversary in any case, the boundary is the sentry.
func writeBundle(req wire.Request) (*specs.Spec, error) {
	if err := os.MkdirAll(filepath.Join(bundleDir, "rootfs"), 0o700); err != nil {
		return nil, fmt.Errorf("make bundle: %w", err)
	}
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	caps := guestCapabilities()
	spec := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args: append([]string{agentMount + "/caisson-guest"}, req.AgentArgs...),
			Cwd:  "/",
			Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: caps, Effective: caps, Permitted: caps,
			},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1 << 20}},
		},
		Root:     &specs.Root{Path: filepath.Join(wd, bundleDir, "rootfs")},
		Hostname: req.Hostname,
		Annotations: map[string]string{
			"dev.gvisor.spec.rootfs.source":  req.Root,
			"dev.gvisor.spec.rootfs.type":    "erofs",
			"dev.gvisor.spec.rootfs.overlay": "memory",
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: agentMount, Type: "erofs", Source: req.Agent, Options: []string{"ro"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(bundleDir, "config.json"), b, 0o600); err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	return spec, nil
}

func guestCapabilities() []string {
	return []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
		"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE",
		"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT",
		"CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG",
	}
}

// lastLog is the end of the sentry's log, for an error text.
func lastLog() string {
	b, err := os.ReadFile(sentryLog)
	if err != nil || len(b) == 0 {
		return ""
	}
	const most = 2000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return "; sentry: " + string(b)
}
