package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// sedAddr is one address: a line number, the last line, a pattern, or a step.
type sedAddr struct {
	line, step int
	last       bool
	re         *regexp.Regexp
	plus       int // addr,+N
}

type sedCmd struct {
	a1, a2 *sedAddr
	not    bool
	active bool
	end    int
	name   byte
	text   string
	re     *regexp.Regexp
	repl   []sedPart
	global bool
	print  bool
	nth    int
	file   string
	target int // of b, t, T, {
	trFrom []rune
	trTo   []rune
}

// sedPart is a piece of a replacement: text, a group, or a change of case.
type sedPart struct {
	text  string
	group int // -1 for text
	cas   byte
}

type sedScript struct {
	c        *call
	src      string
	pos      int
	extended bool
	cmds     []*sedCmd
	labels   map[string]int
	last     *regexp.Regexp
}

func sed(c *call) int {
	o := c.getopt("nrEszue:f:i?l:", "quiet=n", "silent=n", "regexp-extended=E", "expression=e", "file=f", "in-place=i", "separate=s", "unbuffered=u", "null-data=z", "posix=u", "debug=u")
	var src []string
	src = append(src, o.vals['e']...)
	for _, f := range o.vals['f'] {
		b, ok := c.readAll(f)
		if !ok {
			return 1
		}
		src = append(src, strings.TrimSuffix(string(b), "\n"))
	}
	args := o.args
	if len(src) == 0 {
		if len(args) == 0 {
			c.die(1, "usage: sed [OPTION]... SCRIPT [FILE]...")
		}
		src, args = args[:1], args[1:]
	}
	s := &sedScript{c: c, src: strings.Join(src, "\n"), extended: o.any("rE"), labels: map[string]int{}}
	quiet := o.has('n')
	if strings.HasPrefix(s.src, "#n\n") {
		quiet = true
	}
	s.parse()
	if !o.any("is") {
		m := &sedRun{s: s, c: c, quiet: quiet, out: c.out, in: &sedInput{c: c, names: orStdin(args)}}
		m.files = map[string]*bufio.Writer{}
		m.run()
		m.close()
		return m.status
	}
	status := 0
	for _, a := range args {
		if !o.has('i') {
			m := &sedRun{s: s, c: c, quiet: quiet, out: c.out, in: &sedInput{c: c, names: []string{a}}, files: map[string]*bufio.Writer{}}
			m.run()
			m.close()
			continue
		}
		fi, err := os.Stat(c.path(a))
		if err != nil {
			c.fail("can't read %s: %s", a, reason(err))
			continue
		}
		var buf bytes.Buffer
		w := bufio.NewWriter(&buf)
		m := &sedRun{s: s, c: c, quiet: quiet, out: w, in: &sedInput{c: c, names: []string{a}}, files: map[string]*bufio.Writer{}}
		m.run()
		m.close()
		status = max(status, m.status)
		w.Flush()
		if suffix := o.str('i', ""); suffix != "" {
			old, _ := os.ReadFile(c.path(a))
			if err := os.WriteFile(c.path(a+suffix), old, fi.Mode().Perm()); err != nil {
				c.die(4, "%s: %s", a+suffix, reason(err))
			}
		}
		tmp := c.path(a) + ".sed-tmp"
		if err := os.WriteFile(tmp, buf.Bytes(), fi.Mode().Perm()); err == nil {
			os.Chmod(tmp, fi.Mode().Perm())
			err = os.Rename(tmp, c.path(a))
			if err != nil {
				c.die(4, "%s: %s", a, reason(err))
			}
		} else {
			c.die(4, "couldn't open temporary file: %s", reason(err))
		}
	}
	return status
}

func (s *sedScript) bad(format string, a ...any) {
	s.c.die(1, "-e expression #1, char %d: %s", s.pos, fmt.Sprintf(format, a...))
}

func (s *sedScript) peek() byte {
	if s.pos < len(s.src) {
		return s.src[s.pos]
	}
	return 0
}

func (s *sedScript) skip(chars string) {
	for s.pos < len(s.src) && strings.IndexByte(chars, s.src[s.pos]) >= 0 {
		s.pos++
	}
}

// delimited reads up to an unescaped delimiter. An escaped one stands for itself; in a pattern, brackets hide it.
func (s *sedScript) delimited(d byte, pattern bool) string {
	var b strings.Builder
	for s.pos < len(s.src) {
		x := s.src[s.pos]
		switch {
		case x == d:
			s.pos++
			return b.String()
		case x == '\\' && s.pos+1 < len(s.src):
			n := s.src[s.pos+1]
			s.pos += 2
			if n == d && !(pattern && strings.IndexByte("(){}|+?.*[]^$", d) >= 0 && false) {
				b.WriteByte(d)
			} else if n == '\n' && pattern {
				b.WriteByte('\n')
			} else {
				b.WriteByte('\\')
				b.WriteByte(n)
			}
			continue
		case x == '[' && pattern:
			if n, _ := bracket(s.src[s.pos:]); n > 0 && !strings.Contains(s.src[s.pos:s.pos+n], "\n") {
				b.WriteString(s.src[s.pos : s.pos+n])
				s.pos += n
				continue
			}
			b.WriteByte(x)
		default:
			b.WriteByte(x)
		}
		s.pos++
	}
	s.bad("unterminated command")
	return ""
}

func (s *sedScript) regexp(p, flags string) *regexp.Regexp {
	if p == "" {
		return nil // the last one used
	}
	return s.c.compile(p, s.extended, flags, 1)
}

func (s *sedScript) number() int {
	i := s.pos
	for s.pos < len(s.src) && s.src[s.pos] >= '0' && s.src[s.pos] <= '9' {
		s.pos++
	}
	n, _ := strconv.Atoi(s.src[i:s.pos])
	return n
}

func (s *sedScript) addr() *sedAddr {
	switch x := s.peek(); {
	case x >= '0' && x <= '9':
		a := &sedAddr{line: s.number()}
		if s.peek() == '~' {
			s.pos++
			a.step = max(s.number(), 1)
		}
		return a
	case x == '$':
		s.pos++
		return &sedAddr{last: true}
	case x == '/' || x == '\\':
		s.pos++
		d := x
		if x == '\\' {
			d = s.peek()
			s.pos++
		}
		p := s.delimited(d, true)
		flags := ""
		for s.peek() == 'I' || s.peek() == 'M' {
			flags += map[byte]string{'I': "i", 'M': "m"}[s.peek()]
			s.pos++
		}
		return &sedAddr{re: s.regexp(p, flags), line: -1}
	}
	return nil
}

func (s *sedScript) parse() {
	var blocks []int
	for {
		s.skip(" \t\n;")
		if s.pos >= len(s.src) {
			break
		}
		if s.peek() == '#' {
			for s.pos < len(s.src) && s.peek() != '\n' {
				s.pos++
			}
			continue
		}
		cmd := &sedCmd{}
		cmd.a1 = s.addr()
		s.skip(" \t")
		if cmd.a1 != nil && s.peek() == ',' {
			s.pos++
			s.skip(" \t")
			if s.peek() == '+' || s.peek() == '~' {
				s.pos++
				cmd.a2 = &sedAddr{plus: s.number() + 1}
			} else if cmd.a2 = s.addr(); cmd.a2 == nil {
				s.bad("unexpected `,'")
			}
		}
		s.skip(" \t")
		for s.peek() == '!' {
			cmd.not = true
			s.pos++
			s.skip(" \t")
		}
		cmd.name = s.peek()
		if cmd.name == 0 {
			s.bad("missing command")
		}
		s.pos++
		line := func() string {
			i := strings.IndexByte(s.src[s.pos:], '\n')
			if i < 0 {
				i = len(s.src) - s.pos
			}
			t := s.src[s.pos : s.pos+i]
			s.pos += i
			return strings.TrimSpace(t)
		}
		word := func() string {
			s.skip(" \t")
			i := s.pos
			for s.pos < len(s.src) && strings.IndexByte("\n;} \t", s.src[s.pos]) < 0 {
				s.pos++
			}
			return s.src[i:s.pos]
		}
		switch cmd.name {
		case '{':
			blocks = append(blocks, len(s.cmds))
		case '}':
			if len(blocks) == 0 {
				s.bad("unexpected `}'")
			}
			s.cmds[blocks[len(blocks)-1]].target = len(s.cmds)
			blocks = blocks[:len(blocks)-1]
		case ':':
			s.labels[word()] = len(s.cmds)
		case 'b', 't', 'T':
			cmd.text = word()
		case 'r', 'w', 'R', 'W':
			cmd.file = line()
		case 'a', 'i', 'c':
			cmd.text = s.text()
		case 's':
			s.substitute(cmd, line)
		case 'y':
			d := s.peek()
			s.pos++
			cmd.trFrom = []rune(sedUnescape(s.delimited(d, false)))
			cmd.trTo = []rune(sedUnescape(s.delimited(d, false)))
			if len(cmd.trFrom) != len(cmd.trTo) {
				s.bad("strings for `y' command are different lengths")
			}
		case 'q', 'Q', 'l', 'L':
			s.skip(" \t")
			cmd.nth = s.number()
		case 'd', 'D', 'p', 'P', 'n', 'N', 'g', 'G', 'h', 'H', 'x', '=', 'z', 'F':
		default:
			s.bad("unknown command: `%c'", cmd.name)
		}
		s.cmds = append(s.cmds, cmd)
		s.skip(" \t")
		if p := s.peek(); p != 0 && p != '\n' && p != ';' && p != '}' && p != '#' && cmd.name != '{' && cmd.name != '}' {
			s.bad("extra characters after command")
		}
	}
	if len(blocks) > 0 {
		s.bad("unmatched `{'")
	}
	for _, cmd := range s.cmds {
		if strings.IndexByte("btT", cmd.name) >= 0 {
			cmd.target = len(s.cmds)
			if cmd.text != "" {
				t, ok := s.labels[cmd.text]
				if !ok {
					s.bad("can't find label for jump to `%s'", cmd.text)
				}
				cmd.target = t
			}
		}
	}
}

// text reads the text of a, i and c: on this line, or after a backslash and newline, and on after every such pair.
func (s *sedScript) text() string {
	s.skip(" \t")
	if s.peek() == '\\' {
		s.pos++
		s.skip(" \t")
		if s.peek() == '\n' {
			s.pos++
		}
	}
	var b strings.Builder
	for s.pos < len(s.src) {
		x := s.src[s.pos]
		s.pos++
		if x == '\n' {
			s.pos--
			break
		}
		if x == '\\' && s.pos < len(s.src) {
			x = s.src[s.pos]
			s.pos++
			if x == 't' {
				x = '\t'
			} else if x == 'n' {
				x = '\n'
			}
		}
		b.WriteByte(x)
	}
	return b.String() + "\n"
}

func (s *sedScript) substitute(cmd *sedCmd, line func() string) {
	d := s.peek()
	s.pos++
	pat := s.delimited(d, true)
	repl := s.delimited(d, false)
	flags := ""
	cmd.nth = 1
flags:
	for {
		switch x := s.peek(); {
		case x == 'g':
			cmd.global = true
		case x == 'p':
			cmd.print = true
		case x == 'i' || x == 'I':
			flags += "i"
		case x == 'm' || x == 'M':
			flags += "m"
		case x >= '1' && x <= '9':
			cmd.nth = s.number()
			continue
		case x == 'w':
			s.pos++
			cmd.file = line()
			break flags
		case x == 'e':
			s.bad("the flag e is not supported")
		default:
			break flags
		}
		s.pos++
	}
	cmd.re = s.regexp(pat, flags)
	add := func(p sedPart) { cmd.repl = append(cmd.repl, p) }
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			add(sedPart{text: b.String(), group: -1})
			b.Reset()
		}
	}
	for i := 0; i < len(repl); i++ {
		x := repl[i]
		if x == '&' {
			flush()
			add(sedPart{group: 0})
			continue
		}
		if x != '\\' || i+1 == len(repl) {
			b.WriteByte(x)
			continue
		}
		i++
		switch x = repl[i]; {
		case x >= '0' && x <= '9':
			flush()
			if n := int(x - '0'); cmd.re != nil && n > cmd.re.NumSubexp() {
				s.bad("invalid reference \\%d on `s' command's RHS", n)
			}
			add(sedPart{group: int(x - '0')})
		case strings.IndexByte("LUEul", x) >= 0:
			flush()
			add(sedPart{group: -1, cas: x})
		case x == 'n':
			b.WriteByte('\n')
		case x == 't':
			b.WriteByte('\t')
		case x == 'r':
			b.WriteByte('\r')
		default:
			b.WriteByte(x)
		}
	}
	flush()
}

func sedUnescape(s string) string {
	return strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`).Replace(s)
}

// sedInput gives the lines of all files as one stream, one ahead, to know the last.
type sedInput struct {
	c     *call
	names []string
	r     *bufio.Reader
	cl    io.Closer
	next  string
	nl    bool
	have  bool
	begun bool
	name  string
}

func (in *sedInput) read() (string, bool, bool) {
	if !in.begun {
		in.begun = true
		in.advance()
	}
	if !in.have {
		return "", false, false
	}
	l, nl := in.next, in.nl
	in.advance()
	return l, nl, true
}

func (in *sedInput) advance() {
	for {
		if in.r == nil {
			if len(in.names) == 0 {
				in.have = false
				return
			}
			in.name = in.names[0]
			in.names = in.names[1:]
			f := in.c.open(in.name)
			if f == nil {
				in.c.status = 2
				continue
			}
			in.cl, in.r = f, bufio.NewReaderSize(f, bufSize)
		}
		l, err := in.r.ReadString('\n')
		if l == "" && err != nil {
			in.cl.Close()
			in.r = nil
			continue
		}
		in.next, in.nl = strings.CutSuffix(l, "\n")
		in.have = true
		return
	}
}

type sedRun struct {
	s           *sedScript
	c           *call
	in          *sedInput
	out         *bufio.Writer
	quiet       bool
	num         int
	space, hold string
	nl          bool
	appended    []func()
	files       map[string]*bufio.Writer
	open        []*os.File
	status      int
	missing     bool // the line before had no newline
}

func (m *sedRun) emit(s string, nl bool) {
	if m.missing {
		m.out.WriteByte('\n')
		m.missing = false
	}
	m.out.WriteString(s)
	if nl {
		m.out.WriteByte('\n')
	} else {
		m.missing = true
	}
}

func (m *sedRun) matches(a *sedAddr) bool {
	switch {
	case a.last:
		return !m.in.have
	case a.line >= 0 && a.step > 0:
		return m.num >= a.line && (m.num-a.line)%a.step == 0
	case a.line >= 0:
		return m.num == a.line
	}
	return m.re(a.re).MatchString(m.space)
}

func (m *sedRun) re(re *regexp.Regexp) *regexp.Regexp {
	if re == nil {
		if m.s.last == nil {
			m.c.die(1, "no previous regular expression")
		}
		return m.s.last
	}
	m.s.last = re
	return re
}

func (m *sedRun) selected(cmd *sedCmd) bool {
	if cmd.a1 == nil {
		return true
	}
	if cmd.a2 == nil {
		return m.matches(cmd.a1)
	}
	if cmd.active {
		switch {
		case cmd.a2.plus > 0:
			cmd.active = m.num < cmd.end
		case cmd.a2.last || cmd.a2.re != nil || cmd.a2.line < 0:
			cmd.active = !m.matches(cmd.a2)
		default:
			if m.num > cmd.a2.line {
				cmd.active = false
				return false
			}
			cmd.active = m.num < cmd.a2.line
		}
		return true
	}
	zero := cmd.a1.line == 0 && cmd.a1.re == nil && !cmd.a1.last && cmd.a1.step == 0
	if zero && m.num == 1 {
		cmd.active = !m.matches(cmd.a2)
		return true
	}
	if zero || !m.matches(cmd.a1) {
		return false
	}
	switch {
	case cmd.a2.plus > 0:
		cmd.end = m.num + cmd.a2.plus - 1
		cmd.active = cmd.end > m.num
	case cmd.a2.re != nil || cmd.a2.line < 0:
		cmd.active = true
	case cmd.a2.last:
		cmd.active = m.in.have
	default:
		cmd.active = cmd.a2.line > m.num
	}
	return true
}

func (m *sedRun) fetch() bool {
	l, nl, ok := m.in.read()
	if ok {
		m.space, m.nl = l, nl
		m.num++
	}
	return ok
}

func (m *sedRun) endCycle(print bool) {
	if print && !m.quiet {
		m.emit(m.space, m.nl)
	}
	for _, f := range m.appended {
		f()
	}
	m.appended = nil
}

func (m *sedRun) run() {
	restart := false
	for restart || m.fetch() {
		restart = false
		replaced := false
		print := true
	script:
		for i := 0; i < len(m.s.cmds); i++ {
			cmd := m.s.cmds[i]
			if m.selected(cmd) == cmd.not {
				if cmd.name == '{' {
					i = cmd.target
				}
				continue
			}
			switch cmd.name {
			case 'p':
				m.emit(m.space, true)
			case 'P':
				l, _, _ := strings.Cut(m.space, "\n")
				m.emit(l, true)
			case 'd':
				print = false
				break script
			case 'D':
				l, rest, ok := strings.Cut(m.space, "\n")
				_ = l
				print = false
				if ok {
					m.space, restart = rest, true
				}
				break script
			case 'n':
				if !m.in.have {
					break script
				}
				m.endCycle(true)
				m.fetch()
			case 'N':
				if !m.in.have {
					break script
				}
				old := m.space
				for _, f := range m.appended {
					f()
				}
				m.appended = nil
				m.fetch()
				m.space = old + "\n" + m.space
			case 'g':
				m.space = m.hold
			case 'G':
				m.space += "\n" + m.hold
			case 'h':
				m.hold = m.space
			case 'H':
				m.hold += "\n" + m.space
			case 'x':
				m.space, m.hold = m.hold, m.space
			case 'z':
				m.space = ""
			case '=':
				m.emit(strconv.Itoa(m.num), true)
			case 'F':
				m.emit(m.in.name, true)
			case 'l':
				m.emit(strings.Trim(strconv.Quote(m.space), `"`)+"$", true)
			case 'q':
				m.status = cmd.nth
				m.endCycle(true)
				return
			case 'Q':
				m.status = cmd.nth
				return
			case 'a':
				m.appended = append(m.appended, func() { m.emit(strings.TrimSuffix(cmd.text, "\n"), true) })
			case 'i':
				m.emit(strings.TrimSuffix(cmd.text, "\n"), true)
			case 'c':
				if cmd.a2 == nil || !cmd.active || cmd.not {
					m.emit(strings.TrimSuffix(cmd.text, "\n"), true)
				}
				print = false
				break script
			case 'r':
				m.appended = append(m.appended, func() {
					if b, err := os.ReadFile(m.c.path(cmd.file)); err == nil && len(b) > 0 {
						l, nl := strings.CutSuffix(string(b), "\n")
						m.emit(l, nl)
					}
				})
			case 'w':
				m.writeFile(cmd.file, m.space)
			case 'y':
				m.space = strings.Map(func(r rune) rune {
					for i, f := range cmd.trFrom {
						if f == r {
							return cmd.trTo[i]
						}
					}
					return r
				}, m.space)
			case 'b':
				i = cmd.target - 1
			case 't':
				if replaced {
					replaced = false
					i = cmd.target - 1
				}
			case 'T':
				if !replaced {
					i = cmd.target - 1
				}
				replaced = false
			case 's':
				if out, ok := m.replace(cmd); ok {
					m.space, replaced = out, true
					if cmd.print {
						m.emit(m.space, true)
					}
					if cmd.file != "" {
						m.writeFile(cmd.file, m.space)
					}
				}
			}
		}
		m.endCycle(print)
	}
}

func (m *sedRun) replace(cmd *sedCmd) (string, bool) {
	re := m.re(cmd.re)
	limit := cmd.nth
	if cmd.global {
		limit = -1
	}
	all := re.FindAllStringSubmatchIndex(m.space, limit)
	if len(all) < cmd.nth {
		return "", false
	}
	var b strings.Builder
	pos := 0
	for _, x := range all[cmd.nth-1:] {
		b.WriteString(m.space[pos:x[0]])
		cas, once := byte(0), byte(0)
		for _, p := range cmd.repl {
			switch {
			case p.cas == 'u' || p.cas == 'l':
				once = p.cas
				continue
			case p.cas != 0:
				cas = p.cas
				continue
			}
			t := p.text
			if p.group >= 0 {
				t = ""
				if 2*p.group+1 < len(x) && x[2*p.group] >= 0 {
					t = m.space[x[2*p.group]:x[2*p.group+1]]
				}
			}
			switch cas {
			case 'U':
				t = strings.ToUpper(t)
			case 'L':
				t = strings.ToLower(t)
			}
			if once != 0 && t != "" {
				if once == 'u' {
					t = strings.ToUpper(t[:1]) + t[1:]
				} else {
					t = strings.ToLower(t[:1]) + t[1:]
				}
				once = 0
			}
			b.WriteString(t)
		}
		pos = x[1]
	}
	b.WriteString(m.space[pos:])
	return b.String(), true
}

func (m *sedRun) writeFile(name, l string) {
	switch name {
	case "/dev/stdout":
		m.emit(l, true)
		return
	case "/dev/stderr":
		fmt.Fprintln(m.c.err, l)
		return
	}
	w := m.files[name]
	if w == nil {
		f, err := os.Create(m.c.path(name))
		if err != nil {
			m.c.die(4, "couldn't open file %s: %s", name, reason(err))
		}
		m.open = append(m.open, f)
		w = bufio.NewWriter(f)
		m.files[name] = w
	}
	w.WriteString(l + "\n")
}

func (m *sedRun) close() {
	for _, w := range m.files {
		w.Flush()
	}
	for _, f := range m.open {
		f.Close()
	}
}
