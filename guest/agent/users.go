package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// account is who a process runs as.
type account struct {
	name     string
	uid, gid uint32
	groups   []uint32
	home     string
	shell    string
}

// users reads the guest's /etc/passwd and /etc/group, again when they changed.
type users struct {
	mu       sync.Mutex
	stamp    [2]time.Time
	passwd   []account
	group    map[uint32]string
	groupIDs map[string]uint32
	members  map[string][]uint32
}

const passwdCap = 4 << 20

func readCapped(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > passwdCap {
		return ""
	}
	b := make([]byte, st.Size())
	n, _ := f.Read(b)
	return string(b[:n])
}

func (u *users) refresh() {
	var now [2]time.Time
	for i, p := range []string{"/etc/passwd", "/etc/group"} {
		if st, err := os.Stat(p); err == nil {
			now[i] = st.ModTime()
		}
	}
	if u.group != nil && now == u.stamp {
		return
	}
	u.stamp, u.passwd = now, nil
	u.group, u.groupIDs, u.members = map[uint32]string{}, map[string]uint32{}, map[string][]uint32{}
	for _, line := range strings.Split(readCapped("/etc/passwd"), "\n") {
		f := strings.Split(line, ":")
		if len(f) < 7 {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 == nil && err2 == nil {
			u.passwd = append(u.passwd, account{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5], shell: f[6]})
		}
	}
	for _, line := range strings.Split(readCapped("/etc/group"), "\n") {
		f := strings.Split(line, ":")
		if len(f) < 4 {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		u.group[uint32(gid)], u.groupIDs[f[0]] = f[0], uint32(gid)
		for _, m := range strings.Split(f[3], ",") {
			if m != "" {
				u.members[m] = append(u.members[m], uint32(gid))
			}
		}
	}
}

// find resolves a name or uid[:gid]; "" is root.
func (u *users) find(s string) (account, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	name, grp, hasGroup := strings.Cut(s, ":")
	if name == "" {
		name = "root"
	}
	var acc account
	found := false
	id, numErr := strconv.ParseUint(name, 10, 32)
	for _, p := range u.passwd {
		if p.name == name || numErr == nil && uint64(p.uid) == id {
			acc, found = p, true
			break
		}
	}
	switch {
	case found:
	case name == "root":
		acc = account{name: "root", home: "/root"}
	case numErr == nil:
		acc = account{name: name, uid: uint32(id), gid: uint32(id), home: "/"}
	default:
		return account{}, fmt.Errorf("user %q does not exist in the sandbox", name)
	}
	if hasGroup {
		if gid, err := strconv.ParseUint(grp, 10, 32); err == nil {
			acc.gid = uint32(gid)
		} else if gid, ok := u.groupIDs[grp]; ok {
			acc.gid = gid
		} else {
			return account{}, fmt.Errorf("group %q does not exist in the sandbox", grp)
		}
	}
	acc.groups = append([]uint32{acc.gid}, u.members[acc.name]...)
	return acc, nil
}

// names gives the names of ids, "" where unknown.
func (u *users) names(uid, gid uint32) (user, group string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh()
	for _, p := range u.passwd {
		if p.uid == uid {
			user = p.name
			break
		}
	}
	return user, u.group[gid]
}
