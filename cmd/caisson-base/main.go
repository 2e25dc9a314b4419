// Command caisson-base is the userland of the template "base": a shell and the usual tools in one static executable, so
// that a sandbox without a distribution is still a usable Linux.
//
// The base name of argv[0] chooses the applet, so a tree of symlinks is a /bin. Called as caisson-base, it takes the
// applet as its first argument; --applets lists them.
//
// The shell is mvdan.cc/sh with what that leaves out: real background processes with real pids, kill, wait, printf,
// signal traps. Applets that the shell meets in PATH run inside its process, since starting a Go program costs some
// 15 ms in gVisor; an applet therefore never touches process state (cwd, environment, os.Stdout), only its call.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// applet runs one command and returns its exit status.
type applet func(c *call) int

// applets is filled by main and not by an initializer: the functions refer back to it.
var applets map[string]applet

// ownProcess lists the applets that the shell starts as processes even in the foreground: they run long, or until they
// are killed, and a script or a person wants to see and signal them.
var ownProcess = map[string]bool{
	"sh": true, "bash": true, "httpd": true, "nc": true, "nohup": true, "setsid": true,
	"stty": true, "reset": true, "watch": true,
}

func main() {
	applets = table()
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	name = strings.TrimPrefix(name, "-") // a login shell
	if _, ok := applets[name]; !ok {
		if len(args) == 0 {
			fmt.Fprintln(os.Stderr, "usage: caisson-base APPLET [ARG]... | --applets")
			os.Exit(2)
		}
		if args[0] == "--applets" {
			for _, n := range appletNames() {
				fmt.Println(n)
			}
			return
		}
		name, args = filepath.Base(args[0]), args[1:]
	}
	run, ok := applets[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "caisson-base: no applet %q\n", name)
		os.Exit(127)
	}
	os.Exit(processCall(name, args).run(run))
}

func appletNames() []string {
	names := make([]string, 0, len(applets))
	for n := range applets {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func table() map[string]applet {
	return map[string]applet{
		"sh": shell, "bash": shell,

		"true": func(*call) int { return 0 }, "false": func(*call) int { return 1 },
		"echo": echo, "printf": printf, "yes": yes, "seq": seq, "sleep": sleep, "expr": expr, "test": test, "[": test,

		"cat": cat, "more": cat, "less": cat, "head": head, "tail": tail, "wc": wc, "sort": sortLines, "uniq": uniq,
		"cut": cut, "tr": tr, "tee": tee, "rev": rev, "tac": tac, "nl": nl, "fold": fold, "expand": expandTabs,
		"paste": paste, "comm": comm, "split": split, "strings": printable, "column": column, "shuf": shuf,
		"grep": grep, "egrep": grep, "fgrep": grep, "sed": sed,

		"ls": ls, "cp": cp, "mv": mv, "rm": rm, "rmdir": rmdir, "mkdir": mkdir, "touch": touch, "ln": ln,
		"readlink": readlink, "realpath": realpath, "basename": basename, "dirname": dirname, "pwd": pwd,
		"stat": stat, "chmod": chmod, "chown": chown, "chgrp": chown, "mktemp": mktemp, "truncate": truncate,
		"install": install, "mkfifo": mkfifo, "file": fileType,
		"df": df, "du": du, "find": find, "xargs": xargs, "sync": syncDisks, "dd": dd, "which": which,

		"md5sum": sums, "sha1sum": sums, "sha256sum": sums, "sha512sum": sums, "cksum": cksum, "base64": base64Applet,
		"gzip": gzipApplet, "gunzip": gzipApplet, "zcat": gzipApplet, "tar": tarApplet,
		"od": od, "hexdump": hexdump, "xxd": xxd, "cmp": cmpApplet, "diff": diff,

		"env": env, "printenv": printenv, "id": id, "whoami": whoami, "groups": groups, "hostname": hostname,
		"uname": uname, "date": date, "nproc": nproc, "arch": arch, "tty": tty, "stty": stty, "free": free, "ps": ps,
		"uptime": uptime, "kill": kill, "pkill": pkill, "pgrep": pkill, "pidof": pidof, "time": timeApplet,
		"timeout": timeout, "nohup": nohup, "setsid": setsid, "nice": nice, "getent": getent, "clear": clearScreen,
		"reset": clearScreen, "watch": watch, "usleep": usleep,

		"wget": wget, "curl": curl, "nc": nc, "httpd": httpd,
	}
}
