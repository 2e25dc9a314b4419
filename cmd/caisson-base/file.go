package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

func lookupUser(uid int) string {
	return idName("/etc/passwd", uid, map[int]string{0: "root", 65534: "nobody"})
}

func lookupGroup(gid int) string {
	return idName("/etc/group", gid, map[int]string{0: "root", 65534: "nogroup"})
}

// idName looks an id up in a file of the passwd kind.
func idName(file string, id int, def map[int]string) string {
	for _, f := range records(file) {
		if len(f) > 2 && f[2] == strconv.Itoa(id) {
			return f[0]
		}
	}
	if n, ok := def[id]; ok {
		return n
	}
	return strconv.Itoa(id)
}

func records(file string) (rs [][]string) {
	b, _ := os.ReadFile(file)
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); l != "" && l[0] != '#' {
			rs = append(rs, strings.Split(l, ":"))
		}
	}
	return rs
}

// nameID is the reverse of idName.
func nameID(file, name string) (int, bool) {
	if n, err := strconv.Atoi(name); err == nil {
		return n, true
	}
	for _, f := range records(file) {
		if len(f) > 2 && f[0] == name {
			n, err := strconv.Atoi(f[2])
			return n, err == nil
		}
	}
	return 0, name == "root"
}

func modeString(m uint32) string {
	b := []byte("?rwxrwxrwx")
	b[0] = map[uint32]byte{unix.S_IFREG: '-', unix.S_IFDIR: 'd', unix.S_IFLNK: 'l', unix.S_IFCHR: 'c', unix.S_IFBLK: 'b', unix.S_IFIFO: 'p', unix.S_IFSOCK: 's'}[m&unix.S_IFMT]
	for i := range 9 {
		if m&(1<<(8-i)) == 0 {
			b[i+1] = '-'
		}
	}
	special := func(bit uint32, at int, x byte) {
		if m&bit != 0 {
			if b[at] == '-' {
				x -= 0x20
			}
			b[at] = x
		}
	}
	special(unix.S_ISUID, 3, 's')
	special(unix.S_ISGID, 6, 's')
	special(unix.S_ISVTX, 9, 't')
	return string(b)
}

type lsEntry struct {
	name, path string
	st         unix.Stat_t
	link       string
}

func ls(c *call) int {
	o := c.getopt("alAd1RrtShFipnogLHUuckCxmTNGQsvX1:", "all=a", "almost-all=A", "directory=d", "recursive=R", "reverse=r", "human-readable=h", "classify=F",
		"inode=i", "numeric-uid-gid=n", "dereference=L", "color=G", "size=s", "full-time=T", "time-style=N", "group-directories-first=X")
	args := o.args
	if len(args) == 0 {
		args = []string{"."}
	}
	long := o.any("lnog")
	width := 80
	f, isFile := c.rawOut.(*os.File)
	tty := isFile && f != nil && term.IsTerminal(int(f.Fd()))
	if tty {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			width = w
		}
	}
	columns := !long && !o.has('1') && (tty || o.any("Cx"))
	entry := func(name, path string, follow bool) (*lsEntry, error) {
		e := &lsEntry{name: name, path: path}
		stat := unix.Lstat
		if follow {
			stat = unix.Stat
		}
		if err := stat(path, &e.st); err != nil {
			if !follow || unix.Lstat(path, &e.st) != nil {
				return nil, err
			}
		}
		if e.st.Mode&unix.S_IFMT == unix.S_IFLNK {
			e.link, _ = os.Readlink(path)
		}
		return e, nil
	}
	order := func(es []*lsEntry) {
		if o.has('U') {
			return
		}
		slices.SortFunc(es, func(a, b *lsEntry) int {
			r := 0
			switch {
			case o.has('S'):
				r = cmp.Compare(b.st.Size, a.st.Size)
			case o.has('t') && o.has('u'):
				r = cmp.Compare(b.st.Atim.Nano(), a.st.Atim.Nano())
			case o.has('t'):
				r = cmp.Compare(b.st.Mtim.Nano(), a.st.Mtim.Nano())
			case o.has('v'):
				r = compareVersions(a.name, b.name)
			}
			if r == 0 {
				r = strings.Compare(a.name, b.name)
			}
			if o.has('r') {
				r = -r
			}
			return r
		})
	}
	decorate := func(e *lsEntry) string {
		n := e.name
		if o.has('Q') {
			n = strconv.Quote(n)
		}
		kind := e.st.Mode & unix.S_IFMT
		if kind == unix.S_IFDIR && o.any("Fp") {
			return n + "/"
		}
		if o.has('F') {
			switch {
			case kind == unix.S_IFLNK && !long:
				n += "@"
			case kind == unix.S_IFIFO:
				n += "|"
			case kind == unix.S_IFSOCK:
				n += "="
			case kind == unix.S_IFREG && e.st.Mode&0o111 != 0:
				n += "*"
			}
		}
		return n
	}
	print := func(es []*lsEntry) {
		if columns {
			names, w := make([]string, len(es)), 0
			for i, e := range es {
				names[i] = decorate(e)
				w = max(w, utf8.RuneCountInString(names[i]))
			}
			cols := max(1, width/(w+2))
			rows := (len(es) + cols - 1) / cols
			for r := range rows {
				line := ""
				for i := r; i < len(names); i += rows {
					line += names[i] + strings.Repeat(" ", w+2-utf8.RuneCountInString(names[i]))
				}
				c.printf("%s\n", strings.TrimRight(line, " "))
			}
			return
		}
		var rows [][]string
		for _, e := range es {
			var row []string
			if o.has('i') {
				row = append(row, fmt.Sprint(e.st.Ino))
			}
			if o.has('s') {
				row = append(row, fmt.Sprint(e.st.Blocks/2))
			}
			if long {
				owner, group := lookupUser(int(e.st.Uid)), lookupGroup(int(e.st.Gid))
				if o.has('n') {
					owner, group = fmt.Sprint(e.st.Uid), fmt.Sprint(e.st.Gid)
				}
				row = append(row, modeString(e.st.Mode), fmt.Sprint(e.st.Nlink))
				if !o.has('g') {
					row = append(row, owner+"\x00")
				}
				if !o.has('o') {
					row = append(row, group+"\x00")
				}
				size := fmt.Sprint(e.st.Size)
				switch kind := e.st.Mode & unix.S_IFMT; {
				case kind == unix.S_IFCHR || kind == unix.S_IFBLK:
					size = fmt.Sprintf("%d, %d", unix.Major(uint64(e.st.Rdev)), unix.Minor(uint64(e.st.Rdev)))
				case o.has('h'):
					size = human(e.st.Size)
				}
				when := time.Unix(e.st.Mtim.Unix())
				if o.has('u') {
					when = time.Unix(e.st.Atim.Unix())
				}
				stamp := when.Format("Jan _2 15:04")
				if d := time.Since(when); d > 182*24*time.Hour || d < -time.Hour {
					stamp = when.Format("Jan _2  2006")
				}
				switch style := o.str('N', ""); {
				case o.has('T') || style == "full-iso":
					stamp = when.Format("2006-01-02 15:04:05.000000000 -0700")
				case style == "long-iso":
					stamp = when.Format("2006-01-02 15:04")
				case strings.HasPrefix(style, "+"):
					stamp = strftime(style[1:], when)
				}
				row = append(row, size, stamp)
			}
			n := decorate(e)
			if long && e.link != "" {
				n += " -> " + e.link
			}
			rows = append(rows, append(row, n))
		}
		var widths []int
		for _, r := range rows {
			for i, f := range r {
				if i >= len(widths) {
					widths = append(widths, 0)
				}
				widths[i] = max(widths[i], len(strings.TrimSuffix(f, "\x00")))
			}
		}
		for _, r := range rows {
			for i, f := range r {
				switch left, ok := strings.CutSuffix(f, "\x00"); {
				case i == len(r)-1:
					c.printf("%s\n", f)
				case ok:
					c.printf("%-*s ", widths[i], left)
				default:
					c.printf("%*s ", widths[i], f)
				}
			}
		}
	}
	var files, dirs []*lsEntry
	for _, a := range args {
		e, err := entry(a, c.path(a), !o.any("dl") || o.any("LH") || strings.HasSuffix(a, "/"))
		if err != nil {
			c.fail("cannot access '%s': %s", a, reason(err))
			c.status = 2
			continue
		}
		if !o.has('d') && !o.any("LH") && long && e.st.Mode&unix.S_IFMT == unix.S_IFLNK {
			files = append(files, e)
		} else if e.st.Mode&unix.S_IFMT == unix.S_IFDIR && !o.has('d') {
			dirs = append(dirs, e)
		} else {
			files = append(files, e)
		}
	}
	order(files)
	order(dirs)
	print(files)
	first := len(files) == 0
	var list func(d *lsEntry, header bool)
	list = func(d *lsEntry, header bool) {
		ents, err := os.ReadDir(d.path)
		if err != nil {
			c.fail("cannot open directory '%s': %s", d.name, reason(err))
			return
		}
		var es []*lsEntry
		if o.has('a') {
			for _, n := range []string{".", ".."} {
				if e, err := entry(n, d.path+"/"+n, true); err == nil {
					es = append(es, e)
				}
			}
		}
		for _, de := range ents {
			if strings.HasPrefix(de.Name(), ".") && !o.any("aA") {
				continue
			}
			e, err := entry(de.Name(), d.path+"/"+de.Name(), o.has('L'))
			if err != nil {
				continue
			}
			es = append(es, e)
		}
		order(es)
		if header {
			if !first {
				c.out.WriteByte('\n')
			}
			c.printf("%s:\n", d.name)
		}
		first = false
		if long || o.has('s') {
			var total int64
			for _, e := range es {
				total += e.st.Blocks / 2
			}
			if o.has('h') {
				c.printf("total %s\n", human(total*1024))
			} else {
				c.printf("total %d\n", total)
			}
		}
		print(es)
		if o.has('R') {
			for _, e := range es {
				if e.st.Mode&unix.S_IFMT == unix.S_IFDIR && e.name != "." && e.name != ".." {
					list(&lsEntry{name: strings.TrimSuffix(d.name, "/") + "/" + e.name, path: e.path}, true)
				}
			}
		}
	}
	for _, d := range dirs {
		list(d, len(args) > 1 || o.has('R'))
	}
	return c.status
}

// target resolves the operands of cp, mv and ln: pairs of source and destination.
func (c *call) targets(o *options, dirOpt byte, noDir bool) [][2]string {
	args := o.args
	if o.has(dirOpt) {
		args = append(slices.Clone(args), o.str(dirOpt, ""))
	}
	if len(args) < 2 {
		if len(args) == 1 && c.name == "ln" {
			return [][2]string{{args[0], filepath.Base(args[0])}}
		}
		c.die(1, "missing file operand")
	}
	dst := args[len(args)-1]
	fi, err := os.Stat(c.path(dst))
	isDir := err == nil && fi.IsDir() && !noDir
	if !isDir && (len(args) > 2 || o.has(dirOpt)) {
		c.die(1, "target '%s' is not a directory", dst)
	}
	var out [][2]string
	for _, src := range args[:len(args)-1] {
		d := dst
		if isDir {
			base := filepath.Base(strings.TrimRight(src, "/"))
			if base == ".." || base == "." {
				base = ""
			}
			d = strings.TrimSuffix(dst, "/") + "/" + base
		}
		out = append(out, [2]string{src, d})
	}
	return out
}

// ask reads a yes from stdin.
func (c *call) ask(format string, a ...any) bool {
	fmt.Fprintf(c.err, c.name+": "+format+" ", a...)
	l, _ := readLineFrom(c.in, '\n', 0)
	return strings.HasPrefix(strings.ToLower(l), "y")
}

func cp(c *call) int {
	o := c.getopt("rRaifnvpdPLHlsuTt:x", "recursive=r", "archive=a", "interactive=i", "force=f", "no-clobber=n", "verbose=v", "preserve=p",
		"no-dereference=P", "dereference=L", "link=l", "symbolic-link=s", "update=u", "no-target-directory=T", "target-directory=t")
	cc := copier{c: c, recursive: o.any("rRa"), keep: o.any("pa"), noFollow: o.any("adP") || o.any("rR") && !o.any("LH"), o: o}
	for _, p := range c.targets(o, 't', o.has('T')) {
		cc.copy(p[0], p[1], true)
	}
	return c.status
}

type copier struct {
	c                         *call
	o                         *options
	recursive, keep, noFollow bool
}

func (k *copier) copy(src, dst string, top bool) {
	c := k.c
	from, to := c.path(src), c.path(dst)
	stat := os.Stat
	if k.noFollow {
		stat = os.Lstat
	}
	fi, err := stat(from)
	if err != nil {
		c.fail("cannot stat '%s': %s", src, reason(err))
		return
	}
	old, oldErr := os.Stat(to)
	if oldErr == nil && os.SameFile(fi, old) && !fi.IsDir() {
		c.fail("'%s' and '%s' are the same file", src, dst)
		return
	}
	if fi.IsDir() {
		if !k.recursive {
			c.fail("-r not specified; omitting directory '%s'", src)
			return
		}
		rel, err := filepath.Rel(c.abs(src), c.abs(dst))
		if top && err == nil && rel != "." && !strings.HasPrefix(rel, "..") {
			c.fail("cannot copy a directory, '%s', into itself, '%s'", src, dst)
			return
		}
		ents, err := os.ReadDir(from)
		if err != nil {
			c.fail("cannot access '%s': %s", src, reason(err))
			return
		}
		if oldErr != nil {
			if err := os.Mkdir(to, fi.Mode().Perm()|0o700); err != nil {
				c.fail("cannot create directory '%s': %s", dst, reason(err))
				return
			}
			if k.o.has('v') {
				c.printf("'%s' -> '%s'\n", src, dst)
			}
		} else if !old.IsDir() {
			c.fail("cannot overwrite non-directory '%s' with directory '%s'", dst, src)
			return
		}
		for _, e := range ents {
			k.copy(strings.TrimSuffix(src, "/")+"/"+e.Name(), strings.TrimSuffix(dst, "/")+"/"+e.Name(), false)
		}
		if oldErr != nil {
			os.Chmod(to, fi.Mode().Perm())
		}
		k.attributes(fi, to)
		return
	}
	if oldErr == nil {
		switch {
		case k.o.has('n'), k.o.has('u') && !fi.ModTime().After(old.ModTime()):
			return
		case k.o.has('i') && !k.o.has('f') && !c.ask("overwrite '%s'?", dst):
			return
		case old.IsDir():
			c.fail("cannot overwrite directory '%s' with non-directory", dst)
			return
		}
	}
	if k.o.has('v') {
		c.printf("'%s' -> '%s'\n", src, dst)
	}
	switch {
	case k.o.has('l'):
		err = os.Link(from, to)
	case k.o.has('s'):
		err = os.Symlink(src, to)
	case fi.Mode()&fs.ModeSymlink != 0:
		var link string
		if link, err = os.Readlink(from); err == nil {
			os.Remove(to)
			err = os.Symlink(link, to)
		}
	case fi.Mode()&fs.ModeNamedPipe != 0 && k.recursive:
		err = unix.Mkfifo(to, uint32(fi.Mode().Perm()))
	default:
		err = copyFile(from, to, fi.Mode().Perm(), k.o.has('f'))
	}
	if err != nil {
		c.fail("cannot create '%s' from '%s': %s", dst, src, reason(err))
		return
	}
	if fi.Mode()&fs.ModeSymlink == 0 {
		k.attributes(fi, to)
	}
}

func (c *call) abs(p string) string {
	p = c.path(p)
	if !filepath.IsAbs(p) {
		p = filepath.Join(c.wd(), p)
	}
	return filepath.Clean(p)
}

func (k *copier) attributes(fi fs.FileInfo, to string) {
	if !k.keep {
		return
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		os.Lchown(to, int(st.Uid), int(st.Gid))
		os.Chmod(to, fi.Mode())
		os.Chtimes(to, time.Unix(st.Atim.Unix()), fi.ModTime())
	}
}

func copyFile(from, to string, perm fs.FileMode, force bool) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil && force {
		os.Remove(to)
		out, err = os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	}
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

func mv(c *call) int {
	o := c.getopt("finuvTt:", "force=f", "interactive=i", "no-clobber=n", "update=u", "verbose=v", "no-target-directory=T", "target-directory=t")
	for _, p := range c.targets(o, 't', o.has('T')) {
		from, to := c.path(strings.TrimRight(p[0], "/")), c.path(p[1])
		fi, err := os.Lstat(from)
		if err != nil {
			c.fail("cannot stat '%s': %s", p[0], reason(err))
			continue
		}
		if old, err := os.Lstat(to); err == nil {
			switch {
			case os.SameFile(fi, old):
				c.fail("'%s' and '%s' are the same file", p[0], p[1])
				continue
			case o.has('n'), o.has('u') && !fi.ModTime().After(old.ModTime()):
				continue
			case o.has('i') && !o.has('f') && !c.ask("overwrite '%s'?", p[1]):
				continue
			case old.IsDir() && !fi.IsDir():
				c.fail("cannot overwrite directory '%s' with non-directory", p[1])
				continue
			}
		}
		err = os.Rename(from, to)
		if errors.Is(err, syscall.EXDEV) {
			k := copier{c: c, recursive: true, keep: true, noFollow: true, o: &options{c: c}}
			before := c.status
			c.status = 0
			k.copy(p[0], p[1], true)
			if c.status == 0 {
				err = os.RemoveAll(from)
			} else {
				err = nil
			}
			c.status = max(c.status, before)
		}
		if err != nil {
			c.fail("cannot move '%s' to '%s': %s", p[0], p[1], reason(err))
			continue
		}
		if o.has('v') {
			c.printf("renamed '%s' -> '%s'\n", p[0], p[1])
		}
	}
	return c.status
}

func rm(c *call) int {
	o := c.getopt("rRfivdI", "recursive=r", "force=f", "interactive=i", "verbose=v", "dir=d", "one-file-system=I", "no-preserve-root=I", "preserve-root=I")
	if len(o.args) == 0 && !o.has('f') {
		c.die(1, "missing operand")
	}
	var remove func(name string)
	remove = func(name string) {
		p := c.path(name)
		fi, err := os.Lstat(p)
		if err != nil {
			if !(o.has('f') && errors.Is(err, fs.ErrNotExist)) {
				c.fail("cannot remove '%s': %s", name, reason(err))
			}
			return
		}
		if fi.IsDir() && !o.any("rR") && !o.has('d') {
			c.fail("cannot remove '%s': Is a directory", name)
			return
		}
		if fi.IsDir() && o.any("rR") {
			if !o.any("iv") {
				if err := os.RemoveAll(p); err != nil {
					c.fail("cannot remove '%s': %s", name, reason(err))
				}
				return
			}
			ents, _ := os.ReadDir(p)
			for _, e := range ents {
				remove(name + "/" + e.Name())
			}
		}
		if o.has('i') && !c.ask("remove '%s'?", name) {
			return
		}
		if err := os.Remove(p); err != nil {
			c.fail("cannot remove '%s': %s", name, reason(err))
		} else if o.has('v') {
			c.printf("removed '%s'\n", name)
		}
	}
	for _, a := range o.args {
		if abs := c.abs(a); abs == "/" {
			c.fail("it is dangerous to operate recursively on '/'")
			continue
		}
		if b := filepath.Base(a); b == "." && strings.HasSuffix(a, ".") || b == ".." {
			c.fail("refusing to remove '.' or '..' directory: skipping '%s'", a)
			continue
		}
		remove(strings.TrimRight(a, "/"))
	}
	return c.status
}

func rmdir(c *call) int {
	o := c.getopt("pv", "parents=p", "verbose=v", "ignore-fail-on-non-empty=v")
	for _, a := range o.args {
		for d := a; d != "." && d != "/" && d != ""; d = filepath.Dir(d) {
			if err := syscall.Rmdir(c.path(d)); err != nil {
				c.fail("failed to remove '%s': %s", d, reason(err))
				break
			}
			if !o.has('p') {
				break
			}
		}
	}
	return c.status
}

func mkdir(c *call) int {
	o := c.getopt("pvm:", "parents=p", "verbose=v", "mode=m")
	if len(o.args) == 0 {
		c.die(1, "missing operand")
	}
	for _, a := range o.args {
		p := c.path(a)
		var err error
		if o.has('p') {
			err = os.MkdirAll(p, 0o777)
		} else {
			err = os.Mkdir(p, 0o777)
		}
		if err == nil && o.has('m') {
			m, ok := symbolicMode(o.str('m', ""), 0o777, true)
			if !ok {
				c.die(1, "invalid mode '%s'", o.str('m', ""))
			}
			err = unix.Chmod(p, m)
		}
		if err != nil {
			c.fail("cannot create directory '%s': %s", a, reason(err))
		} else if o.has('v') {
			c.printf("mkdir: created directory '%s'\n", a)
		}
	}
	return c.status
}

func touch(c *call) int {
	o := c.getopt("acmhd:r:t:", "no-create=c", "date=d", "reference=r", "no-dereference=h", "time=a")
	when := time.Now()
	switch {
	case o.has('r'):
		fi, err := os.Stat(c.path(o.str('r', "")))
		if err != nil {
			c.die(1, "failed to get attributes of '%s': %s", o.str('r', ""), reason(err))
		}
		when = fi.ModTime()
	case o.has('d'):
		t, ok := parseDate(o.str('d', ""))
		if !ok {
			c.die(1, "invalid date format '%s'", o.str('d', ""))
		}
		when = t
	case o.has('t'):
		s := o.str('t', "")
		layout := "200601021504"
		if strings.Contains(s, ".") {
			layout += ".05"
		}
		if n, _, _ := strings.Cut(s, "."); len(n) == 8 {
			s = strconv.Itoa(when.Year()) + s
		} else if len(n) == 10 {
			s = "20" + s
		}
		t, err := time.ParseInLocation(layout, s, time.Local)
		if err != nil {
			c.die(1, "invalid date format '%s'", o.str('t', ""))
		}
		when = t
	}
	for _, a := range o.args {
		p := c.path(a)
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) {
			if o.has('c') {
				continue
			}
			f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE, 0o666)
			if err != nil {
				c.fail("cannot touch '%s': %s", a, reason(err))
				continue
			}
			f.Close()
			if !o.any("drt") {
				continue
			}
		}
		var at, mt time.Time
		if !o.has('m') || o.has('a') {
			at = when
		}
		if !o.has('a') || o.has('m') {
			mt = when
		}
		if err := os.Chtimes(p, at, mt); err != nil {
			c.fail("cannot touch '%s': %s", a, reason(err))
		}
	}
	return c.status
}

func ln(c *call) int {
	o := c.getopt("sfnvrTt:iPL", "symbolic=s", "force=f", "no-dereference=n", "verbose=v", "relative=r", "no-target-directory=T", "target-directory=t")
	noDir := o.has('T')
	if o.has('n') && len(o.args) == 2 {
		if fi, err := os.Lstat(c.path(o.args[1])); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
			noDir = true
		}
	}
	for _, p := range c.targets(o, 't', noDir) {
		src, to := p[0], c.path(p[1])
		if o.has('f') {
			os.Remove(to)
		}
		var err error
		if o.has('s') {
			if o.has('r') {
				if rel, rerr := filepath.Rel(filepath.Dir(c.abs(p[1])), c.abs(src)); rerr == nil {
					src = rel
				}
			}
			err = os.Symlink(src, to)
		} else {
			err = os.Link(c.path(src), to)
		}
		if err != nil {
			var le *os.LinkError
			if errors.As(err, &le) {
				err = le.Err
			}
			kind := "link"
			if o.has('s') {
				kind = "symbolic link"
			}
			c.fail("failed to create %s '%s': %s", kind, p[1], reason(err))
		} else if o.has('v') {
			c.printf("'%s' -> '%s'\n", p[1], src)
		}
	}
	return c.status
}

func readlink(c *call) int {
	o := c.getopt("femnqsvz", "canonicalize=f", "canonicalize-existing=e", "canonicalize-missing=m", "no-newline=n")
	for _, a := range o.args {
		var s string
		var err error
		if o.any("fem") {
			s, err = canonical(c.abs(a), o)
		} else {
			s, err = os.Readlink(c.path(a))
		}
		if err != nil {
			c.status = 1
			continue
		}
		c.out.WriteString(s)
		if !o.has('n') {
			c.out.WriteByte('\n')
		}
	}
	return c.status
}

// canonical resolves links; unless -e, the last part may be missing, and with -m every part.
func canonical(p string, o *options) (string, error) {
	s, err := filepath.EvalSymlinks(p)
	if err == nil || o.has('e') || !errors.Is(err, fs.ErrNotExist) && !o.has('m') {
		return s, err
	}
	if link, lerr := os.Readlink(p); lerr == nil { // dangling
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(p), link)
		}
		return canonical(link, o)
	}
	if filepath.Dir(p) == p {
		return p, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(p))
	if err != nil {
		if !o.has('m') {
			return "", err
		}
		dir, _ = canonical(filepath.Dir(p), o)
	}
	return filepath.Join(dir, filepath.Base(p)), nil
}

func realpath(c *call) int {
	o := c.getopt("femsLPqz", "canonicalize-existing=e", "canonicalize-missing=m", "no-symlinks=s", "strip=s")
	for _, a := range o.args {
		s, err := c.abs(a), error(nil)
		if !o.has('s') {
			s, err = canonical(s, o)
		}
		if err != nil {
			c.fail("%s: %s", a, reason(err))
			continue
		}
		c.printf("%s\n", s)
	}
	return c.status
}

func basename(c *call) int {
	o := c.getopt("+as:z", "multiple=a", "suffix=s")
	args, suffix := o.args, o.str('s', "")
	if len(args) == 0 {
		c.die(1, "missing operand")
	}
	if !o.any("as") {
		if len(args) > 1 {
			suffix = args[1]
		}
		args = args[:1]
	}
	for _, a := range args {
		b := filepath.Base(a)
		if a == "" {
			b = ""
		}
		if b != suffix {
			b = strings.TrimSuffix(b, suffix)
		}
		c.printf("%s\n", b)
	}
	return 0
}

func dirname(c *call) int {
	o := c.getopt("z")
	if len(o.args) == 0 {
		c.die(1, "missing operand")
	}
	for _, a := range o.args {
		a = strings.TrimRight(a, "/")
		if i := strings.LastIndexByte(a, '/'); i < 0 && a != "" {
			a = "."
		} else if i >= 0 {
			a = strings.TrimRight(a[:i], "/")
		}
		if a == "" {
			a = "/"
		}
		c.printf("%s\n", a)
	}
	return 0
}

func pwd(c *call) int {
	c.printf("%s\n", c.wd())
	return 0
}

func stat(c *call) int {
	o := c.getopt("c:fLt", "format=c", "printf=c", "dereference=L", "terse=t")
	for _, a := range o.args {
		var st unix.Stat_t
		f := unix.Lstat
		if o.has('L') {
			f = unix.Stat
		}
		if err := f(c.path(a), &st); err != nil {
			c.fail("cannot statx '%s': %s", a, reason(err))
			continue
		}
		stamp := func(t unix.Timespec) string {
			return time.Unix(t.Unix()).Format("2006-01-02 15:04:05.000000000 -0700")
		}
		kind := map[uint32]string{unix.S_IFREG: "regular file", unix.S_IFDIR: "directory", unix.S_IFLNK: "symbolic link", unix.S_IFCHR: "character special file",
			unix.S_IFBLK: "block special file", unix.S_IFIFO: "fifo", unix.S_IFSOCK: "socket"}[st.Mode&unix.S_IFMT]
		if kind == "regular file" && st.Size == 0 {
			kind = "regular empty file"
		}
		quotedName := a
		if link, err := os.Readlink(c.path(a)); err == nil {
			quotedName = "'" + a + "' -> '" + link + "'"
		}
		if o.has('f') {
			var fsst unix.Statfs_t
			unix.Statfs(c.path(a), &fsst)
			c.printf("  File: \"%s\"\n    ID: 0 Namelen: %d Type: %x\nBlock size: %d\nBlocks: Total: %d Free: %d Available: %d\nInodes: Total: %d Free: %d\n",
				a, fsst.Namelen, fsst.Type, fsst.Bsize, fsst.Blocks, fsst.Bfree, fsst.Bavail, fsst.Files, fsst.Ffree)
			continue
		}
		if format := o.str('c', ""); format != "" {
			vals := map[byte]string{
				'n': a, 'N': quotedName, 's': fmt.Sprint(st.Size), 'a': fmt.Sprintf("%o", st.Mode&0o7777), 'A': modeString(st.Mode), 'f': fmt.Sprintf("%x", st.Mode),
				'F': kind, 'u': fmt.Sprint(st.Uid), 'g': fmt.Sprint(st.Gid), 'U': lookupUser(int(st.Uid)), 'G': lookupGroup(int(st.Gid)), 'i': fmt.Sprint(st.Ino),
				'h': fmt.Sprint(st.Nlink), 'b': fmt.Sprint(st.Blocks), 'B': "512", 'o': fmt.Sprint(st.Blksize), 'd': fmt.Sprint(st.Dev), 'D': fmt.Sprintf("%x", st.Dev),
				't': fmt.Sprintf("%x", unix.Major(uint64(st.Rdev))), 'T': fmt.Sprintf("%x", unix.Minor(uint64(st.Rdev))),
				'x': stamp(st.Atim), 'y': stamp(st.Mtim), 'z': stamp(st.Ctim), 'X': fmt.Sprint(st.Atim.Sec), 'Y': fmt.Sprint(st.Mtim.Sec), 'Z': fmt.Sprint(st.Ctim.Sec),
				'w': "-", 'W': "0", 'm': "/", '%': "%",
			}
			for i := 0; i < len(format); i++ {
				if format[i] == '%' && i+1 < len(format) {
					i++
					c.out.WriteString(vals[format[i]])
				} else {
					c.out.WriteByte(format[i])
				}
			}
			c.out.WriteByte('\n')
			continue
		}
		c.printf("  File: %s\n  Size: %-10d\tBlocks: %-10d IO Block: %-6d %s\nDevice: %d\tInode: %-11d Links: %d\nAccess: (%04o/%s)  Uid: (%5d/%8s)   Gid: (%5d/%8s)\nAccess: %s\nModify: %s\nChange: %s\n",
			strings.Trim(quotedName, "'"), st.Size, st.Blocks, st.Blksize, kind, st.Dev, st.Ino, st.Nlink, st.Mode&0o7777, modeString(st.Mode),
			st.Uid, lookupUser(int(st.Uid)), st.Gid, lookupGroup(int(st.Gid)), stamp(st.Atim), stamp(st.Mtim), stamp(st.Ctim))
	}
	return c.status
}

// symbolicMode applies a mode such as 755, u+x or a=rX,g-w to the bits of a file.
func symbolicMode(s string, old uint32, isDir bool) (uint32, bool) {
	if n, err := strconv.ParseUint(s, 8, 32); err == nil {
		return uint32(n), n <= 0o7777
	}
	mode := old
	for clause := range strings.SplitSeq(s, ",") {
		i := 0
		var who uint32
		for i < len(clause) && strings.IndexByte("ugoa", clause[i]) >= 0 {
			who |= map[byte]uint32{'u': 0o4700, 'g': 0o2070, 'o': 0o1007, 'a': 0o7777}[clause[i]]
			i++
		}
		if who == 0 {
			mask := syscall.Umask(0)
			syscall.Umask(mask)
			who = 0o7777 &^ uint32(mask)
		}
		if i == len(clause) {
			return 0, false
		}
		for i < len(clause) {
			op := clause[i]
			if strings.IndexByte("+-=", op) < 0 {
				return 0, false
			}
			i++
			var bits uint32
			for i < len(clause) && strings.IndexByte("+-=", clause[i]) < 0 {
				switch clause[i] {
				case 'r':
					bits |= 0o444
				case 'w':
					bits |= 0o222
				case 'x':
					bits |= 0o111
				case 'X':
					if isDir || mode&0o111 != 0 {
						bits |= 0o111
					}
				case 's':
					bits |= 0o6000
				case 't':
					bits |= 0o1000
				case 'u':
					bits |= mode >> 6 & 7 * 0o111
				case 'g':
					bits |= mode >> 3 & 7 * 0o111
				case 'o':
					bits |= mode & 7 * 0o111
				default:
					return 0, false
				}
				i++
			}
			bits &= who
			switch op {
			case '+':
				mode |= bits
			case '-':
				mode &^= bits
			case '=':
				mode = mode&^(who&0o777) | bits
			}
		}
	}
	return mode, true
}

// walk visits a path and, if recursive, what is below it.
func (c *call) walk(name string, recursive bool, f func(name, path string) error) {
	visit := func(n, p string) {
		if err := f(n, p); err != nil {
			c.fail("cannot change '%s': %s", n, reason(err))
		}
	}
	if !recursive {
		visit(name, c.path(name))
		return
	}
	filepath.WalkDir(c.path(name), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			c.fail("cannot access '%s': %s", p, reason(err))
			return nil
		}
		visit(p, p)
		return nil
	})
}

func chmod(c *call) int {
	// A mode may look like options: chmod -x file.
	args := c.args
	for i, a := range args {
		if len(a) > 1 && a[0] == '-' && a[1] != '-' && strings.Trim(a[1:], "rwxXst") == "" {
			c.args = append(slices.Clone(args[:i]), append([]string{"--"}, args[i:]...)...)
			break
		}
		if a == "--" {
			break
		}
	}
	o := c.getopt("Rvcf", "recursive=R", "verbose=v", "changes=c", "silent=f")
	if len(o.args) < 2 {
		c.die(1, "missing operand")
	}
	for _, a := range o.args[1:] {
		c.walk(a, o.has('R'), func(name, p string) error {
			var st unix.Stat_t
			if o.has('R') {
				if unix.Lstat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
					return nil
				}
			}
			if err := unix.Stat(p, &st); err != nil {
				return err
			}
			m, ok := symbolicMode(o.args[0], st.Mode&0o7777, st.Mode&unix.S_IFMT == unix.S_IFDIR)
			if !ok {
				c.die(1, "invalid mode: '%s'", o.args[0])
			}
			return unix.Chmod(p, m)
		})
	}
	return c.status
}

func chown(c *call) int {
	o := c.getopt("Rvcfh", "recursive=R", "verbose=v", "no-dereference=h")
	if len(o.args) < 2 {
		c.die(1, "missing operand")
	}
	uid, gid := -1, -1
	owner, group, hasGroup := strings.Cut(o.args[0], ":")
	if !hasGroup && strings.Contains(owner, ".") {
		owner, group, _ = strings.Cut(owner, ".")
	}
	if c.name == "chgrp" {
		owner, group = "", o.args[0]
	}
	var ok bool
	if owner != "" {
		if uid, ok = nameID("/etc/passwd", owner); !ok {
			c.die(1, "invalid user: '%s'", o.args[0])
		}
	}
	if group != "" {
		if gid, ok = nameID("/etc/group", group); !ok {
			c.die(1, "invalid group: '%s'", group)
		}
	}
	for _, a := range o.args[1:] {
		c.walk(a, o.has('R'), func(_, p string) error {
			if o.any("hR") {
				return os.Lchown(p, uid, gid)
			}
			return os.Chown(p, uid, gid)
		})
	}
	return c.status
}

func mktemp(c *call) int {
	o := c.getopt("duqtp:s:", "directory=d", "dry-run=u", "quiet=q", "tmpdir=p", "suffix=s")
	tmp := c.getenv("TMPDIR")
	if tmp == "" {
		tmp = "/tmp"
	}
	dir, name := o.str('p', ""), "tmp.XXXXXXXXXX"
	if dir == "" && (o.any("pt") || len(o.args) == 0) {
		dir = tmp
	}
	if len(o.args) > 0 {
		name = o.args[0]
	}
	if dir != "" {
		name = strings.TrimSuffix(dir, "/") + "/" + name
	}
	end := strings.LastIndex(name, "X") + 1
	name += o.str('s', "")
	start := end
	for start > 0 && name[start-1] == 'X' {
		start--
	}
	if end-start < 3 {
		c.die(1, "too few X's in template '%s'", name)
	}
	for range 100 {
		const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
		b := []byte(name)
		rnd := make([]byte, end-start)
		unix.Getrandom(rnd, 0)
		for i := range rnd {
			b[start+i] = letters[int(rnd[i])%len(letters)]
		}
		p := c.path(string(b))
		var err error
		switch {
		case o.has('u'):
		case o.has('d'):
			err = os.Mkdir(p, 0o700)
		default:
			var f *os.File
			if f, err = os.OpenFile(p, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
				f.Close()
			}
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			if o.has('q') {
				return 1
			}
			c.die(1, "failed to create '%s': %s", name, reason(err))
		}
		c.printf("%s\n", b)
		return 0
	}
	return 1
}

func truncate(c *call) int {
	o := c.getopt("s:cr:", "size=s", "no-create=c", "reference=r")
	spec := o.str('s', "")
	for _, a := range o.args {
		p := c.path(a)
		flags := os.O_WRONLY
		if !o.has('c') {
			flags |= os.O_CREATE
		}
		f, err := os.OpenFile(p, flags, 0o666)
		if err != nil {
			c.fail("cannot open '%s' for writing: %s", a, reason(err))
			continue
		}
		fi, _ := f.Stat()
		n, err := parseSize(strings.TrimLeft(spec, "<>/%"))
		if o.has('r') {
			if ref, rerr := os.Stat(c.path(o.str('r', ""))); rerr == nil {
				n, err = ref.Size(), nil
			}
		}
		if err != nil {
			c.die(1, "invalid number: '%s'", spec)
		}
		if strings.HasPrefix(spec, "+") || strings.HasPrefix(spec, "-") {
			n += fi.Size()
		}
		if err := f.Truncate(max(n, 0)); err != nil {
			c.fail("failed to truncate '%s': %s", a, reason(err))
		}
		f.Close()
	}
	return c.status
}

func install(c *call) int {
	o := c.getopt("dDm:o:g:vt:pCs", "directory=d", "mode=m", "target-directory=t")
	mode, ok := symbolicMode(o.str('m', "755"), 0, false)
	if !ok {
		c.die(1, "invalid mode '%s'", o.str('m', ""))
	}
	if o.has('d') {
		for _, a := range o.args {
			err := os.MkdirAll(c.path(a), 0o755)
			if err == nil {
				err = unix.Chmod(c.path(a), mode)
			}
			if err != nil {
				c.fail("cannot create directory '%s': %s", a, reason(err))
			}
		}
		return c.status
	}
	if o.has('D') && len(o.args) == 2 {
		os.MkdirAll(filepath.Dir(c.path(o.args[1])), 0o755)
	}
	for _, p := range c.targets(o, 't', false) {
		to := c.path(p[1])
		os.Remove(to)
		err := copyFile(c.path(p[0]), to, 0o600, false)
		if err == nil {
			err = unix.Chmod(to, mode)
		}
		if err != nil {
			c.fail("cannot install '%s': %s", p[1], reason(err))
		}
	}
	return c.status
}

func mkfifo(c *call) int {
	o := c.getopt("m:", "mode=m")
	for _, a := range o.args {
		if err := unix.Mkfifo(c.path(a), 0o666); err != nil {
			c.fail("cannot create fifo '%s': %s", a, reason(err))
		}
	}
	return c.status
}

func fileType(c *call) int {
	o := c.getopt("bLikz", "brief=b", "mime-type=i", "dereference=L")
	for _, a := range o.args {
		kind := describe(c.path(a))
		if o.has('b') {
			c.printf("%s\n", kind)
		} else {
			c.printf("%s: %s\n", a, kind)
		}
	}
	return 0
}

func describe(p string) string {
	fi, err := os.Lstat(p)
	switch {
	case err != nil:
		return "cannot open (" + reason(err) + ")"
	case fi.IsDir():
		return "directory"
	case fi.Mode()&fs.ModeSymlink != 0:
		l, _ := os.Readlink(p)
		return "symbolic link to " + l
	case !fi.Mode().IsRegular():
		return "special file"
	case fi.Size() == 0:
		return "empty"
	}
	f, err := os.Open(p)
	if err != nil {
		return "regular file, no read permission"
	}
	defer f.Close()
	b := make([]byte, 4096)
	n, _ := io.ReadFull(f, b)
	b = b[:n]
	for _, m := range [][2]string{{"\x7fELF", "ELF executable"}, {"\x1f\x8b", "gzip compressed data"}, {"PK\x03\x04", "Zip archive data"}, {"\x89PNG", "PNG image data"},
		{"\xff\xd8\xff", "JPEG image data"}, {"GIF8", "GIF image data"}, {"%PDF", "PDF document"}, {"BZh", "bzip2 compressed data"}, {"\xfd7zXZ", "XZ compressed data"},
		{"\x28\xb5\x2f\xfd", "Zstandard compressed data"}, {"SQLite format 3", "SQLite 3.x database"}} {
		if strings.HasPrefix(string(b), m[0]) {
			return m[1]
		}
	}
	if n > 262 && string(b[257:262]) == "ustar" {
		return "POSIX tar archive"
	}
	if line, ok := strings.CutPrefix(string(b), "#!"); ok {
		line, _, _ = strings.Cut(line, "\n")
		return strings.TrimSpace(line) + " script, ASCII text executable"
	}
	ascii := true
	for _, x := range b {
		if x == 0 {
			return "data"
		}
		ascii = ascii && x < 0x80
	}
	if ascii {
		return "ASCII text"
	}
	if utf8.Valid(b[:max(0, n-3)]) {
		return "UTF-8 Unicode text"
	}
	return "data"
}

func df(c *call) int {
	o := c.getopt("hkmPTiaHt:x:B:l", "human-readable=h", "portability=P", "print-type=T", "inodes=i", "all=a", "total=l", "output=l")
	type mount struct{ dev, dir, kind string }
	var ms []mount
	seen := map[string]bool{}
	b, _ := os.ReadFile("/proc/mounts")
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 2 {
			ms = append(ms, mount{f[0], strings.NewReplacer(`\040`, " ").Replace(f[1]), f[2]})
		}
	}
	if len(o.args) > 0 {
		var want []mount
		for _, a := range o.args {
			p, err := canonical(c.abs(a), &options{})
			if _, serr := os.Stat(c.path(a)); err != nil || serr != nil {
				c.fail("%s: No such file or directory", a)
				continue
			}
			best := mount{"-", a, "-"}
			n := -1
			for _, m := range ms {
				if (p == m.dir || strings.HasPrefix(p, strings.TrimSuffix(m.dir, "/")+"/")) && len(m.dir) >= n {
					best, n = m, len(m.dir)
				}
			}
			want = append(want, best)
		}
		ms = want
	}
	rows := [][]string{{"Filesystem", "1K-blocks", "Used", "Available", "Use%", "Mounted on"}}
	if o.any("hH") {
		rows[0] = []string{"Filesystem", "Size", "Used", "Avail", "Use%", "Mounted on"}
	}
	if o.has('i') {
		rows[0] = []string{"Filesystem", "Inodes", "IUsed", "IFree", "IUse%", "Mounted on"}
	}
	for _, m := range ms {
		var st unix.Statfs_t
		if unix.Statfs(m.dir, &st) != nil || seen[m.dir] && len(o.args) == 0 || st.Blocks == 0 && !o.has('a') && len(o.args) == 0 {
			continue
		}
		seen[m.dir] = true
		bs := int64(st.Bsize)
		total, free, avail := int64(st.Blocks)*bs, int64(st.Bfree)*bs, int64(st.Bavail)*bs
		show := func(n int64) string {
			switch {
			case o.has('i'):
				return fmt.Sprint(n)
			case o.any("hH"):
				return human(n)
			case o.has('m'):
				return fmt.Sprint(n >> 20)
			}
			return fmt.Sprint(n >> 10)
		}
		if o.has('i') {
			total, free, avail = int64(st.Files), int64(st.Ffree), int64(st.Ffree)
		}
		used, pct := total-free, "-"
		if used+avail > 0 {
			pct = fmt.Sprintf("%d%%", (used*100+used+avail-1)/(used+avail))
		}
		rows = append(rows, []string{m.dev, show(total), show(used), show(avail), pct, m.dir})
	}
	w := make([]int, 6)
	for _, r := range rows {
		for i, f := range r {
			w[i] = max(w[i], len(f))
		}
	}
	for _, r := range rows {
		c.printf("%-*s %*s %*s %*s %*s %s\n", w[0], r[0], w[1], r[1], w[2], r[2], w[3], r[3], w[4], r[4], r[5])
	}
	return c.status
}

func du(c *call) int {
	o := c.getopt("shakcmbd:xLl", "summarize=s", "human-readable=h", "all=a", "total=c", "bytes=b", "max-depth=d", "apparent-size=l")
	args := o.args
	if len(args) == 0 {
		args = []string{"."}
	}
	depth := int(o.num('d', 1<<30))
	if o.has('s') {
		depth = 0
	}
	apparent := o.any("bl")
	show := func(n int64, name string) {
		switch {
		case o.has('h'):
			c.printf("%s\t%s\n", human(n), name)
		case o.has('b'):
			c.printf("%d\t%s\n", n, name)
		case o.has('m'):
			c.printf("%d\t%s\n", (n+1<<20-1)>>20, name)
		default:
			c.printf("%d\t%s\n", (n+1023)>>10, name)
		}
	}
	seen := map[[2]uint64]bool{}
	var size func(name, path string, level int) int64
	size = func(name, path string, level int) int64 {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			c.fail("cannot access '%s': %s", name, reason(err))
			return 0
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		if st.Nlink > 1 && !isDir {
			if key := [2]uint64{uint64(st.Dev), st.Ino}; seen[key] {
				return 0
			} else {
				seen[key] = true
			}
		}
		n := st.Blocks * 512
		if apparent {
			n = st.Size
		}
		if isDir {
			ents, err := os.ReadDir(path)
			if err != nil {
				c.fail("cannot read directory '%s': %s", name, reason(err))
			}
			for _, e := range ents {
				n += size(strings.TrimSuffix(name, "/")+"/"+e.Name(), path+"/"+e.Name(), level+1)
			}
		}
		if level == 0 || level <= depth && (isDir || o.has('a')) {
			show(n, name)
		}
		return n
	}
	var total int64
	for _, a := range args {
		total += size(a, c.path(a), 0)
	}
	if o.has('c') {
		show(total, "total")
	}
	return c.status
}

func syncDisks(*call) int {
	unix.Sync()
	return 0
}

func which(c *call) int {
	o := c.getopt("as", "all=a")
	for _, a := range o.args {
		found := false
		dirs := filepath.SplitList(c.getenv("PATH"))
		if strings.Contains(a, "/") {
			dirs = []string{""}
		}
		for _, d := range dirs {
			p := a
			if d != "" {
				p = d + "/" + a
			}
			if fi, err := os.Stat(c.path(p)); err == nil && !fi.IsDir() && fi.Mode()&0o111 != 0 {
				found = true
				c.printf("%s\n", p)
				if !o.has('a') {
					break
				}
			}
		}
		if !found {
			c.status = 1
		}
	}
	return c.status
}

func dd(c *call) int {
	opt := map[string]string{"if": "", "of": "", "bs": "512", "ibs": "", "obs": "", "count": "", "skip": "0", "seek": "0", "conv": "", "status": "", "iflag": "", "oflag": ""}
	for _, a := range c.args {
		k, v, ok := strings.Cut(a, "=")
		if _, known := opt[k]; !ok || !known {
			c.die(1, "unrecognized operand '%s'", a)
		}
		opt[k] = v
	}
	num := func(k string) int64 {
		n := int64(1)
		for part := range strings.SplitSeq(opt[k], "x") {
			v, err := parseSize(part)
			if err != nil {
				c.die(1, "invalid number: '%s'", opt[k])
			}
			n *= v
		}
		return n
	}
	if opt["ibs"] != "" {
		opt["bs"] = opt["ibs"]
	}
	bs := num("bs")
	if bs <= 0 {
		c.die(1, "invalid number: '%s'", opt["bs"])
	}
	in, inFile := c.in, (*os.File)(nil)
	if opt["if"] != "" {
		f, err := os.Open(c.path(opt["if"]))
		if err != nil {
			c.die(1, "failed to open '%s': %s", opt["if"], reason(err))
		}
		defer f.Close()
		in, inFile = f, f
	}
	var outFile *os.File
	if opt["of"] != "" {
		flags := os.O_WRONLY | os.O_CREATE
		if !strings.Contains(opt["conv"], "notrunc") && num("seek") == 0 {
			flags |= os.O_TRUNC
		}
		if strings.Contains(opt["oflag"], "append") {
			flags |= os.O_APPEND
		}
		f, err := os.OpenFile(c.path(opt["of"]), flags, 0o666)
		if err != nil {
			c.die(1, "failed to open '%s': %s", opt["of"], reason(err))
		}
		defer f.Close()
		outFile = f
		if s := num("seek"); s > 0 {
			if !strings.Contains(opt["conv"], "notrunc") {
				f.Truncate(s * bs)
			}
			f.Seek(s*bs, io.SeekStart)
		}
	}
	if s := num("skip"); s > 0 {
		if inFile == nil {
			io.CopyN(io.Discard, in, s*bs)
		} else if _, err := inFile.Seek(s*bs, io.SeekStart); err != nil {
			io.CopyN(io.Discard, in, s*bs)
		}
	}
	left := int64(1 << 62)
	if opt["count"] != "" {
		left = num("count")
	}
	start := time.Now()
	buf := make([]byte, bs)
	var full, part, total int64
	for ; left > 0; left-- {
		var n int
		var err error
		if strings.Contains(opt["iflag"], "fullblock") {
			n, err = io.ReadFull(in, buf)
		} else {
			n, err = in.Read(buf)
		}
		if n == 0 {
			if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
				c.fail("error reading: %s", reason(err))
			}
			break
		}
		if int64(n) == bs {
			full++
		} else {
			part++
		}
		b := buf[:n]
		if strings.Contains(opt["conv"], "sync") && !strings.Contains(opt["conv"], "fsync") && int64(n) < bs {
			clear(buf[n:])
			b = buf
		}
		if outFile != nil {
			if _, err := outFile.Write(b); err != nil {
				c.die(1, "error writing '%s': %s", opt["of"], reason(err))
			}
		} else {
			c.write(b)
		}
		total += int64(len(b))
	}
	if outFile != nil && strings.Contains(opt["conv"], "sync") {
		outFile.Sync()
	}
	secs := time.Since(start).Seconds()
	if opt["status"] != "none" {
		fmt.Fprintf(c.err, "%d+%d records in\n%d+%d records out\n", full, part, full, part)
		if opt["status"] != "noxfer" {
			fmt.Fprintf(c.err, "%d bytes (%s) copied, %.6g s, %.1f MB/s\n", total, human(total)+"B", secs, float64(total)/1e6/max(secs, 1e-9))
		}
	}
	return c.status
}

// findNode is one test or action of find.
type findNode func(f *found) bool

type found struct {
	name, path string
	fi         fs.FileInfo
	depth      int
	prune      bool
}

type finder struct {
	c          *call
	args       []string
	min, max   int
	depthFirst bool
	follow     bool
	action     bool
	quit       bool
	batches    []func()
	now        time.Time
}

func find(c *call) int {
	f := &finder{c: c, max: 1 << 30, now: time.Now()}
	var roots []string
	args := c.args
	for len(args) > 0 && (args[0] == "-L" || args[0] == "-H" || args[0] == "-P") {
		f.follow = args[0] == "-L"
		args = args[1:]
	}
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "(" && args[0] != "!" {
		roots = append(roots, args[0])
		args = args[1:]
	}
	if len(roots) == 0 {
		roots = []string{"."}
	}
	f.args = args
	expr := f.or()
	if len(f.args) > 0 {
		c.die(1, "unexpected argument '%s'", f.args[0])
	}
	for _, r := range roots {
		f.walk(r, c.path(r), 0, expr)
	}
	for _, b := range f.batches {
		b()
	}
	return c.status
}

func (f *finder) walk(name, path string, depth int, expr findNode) {
	if f.quit {
		return
	}
	stat := os.Lstat
	if f.follow {
		stat = os.Stat
	}
	fi, err := stat(path)
	if err != nil && f.follow {
		fi, err = os.Lstat(path)
	}
	if err != nil {
		f.c.fail("'%s': %s", name, reason(err))
		return
	}
	it := &found{name: name, path: path, fi: fi, depth: depth}
	visit := func() {
		if depth >= f.min && !f.quit {
			if expr(it) && !f.action {
				f.c.printf("%s\n", name)
			}
		}
	}
	if !f.depthFirst {
		visit()
	}
	if fi.IsDir() && !it.prune && depth < f.max {
		ents, err := os.ReadDir(path)
		if err != nil {
			f.c.fail("'%s': %s", name, reason(err))
		}
		for _, e := range ents {
			f.walk(strings.TrimSuffix(name, "/")+"/"+e.Name(), path+"/"+e.Name(), depth+1, expr)
		}
	}
	if f.depthFirst {
		visit()
	}
}

func (f *finder) peek() string {
	if len(f.args) == 0 {
		return ""
	}
	return f.args[0]
}

func (f *finder) next(of string) string {
	if len(f.args) == 0 {
		f.c.die(1, "missing argument to '%s'", of)
	}
	a := f.args[0]
	f.args = f.args[1:]
	return a
}

func (f *finder) or() findNode {
	l := f.and()
	for f.peek() == "-o" || f.peek() == "-or" || f.peek() == "," {
		comma := f.next("") == ","
		a, b := l, f.and()
		if comma {
			l = func(x *found) bool { a(x); return b(x) }
		} else {
			l = func(x *found) bool { return a(x) || b(x) }
		}
	}
	return l
}

func (f *finder) and() findNode {
	var l findNode
	for {
		switch p := f.peek(); p {
		case "", ")", "-o", "-or", ",":
			if l == nil {
				return func(*found) bool { return true }
			}
			return l
		case "-a", "-and":
			f.next("")
			continue
		}
		b := f.primary()
		if a := l; a == nil {
			l = b
		} else {
			l = func(x *found) bool { return a(x) && b(x) }
		}
	}
}

// compareArg reads +N, -N or N.
func (f *finder) compareArg(of string) (func(v int64) bool, string) {
	s := f.next(of)
	orig := s
	sign := byte(0)
	if s != "" && (s[0] == '+' || s[0] == '-') {
		sign, s = s[0], s[1:]
	}
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	n, err := strconv.ParseInt(s[:i], 10, 64)
	if err != nil {
		f.c.die(1, "invalid argument '%s' to '%s'", orig, of)
	}
	return func(v int64) bool {
		switch sign {
		case '+':
			return v > n
		case '-':
			return v < n
		}
		return v == n
	}, s[i:]
}

// glob matches as fnmatch without FNM_PATHNAME: * takes slashes too.
func glob(pat, s string) bool {
	for {
		if pat == "" {
			return s == ""
		}
		switch pat[0] {
		case '*':
			for pat != "" && pat[0] == '*' {
				pat = pat[1:]
			}
			if pat == "" {
				return true
			}
			for i := 0; i <= len(s); i++ {
				if glob(pat, s[i:]) {
					return true
				}
			}
			return false
		case '[':
			end := strings.IndexByte(pat[min(2, len(pat)):], ']')
			if end >= 0 && s != "" {
				_, n := utf8.DecodeRuneInString(s)
				ok, _ := filepath.Match(strings.Replace(pat[:end+3], "[!", "[^", 1), s[:n])
				if !ok {
					return false
				}
				pat, s = pat[end+3:], s[n:]
				continue
			}
		case '\\':
			if len(pat) > 1 {
				pat = pat[1:]
			}
		}
		if s == "" {
			return false
		}
		if pat[0] == '?' {
			_, n := utf8.DecodeRuneInString(s)
			pat, s = pat[1:], s[n:]
			continue
		}
		if pat[0] != s[0] {
			return false
		}
		pat, s = pat[1:], s[1:]
	}
}

func (f *finder) primary() findNode {
	c := f.c
	op := f.next("")
	switch op {
	case "(":
		n := f.or()
		if f.next("(") != ")" {
			c.die(1, "missing ')'")
		}
		return n
	case "!", "-not":
		n := f.primary()
		return func(x *found) bool { return !n(x) }
	case "-true":
		return func(*found) bool { return true }
	case "-false":
		return func(*found) bool { return false }
	case "-name", "-iname", "-path", "-wholename", "-ipath", "-lname":
		p := f.next(op)
		fold := op[1] == 'i'
		if fold {
			p = strings.ToLower(p)
		}
		return func(x *found) bool {
			s := x.name
			switch {
			case strings.HasSuffix(op, "lname"):
				s, _ = os.Readlink(x.path)
			case strings.HasSuffix(op, "name") && op != "-wholename":
				s = filepath.Base(x.name)
			}
			if fold {
				s = strings.ToLower(s)
			}
			return glob(p, s)
		}
	case "-regex", "-iregex":
		flags := ""
		if op == "-iregex" {
			flags = "i"
		}
		re := c.compile(f.next(op), false, flags, 1)
		return func(x *found) bool {
			m := re.FindStringIndex(x.name)
			return m != nil && m[0] == 0 && m[1] == len(x.name)
		}
	case "-regextype", "-mount", "-xdev", "-noleaf", "-daystart", "-warn", "-nowarn":
		if op == "-regextype" {
			f.next(op)
		}
		return func(*found) bool { return true }
	case "-type", "-xtype":
		t := f.next(op)
		return func(x *found) bool {
			fi := x.fi
			if op == "-xtype" {
				if s, err := os.Stat(x.path); err == nil {
					fi = s
				}
			}
			m := fi.Mode()
			for k := range strings.SplitSeq(t, ",") {
				if map[string]bool{"f": m.IsRegular(), "d": m.IsDir(), "l": m&fs.ModeSymlink != 0, "p": m&fs.ModeNamedPipe != 0, "s": m&fs.ModeSocket != 0,
					"c": m&fs.ModeCharDevice != 0, "b": m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0}[k] {
					return true
				}
			}
			return false
		}
	case "-maxdepth", "-mindepth":
		n, err := strconv.Atoi(f.next(op))
		if err != nil {
			c.die(1, "invalid argument to '%s'", op)
		}
		if op == "-maxdepth" {
			f.max = n
		} else {
			f.min = n
		}
		return func(*found) bool { return true }
	case "-depth", "-d":
		f.depthFirst = true
		return func(*found) bool { return true }
	case "-size":
		is, unit := f.compareArg(op)
		u := map[string]int64{"": 512, "b": 512, "c": 1, "w": 2, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit]
		if u == 0 {
			c.die(1, "invalid unit '%s'", unit)
		}
		return func(x *found) bool { return is((x.fi.Size() + u - 1) / u) }
	case "-mtime", "-atime", "-ctime", "-mmin", "-amin", "-cmin":
		is, _ := f.compareArg(op)
		unit := 24 * time.Hour
		if strings.HasSuffix(op, "min") {
			unit = time.Minute
		}
		return func(x *found) bool { return is(int64(f.now.Sub(x.fi.ModTime()) / unit)) }
	case "-newer":
		ref, err := os.Stat(c.path(f.next(op)))
		if err != nil {
			c.die(1, "-newer: %s", reason(err))
		}
		return func(x *found) bool { return x.fi.ModTime().After(ref.ModTime()) }
	case "-newermt":
		t, ok := parseDate(f.next(op))
		if !ok {
			c.die(1, "-newermt: invalid date")
		}
		return func(x *found) bool { return x.fi.ModTime().After(t) }
	case "-empty":
		return func(x *found) bool {
			if x.fi.IsDir() {
				ents, err := os.ReadDir(x.path)
				return err == nil && len(ents) == 0
			}
			return x.fi.Mode().IsRegular() && x.fi.Size() == 0
		}
	case "-perm":
		s := f.next(op)
		kind := byte(0)
		if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "/") {
			kind, s = s[0], s[1:]
		}
		want, ok := symbolicMode(s, 0, false)
		if !ok {
			c.die(1, "invalid mode '%s'", s)
		}
		return func(x *found) bool {
			m := x.fi.Sys().(*syscall.Stat_t).Mode & 0o7777
			switch kind {
			case '-':
				return m&want == want
			case '/':
				return m&want != 0 || want == 0
			}
			return m == want
		}
	case "-executable", "-readable", "-writable":
		mode := map[string]uint32{"-executable": unix.X_OK, "-readable": unix.R_OK, "-writable": unix.W_OK}[op]
		return func(x *found) bool { return unix.Access(x.path, mode) == nil }
	case "-user", "-uid", "-group", "-gid":
		file := "/etc/passwd"
		if strings.HasPrefix(op, "-g") {
			file = "/etc/group"
		}
		id, ok := nameID(file, f.next(op))
		if !ok {
			c.die(1, "unknown name for '%s'", op)
		}
		return func(x *found) bool {
			st := x.fi.Sys().(*syscall.Stat_t)
			if strings.HasPrefix(op, "-g") {
				return int(st.Gid) == id
			}
			return int(st.Uid) == id
		}
	case "-links":
		is, _ := f.compareArg(op)
		return func(x *found) bool { return is(int64(x.fi.Sys().(*syscall.Stat_t).Nlink)) }
	case "-inum":
		is, _ := f.compareArg(op)
		return func(x *found) bool { return is(int64(x.fi.Sys().(*syscall.Stat_t).Ino)) }
	case "-prune":
		return func(x *found) bool { x.prune = true; return true }
	case "-quit":
		f.action = true
		return func(*found) bool { f.quit = true; return true }
	case "-print", "-print0", "-ls":
		f.action = true
		return func(x *found) bool {
			switch op {
			case "-print":
				c.printf("%s\n", x.name)
			case "-print0":
				c.printf("%s\x00", x.name)
			default:
				st := x.fi.Sys().(*syscall.Stat_t)
				c.printf("%9d %6d %s %3d %-8s %-8s %8d %s %s\n", st.Ino, st.Blocks/2, modeString(st.Mode), st.Nlink, lookupUser(int(st.Uid)), lookupGroup(int(st.Gid)),
					st.Size, x.fi.ModTime().Format("Jan _2 15:04"), x.name)
			}
			return true
		}
	case "-printf":
		f.action = true
		format, _ := unescape(f.next(op), true)
		return func(x *found) bool { f.printf(format, x); return true }
	case "-delete":
		f.action, f.depthFirst = true, true
		return func(x *found) bool {
			if x.name == "." {
				return true
			}
			if err := os.Remove(x.path); err != nil {
				c.fail("cannot delete '%s': %s", x.name, reason(err))
				return false
			}
			return true
		}
	case "-exec", "-execdir", "-ok":
		f.action = true
		var cmd []string
		batch := false
		for {
			a := f.next(op)
			if a == ";" {
				break
			}
			if a == "+" && len(cmd) > 0 && cmd[len(cmd)-1] == "{}" {
				cmd, batch = cmd[:len(cmd)-1], true
				break
			}
			cmd = append(cmd, a)
		}
		if len(cmd) == 0 {
			c.die(1, "missing command to '%s'", op)
		}
		run := func(args []string) int { return c.spawn(args, c.rawIn) }
		if batch {
			var names []string
			flush := func() {
				if len(names) > 0 {
					if st := run(append(slices.Clone(cmd), names...)); st != 0 {
						c.status = 1
					}
					names = nil
				}
			}
			f.batches = append(f.batches, flush)
			return func(x *found) bool {
				if names = append(names, x.name); len(names) >= 5000 {
					flush()
				}
				return true
			}
		}
		return func(x *found) bool {
			name := x.name
			args := make([]string, len(cmd))
			sub := c
			if op == "-execdir" {
				dup := *c
				dup.dir, name = filepath.Dir(c.abs(x.name)), "./"+filepath.Base(x.name)
				sub = &dup
			}
			for i, a := range cmd {
				args[i] = strings.ReplaceAll(a, "{}", name)
			}
			return sub.spawn(args, c.rawIn) == 0
		}
	}
	c.die(1, "unknown predicate '%s'", op)
	return nil
}

func (f *finder) printf(format string, x *found) {
	st := x.fi.Sys().(*syscall.Stat_t)
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			f.c.out.WriteByte(format[i])
			continue
		}
		i++
		v := "%" + format[i:i+1]
		switch format[i] {
		case '%':
			v = "%"
		case 'p':
			v = x.name
		case 'f':
			v = filepath.Base(x.name)
		case 'h':
			v = filepath.Dir(x.name)
		case 'P':
			v = strings.Join(strings.Split(x.name, "/")[min(len(strings.Split(x.name, "/")), len(strings.Split(x.name, "/"))-x.depth):], "/")
		case 's':
			v = fmt.Sprint(x.fi.Size())
		case 'd':
			v = fmt.Sprint(x.depth)
		case 'm':
			v = fmt.Sprintf("%o", st.Mode&0o7777)
		case 'M':
			v = modeString(st.Mode)
		case 'u':
			v = lookupUser(int(st.Uid))
		case 'g':
			v = lookupGroup(int(st.Gid))
		case 'U':
			v = fmt.Sprint(st.Uid)
		case 'G':
			v = fmt.Sprint(st.Gid)
		case 'i':
			v = fmt.Sprint(st.Ino)
		case 'n':
			v = fmt.Sprint(st.Nlink)
		case 'l':
			v, _ = os.Readlink(x.path)
		case 'y':
			v = strings.Replace(modeString(st.Mode)[:1], "-", "f", 1)
		case 't':
			v = x.fi.ModTime().Format("Mon Jan _2 15:04:05.0000000000 2006")
		case 'T', 'A', 'C':
			if i+1 < len(format) {
				i++
				if format[i] == '@' {
					v = fmt.Sprintf("%d.%09d0", x.fi.ModTime().Unix(), x.fi.ModTime().Nanosecond())
				} else {
					v = strftime("%"+format[i:i+1], x.fi.ModTime())
				}
			}
		}
		f.c.out.WriteString(v)
	}
}

func xargs(c *call) int {
	o := c.getopt("+0rtn:L:I:P:d:s:pxE:a:i?", "null=0", "no-run-if-empty=r", "verbose=t", "max-args=n", "max-lines=L", "replace=i", "max-procs=P", "delimiter=d", "arg-file=a")
	cmd := o.args
	if len(cmd) == 0 {
		cmd = []string{"echo"}
	}
	in := c.in
	if o.has('a') {
		r := c.open(o.str('a', ""))
		if r == nil {
			return 1
		}
		defer r.Close()
		in = r
	}
	replace := o.str('I', "")
	if o.has('i') && replace == "" {
		if replace = o.str('i', ""); replace == "" {
			replace = "{}"
		}
	}
	next := xargsWords(bufio.NewReaderSize(in, bufSize), o, replace != "" || o.has('L'), c)
	limit := int(o.num('n', 5000))
	if o.has('L') {
		limit = int(o.num('L', 1))
	}
	procs := int(o.num('P', 1))
	slots := make(chan int, max(procs, 1))
	for range cap(slots) {
		slots <- 0
	}
	status := 0
	note := func(st int) {
		switch {
		case st == 126 || st == 127 || st == 255:
			status = max(status, min(st, 127))
			if st == 255 {
				status = 124
			}
		case st > 128:
			status = 125
		case st != 0:
			status = max(status, 123)
		}
	}
	run := func(args []string) bool {
		if o.has('t') {
			fmt.Fprintln(c.err, quoteAll(args))
		}
		if procs == 1 {
			note(c.spawn(args, nil))
		} else {
			note(<-slots)
			go func() {
				sub := *c
				sub.out = bufio.NewWriter(io.Discard)
				slots <- sub.spawn(args, nil)
			}()
		}
		return status < 124 || status == 123
	}
	ran := false
	for {
		var batch []string
		size := 0
		for len(batch) < limit && size < 100_000 {
			w, ok := next()
			if !ok {
				break
			}
			batch = append(batch, w)
			size += len(w) + 1
			if replace != "" {
				break
			}
		}
		if len(batch) == 0 && (ran || o.has('r') || replace != "") {
			break
		}
		ran = true
		args := append([]string{}, cmd...)
		switch {
		case replace != "":
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], replace, batch[0])
			}
		case o.has('L'):
			for _, l := range batch {
				args = append(args, strings.Fields(l)...)
			}
		default:
			args = append(args, batch...)
		}
		if !run(args) || len(batch) == 0 {
			break
		}
	}
	if procs != 1 {
		for range cap(slots) {
			note(<-slots)
		}
	}
	return status
}

// xargsWords splits the input as xargs does: by blanks, with quotes; by lines for -I and -L; or by a byte.
func xargsWords(r *bufio.Reader, o *options, byLine bool, c *call) func() (string, bool) {
	if o.any("0d") {
		d := byte(0)
		if o.has('d') {
			s, _ := unescape(o.str('d', ""), false)
			if s != "" {
				d = s[0]
			}
		}
		return func() (string, bool) {
			w, err := r.ReadString(d)
			if err != nil && w == "" {
				return "", false
			}
			return strings.TrimSuffix(w, string(d)), true
		}
	}
	return func() (string, bool) {
		var w []byte
		started := false
		quote := byte(0)
		for {
			x, err := r.ReadByte()
			if err != nil {
				if quote != 0 {
					c.die(1, "unmatched quote")
				}
				return string(w), started
			}
			switch {
			case quote != 0:
				if x == quote {
					quote = 0
				} else {
					w = append(w, x)
				}
			case x == '\'' || x == '"':
				quote, started = x, true
			case x == '\\':
				if x, err = r.ReadByte(); err == nil {
					w, started = append(w, x), true
				}
			case x == '\n' || !byLine && (x == ' ' || x == '\t'):
				if started {
					return string(w), true
				}
			case byLine && !started && (x == ' ' || x == '\t'):
			default:
				w, started = append(w, x), true
			}
		}
	}
}
