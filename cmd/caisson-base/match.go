package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// goRegexp turns a POSIX regular expression, basic or extended, into one of Go's. Back-references do not exist there.
func goRegexp(p string, extended bool) (string, error) {
	var b strings.Builder
	start := true // where * is literal and ^ an anchor
	for i := 0; i < len(p); i++ {
		x := p[i]
		wasStart := start
		start = false
		switch {
		case x == '[':
			end, class := bracket(p[i:])
			if end == 0 {
				return "", fmt.Errorf("unmatched [")
			}
			b.WriteString(class)
			i += end - 1
		case x == '\\':
			i++
			if i == len(p) {
				return "", fmt.Errorf("trailing backslash")
			}
			x = p[i]
			switch {
			case !extended && strings.IndexByte("(){}|+?", x) >= 0:
				if x == '(' || x == '|' {
					start = true
				}
				if wasStart && (x == '+' || x == '?') {
					b.WriteByte('\\')
				}
				b.WriteByte(x)
			case x == '<' || x == '>':
				b.WriteString(`\b`)
			case x == '`':
				b.WriteString(`\A`)
			case x == '\'':
				b.WriteString(`\z`)
			case strings.IndexByte("wWsSbBdDntrfv", x) >= 0:
				b.WriteByte('\\')
				b.WriteByte(x)
			case x >= '1' && x <= '9':
				return "", fmt.Errorf("back-references are not supported")
			default:
				b.WriteString(regexp.QuoteMeta(string(x)))
			}
		case !extended && (x == '(' || x == ')' || x == '{' || x == '}' || x == '|' || x == '+' || x == '?'):
			b.WriteByte('\\')
			b.WriteByte(x)
		case x == '*' && wasStart:
			b.WriteString(`\*`)
		case x == '^' && !extended:
			if wasStart {
				b.WriteByte('^')
				start = true
			} else {
				b.WriteString(`\^`)
			}
		case x == '$' && !extended:
			if rest := p[i+1:]; rest == "" || strings.HasPrefix(rest, `\)`) || strings.HasPrefix(rest, `\|`) {
				b.WriteByte('$')
			} else {
				b.WriteString(`\$`)
			}
		case x == '{' && extended && (i+1 == len(p) || !(p[i+1] >= '0' && p[i+1] <= '9' || p[i+1] == ',')):
			b.WriteString(`\{`)
		case x == '{' && extended && p[i+1] == ',':
			b.WriteString(`{0`)
		default:
			start = extended && (x == '(' || x == '|' || x == '^')
			b.WriteByte(x)
		}
	}
	return b.String(), nil
}

// bracket converts a bracket expression at the start of p and says how long it was.
func bracket(p string) (int, string) {
	i := 1
	out := "["
	if i < len(p) && p[i] == '^' {
		out += "^"
		i++
	}
	first := true
	for i < len(p) {
		switch x := p[i]; {
		case x == ']' && !first:
			return i + 1, out + "]"
		case x == '[' && i+1 < len(p) && strings.IndexByte(":.=", p[i+1]) >= 0:
			end := strings.Index(p[i+2:], p[i+1:i+2]+"]")
			if end < 0 {
				return 0, ""
			}
			name := p[i+2 : i+2+end]
			if p[i+1] == ':' {
				out += "[:" + name + ":]"
			} else {
				out += regexp.QuoteMeta(name)
			}
			i += end + 3
		case x == '\\' && i+1 < len(p) && strings.IndexByte("nt", p[i+1]) >= 0:
			out += p[i : i+2]
			i++
		case x == '[' || x == ']' || x == '\\' || x == '^' || x == '&' || x == '~':
			out += `\` + string(x)
		default:
			out += string(x)
		}
		first = false
		i++
	}
	return 0, ""
}

func (c *call) compile(p string, extended bool, flags string, status int) *regexp.Regexp {
	g, err := goRegexp(p, extended)
	if err == nil {
		if flags != "" {
			g = "(?" + flags + ")" + g
		}
		var re *regexp.Regexp
		if re, err = regexp.Compile(g); err == nil {
			re.Longest()
			return re
		}
	}
	c.die(status, "invalid regular expression %q: %v", p, err)
	return nil
}

// grepper is one grep.
type grepper struct {
	c             *call
	o             *options
	res           []*regexp.Regexp
	literals      [][]byte
	withName      bool
	matched       bool
	before, after int
	include, excl []string
	exclDirs      []string
}

func grep(c *call) int {
	o := c.getopt("#EFGPivnrRlLcoqwxshHaIzTUe:f:A:B:C:m:d:D:y1:2:3:4?5?",
		"extended-regexp=E", "fixed-strings=F", "basic-regexp=G", "perl-regexp=P", "ignore-case=i", "invert-match=v", "line-number=n",
		"recursive=r", "dereference-recursive=R", "files-with-matches=l", "files-without-match=L", "count=c", "only-matching=o", "quiet=q", "silent=q",
		"word-regexp=w", "line-regexp=x", "no-messages=s", "no-filename=h", "with-filename=H", "text=a", "regexp=e", "file=f",
		"after-context=A", "before-context=B", "context=C", "max-count=m", "include=1", "exclude=2", "exclude-dir=3", "color=4", "colour=4",
		"line-buffered=U", "null=T", "binary-files=5")
	g := &grepper{c: c, o: o, include: o.vals['1'], excl: o.vals['2'], exclDirs: o.vals['3']}
	pats := o.vals['e']
	for _, f := range o.vals['f'] {
		b, ok := c.readAll(f)
		if !ok {
			return 2
		}
		if s := strings.TrimSuffix(string(b), "\n"); len(b) > 0 {
			pats = append(pats, strings.Split(s, "\n")...)
		}
	}
	args := o.args
	if !o.any("ef") {
		if len(args) == 0 {
			c.die(2, "usage: grep [OPTION]... PATTERN [FILE]...")
		}
		pats, args = strings.Split(args[0], "\n"), args[1:]
	}
	flags := ""
	if o.any("iy") {
		flags = "i"
	}
	fixed, extended := o.has('F') || c.name == "fgrep", o.has('E') || c.name == "egrep"
	for _, p := range pats {
		if (fixed || regexp.QuoteMeta(p) == p) && !o.any("iywx") {
			g.literals = append(g.literals, []byte(p))
			if !o.has('o') {
				continue
			}
		}
		switch {
		case fixed:
			p = regexp.QuoteMeta(p)
		case o.has('P'):
		default:
			conv, err := goRegexp(p, extended)
			if err != nil {
				c.die(2, "%v", err)
			}
			p = conv
		}
		if o.has('x') {
			p = "^(?:" + p + ")$"
		}
		f := flags
		if f != "" {
			p = "(?" + f + ")" + p
		}
		re, err := regexp.Compile(p)
		if err != nil {
			c.die(2, "%v", err)
		}
		if !o.has('P') {
			re.Longest()
		}
		g.res = append(g.res, re)
	}
	ctx := int(o.num('C', o.num('#', 0)))
	g.before, g.after = int(o.num('B', int64(ctx))), int(o.num('A', int64(ctx)))
	recursive := o.any("rR")
	if len(args) == 0 && recursive {
		args = []string{"."}
	}
	g.withName = (len(args) > 1 || recursive || o.has('H')) && !o.has('h')
	failed := false
	for _, a := range orStdin(args) {
		if fi, err := os.Stat(c.path(a)); a != "-" && err == nil && fi.IsDir() {
			if !recursive {
				c.warn("%s: Is a directory", a)
				continue
			}
			g.tree(a)
			continue
		}
		if a == "-" {
			g.file("(standard input)", c.in)
			continue
		}
		f, err := os.Open(c.path(a))
		if err != nil {
			failed = true
			if !o.has('s') {
				c.warn("%s: %s", a, reason(err))
			}
			continue
		}
		g.file(a, f)
		f.Close()
		if g.matched && o.has('q') {
			return 0
		}
	}
	switch {
	case failed && !(g.matched && o.has('q')):
		return 2
	case g.matched:
		return 0
	}
	return 1
}

func (g *grepper) tree(root string) {
	filepath.WalkDir(g.c.path(root), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if !g.o.has('s') {
				g.c.warn("%s: %s", path, reason(err))
			}
			return nil
		}
		rel, _ := filepath.Rel(g.c.path(root), path)
		name := root
		if rel != "." {
			name = strings.TrimSuffix(root, "/") + "/" + rel
		}
		match := func(pats []string) bool {
			for _, p := range pats {
				if ok, _ := filepath.Match(p, d.Name()); ok {
					return true
				}
			}
			return false
		}
		if d.IsDir() {
			if rel != "." && match(g.exclDirs) {
				return filepath.SkipDir
			}
			return nil
		}
		if len(g.include) > 0 && !match(g.include) || match(g.excl) || !d.Type().IsRegular() && !(g.o.has('R') && d.Type()&fs.ModeSymlink != 0) {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			g.c.warn("%s: %s", name, reason(err))
			return nil
		}
		defer f.Close()
		g.file(name, f)
		if g.matched && g.o.has('q') {
			return filepath.SkipAll
		}
		return nil
	})
}

// find is the next match at or after from, nil if there is none.
func (g *grepper) find(l []byte, from int) []int {
	var best []int
	for _, re := range g.res {
		at := from
		for at <= len(l) {
			var m []int
			if at == 0 {
				m = re.FindIndex(l)
			} else {
				// Match in the whole line, so that anchors and \b see what is before.
				for _, x := range re.FindAllIndex(l, -1) {
					if x[0] >= at {
						m = x
						break
					}
				}
			}
			if m == nil {
				break
			}
			if g.o.has('w') && (m[0] > 0 && wordByte(l[m[0]-1]) || m[1] < len(l) && wordByte(l[m[1]])) {
				at = m[0] + 1
				continue
			}
			if best == nil || m[0] < best[0] || m[0] == best[0] && m[1] > best[1] {
				best = m
			}
			break
		}
	}
	return best
}

func wordByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' || b >= 0x80
}

func (g *grepper) match(l []byte) bool {
	for _, lit := range g.literals {
		if bytes.Contains(l, lit) {
			return true
		}
	}
	if g.o.has('w') {
		return g.find(l, 0) != nil
	}
	for _, re := range g.res {
		if re.Match(l) {
			return true
		}
	}
	return false
}

func (g *grepper) file(name string, r io.Reader) {
	c, o := g.c, g.o
	quiet := o.any("qlLc")
	limit := o.num('m', 1<<62)
	var count, num, lastShown int64
	var held []string // lines before, for -B
	afterLeft, binary := 0, false
	prefix := func(sep byte, n int64) {
		if g.withName {
			c.out.WriteString(name)
			if o.has('T') {
				c.out.WriteByte(0)
			} else {
				c.out.WriteByte(sep)
			}
		}
		if o.has('n') {
			c.out.WriteString(strconv.FormatInt(n, 10))
			c.out.WriteByte(sep)
		}
	}
	show := func(l []byte, n int64, sep byte) {
		if (g.before > 0 || g.after > 0) && lastShown > 0 && n > lastShown+1 {
			c.out.WriteString("--\n")
		}
		lastShown = n
		prefix(sep, n)
		c.out.Write(l)
		c.out.WriteByte('\n')
	}
	lines(r, func(l []byte, _ bool) bool {
		num++
		if !binary && !o.has('a') && bytes.IndexByte(l, 0) >= 0 {
			binary = true
		}
		if g.match(l) == o.has('v') {
			if afterLeft > 0 {
				afterLeft--
				show(l, num, '-')
			} else if g.before > 0 && !quiet {
				held = append(held, string(l))
				if len(held) > g.before {
					held = held[1:]
				}
			}
			return count < limit || afterLeft > 0
		}
		if count >= limit {
			return false
		}
		count++
		g.matched = g.matched || !o.has('L')
		switch {
		case quiet:
			return o.has('c') && !o.any("qlL")
		case binary:
			if !o.has('I') {
				c.printf("%s: %s: binary file matches\n", c.name, name)
			}
			return false
		case o.has('o'):
			if o.has('v') {
				break
			}
			for from := 0; from <= len(l); {
				m := g.find(l, from)
				if m == nil {
					break
				}
				if m[1] == m[0] {
					from = m[1] + 1
					continue
				}
				prefix(':', num)
				c.out.Write(l[m[0]:m[1]])
				c.out.WriteByte('\n')
				from = m[1]
			}
		default:
			for i, h := range held {
				show([]byte(h), num-int64(len(held)-i), '-')
			}
			held = nil
			show(l, num, ':')
			afterLeft = g.after
		}
		return count < limit || afterLeft > 0
	})
	switch {
	case o.has('q'):
	case o.has('l'):
		if count > 0 {
			c.printf("%s\n", name)
		}
	case o.has('L'):
		if count == 0 {
			g.matched = true
			c.printf("%s\n", name)
		}
	case o.has('c'):
		if g.withName {
			c.printf("%s:", name)
		}
		c.printf("%d\n", count)
	}
}
