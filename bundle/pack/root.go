package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-sandbox/caisson/image/rootfs"
)

// dirMode is the type of a directory in a mode.
const dirMode = 0x4000

// guestFiles is the image the agent starts from.
func guestFiles(guest string) ([]rootfs.File, error) {
	b, err := os.ReadFile(guest)
	if err != nil {
		return nil, err
	}
	return []rootfs.File{dir("/", 0o755), {Path: "caisson-guest", Mode: 0o755, Data: b}}, nil
}

// baseFiles is the smallest root filesystem that people recognize as a Linux system, around one executable.
func baseFiles(base string) ([]rootfs.File, error) {
	b, err := os.ReadFile(base)
	if err != nil {
		return nil, err
	}
	files := []rootfs.File{
		dir("/", 0o755),
		dir("root", 0o700),
		dir("tmp", 0o1777),
		dir("var/tmp", 0o1777),
		dir("home", 0o755),
		{Path: "home/user", Mode: dirMode | 0o755, UID: 1000, GID: 1000},
	}
	for _, p := range []string{"bin", "dev", "etc", "mnt", "opt", "proc", "run", "srv", "sys", "usr", "usr/local", "usr/local/bin",
		"var", "var/log", ".caisson"} {
		files = append(files, dir(p, 0o755))
	}
	for p, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n" +
			"nobody:x:65534:65534:nobody:/:/bin/false\n" +
			"user:x:1000:1000:user:/home/user:/bin/sh\n",
		"etc/group":         "root:x:0:\ntty:x:5:\nnogroup:x:65534:\nuser:x:1000:\n",
		"etc/hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"etc/os-release":    "NAME=\"Caisson base\"\nID=caisson-base\nPRETTY_NAME=\"Caisson base\"\n",
		"etc/profile":       "export PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}\n",
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
		"etc/resolv.conf":   "",
	} {
		files = append(files, rootfs.File{Path: p, Mode: 0o644, Data: []byte(text)})
	}
	files = append(files,
		rootfs.File{Path: "bin/caisson-base", Mode: 0o755, Data: b},
		link("usr/bin", "../bin"), link("sbin", "bin"), link("usr/sbin", "../bin"))
	for _, name := range append(applets(base), "sh", "bash") {
		if name != "" && name != "." && name != ".." && name != "caisson-base" && !strings.Contains(name, "/") {
			files = append(files, link("bin/"+name, "caisson-base"))
		}
	}
	// In order, since contents go to the image as they come and the same input shall give the same image. A later link
	// that repeats a name would only waste a block.
	slices.SortFunc(files, func(a, b rootfs.File) int { return strings.Compare(clean(a.Path), clean(b.Path)) })
	return slices.CompactFunc(files, func(a, b rootfs.File) bool { return clean(a.Path) == clean(b.Path) }), nil
}

// applets asks the executable for the names it goes by. One that cannot tell is a shell.
func applets(base string) []string {
	abs, err := filepath.Abs(base)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, abs, "--applets").Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(out))
}

func dir(path string, mode uint32) rootfs.File { return rootfs.File{Path: path, Mode: dirMode | mode} }

func link(path, target string) rootfs.File {
	return rootfs.File{Path: path, Mode: 0o777, Target: target}
}

func clean(path string) string { return filepath.ToSlash(filepath.Clean("/" + path)) }
