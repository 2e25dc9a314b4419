package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

const userHZ = 100 // ticks a second in /proc/PID/stat, everywhere

const kernelThread = 0x00200000 // PF_KTHREAD of linux/sched.h

type meminfo struct{ total, available int64 } // bytes

func readMeminfo(path string) meminfo {
	var m meminfo
	b, _ := os.ReadFile(path)
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "MemTotal:":
			m.total = kb << 10
		case "MemAvailable:":
			m.available = kb << 10
		}
	}
	return m
}

func pids() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var out []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

type stat struct {
	state           byte
	ppid, pgrp, sid int
	ticks           int64
	rss             int64 // bytes
	threads         int
	kernel          bool // a thread of the kernel
}

func readStat(pid int) (stat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	i := bytes.LastIndexByte(b, ')')
	if err != nil || i < 0 {
		return stat{}, false
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 22 {
		return stat{}, false
	}
	n := func(k int) int64 { v, _ := strconv.ParseInt(f[k], 10, 64); return v }
	return stat{
		state: f[0][0], ppid: int(n(1)), pgrp: int(n(2)), sid: int(n(3)), kernel: n(6)&kernelThread != 0,
		ticks: n(11) + n(12), threads: int(n(17)), rss: n(21) * int64(os.Getpagesize()),
	}, true
}
