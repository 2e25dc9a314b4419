package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// copyBlocks copies without the buffer of the call.
func (c *call) copyBlocks(name string, r io.Reader) int64 {
	buf := make([]byte, 2*bufSize)
	var total int64
	c.out.Flush()
	for {
		n, err := r.Read(buf)
		if n > 0 {
			c.write(buf[:n])
			total += int64(n)
		}
		if err == io.EOF {
			return total
		}
		if err != nil {
			c.fail("%s: %s", name, reason(err))
			return total
		}
	}
}

func cat(c *call) int {
	o := c.getopt("nbsETAvetuRSFXr", "number=n", "number-nonblank=b", "squeeze-blank=s", "show-ends=E", "show-tabs=T", "show-all=A")
	if c.name != "cat" || !o.any("nbsETAvet") {
		c.inputs(o.args, func(name string, r io.Reader) { c.copyBlocks(name, r) })
		return 0
	}
	n, blank := 0, false
	ends, tabs := o.any("EAe"), o.any("TAt")
	c.inputs(o.args, func(_ string, r io.Reader) {
		lines(r, func(l []byte, last bool) bool {
			if o.has('s') && len(l) == 0 && blank {
				return true
			}
			blank = len(l) == 0
			if o.has('n') && !o.has('b') || o.has('b') && len(l) > 0 {
				n++
				c.printf("%6d\t", n)
			}
			if tabs {
				l = bytes.ReplaceAll(l, []byte("\t"), []byte("^I"))
			}
			c.out.Write(l)
			if !last {
				if ends {
					c.out.WriteByte('$')
				}
				c.out.WriteByte('\n')
			}
			return true
		})
	})
	return 0
}

func yes(c *call) int {
	line := strings.Join(c.args, " ") + "\n"
	if len(c.args) == 0 {
		line = "y\n"
	}
	block := bytes.Repeat([]byte(line), max(1, bufSize/len(line)))
	for c.ctx.Err() == nil {
		c.write(block)
	}
	return 0
}

func seq(c *call) int {
	o := &options{}
	sep, width, format := "\n", false, ""
	args := c.args
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && !(args[0][1] >= '0' && args[0][1] <= '9' || args[0][1] == '.') {
		switch a := args[0]; {
		case a == "-w":
			width = true
		case (a == "-s" || a == "-f") && len(args) > 1:
			if a == "-s" {
				sep = args[1]
			} else {
				format = args[1]
			}
			args = args[1:]
		case strings.HasPrefix(a, "-s"):
			sep = a[2:]
		case strings.HasPrefix(a, "-f"):
			format = a[2:]
		case a == "--":
		default:
			c.die(1, "invalid option %q", a)
		}
		args = args[1:]
	}
	o.args = args
	if len(args) < 1 || len(args) > 3 {
		c.die(1, "usage: seq [-w] [-s SEP] [-f FORMAT] [FIRST [STEP]] LAST")
	}
	nums, decimals := make([]float64, len(args)), 0
	integer := true
	for i, a := range args {
		f, err := strconv.ParseFloat(a, 64)
		if err != nil {
			c.die(1, "invalid floating point argument: %q", a)
		}
		nums[i] = f
		if _, frac, ok := strings.Cut(a, "."); ok {
			decimals = max(decimals, len(frac))
			integer = false
		}
		if strings.ContainsAny(a, "eE") {
			integer = integer && f == float64(int64(f))
		}
	}
	first, step, last := 1.0, 1.0, nums[len(nums)-1]
	if len(nums) > 1 {
		first = nums[0]
	}
	if len(nums) > 2 {
		step = nums[1]
	}
	if step == 0 {
		c.die(1, "step is zero")
	}
	w := 0
	if width {
		w = max(len(strconv.FormatFloat(first, 'f', decimals, 64)), len(strconv.FormatFloat(last, 'f', decimals, 64)))
	}
	wrote := false
	var b []byte
	for i := 0; ; i++ {
		v := first + float64(i)*step
		if step > 0 && v > last+step*1e-9 || step < 0 && v < last+step*1e-9 {
			break
		}
		if wrote {
			c.out.WriteString(sep)
		}
		wrote = true
		switch {
		case format != "":
			c.printf(format, v)
		case integer && w == 0:
			b = strconv.AppendInt(b[:0], int64(v), 10)
			c.out.Write(b)
		default:
			s := strconv.FormatFloat(v, 'f', decimals, 64)
			if neg := strings.HasPrefix(s, "-"); neg {
				s = "-" + strings.Repeat("0", max(0, w-len(s))) + s[1:]
			} else {
				s = strings.Repeat("0", max(0, w-len(s))) + s
			}
			c.out.WriteString(s)
		}
	}
	if wrote {
		c.out.WriteByte('\n')
	}
	return 0
}

// headers prints the name of each file when there are several.
func (c *call) headers(names []string, quiet, verbose bool, f func(name string, r io.Reader)) {
	first := true
	c.inputs(names, func(name string, r io.Reader) {
		if (len(names) > 1 || verbose) && !quiet {
			if !first {
				c.out.WriteByte('\n')
			}
			if name == "-" {
				name = "standard input"
			}
			c.printf("==> %s <==\n", name)
		}
		first = false
		f(name, r)
	})
}

func head(c *call) int {
	o := c.getopt("#n:c:qvz", "lines=n", "bytes=c", "quiet=q", "silent=q", "verbose=v")
	n := o.num('n', o.num('#', 10))
	c.headers(o.args, o.has('q'), o.has('v'), func(name string, r io.Reader) {
		switch {
		case o.has('c') && o.num('c', 0) >= 0:
			c.copyBlocks(name, io.LimitReader(r, o.num('c', 0)))
		case o.has('c'):
			b, _ := io.ReadAll(r)
			c.out.Write(b[:max(0, len(b)+int(o.num('c', 0)))])
		case n < 0:
			var keep [][]byte
			lines(r, func(l []byte, last bool) bool {
				keep = append(keep, slices.Clone(l))
				if len(keep) > int(-n) {
					c.out.Write(append(keep[0], '\n'))
					keep = keep[1:]
				}
				return true
			})
		case n > 0:
			left, buf, unread := n, make([]byte, 32<<10), 0
			for left > 0 {
				k, err := r.Read(buf)
				used := 0
				for used < k && left > 0 {
					i := bytes.IndexByte(buf[used:k], '\n')
					if i < 0 {
						used = k
						break
					}
					used += i + 1
					left--
				}
				c.out.Write(buf[:used])
				unread = k - used
				if err != nil {
					break
				}
			}
			// Who reads on from the same file starts after our last line.
			if f, ok := c.rawIn.(*os.File); ok && f != nil && name == "-" && unread > 0 {
				f.Seek(int64(-unread), io.SeekCurrent)
			}
		}
	})
	return 0
}

func tail(c *call) int {
	args := slices.Clone(c.args)
	for i, a := range args { // tail +3, tail -n +3
		if strings.HasPrefix(a, "+") && len(a) > 1 && a[1] >= '0' && a[1] <= '9' && (i == 0 || !strings.HasPrefix(args[i-1], "-")) {
			args[i] = "-n" + a
		}
	}
	c.args = args
	o := c.getopt("#n:c:fFqvs:z", "lines=n", "bytes=c", "follow=f", "quiet=q", "silent=q", "retry=F", "pid=s")
	spec := o.str('n', o.str('#', "10"))
	bytewise := o.has('c')
	if bytewise {
		spec = o.str('c', "")
	}
	n, err := parseSize(strings.TrimPrefix(spec, "+"))
	if err != nil {
		c.die(1, "invalid number: %q", spec)
	}
	n = max(n, -n)
	fromStart := strings.HasPrefix(spec, "+")
	c.headers(o.args, o.has('q'), o.has('v'), func(name string, r io.Reader) {
		switch {
		case fromStart && bytewise:
			io.CopyN(io.Discard, r, n-1)
			c.copyBlocks(name, r)
		case fromStart:
			i := int64(1)
			b := bufio.NewReaderSize(r, bufSize)
			for ; i < n; i++ {
				if err := skipLine(b); err != nil {
					return
				}
			}
			c.copyBlocks(name, b)
		default:
			if f, ok := r.(*os.File); ok {
				seekTail(f, n, bytewise)
				if bytewise {
					c.copyBlocks(name, f)
					return
				}
			}
			b, _ := io.ReadAll(r)
			if bytewise {
				c.out.Write(b[max(0, len(b)-int(n)):])
			} else {
				c.out.Write(b[tailStart(b, n):])
			}
		}
	})
	if o.any("fF") {
		c.follow(o)
	}
	return 0
}

func skipLine(b *bufio.Reader) error {
	for {
		_, err := b.ReadSlice('\n')
		if err != bufio.ErrBufferFull {
			return err
		}
	}
}

// tailStart is where the last n lines of b start.
func tailStart(b []byte, n int64) int {
	if n == 0 {
		return len(b)
	}
	end := len(b)
	if end > 0 && b[end-1] == '\n' {
		end--
	}
	for ; n > 0; n-- {
		i := bytes.LastIndexByte(b[:end], '\n')
		if i < 0 {
			return 0
		}
		end = i
	}
	return end + 1
}

// seekTail moves a file to a place from which the last n lines or bytes can be read.
func seekTail(f *os.File, n int64, bytewise bool) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return
	}
	if bytewise {
		f.Seek(max(0, size-n), io.SeekStart)
		return
	}
	buf := make([]byte, bufSize)
	count, pos := int64(0), size
	for pos > 0 && count <= n {
		k := min(pos, bufSize)
		pos -= k
		m, err := f.ReadAt(buf[:k], pos)
		if err != nil && m == 0 {
			break
		}
		count += int64(bytes.Count(buf[:m], []byte{'\n'}))
	}
	f.Seek(pos, io.SeekStart)
}

func (c *call) follow(o *options) {
	type state struct {
		name string
		pos  int64
	}
	var files []*state
	for _, a := range o.args {
		if a == "-" {
			continue
		}
		st := &state{name: a}
		if fi, err := os.Stat(c.path(a)); err == nil {
			st.pos = fi.Size()
		}
		files = append(files, st)
	}
	if len(files) == 0 {
		return
	}
	last := files[len(files)-1]
	c.out.Flush()
	for c.ctx.Err() == nil {
		for _, st := range files {
			fi, err := os.Stat(c.path(st.name))
			if err != nil {
				continue
			}
			if fi.Size() < st.pos {
				st.pos = 0
			}
			if fi.Size() == st.pos {
				continue
			}
			f, err := os.Open(c.path(st.name))
			if err != nil {
				continue
			}
			f.Seek(st.pos, io.SeekStart)
			if last != st && len(files) > 1 {
				c.printf("\n==> %s <==\n", st.name)
				last = st
			}
			st.pos += c.copyBlocks(st.name, f)
			f.Close()
		}
		c.out.Flush()
		c.sleep(100 * time.Millisecond)
	}
}

func (c *call) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
}

func wc(c *call) int {
	o := c.getopt("lwcmL", "lines=l", "words=w", "bytes=c", "chars=m", "max-line-length=L")
	type counts struct{ l, w, m, c, max int64 }
	all := !o.any("lwcmL")
	var total counts
	files := 0
	width := 7
	if len(o.args) == 0 || !all && len(o.vals) == 1 && len(o.args) <= 1 {
		width = 1
		if len(o.args) == 0 && (all || len(o.vals) > 1) {
			width = 7
		}
	} else {
		var size int64
		for _, a := range o.args {
			if fi, err := os.Stat(c.path(a)); err == nil && fi.Mode().IsRegular() {
				size += fi.Size()
			} else {
				size = max(size, 999999)
			}
		}
		width = len(fmt.Sprint(size))
	}
	print := func(n counts, name string) {
		var f []string
		for _, x := range []struct {
			on bool
			n  int64
		}{{all || o.has('l'), n.l}, {all || o.has('w'), n.w}, {o.has('m'), n.m}, {all || o.has('c'), n.c}, {o.has('L'), n.max}} {
			if x.on {
				f = append(f, fmt.Sprintf("%*d", width, x.n))
			}
		}
		line := strings.Join(f, " ")
		if name != "" {
			line += " " + name
		}
		c.printf("%s\n", line)
	}
	c.inputs(o.args, func(name string, r io.Reader) {
		var n counts
		buf := make([]byte, bufSize)
		inWord, cur := false, int64(0)
		for {
			k, err := r.Read(buf)
			b := buf[:k]
			n.c += int64(k)
			if all || o.any("wmL") {
				for _, x := range b {
					switch {
					case x == '\n':
						n.l++
						n.max = max(n.max, cur)
						cur, inWord = 0, false
					case x == ' ' || x >= '\t' && x <= '\r':
						inWord = false
						cur++
					default:
						if !inWord {
							n.w++
						}
						inWord = true
						if x&0xc0 != 0x80 {
							cur++
						}
					}
					if x&0xc0 != 0x80 {
						n.m++
					}
				}
			} else {
				n.l += int64(bytes.Count(b, []byte{'\n'}))
			}
			if err != nil {
				break
			}
		}
		n.max = max(n.max, cur)
		if name == "-" && len(o.args) == 0 {
			name = ""
		}
		print(n, name)
		files++
		total = counts{total.l + n.l, total.w + n.w, total.m + n.m, total.c + n.c, max(total.max, n.max)}
	})
	if len(o.args) > 1 {
		print(total, "total")
	}
	return 0
}

// sortKey is one -k.
type sortKey struct {
	f1, c1, f2, c2 int
	flags          string
}

func sortLines(c *call) int {
	o := c.getopt("nrubfghVMRzcCmst:k:o:S:T:di", "numeric-sort=n", "reverse=r", "unique=u", "ignore-leading-blanks=b", "ignore-case=f",
		"general-numeric-sort=g", "human-numeric-sort=h", "version-sort=V", "random-sort=R", "check=c", "stable=s", "field-separator=t", "key=k",
		"output=o", "zero-terminated=z", "month-sort=M", "parallel=S", "dictionary-order=d")
	flags := ""
	for _, f := range "nrbfghVMRd" {
		if o.has(byte(f)) {
			flags += string(f)
		}
	}
	var keys []sortKey
	for _, k := range o.vals['k'] {
		keys = append(keys, c.parseKey(k, flags))
	}
	sep := o.str('t', "")
	if sep == `\0` {
		sep = "\x00"
	} else if sep == `\t` {
		sep = "\t"
	}
	term := byte('\n')
	if o.has('z') {
		term = 0
	}
	var data [][]byte
	c.inputs(o.args, func(_ string, r io.Reader) {
		b, _ := io.ReadAll(r)
		if n := len(b); n > 0 && b[n-1] == term {
			b = b[:n-1]
		} else if n == 0 {
			return
		}
		data = append(data, bytes.Split(b, []byte{term})...)
	})
	compareKeys := func(a, b []byte) int {
		if len(keys) == 0 {
			return compareBy(string(a), string(b), flags)
		}
		for _, k := range keys {
			if r := compareBy(k.of(string(a), sep), k.of(string(b), sep), k.flags); r != 0 {
				return r
			}
		}
		return 0
	}
	compare := func(a, b []byte) int {
		if r := compareKeys(a, b); r != 0 || o.any("us") {
			return r
		}
		r := bytes.Compare(a, b)
		if o.has('r') {
			r = -r
		}
		return r
	}
	if len(keys) == 0 && strings.Trim(flags, "r") == "" {
		compare = func(a, b []byte) int {
			if flags != "" {
				a, b = b, a
			}
			return bytes.Compare(a, b)
		}
	}
	if o.any("cC") {
		for i := 1; i < len(data); i++ {
			if r := compare(data[i-1], data[i]); r > 0 || r == 0 && o.has('u') {
				if o.has('c') {
					name := "-"
					if len(o.args) > 0 {
						name = o.args[0]
					}
					c.warn("%s:%d: disorder: %s", name, i+1, data[i])
				}
				return 1
			}
		}
		return 0
	}
	if o.has('R') {
		rand.Shuffle(len(data), func(i, j int) { data[i], data[j] = data[j], data[i] })
	} else {
		slices.SortStableFunc(data, compare)
	}
	out := io.Writer(c.out)
	if o.has('o') {
		f, err := os.Create(c.path(o.str('o', "")))
		if err != nil {
			c.die(2, "%s: %s", o.str('o', ""), reason(err))
		}
		defer f.Close()
		w := bufio.NewWriter(f)
		defer w.Flush()
		out = w
	}
	for i, l := range data {
		if o.has('u') && i > 0 && compareKeys(data[i-1], l) == 0 {
			continue
		}
		out.Write(l)
		out.Write([]byte{term})
	}
	return 0
}

func (c *call) parseKey(s, global string) sortKey {
	var k sortKey
	num := func() (n int) {
		for len(s) > 0 && s[0] >= '0' && s[0] <= '9' {
			n = n*10 + int(s[0]-'0')
			s = s[1:]
		}
		return n
	}
	letters := func() {
		for len(s) > 0 && s[0] != ',' && s[0] != '.' {
			k.flags += s[:1]
			s = s[1:]
		}
	}
	orig := s
	if k.f1 = num(); k.f1 == 0 {
		c.die(2, "invalid key %q", orig)
	}
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		k.c1 = num()
	}
	letters()
	if strings.HasPrefix(s, ",") {
		s = s[1:]
		k.f2 = num()
		if strings.HasPrefix(s, ".") {
			s = s[1:]
			k.c2 = num()
		}
		letters()
	}
	if k.flags == "" {
		k.flags = global
	}
	return k
}

// of cuts the key out of a line.
func (k sortKey) of(line, sep string) string {
	starts, ends := fieldBounds(line, sep)
	if k.f1 > len(starts) {
		return ""
	}
	from := starts[k.f1-1]
	if strings.Contains(k.flags, "b") {
		for from < len(line) && (line[from] == ' ' || line[from] == '\t') {
			from++
		}
	}
	if k.c1 > 1 {
		from = min(from+k.c1-1, len(line))
	}
	to := len(line)
	if k.f2 > 0 && k.f2 <= len(ends) {
		to = ends[k.f2-1]
		if k.c2 > 0 {
			to = min(starts[k.f2-1]+k.c2, len(line))
		}
	}
	if to < from {
		return ""
	}
	return line[from:to]
}

// fieldBounds splits a line for sort: without a separator a field takes the blanks before it.
func fieldBounds(line, sep string) (starts, ends []int) {
	if sep != "" {
		pos := 0
		for {
			i := strings.Index(line[pos:], sep)
			starts = append(starts, pos)
			if i < 0 {
				return starts, append(ends, len(line))
			}
			ends = append(ends, pos+i)
			pos += i + len(sep)
		}
	}
	i := 0
	for i < len(line) {
		starts = append(starts, i)
		for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
			i++
		}
		for i < len(line) && line[i] != ' ' && line[i] != '\t' {
			i++
		}
		ends = append(ends, i)
	}
	return starts, ends
}

func compareBy(a, b, flags string) (r int) {
	switch {
	case strings.ContainsAny(flags, "ng"):
		r = cmp.Compare(leadingNumber(a, strings.Contains(flags, "g")), leadingNumber(b, strings.Contains(flags, "g")))
	case strings.Contains(flags, "h"):
		r = cmp.Compare(humanNumber(a), humanNumber(b))
	case strings.Contains(flags, "V"):
		r = compareVersions(a, b)
	case strings.Contains(flags, "M"):
		month := func(s string) int {
			s = strings.ToUpper(strings.TrimSpace(s))
			if len(s) < 3 {
				return -1
			}
			return strings.Index("JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC", s[:3])
		}
		r = cmp.Compare(month(a), month(b))
	default:
		if strings.Contains(flags, "b") {
			a, b = strings.TrimLeft(a, " \t"), strings.TrimLeft(b, " \t")
		}
		if strings.Contains(flags, "f") {
			a, b = strings.ToUpper(a), strings.ToUpper(b)
		}
		if strings.Contains(flags, "d") {
			keep := func(r rune) rune {
				if unicode.IsLetter(r) || unicode.IsDigit(r) || r == ' ' || r == '\t' {
					return r
				}
				return -1
			}
			a, b = strings.Map(keep, a), strings.Map(keep, b)
		}
		r = strings.Compare(a, b)
	}
	if strings.Contains(flags, "r") {
		r = -r
	}
	return r
}

func leadingNumber(s string, general bool) float64 {
	s = strings.TrimLeft(s, " \t")
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.' || i == 0 && (s[i] == '-' || s[i] == '+') ||
		general && (s[i] == 'e' || s[i] == 'E' || i > 0 && (s[i] == '-' || s[i] == '+') && (s[i-1] == 'e' || s[i-1] == 'E'))) {
		i++
	}
	for ; i > 0; i-- {
		if f, err := strconv.ParseFloat(s[:i], 64); err == nil {
			return f
		}
	}
	return 0
}

func humanNumber(s string) float64 {
	f := leadingNumber(s, false)
	s = strings.TrimLeft(s, " \t+-0123456789.")
	if s != "" {
		if i := strings.IndexByte("KMGTPE", s[0]&^0x20); i >= 0 {
			for ; i >= 0; i-- {
				f *= 1024
			}
		}
	}
	return f
}

func compareVersions(a, b string) int {
	digits := func(s string) int {
		i := 0
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		return i
	}
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if r := cmp.Or(cmp.Compare(len(na), len(nb)), strings.Compare(na, nb)); r != 0 {
				return r
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func uniq(c *call) int {
	o := c.getopt("cduif:s:w:z", "count=c", "repeated=d", "unique=u", "ignore-case=i", "skip-fields=f", "skip-chars=s", "check-chars=w")
	in := o.args
	if len(in) > 1 {
		f, err := os.Create(c.path(in[1]))
		if err != nil {
			c.die(1, "%s: %s", in[1], reason(err))
		}
		defer f.Close()
		c.out.Flush()
		c.rawOut, in = f, in[:1]
	}
	key := func(l string) string {
		for range o.num('f', 0) {
			l = strings.TrimLeft(l, " \t")
			i := strings.IndexAny(l, " \t")
			if i < 0 {
				i = len(l)
			}
			l = l[i:]
		}
		l = l[min(len(l), int(o.num('s', 0))):]
		if o.has('w') {
			l = l[:min(len(l), int(o.num('w', 0)))]
		}
		if o.has('i') {
			l = strings.ToLower(l)
		}
		return l
	}
	var cur, curKey string
	n := 0
	flush := func() {
		if n == 0 || o.has('d') && n < 2 || o.has('u') && n > 1 {
			return
		}
		if o.has('c') {
			c.printf("%7d ", n)
		}
		c.out.WriteString(cur)
		c.out.WriteByte('\n')
	}
	c.inputs(in, func(_ string, r io.Reader) {
		lines(r, func(b []byte, _ bool) bool {
			l := string(b)
			k := key(l)
			if n > 0 && k == curKey {
				n++
				return true
			}
			flush()
			cur, curKey, n = l, k, 1
			return true
		})
	})
	flush()
	return 0
}

// ranges are the 1-based pieces of a cut list.
func (c *call) ranges(s string) (r [][2]int) {
	for _, p := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		a, b, isRange := strings.Cut(p, "-")
		lo, hi := 1, 1<<30
		var err error
		if a != "" {
			if lo, err = strconv.Atoi(a); err != nil || lo < 1 {
				c.die(1, "invalid list: %q", s)
			}
		}
		if !isRange {
			hi = lo
		} else if b != "" {
			if hi, err = strconv.Atoi(b); err != nil {
				c.die(1, "invalid list: %q", s)
			}
		}
		r = append(r, [2]int{lo, hi})
	}
	return r
}

func cut(c *call) int {
	o := c.getopt("d:f:c:b:snz:", "delimiter=d", "fields=f", "characters=c", "bytes=b", "only-delimited=s", "complement=n", "output-delimiter=z")
	list := o.str('f', o.str('c', o.str('b', "")))
	if list == "" {
		c.die(1, "you must specify a list of bytes, characters, or fields")
	}
	rs := c.ranges(list)
	in := func(i int) bool {
		ok := false
		for _, r := range rs {
			ok = ok || i >= r[0] && i <= r[1]
		}
		return ok != o.has('n')
	}
	delim := o.str('d', "\t")
	outDelim := o.str('z', delim)
	if outDelim == "" {
		outDelim = delim
	}
	c.inputs(o.args, func(_ string, r io.Reader) {
		lines(r, func(l []byte, _ bool) bool {
			switch {
			case o.has('f'):
				s := string(l)
				if !strings.Contains(s, delim) {
					if o.has('s') {
						return true
					}
					c.out.WriteString(s)
					break
				}
				first := true
				for i, f := range strings.Split(s, delim) {
					if in(i + 1) {
						if !first {
							c.out.WriteString(outDelim)
						}
						first = false
						c.out.WriteString(f)
					}
				}
			case o.has('c'):
				i := 0
				for len(l) > 0 {
					_, n := utf8.DecodeRune(l)
					if i++; in(i) {
						c.out.Write(l[:n])
					}
					l = l[n:]
				}
			default:
				for i, b := range l {
					if in(i + 1) {
						c.out.WriteByte(b)
					}
				}
			}
			c.out.WriteByte('\n')
			return true
		})
	})
	return 0
}

// trSet expands a set of tr.
func (c *call) trSet(s string) (set []rune) {
	rs := []rune(s)
	next := func(i int) (rune, int) {
		if rs[i] != '\\' || i+1 >= len(rs) {
			return rs[i], i + 1
		}
		i++
		if rs[i] >= '0' && rs[i] <= '7' {
			v, n := rune(0), 0
			for n < 3 && i < len(rs) && rs[i] >= '0' && rs[i] <= '7' {
				v, i, n = v*8+rs[i]-'0', i+1, n+1
			}
			return v, i
		}
		if j := strings.IndexRune("abfnrtv\\", rs[i]); j >= 0 {
			return rune("\a\b\f\n\r\t\v\\"[j]), i + 1
		}
		return rs[i], i + 1
	}
	for i := 0; i < len(rs); {
		rest := string(rs[i:])
		if strings.HasPrefix(rest, "[:") {
			if end := strings.Index(rest, ":]"); end > 0 {
				class, ok := charClass(rest[2:end])
				if !ok {
					c.die(1, "invalid character class %q", rest[2:end])
				}
				set = append(set, class...)
				i += len([]rune(rest[:end+2]))
				continue
			}
		}
		if strings.HasPrefix(rest, "[=") && len(rs) > i+4 && rs[i+3] == '=' {
			set = append(set, rs[i+2])
			i += 5
			continue
		}
		if rs[i] == '[' && i+3 < len(rs) && rs[i+2] == '*' {
			if end := slices.Index(rs[i:], ']'); end > 0 {
				n, _ := strconv.Atoi(string(rs[i+3 : i+end]))
				if n == 0 {
					n = 1024
				}
				for range n {
					set = append(set, rs[i+1])
				}
				i += end + 1
				continue
			}
		}
		lo, j := next(i)
		if j+1 < len(rs) && rs[j] == '-' {
			hi, k := next(j + 1)
			if hi < lo {
				c.die(1, "range-endpoints of '%c-%c' are in reverse collating sequence order", lo, hi)
			}
			for r := lo; r <= hi; r++ {
				set = append(set, r)
			}
			i = k
			continue
		}
		set = append(set, lo)
		i = j
	}
	return set
}

func charClass(name string) (set []rune, ok bool) {
	f := map[string]func(r rune) bool{
		"alpha": func(r rune) bool { return r|0x20 >= 'a' && r|0x20 <= 'z' },
		"digit": func(r rune) bool { return r >= '0' && r <= '9' },
		"alnum": func(r rune) bool { return r|0x20 >= 'a' && r|0x20 <= 'z' || r >= '0' && r <= '9' },
		"upper": func(r rune) bool { return r >= 'A' && r <= 'Z' }, "lower": func(r rune) bool { return r >= 'a' && r <= 'z' },
		"space": func(r rune) bool { return r == ' ' || r >= '\t' && r <= '\r' }, "blank": func(r rune) bool { return r == ' ' || r == '\t' },
		"punct": func(r rune) bool {
			return r > 32 && r < 127 && !(r|0x20 >= 'a' && r|0x20 <= 'z') && !(r >= '0' && r <= '9')
		},
		"print": func(r rune) bool { return r >= 32 && r < 127 }, "graph": func(r rune) bool { return r > 32 && r < 127 },
		"cntrl": func(r rune) bool { return r < 32 || r == 127 }, "xdigit": func(r rune) bool { return r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'f' },
	}[name]
	if f == nil {
		return nil, false
	}
	for r := rune(0); r < 128; r++ {
		if f(r) {
			set = append(set, r)
		}
	}
	return set, true
}

func tr(c *call) int {
	o := c.getopt("+cCdst", "complement=c", "delete=d", "squeeze-repeats=s", "truncate-set1=t")
	want := 2
	if o.has('d') != o.has('s') {
		want = 1
	}
	if len(o.args) < want || len(o.args) > 2 {
		c.die(1, "missing or extra operand")
	}
	s1 := c.trSet(o.args[0])
	var s2 []rune
	if len(o.args) > 1 {
		s2 = c.trSet(o.args[1])
	}
	if o.has('t') && len(s1) > len(s2) {
		s1 = s1[:len(s2)]
	}
	m := map[rune]int{}
	for i, r := range s1 {
		if _, ok := m[r]; !ok {
			m[r] = i
		}
	}
	comp := o.any("cC")
	in1 := func(r rune) bool { _, ok := m[r]; return ok != comp }
	squeeze := map[rune]bool{}
	if o.has('s') {
		set := s1
		if len(s2) > 0 {
			set = s2
		}
		for _, r := range set {
			squeeze[r] = true
		}
	}
	squeezed := func(r rune) bool {
		if len(s2) == 0 {
			return in1(r)
		}
		return squeeze[r]
	}
	translate := func(r rune) rune {
		if len(s2) == 0 || o.has('d') || !in1(r) {
			return r
		}
		if comp {
			return s2[len(s2)-1]
		}
		return s2[min(m[r], len(s2)-1)]
	}
	// A table for bytes: the common case is ASCII.
	var table [128]rune
	for i := range table {
		if table[i] = translate(rune(i)); o.has('d') && in1(rune(i)) {
			table[i] = -1
		}
	}
	b := bufio.NewReaderSize(c.in, bufSize)
	last := rune(-1)
	for {
		r, n, err := b.ReadRune()
		if err != nil {
			break
		}
		if r == utf8.RuneError && n == 1 {
			b.UnreadRune()
			x, _ := b.ReadByte()
			if !(o.has('d') && comp) {
				c.out.WriteByte(x)
			}
			last = -1
			continue
		}
		if r < 128 {
			r = table[r]
		} else if o.has('d') && in1(r) {
			r = -1
		} else {
			r = translate(r)
		}
		if r < 0 || o.has('s') && r == last && squeezed(r) {
			continue
		}
		last = r
		if r < 128 {
			c.out.WriteByte(byte(r))
		} else {
			c.out.WriteRune(r)
		}
	}
	return 0
}

func tee(c *call) int {
	o := c.getopt("aip", "append=a", "ignore-interrupts=i")
	mode := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if o.has('a') {
		mode = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	var files []*os.File
	for _, a := range o.args {
		f, err := os.OpenFile(c.path(a), mode, 0o666)
		if err != nil {
			c.fail("%s: %s", a, reason(err))
			continue
		}
		defer f.Close()
		files = append(files, f)
	}
	buf := make([]byte, bufSize)
	for {
		n, err := c.in.Read(buf)
		for _, f := range files {
			f.Write(buf[:n])
		}
		if n > 0 {
			c.write(buf[:n])
		}
		if err != nil {
			return 0
		}
	}
}

// eachLine is the loop of a filter that maps lines to lines.
func (c *call) eachLine(names []string, f func(l string) string) int {
	c.inputs(names, func(_ string, r io.Reader) {
		lines(r, func(l []byte, last bool) bool {
			c.out.WriteString(f(string(l)))
			if !last {
				c.out.WriteByte('\n')
			}
			return true
		})
	})
	return 0
}

func rev(c *call) int {
	return c.eachLine(c.getopt("").args, func(l string) string {
		r := []rune(l)
		slices.Reverse(r)
		return string(r)
	})
}

func tac(c *call) int {
	for _, name := range append([]string{}, orStdin(c.getopt("").args)...) {
		b, _ := c.readAll(name)
		all := strings.SplitAfter(string(b), "\n")
		for i := len(all) - 1; i >= 0; i-- {
			c.out.WriteString(all[i])
		}
	}
	return 0
}

func orStdin(names []string) []string {
	if len(names) == 0 {
		return []string{"-"}
	}
	return names
}

func nl(c *call) int {
	o := c.getopt("b:w:s:n:v:i:", "body-numbering=b", "number-width=w", "number-separator=s", "number-format=n", "starting-line-number=v")
	n, w := o.num('v', 1), int(o.num('w', 6))
	format := map[string]string{"ln": "%-*d", "rz": "%0*d"}[o.str('n', "")]
	if format == "" {
		format = "%*d"
	}
	return c.eachLine(o.args, func(l string) string {
		if l == "" && o.str('b', "t") != "a" || o.str('b', "t") == "n" {
			return strings.Repeat(" ", w+len(o.str('s', "\t"))) + l
		}
		s := fmt.Sprintf(format, w, n) + o.str('s', "\t") + l
		n += o.num('i', 1)
		return s
	})
}

func fold(c *call) int {
	o := c.getopt("#w:sb", "width=w", "spaces=s", "bytes=b")
	w := int(o.num('w', o.num('#', 80)))
	return c.eachLine(o.args, func(l string) string {
		var b strings.Builder
		r := []rune(l)
		for len(r) > w {
			n := w
			if o.has('s') {
				for i := w; i > 0; i-- {
					if r[i-1] == ' ' || r[i-1] == '\t' {
						n = i
						break
					}
				}
			}
			b.WriteString(string(r[:n]) + "\n")
			r = r[n:]
		}
		return b.String() + string(r)
	})
}

func expandTabs(c *call) int {
	o := c.getopt("#t:i", "tabs=t", "initial=i")
	w := int(o.num('t', o.num('#', 8)))
	return c.eachLine(o.args, func(l string) string {
		var b strings.Builder
		col := 0
		for _, r := range l {
			if r == '\t' {
				n := w - col%w
				b.WriteString(strings.Repeat(" ", n))
				col += n
				continue
			}
			b.WriteRune(r)
			col++
		}
		return b.String()
	})
}

func paste(c *call) int {
	o := c.getopt("d:sz", "delimiters=d", "serial=s")
	delims := c.trSet(o.str('d', "\t"))
	sep := func(i int) string {
		if len(delims) == 0 || delims[i%len(delims)] == 0 {
			return ""
		}
		return string(delims[i%len(delims)])
	}
	stdin := bufio.NewReaderSize(c.in, bufSize)
	var in []*bufio.Reader
	for _, n := range orStdin(o.args) {
		if n == "-" {
			in = append(in, stdin)
		} else if r := c.open(n); r != nil {
			defer r.Close()
			in = append(in, bufio.NewReader(r))
		}
	}
	if o.has('s') {
		for _, r := range in {
			i := 0
			lines(r, func(l []byte, _ bool) bool {
				if i > 0 {
					c.out.WriteString(sep(i - 1))
				}
				c.out.Write(l)
				i++
				return true
			})
			c.out.WriteByte('\n')
		}
		return 0
	}
	for {
		var row strings.Builder
		more := false
		for i, r := range in {
			if i > 0 {
				row.WriteString(sep(i - 1))
			}
			l, err := r.ReadString('\n')
			more = more || err == nil || l != ""
			row.WriteString(strings.TrimSuffix(l, "\n"))
		}
		if !more {
			return 0
		}
		c.printf("%s\n", row.String())
	}
}

func comm(c *call) int {
	o := c.getopt("123")
	if len(o.args) != 2 {
		c.die(1, "two operands, please")
	}
	var in [2]*bufio.Reader
	for i, n := range o.args {
		r := c.open(n)
		if r == nil {
			return 1
		}
		defer r.Close()
		in[i] = bufio.NewReader(r)
	}
	next := func(i int) (string, bool) {
		l, err := in[i].ReadString('\n')
		return strings.TrimSuffix(l, "\n"), err == nil || l != ""
	}
	print := func(col int, l string) {
		if o.has('0' + byte(col)) {
			return
		}
		for i := 1; i < col; i++ {
			if !o.has('0' + byte(i)) {
				c.out.WriteByte('\t')
			}
		}
		c.printf("%s\n", l)
	}
	a, okA := next(0)
	b, okB := next(1)
	for okA || okB {
		switch {
		case !okB || okA && a < b:
			print(1, a)
			a, okA = next(0)
		case !okA || b < a:
			print(2, b)
			b, okB = next(1)
		default:
			print(3, a)
			a, okA = next(0)
			b, okB = next(1)
		}
	}
	return 0
}

func split(c *call) int {
	o := c.getopt("l:b:n:a:d", "lines=l", "bytes=b", "suffix-length=a", "numeric-suffixes=d", "number=n")
	in, prefix := "-", "x"
	if len(o.args) > 0 {
		in = o.args[0]
	}
	if len(o.args) > 1 {
		prefix = o.args[1]
	}
	b, ok := c.readAll(in)
	if !ok {
		return 1
	}
	n, width := 0, int(o.num('a', 2))
	write := func(part []byte) {
		base, first := 26, byte('a')
		if o.has('d') {
			base, first = 10, '0'
		}
		suffix, v := make([]byte, width), n
		for i := width - 1; i >= 0; i-- {
			suffix[i] = first + byte(v%base)
			v /= base
		}
		if v > 0 {
			c.die(1, "output file suffixes exhausted")
		}
		n++
		if err := os.WriteFile(c.path(prefix+string(suffix)), part, 0o666); err != nil {
			c.die(1, "%s: %s", prefix+string(suffix), reason(err))
		}
	}
	if o.any("bn") {
		size := int(o.num('b', 0))
		if o.has('n') {
			size = (len(b) + int(o.num('n', 1)) - 1) / int(max(o.num('n', 1), 1))
		}
		for part := range slices.Chunk(b, max(size, 1)) {
			write(part)
		}
		return 0
	}
	for part := range slices.Chunk(slices.Collect(bytes.Lines(b)), int(max(o.num('l', 1000), 1))) {
		write(bytes.Join(part, nil))
	}
	return 0
}

// printable is strings(1).
func printable(c *call) int {
	o := c.getopt("#n:at:", "bytes=n")
	least := int(o.num('n', o.num('#', 4)))
	c.inputs(o.args, func(_ string, r io.Reader) {
		b := bufio.NewReaderSize(r, bufSize)
		var cur []byte
		for {
			x, err := b.ReadByte()
			if err == nil && (x >= 32 && x < 127 || x == '\t') {
				cur = append(cur, x)
				continue
			}
			if len(cur) >= least {
				c.out.Write(append(cur, '\n'))
			}
			cur = cur[:0]
			if err != nil {
				return
			}
		}
	})
	return 0
}

func column(c *call) int {
	o := c.getopt("ts:o:", "table=t", "separator=s", "output-separator=o")
	var rows [][]string
	var widths []int
	c.inputs(o.args, func(_ string, r io.Reader) {
		lines(r, func(l []byte, _ bool) bool {
			row := strings.Fields(string(l))
			if o.has('s') {
				row = strings.FieldsFunc(string(l), func(r rune) bool { return strings.ContainsRune(o.str('s', ""), r) })
			}
			for i, f := range row {
				if i >= len(widths) {
					widths = append(widths, 0)
				}
				widths[i] = max(widths[i], utf8.RuneCountInString(f))
			}
			rows = append(rows, row)
			return true
		})
	})
	for _, row := range rows {
		for i, f := range row {
			if i == len(row)-1 {
				c.printf("%s", f)
			} else {
				c.printf("%s%s", f, strings.Repeat(" ", widths[i]-utf8.RuneCountInString(f))+o.str('o', "  "))
			}
		}
		c.out.WriteByte('\n')
	}
	return 0
}

func shuf(c *call) int {
	o := c.getopt("n:ei:r", "head-count=n", "echo=e", "input-range=i")
	var all []string
	switch {
	case o.has('e'):
		all = o.args
	case o.has('i'):
		lo, hi, _ := strings.Cut(o.str('i', ""), "-")
		a, _ := strconv.Atoi(lo)
		b, _ := strconv.Atoi(hi)
		for ; a <= b; a++ {
			all = append(all, strconv.Itoa(a))
		}
	default:
		c.inputs(o.args, func(_ string, r io.Reader) {
			lines(r, func(l []byte, _ bool) bool { all = append(all, string(l)); return true })
		})
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if o.has('n') {
		all = all[:min(len(all), int(o.num('n', 0)))]
	}
	for _, l := range all {
		c.printf("%s\n", l)
	}
	return 0
}

func echo(c *call) int {
	args, newline, escapes := c.args, true, false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.Trim(args[0][1:], "neE") == "" {
		for _, f := range args[0][1:] {
			switch f {
			case 'n':
				newline = false
			case 'e':
				escapes = true
			case 'E':
				escapes = false
			}
		}
		args = args[1:]
	}
	line := strings.Join(args, " ")
	if escapes {
		var stop bool
		if line, stop = unescape(line, true); stop {
			newline = false
		}
	}
	c.out.WriteString(line)
	if newline {
		c.out.WriteByte('\n')
	}
	return 0
}

// unescape expands backslashes. zeroOctal is for echo -e and %b, where octal is \0nnn; stop says that \c ended the text.
func unescape(s string, zeroOctal bool) (out string, stop bool) {
	if !strings.Contains(s, `\`) {
		return s, false
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		digits := func(from, most int, base int) (uint64, int) {
			n := 0
			for n < most && from+n < len(s) {
				if _, err := strconv.ParseUint(s[from+n:from+n+1], base, 8); err != nil {
					break
				}
				n++
			}
			v, _ := strconv.ParseUint(s[from:from+n], base, 32)
			return v, n
		}
		switch x := s[i]; {
		case x == 'c' && zeroOctal:
			return b.String(), true
		case strings.IndexByte(`abfnrtv\eE`, x) >= 0:
			b.WriteByte("\a\b\f\n\r\t\v\\\x1b\x1b"[strings.IndexByte(`abfnrtv\eE`, x)])
		case (x == '"' || x == '\'' || x == '?') && !zeroOctal:
			b.WriteByte(x)
		case x == '0' && zeroOctal:
			v, n := digits(i+1, 3, 8)
			b.WriteByte(byte(v))
			i += n
		case x >= '0' && x <= '7' && (!zeroOctal || x != '0'):
			v, n := digits(i, 3, 8)
			b.WriteByte(byte(v))
			i += n - 1
		case x == 'x' || x == 'u' || x == 'U':
			v, n := digits(i+1, map[byte]int{'x': 2, 'u': 4, 'U': 8}[x], 16)
			switch {
			case n == 0:
				b.WriteByte('\\')
				b.WriteByte(x)
			case x == 'x':
				b.WriteByte(byte(v))
			default:
				b.WriteRune(rune(v))
			}
			i += n
		default:
			b.WriteByte('\\')
			b.WriteByte(x)
		}
	}
	return b.String(), false
}

func printf(c *call) int {
	args := c.args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		c.die(2, "usage: printf FORMAT [ARG]...")
	}
	format, args := args[0], args[1:]
	for {
		used, stop := c.formatOnce(format, args)
		args = args[used:]
		if stop || used == 0 || len(args) == 0 {
			return 0
		}
	}
}

// formatOnce prints the format once over and says how many arguments that took.
func (c *call) formatOnce(format string, args []string) (used int, stop bool) {
	next := func() string {
		if used < len(args) {
			used++
			return args[used-1]
		}
		return ""
	}
	for i := 0; i < len(format); {
		if format[i] != '%' {
			j := strings.IndexByte(format[i:], '%')
			if j < 0 {
				j = len(format) - i
			}
			s, _ := unescape(format[i:i+j], false)
			if k := strings.Index(format[i:i+j], `\c`); k >= 0 && !strings.HasSuffix(format[i:i+k], `\`) {
				s, _ = unescape(format[i:i+k], false)
				c.out.WriteString(s)
				return used, true
			}
			c.out.WriteString(s)
			i += j
			continue
		}
		if strings.HasPrefix(format[i:], "%%") {
			c.out.WriteByte('%')
			i += 2
			continue
		}
		j := i + 1
		spec := "%"
		for j < len(format) && strings.IndexByte("-+ #0'123456789.*", format[j]) >= 0 {
			switch format[j] {
			case '*':
				n, _ := strconv.Atoi(next())
				spec += strconv.Itoa(n)
			case '\'':
			default:
				spec += format[j : j+1]
			}
			j++
		}
		for j < len(format) && strings.IndexByte("hlLqjzt", format[j]) >= 0 && !(format[j] == 'q') {
			j++
		}
		if j >= len(format) {
			c.fail("`%s': missing format character", format[i:])
			return used, true
		}
		switch verb := format[j]; verb {
		case 's':
			c.printf(spec+"s", next())
		case 'q':
			c.printf(spec+"s", quote(next()))
		case 'b':
			s, end := unescape(next(), true)
			c.printf(spec+"s", s)
			if end {
				return used, true
			}
		case 'c':
			s := next()
			if len(s) > 1 {
				_, n := utf8.DecodeRuneInString(s)
				s = s[:n]
			}
			c.printf(spec+"s", s)
		case 'd', 'i':
			c.printf(intSpec(spec)+"d", c.integer(next()))
		case 'u', 'o', 'x', 'X':
			v := uint64(c.integer(next()))
			if verb == 'u' {
				verb = 'd'
			}
			c.printf(intSpec(spec)+string(verb), v)
		case 'f', 'F', 'e', 'E', 'g', 'G', 'a', 'A':
			s := next()
			f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
			if err != nil && s != "" {
				if f = leadingNumber(s, true); len(s) > 0 && !errors.Is(err, strconv.ErrRange) {
					c.fail("%s: invalid number", s)
				}
			}
			if verb == 'g' || verb == 'G' {
				c.out.WriteString(formatG(spec, verb, f))
				break
			}
			if verb == 'a' || verb == 'A' {
				verb += 'x' - 'a'
			}
			c.printf(spec+string(verb), f)
		case '(':
			end := strings.Index(format[j:], ")T")
			if end < 0 {
				c.fail("`%s': invalid format", format[i:])
				return used, true
			}
			t := time.Now()
			if s := next(); s != "" && s != "-1" {
				t = time.Unix(c.integer(s), 0)
			}
			c.out.WriteString(strftime(format[j+1:j+end], t))
			j += end + 1
		default:
			c.fail("`%c': invalid format character", verb)
			return used, true
		}
		i = j + 1
	}
	return used, false
}

// intSpec makes a precision of an integer what C makes of it: digits, with the zero flag off.
func intSpec(spec string) string {
	if strings.Contains(spec, ".") {
		return "%" + strings.TrimLeft(spec[1:], "0")
	}
	return spec
}

// formatG formats %g as C does: six significant digits.
func formatG(spec string, verb byte, f float64) string {
	if !strings.Contains(spec, ".") {
		spec += ".6"
	}
	return fmt.Sprintf(spec+string(verb), f)
}

func (c *call) integer(s string) int64 {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0
	}
	if s[0] == '\'' || s[0] == '"' {
		r, _ := utf8.DecodeRuneInString(s[1:])
		return int64(r)
	}
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		return n
	}
	if n, err := strconv.ParseUint(s, 0, 64); err == nil {
		return int64(n)
	}
	c.fail("%s: invalid number", s)
	return int64(leadingNumber(s, false))
}
