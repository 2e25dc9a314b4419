package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func sums(c *call) int {
	o := c.getopt("bctqsw", "check=c", "binary=b", "text=t", "quiet=q", "status=s", "warn=w")
	newHash := map[string]func() hash.Hash{"md5sum": md5.New, "sha1sum": sha1.New, "sha256sum": sha256.New, "sha512sum": sha512.New}[c.name]
	sum := func(name string) (string, bool) {
		r := c.open(name)
		if r == nil {
			return "", false
		}
		defer r.Close()
		h := newHash()
		if _, err := io.CopyBuffer(h, struct{ io.Reader }{r}, make([]byte, 2*bufSize)); err != nil {
			c.fail("%s: %s", name, reason(err))
			return "", false
		}
		return hex.EncodeToString(h.Sum(nil)), true
	}
	if !o.has('c') {
		for _, n := range orStdin(o.args) {
			if s, ok := sum(n); ok {
				c.printf("%s  %s\n", s, n)
			}
		}
		return c.status
	}
	bad, lost := 0, 0
	c.inputs(o.args, func(_ string, r io.Reader) {
		lines(r, func(l []byte, _ bool) bool {
			want, name, ok := strings.Cut(string(l), " ")
			if !ok {
				return true
			}
			name = strings.TrimLeft(name, " *")
			got, ok := sum(name)
			switch {
			case !ok:
				lost++
				if !o.has('s') {
					c.printf("%s: FAILED open or read\n", name)
				}
			case !strings.EqualFold(got, want):
				bad++
				if !o.has('s') {
					c.printf("%s: FAILED\n", name)
				}
			case !o.any("qs"):
				c.printf("%s: OK\n", name)
			}
			return true
		})
	})
	if bad > 0 && !o.has('s') {
		c.warn("WARNING: %d computed checksum did NOT match", bad)
	}
	if bad+lost > 0 {
		return 1
	}
	return c.status
}

func cksum(c *call) int {
	var table [256]uint32
	for i := range table {
		v := uint32(i) << 24
		for range 8 {
			if v&(1<<31) != 0 {
				v = v<<1 ^ 0x04c11db7
			} else {
				v <<= 1
			}
		}
		table[i] = v
	}
	c.inputs(c.getopt("").args, func(name string, r io.Reader) {
		var crc uint32
		var n int64
		buf := make([]byte, bufSize)
		for {
			k, err := r.Read(buf)
			for _, b := range buf[:k] {
				crc = crc<<8 ^ table[byte(crc>>24)^b]
			}
			n += int64(k)
			if err != nil {
				break
			}
		}
		for m := n; m > 0; m >>= 8 {
			crc = crc<<8 ^ table[byte(crc>>24)^byte(m)]
		}
		if name == "-" {
			name = ""
		}
		c.printf("%s\n", strings.TrimSpace(fmt.Sprintf("%d %d %s", ^crc, n, name)))
	})
	return c.status
}

func base64Applet(c *call) int {
	o := c.getopt("dDw:i", "decode=d", "wrap=w", "ignore-garbage=i")
	wrap := int(o.num('w', 76))
	for _, n := range orStdin(o.args)[:1] {
		b, ok := c.readAll(n)
		if !ok {
			return 1
		}
		if o.any("dD") {
			b = bytes.Join(bytes.Fields(b), nil)
			out := make([]byte, base64.StdEncoding.DecodedLen(len(b)))
			k, err := base64.StdEncoding.Decode(out, b)
			c.out.Write(out[:k])
			if err != nil {
				c.fail("invalid input")
			}
			continue
		}
		s := base64.StdEncoding.EncodeToString(b)
		for wrap > 0 && len(s) > wrap {
			c.printf("%s\n", s[:wrap])
			s = s[wrap:]
		}
		c.out.WriteString(s)
		if wrap > 0 && s != "" {
			c.out.WriteByte('\n')
		}
	}
	return c.status
}

func gzipApplet(c *call) int {
	o := c.getopt("#cdkfvtnqrl", "stdout=c", "decompress=d", "uncompress=d", "keep=k", "force=f", "test=t", "to-stdout=c")
	unpack := o.any("dt") || c.name != "gzip"
	toStdout := o.any("ct") || c.name == "zcat"
	level := int(o.num('#', 6))
	work := func(r io.Reader, w io.Writer) error {
		if !unpack {
			z, err := gzip.NewWriterLevel(w, min(max(level, 1), 9))
			if err != nil {
				return err
			}
			if _, err = io.Copy(z, r); err != nil {
				return err
			}
			return z.Close()
		}
		z, err := gzip.NewReader(bufio.NewReaderSize(r, bufSize))
		if err != nil {
			return errors.New("not in gzip format")
		}
		_, err = io.Copy(w, z)
		return err
	}
	if len(o.args) == 0 || o.args[0] == "-" {
		if err := work(c.in, c.out); err != nil {
			c.fail("stdin: %s", reason(err))
		}
		return c.status
	}
	for _, n := range o.args {
		p := c.path(n)
		dst := p + ".gz"
		if unpack {
			base, ok := strings.CutSuffix(p, ".gz")
			if t, isTgz := strings.CutSuffix(p, ".tgz"); isTgz {
				base, ok = t+".tar", true
			}
			if !ok && !toStdout {
				c.fail("%s: unknown suffix -- ignored", n)
				c.status = 2
				continue
			}
			dst = base
		}
		in, err := os.Open(p)
		if err != nil {
			c.fail("%s: %s", n, reason(err))
			continue
		}
		if toStdout {
			w := io.Writer(c.out)
			if o.has('t') {
				w = io.Discard
			}
			if err := work(in, w); err != nil {
				c.fail("%s: %s", n, reason(err))
			}
			in.Close()
			continue
		}
		if _, err := os.Stat(dst); err == nil && !o.has('f') {
			c.fail("%s already exists", dst)
			in.Close()
			continue
		}
		fi, _ := in.Stat()
		out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fi.Mode().Perm())
		if err == nil {
			w := bufio.NewWriterSize(out, bufSize)
			err = work(in, w)
			err = errors.Join(err, w.Flush(), out.Close())
		}
		in.Close()
		if err != nil {
			os.Remove(dst)
			c.fail("%s: %s", n, reason(err))
			continue
		}
		os.Chtimes(dst, fi.ModTime(), fi.ModTime())
		if !o.has('k') {
			os.Remove(p)
		}
	}
	return c.status
}

func tarApplet(c *call) int {
	if len(c.args) > 0 && !strings.HasPrefix(c.args[0], "-") { // tar czf x y
		c.args = append([]string{"-" + c.args[0]}, c.args[1:]...)
	}
	o := c.getopt("cxtrzjJvkpmOhPf:C:T:X:a1:2:3", "create=c", "extract=x", "get=x", "list=t", "gzip=z", "bzip2=j", "verbose=v", "file=f", "directory=C", "exclude=1",
		"strip-components=2", "files-from=T", "to-stdout=O", "dereference=h", "no-same-owner=3", "no-same-permissions=3", "preserve-permissions=p", "numeric-owner=3",
		"auto-compress=a", "absolute-names=P", "keep-old-files=k", "same-owner=3", "touch=m", "overwrite=3")
	file := o.str('f', "-")
	base := c.wd()
	if o.has('C') {
		base = c.abs(o.str('C', ""))
	}
	zip := o.has('z') || o.has('a') && (strings.HasSuffix(file, ".gz") || strings.HasSuffix(file, ".tgz"))
	excluded := func(name string) bool {
		for _, p := range o.vals['1'] {
			p = strings.TrimSuffix(p, "/")
			if glob(p, name) || glob(p, filepath.Base(name)) || glob("*/"+p, name) || glob(p+"/*", name) || glob("*/"+p+"/*", name) {
				return true
			}
		}
		return false
	}
	log := func(format string, a ...any) {
		if file == "-" && o.has('c') || o.has('O') {
			fmt.Fprintf(c.err, format, a...)
		} else {
			c.printf(format, a...)
		}
	}
	switch {
	case o.has('c'):
		out := io.Writer(c.out)
		if file != "-" {
			f, err := os.Create(c.path(file))
			if err != nil {
				c.die(2, "%s: Cannot open: %s", file, reason(err))
			}
			defer f.Close()
			w := bufio.NewWriterSize(f, bufSize)
			defer w.Flush()
			out = w
		}
		if zip {
			z := gzip.NewWriter(out)
			defer z.Close()
			out = z
		}
		w := tar.NewWriter(out)
		names := o.args
		if o.has('T') {
			b, ok := c.readAll(o.str('T', ""))
			if !ok {
				return 2
			}
			names = append(names, strings.Fields(string(b))...)
		}
		if len(names) == 0 {
			c.die(2, "Cowardly refusing to create an empty archive")
		}
		for _, n := range names {
			c.tarAdd(w, base, n, o, excluded, log)
		}
		w.Close()
	case o.has('x') || o.has('t'):
		in := c.in
		if file != "-" {
			f, err := os.Open(c.path(file))
			if err != nil {
				c.die(2, "%s: Cannot open: %s", file, reason(err))
			}
			defer f.Close()
			in = f
		}
		b := bufio.NewReaderSize(in, bufSize)
		in = b
		if magic, _ := b.Peek(3); len(magic) == 3 && magic[0] == 0x1f && magic[1] == 0x8b {
			z, err := gzip.NewReader(b)
			if err != nil {
				c.die(2, "%v", err)
			}
			in = z
		} else if string(magic) == "BZh" {
			in = bzip2.NewReader(b)
		}
		c.untar(tar.NewReader(in), base, o, excluded, log)
	default:
		c.die(2, "you must specify one of the options -c, -t, -x")
	}
	if c.status != 0 {
		c.status = 2
	}
	return c.status
}

func (c *call) tarAdd(w *tar.Writer, base, name string, o *options, excluded func(string) bool, log func(string, ...any)) {
	root := name
	if !filepath.IsAbs(root) {
		root = filepath.Join(base, name)
	}
	filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, p)
		n := name
		if rel != "." {
			n = strings.TrimSuffix(name, "/") + "/" + rel
		}
		if err != nil {
			c.fail("%s: Cannot open: %s", n, reason(err))
			return nil
		}
		if excluded(n) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		stat := os.Lstat
		if o.has('h') {
			stat = os.Stat
		}
		fi, err := stat(p)
		if err != nil {
			c.fail("%s: Cannot stat: %s", n, reason(err))
			return nil
		}
		if fi.Mode()&fs.ModeSocket != 0 {
			return nil
		}
		link := ""
		if fi.Mode()&fs.ModeSymlink != 0 {
			link, _ = os.Readlink(p)
		}
		h, err := tar.FileInfoHeader(fi, link)
		if err != nil {
			c.fail("%s: %v", n, err)
			return nil
		}
		h.Name = n
		if !o.has('P') {
			h.Name = strings.TrimLeft(n, "/")
		}
		if h.Name == "" {
			return nil
		}
		h.Format = tar.FormatGNU
		h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
		h.ModTime = h.ModTime.Truncate(time.Second)
		if fi.IsDir() && !strings.HasSuffix(h.Name, "/") {
			h.Name += "/"
		}
		if o.has('v') {
			log("%s\n", h.Name)
		}
		if err := w.WriteHeader(h); err != nil {
			c.die(2, "%s: %v", n, err)
		}
		if fi.Mode().IsRegular() {
			f, err := os.Open(p)
			if err != nil {
				c.fail("%s: Cannot open: %s", n, reason(err))
				return nil
			}
			defer f.Close()
			got, _ := io.Copy(w, io.LimitReader(f, fi.Size()))
			for ; got < fi.Size(); got++ { // it shrank under us
				w.Write([]byte{0})
			}
		}
		return nil
	})
}

func (c *call) untar(r *tar.Reader, base string, o *options, excluded func(string) bool, log func(string, ...any)) {
	strip := int(o.num('2', 0))
	type dirTime struct {
		path string
		mode fs.FileMode
		t    time.Time
	}
	var dirs []dirTime
	matched := map[string]bool{}
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			c.die(2, "%v", err)
		}
		want := len(o.args) == 0
		for _, a := range o.args {
			a = strings.TrimSuffix(a, "/")
			if n := strings.TrimSuffix(h.Name, "/"); n == a || strings.HasPrefix(n, a+"/") || glob(a, n) {
				want, matched[strings.TrimSuffix(a, "/")] = true, true
			}
		}
		if !want || excluded(strings.TrimSuffix(h.Name, "/")) {
			continue
		}
		if o.has('t') {
			if o.has('v') {
				fi := h.FileInfo()
				name := h.Name
				if h.Linkname != "" {
					name += " -> " + h.Linkname
				}
				st := uint32(h.Mode) | map[byte]uint32{tar.TypeDir: syscall.S_IFDIR, tar.TypeSymlink: syscall.S_IFLNK}[h.Typeflag]
				if st&syscall.S_IFMT == 0 {
					st |= syscall.S_IFREG
				}
				owner := func(n string, id int) string {
					if n != "" {
						return n
					}
					return strconv.Itoa(id)
				}
				c.printf("%s %s/%s %9d %s %s\n", modeString(st), owner(h.Uname, h.Uid), owner(h.Gname, h.Gid), fi.Size(), h.ModTime.Format("2006-01-02 15:04"), name)
			} else {
				c.printf("%s\n", h.Name)
			}
			continue
		}
		name := h.Name
		cut := func(n string) (string, bool) {
			for range strip {
				_, rest, ok := strings.Cut(strings.TrimLeft(n, "/"), "/")
				if !ok || rest == "" {
					return "", false
				}
				n = rest
			}
			return n, true
		}
		name, ok := cut(name)
		if !ok {
			continue
		}
		if o.has('v') {
			log("%s\n", h.Name)
		}
		if o.has('O') {
			io.Copy(c.out, r)
			continue
		}
		if slices.Contains(strings.Split(name, "/"), "..") {
			c.fail("%s: Member name contains '..'", name)
			continue
		}
		p := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			c.fail("%s: Cannot mkdir: %s", name, reason(err))
			continue
		}
		mode := h.FileInfo().Mode()
		switch h.Typeflag {
		case tar.TypeDir:
			if err = os.MkdirAll(p, 0o777); err == nil {
				dirs = append(dirs, dirTime{p, mode, h.ModTime})
			}
		case tar.TypeSymlink:
			os.Remove(p)
			err = os.Symlink(h.Linkname, p)
		case tar.TypeLink:
			os.Remove(p)
			target, _ := cut(h.Linkname)
			err = os.Link(filepath.Join(base, target), p)
		case tar.TypeFifo:
			err = syscall.Mkfifo(p, uint32(mode.Perm()))
		case tar.TypeReg:
			if fi, lerr := os.Lstat(p); lerr == nil {
				if o.has('k') {
					c.fail("%s: Cannot open: File exists", name)
					continue
				}
				if !fi.IsDir() {
					os.Remove(p) // never through a link
				}
			}
			var f *os.File
			if f, err = os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm()); err == nil {
				_, err = io.Copy(f, r)
				err = errors.Join(err, f.Close())
			}
		default:
			continue
		}
		if err != nil {
			c.fail("%s: Cannot open: %s", name, reason(err))
			continue
		}
		if h.Typeflag != tar.TypeLink && h.Typeflag != tar.TypeDir {
			if os.Geteuid() == 0 && !o.has('3') {
				os.Lchown(p, h.Uid, h.Gid)
			}
			if h.Typeflag == tar.TypeReg {
				if o.has('p') || os.Geteuid() == 0 {
					os.Chmod(p, mode)
				}
				if !o.has('m') {
					os.Chtimes(p, h.ModTime, h.ModTime)
				}
			}
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		os.Chmod(dirs[i].path, dirs[i].mode.Perm())
		os.Chtimes(dirs[i].path, dirs[i].t, dirs[i].t)
	}
	for _, a := range o.args {
		if !matched[strings.TrimSuffix(a, "/")] {
			c.fail("%s: Not found in archive", a)
		}
	}
}

// blocks calls f with every width bytes of the inputs, seen as one stream.
func (c *call) blocks(names []string, skip, limit int64, width int, f func(at int64, b []byte)) {
	var rs []io.Reader
	for _, n := range orStdin(names) {
		if r := c.open(n); r != nil {
			defer r.Close()
			rs = append(rs, r)
		}
	}
	r := bufio.NewReaderSize(io.MultiReader(rs...), bufSize)
	io.CopyN(io.Discard, r, skip)
	at := skip
	buf := make([]byte, width)
	for limit != 0 {
		want := width
		if limit > 0 && limit < int64(want) {
			want = int(limit)
		}
		n, err := io.ReadFull(r, buf[:want])
		if n > 0 {
			f(at, buf[:n])
			at += int64(n)
			if limit > 0 {
				limit -= int64(n)
			}
		}
		if err != nil {
			break
		}
	}
	f(at, nil)
}

func parseOffset(c *call, s string) int64 {
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		return n
	}
	n, err := parseSize(s)
	if err != nil {
		c.die(1, "invalid number: %q", s)
	}
	return n
}

func od(c *call) int {
	o := c.getopt("A:t:N:j:w:vbcdoxa", "address-radix=A", "format=t", "read-bytes=N", "skip-bytes=j", "width=w", "output-duplicates=v")
	format := o.str('t', "")
	for _, x := range []struct {
		b byte
		t string
	}{{'x', "x2"}, {'c', "c"}, {'b', "o1"}, {'d', "u2"}, {'o', "o2"}, {'a', "c"}} {
		if o.has(x.b) {
			format = x.t
		}
	}
	if format == "" {
		format = "o2"
	}
	kind := format[0]
	size := 4
	if kind == 'c' || kind == 'a' {
		size = 1
	}
	if n, err := strconv.Atoi(strings.TrimRight(format[1:], "z")); err == nil {
		size = n
	} else if len(format) > 1 {
		size = map[byte]int{'C': 1, 'S': 2, 'I': 4, 'L': 8}[format[1]]
	}
	if size != 1 && size != 2 && size != 4 && size != 8 {
		c.die(1, "invalid type string %q", format)
	}
	limit, width := int64(-1), 16
	if o.has('N') {
		limit = parseOffset(c, o.str('N', ""))
	}
	if o.has('w') {
		width = int(o.num('w', 32))
	}
	address := func(at int64) string {
		switch o.str('A', "o") {
		case "n":
			return ""
		case "x":
			return fmt.Sprintf("%06x", at)
		case "d":
			return fmt.Sprintf("%07d", at)
		}
		return fmt.Sprintf("%07o", at)
	}
	var last []byte
	starred := false
	c.blocks(o.args, parseOffset(c, o.str('j', "0")), limit, width, func(at int64, b []byte) {
		if b == nil {
			if o.str('A', "o") != "n" {
				c.printf("%s\n", address(at))
			}
			return
		}
		if !o.has('v') && bytes.Equal(b, last) {
			if !starred {
				c.printf("*\n")
			}
			starred = true
			return
		}
		starred = false
		last = append(last[:0], b...)
		c.out.WriteString(address(at))
		for i := 0; i < len(b); i += size {
			var v uint64
			for j := size - 1; j >= 0; j-- {
				v <<= 8
				if i+j < len(b) {
					v |= uint64(b[i+j])
				}
			}
			switch kind {
			case 'x':
				c.printf(" %0*x", size*2, v)
			case 'o':
				c.printf(" %0*o", map[int]int{1: 3, 2: 6, 4: 11, 8: 22}[size], v)
			case 'u':
				c.printf(" %*d", map[int]int{1: 3, 2: 5, 4: 10, 8: 20}[size], v)
			case 'd':
				shift := 64 - 8*size
				c.printf(" %*d", map[int]int{1: 4, 2: 6, 4: 11, 8: 20}[size], int64(v<<shift)>>shift)
			default:
				x := byte(v)
				s := string(rune(x))
				if k := strings.IndexByte("\x00\a\b\f\n\r\t\v", x); k >= 0 {
					s = `\` + "0abfnrtv"[k:k+1]
				} else if x < 32 || x > 126 {
					s = fmt.Sprintf("%03o", x)
				}
				c.printf(" %3s", s)
			}
		}
		c.out.WriteByte('\n')
	})
	return c.status
}

func hexdump(c *call) int {
	o := c.getopt("Cvn:s:x", "canonical=C", "no-squeezing=v", "length=n", "skip=s")
	limit := int64(-1)
	if o.has('n') {
		limit = parseOffset(c, o.str('n', ""))
	}
	var last []byte
	starred := false
	c.blocks(o.args, parseOffset(c, o.str('s', "0")), limit, 16, func(at int64, b []byte) {
		w := 7
		if o.has('C') {
			w = 8
		}
		if b == nil {
			if at > 0 {
				c.printf("%0*x\n", w, at)
			}
			return
		}
		if !o.has('v') && bytes.Equal(b, last) {
			if !starred {
				c.printf("*\n")
			}
			starred = true
			return
		}
		starred = false
		last = append(last[:0], b...)
		c.printf("%0*x", w, at)
		if !o.has('C') {
			for i := 0; i < len(b); i += 2 {
				v := int(b[i])
				if i+1 < len(b) {
					v |= int(b[i+1]) << 8
				}
				c.printf(" %04x", v)
			}
			c.out.WriteByte('\n')
			return
		}
		for i := range 16 {
			if i%8 == 0 {
				c.out.WriteByte(' ')
			}
			if i < len(b) {
				c.printf(" %02x", b[i])
			} else {
				c.printf("   ")
			}
		}
		c.printf("  |%s|\n", dots(b))
	})
	return c.status
}

func dots(b []byte) string {
	s := slices.Clone(b)
	for i, x := range s {
		if x < 32 || x > 126 {
			s[i] = '.'
		}
	}
	return string(s)
}

func xxd(c *call) int {
	o := c.getopt("prul:s:c:g:i", "plain=p", "revert=r")
	if o.has('r') {
		b, ok := c.readAll(orStdin(o.args)[0])
		if !ok {
			return 2
		}
		for l := range strings.Lines(string(b)) {
			l = strings.TrimSpace(l)
			if _, rest, ok := strings.Cut(l, ": "); ok && !o.has('p') {
				l, _, _ = strings.Cut(rest, "  ")
			}
			d, _ := hex.DecodeString(strings.ReplaceAll(l, " ", ""))
			c.out.Write(d)
		}
		return 0
	}
	limit, width := int64(-1), 16
	if o.has('p') {
		width = 30
	}
	if o.has('l') {
		limit = parseOffset(c, o.str('l', ""))
	}
	width = int(o.num('c', int64(width)))
	group := int(o.num('g', 2))
	names := o.args
	if len(names) > 1 {
		names = names[:1]
	}
	c.blocks(names, parseOffset(c, o.str('s', "0")), limit, max(width, 1), func(at int64, b []byte) {
		if b == nil {
			return
		}
		h := hex.EncodeToString(b)
		if o.has('u') {
			h = strings.ToUpper(h)
		}
		if o.has('p') {
			c.printf("%s\n", h)
			return
		}
		var line strings.Builder
		for i := range width {
			if i < len(b) {
				line.WriteString(h[2*i : 2*i+2])
			} else {
				line.WriteString("  ")
			}
			if group > 0 && (i+1)%group == 0 && i+1 < width {
				line.WriteByte(' ')
			}
		}
		c.printf("%08x: %s  %s\n", at, line.String(), dots(b))
	})
	return c.status
}

func cmpApplet(c *call) int {
	o := c.getopt("slbn:i:", "silent=s", "quiet=s", "verbose=l", "bytes=n")
	if len(o.args) < 1 {
		c.die(2, "missing operand")
	}
	names := append(slices.Clone(o.args), "-")[:2]
	var rs [2]*bufio.Reader
	for i, n := range names {
		r := c.open(n)
		if r == nil {
			return 2
		}
		defer r.Close()
		rs[i] = bufio.NewReaderSize(r, bufSize)
	}
	line, differ := 1, false
	limit := o.num('n', -1)
	for at := int64(1); limit < 0 || at <= limit; at++ {
		a, e1 := rs[0].ReadByte()
		b, e2 := rs[1].ReadByte()
		if e1 != nil || e2 != nil {
			if e1 == nil || e2 == nil {
				short := names[0]
				if e1 == nil {
					short = names[1]
				}
				if !o.has('s') {
					c.warn("EOF on %s after byte %d", short, at-1)
				}
				return 1
			}
			break
		}
		if a != b {
			differ = true
			if o.has('l') {
				c.printf("%d %3o %3o\n", at, a, b)
				continue
			}
			if !o.has('s') {
				c.printf("%s %s differ: byte %d, line %d\n", names[0], names[1], at, line)
			}
			return 1
		}
		if a == '\n' {
			line++
		}
	}
	if differ {
		return 1
	}
	return 0
}

func diff(c *call) int {
	o := c.getopt("uqrNbBwiaU:sL:", "unified=u", "brief=q", "recursive=r", "new-file=N", "ignore-space-change=b", "ignore-all-space=w", "ignore-case=i", "text=a",
		"report-identical-files=s", "label=L", "ignore-blank-lines=B")
	if len(o.args) != 2 {
		c.die(2, "two operands, please")
	}
	d := differ{c: c, o: o}
	a, b := o.args[0], o.args[1]
	sa, ea := os.Stat(c.path(a))
	sb, eb := os.Stat(c.path(b))
	if ea == nil && eb == nil {
		switch {
		case sa.IsDir() && sb.IsDir():
			d.dirs(a, b)
			return max(d.status, c.status)
		case sa.IsDir():
			a = strings.TrimSuffix(a, "/") + "/" + filepath.Base(b)
		case sb.IsDir():
			b = strings.TrimSuffix(b, "/") + "/" + filepath.Base(a)
		}
	}
	d.files(a, b, false)
	return max(d.status, c.status)
}

type differ struct {
	c      *call
	o      *options
	status int
}

func (d *differ) dirs(a, b string) {
	names := map[string]int{}
	for i, dir := range []string{a, b} {
		ents, err := os.ReadDir(d.c.path(dir))
		if err != nil {
			d.c.warn("%s: %s", dir, reason(err))
			d.status = 2
			return
		}
		for _, e := range ents {
			names[e.Name()] |= 1 << i
		}
	}
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	slices.Sort(sorted)
	for _, n := range sorted {
		pa, pb := strings.TrimSuffix(a, "/")+"/"+n, strings.TrimSuffix(b, "/")+"/"+n
		if names[n] != 3 && !d.o.has('N') {
			in := a
			if names[n] == 2 {
				in = b
			}
			d.c.printf("Only in %s: %s\n", strings.TrimSuffix(in, "/"), n)
			d.status = max(d.status, 1)
			continue
		}
		sa, ea := os.Stat(d.c.path(pa))
		sb, eb := os.Stat(d.c.path(pb))
		isDir := ea == nil && sa.IsDir() || eb == nil && sb.IsDir()
		switch {
		case isDir && d.o.has('r') && ea == nil && eb == nil:
			d.dirs(pa, pb)
		case isDir:
			d.c.printf("Common subdirectories: %s and %s\n", pa, pb)
		default:
			d.files(pa, pb, true)
		}
	}
}

func (d *differ) read(name string) ([]byte, bool) {
	if d.o.has('N') && name != "-" {
		if _, err := os.Stat(d.c.path(name)); errors.Is(err, fs.ErrNotExist) {
			return nil, true
		}
	}
	b, ok := d.c.readAll(name)
	if !ok {
		d.status = 2
	}
	return b, ok
}

// hunk is a change: lines a1..a2 of the old become b1..b2 of the new, half-open.
type hunk struct{ a1, a2, b1, b2 int }

func (d *differ) files(a, b string, header bool) {
	ta, okA := d.read(a)
	tb, okB := d.read(b)
	if !okA || !okB {
		return
	}
	if bytes.Equal(ta, tb) {
		if d.o.has('s') {
			d.c.printf("Files %s and %s are identical\n", a, b)
		}
		return
	}
	binary := func(t []byte) bool { return bytes.IndexByte(t[:min(len(t), 8192)], 0) >= 0 }
	if !d.o.has('a') && (binary(ta) || binary(tb)) {
		d.c.printf("Binary files %s and %s differ\n", a, b)
		d.status = max(d.status, 1)
		return
	}
	la, lb := splitLines(ta), splitLines(tb)
	key := func(l string) string {
		if d.o.has('w') {
			l = strings.Join(strings.Fields(l), "")
		} else if d.o.has('b') {
			l = strings.Join(strings.Fields(l), " ")
		}
		if d.o.has('i') {
			l = strings.ToLower(l)
		}
		return l
	}
	hs := diffLines(la, lb, key)
	if len(hs) == 0 {
		return
	}
	d.status = max(d.status, 1)
	if d.o.has('q') {
		d.c.printf("Files %s and %s differ\n", a, b)
		return
	}
	if header {
		flags := "-r"
		if d.o.any("uU") {
			flags = "-ru"
		}
		d.c.printf("diff %s %s %s\n", flags, a, b)
	}
	if d.o.any("uU") {
		d.unified(a, b, la, lb, hs, int(d.o.num('U', 3)))
		return
	}
	span := func(x, y int) string {
		if y-x <= 1 {
			return strconv.Itoa(max(y, x))
		}
		return fmt.Sprintf("%d,%d", x+1, y)
	}
	for _, h := range hs {
		op := "c"
		if h.a1 == h.a2 {
			op = "a"
		} else if h.b1 == h.b2 {
			op = "d"
		}
		d.c.printf("%s%s%s\n", span(h.a1, h.a2), op, span(h.b1, h.b2))
		d.print("< ", la[h.a1:h.a2])
		if op == "c" {
			d.c.printf("---\n")
		}
		d.print("> ", lb[h.b1:h.b2])
	}
}

func (d *differ) print(prefix string, ls []string) {
	for _, l := range ls {
		d.c.printf("%s%s", prefix, l)
		if !strings.HasSuffix(l, "\n") {
			d.c.printf("\n\\ No newline at end of file\n")
		}
	}
}

func (d *differ) unified(a, b string, la, lb []string, hs []hunk, ctx int) {
	labels := d.o.vals['L']
	for i, n := range []string{a, b} {
		mark := []string{"---", "+++"}[i]
		if i < len(labels) {
			d.c.printf("%s %s\n", mark, labels[i])
			continue
		}
		t := time.Unix(0, 0)
		if fi, err := os.Stat(d.c.path(n)); err == nil {
			t = fi.ModTime()
		}
		d.c.printf("%s %s\t%s\n", mark, n, t.Format("2006-01-02 15:04:05.000000000 -0700"))
	}
	for i := 0; i < len(hs); {
		j := i
		for j+1 < len(hs) && hs[j+1].a1-hs[j].a2 <= 2*ctx {
			j++
		}
		a1, b1 := max(0, hs[i].a1-ctx), max(0, hs[i].b1-min(ctx, hs[i].a1))
		a2 := min(len(la), hs[j].a2+ctx)
		b2 := hs[j].b2 + a2 - hs[j].a2
		span := func(x, y int) string {
			switch y - x {
			case 0:
				return fmt.Sprintf("%d,0", x)
			case 1:
				return strconv.Itoa(x + 1)
			}
			return fmt.Sprintf("%d,%d", x+1, y-x)
		}
		d.c.printf("@@ -%s +%s @@\n", span(a1, a2), span(b1, b2))
		at := a1
		for ; i <= j; i++ {
			d.print(" ", la[at:hs[i].a1])
			d.print("-", la[hs[i].a1:hs[i].a2])
			d.print("+", lb[hs[i].b1:hs[i].b2])
			at = hs[i].a2
		}
		d.print(" ", la[at:a2])
	}
}

func splitLines(b []byte) []string { return slices.Collect(strings.Lines(string(b))) }

// diffLines is Myers' algorithm on lines, after cutting what both share at the ends. Past a bound on the work it gives
// up on the shortest and takes the middle as one change.
func diffLines(a, b []string, key func(string) string) []hunk {
	ids := map[string]int{}
	number := func(ls []string) []int {
		out := make([]int, len(ls))
		for i, l := range ls {
			k := key(l)
			id, ok := ids[k]
			if !ok {
				id = len(ids)
				ids[k] = id
			}
			out[i] = id
		}
		return out
	}
	x, y := number(a), number(b)
	start := 0
	for start < len(x) && start < len(y) && x[start] == y[start] {
		start++
	}
	end := 0
	for end < len(x)-start && end < len(y)-start && x[len(x)-1-end] == y[len(y)-1-end] {
		end++
	}
	x, y = x[start:len(x)-end], y[start:len(y)-end]
	if len(x) == 0 && len(y) == 0 {
		return nil
	}
	n, m := len(x), len(y)
	const most = 3000
	v := make([]int, 2*(n+m)+3)
	off := n + m + 1
	var trace [][]int
	found := false
search:
	for dist := 0; dist <= min(n+m, most); dist++ {
		trace = append(trace, slices.Clone(v[off-dist-1:off+dist+2]))
		for k := -dist; k <= dist; k += 2 {
			i := 0
			if k == -dist || k != dist && v[off+k-1] < v[off+k+1] {
				i = v[off+k+1]
			} else {
				i = v[off+k-1] + 1
			}
			for i < n && i-k < m && x[i] == y[i-k] {
				i++
			}
			v[off+k] = i
			if i >= n && i-k >= m {
				found = true
				break search
			}
		}
	}
	if !found {
		return []hunk{{start, start + n, start, start + m}}
	}
	var hs []hunk // from the end
	i, j := n, m
	for dist := len(trace) - 1; dist > 0; dist-- {
		row := trace[dist]
		at := func(k int) int { return row[k+dist+1] }
		k := i - j
		prev := k - 1
		if k == -dist || k != dist && at(k-1) < at(k+1) {
			prev = k + 1
		}
		pi := at(prev)
		pj := pi - prev
		h := hunk{start + pi, start + pi, start + pj, start + pj}
		if prev == k+1 {
			h.b2++
		} else {
			h.a2++
		}
		if len(hs) > 0 && hs[len(hs)-1].a1 == h.a2 && hs[len(hs)-1].b1 == h.b2 {
			hs[len(hs)-1].a1, hs[len(hs)-1].b1 = h.a1, h.b1
		} else {
			hs = append(hs, h)
		}
		i, j = pi, pj
	}
	slices.Reverse(hs)
	return hs
}
