package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

func sleep(c *call) int {
	if len(c.args) == 0 {
		c.die(1, "missing operand")
	}
	var total time.Duration
	for _, a := range c.args {
		d, ok := parseDuration(a)
		if !ok {
			c.die(1, "invalid time interval '%s'", a)
		}
		total += d
	}
	c.sleep(total)
	if c.ctx.Err() != nil {
		return 130
	}
	return 0
}

func usleep(c *call) int {
	if len(c.args) > 0 {
		n, _ := strconv.Atoi(c.args[0])
		c.sleep(time.Duration(n) * time.Microsecond)
	}
	return 0
}

func parseDuration(s string) (time.Duration, bool) {
	unit := time.Second
	if n := len(s); n > 0 {
		if u, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[s[n-1]]; ok {
			unit, s = u, s[:n-1]
		}
	}
	if s == "infinity" || s == "inf" {
		return 1<<63 - 1, true
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f < 0 {
		return 0, false
	}
	if f*float64(unit) > 9e18 {
		return 1<<63 - 1, true
	}
	return time.Duration(f * float64(unit)), true
}

func env(c *call) int {
	o := c.getopt("+iu:0C:S:", "ignore-environment=i", "unset=u", "null=0", "chdir=C", "split-string=S")
	vars := c.environ()
	args := o.args
	if o.has('S') {
		args = append(strings.Fields(o.str('S', "")), args...)
	}
	if o.has('i') || len(args) > 0 && args[0] == "-" {
		vars = nil
		if len(args) > 0 && args[0] == "-" {
			args = args[1:]
		}
	}
	vars = slices.Clone(vars)
	set := func(name string) {
		vars = slices.DeleteFunc(vars, func(v string) bool { return strings.HasPrefix(v, name+"=") })
	}
	for _, u := range o.vals['u'] {
		set(u)
	}
	for len(args) > 0 && strings.Contains(args[0], "=") {
		name, _, _ := strings.Cut(args[0], "=")
		set(name)
		vars = append(vars, args[0])
		args = args[1:]
	}
	if len(args) == 0 {
		end := "\n"
		if o.has('0') {
			end = "\x00"
		}
		for _, v := range vars {
			c.out.WriteString(v + end)
		}
		return 0
	}
	if !slices.ContainsFunc(vars, func(v string) bool { return strings.HasPrefix(v, "PATH=") }) {
		if p, _, err := lookPath(c.wd(), c.getenv("PATH"), args[0]); err == nil {
			args = append([]string{p}, args[1:]...)
		}
	}
	sub := *c
	sub.environ = func() []string { return vars }
	if o.has('C') {
		sub.dir = c.abs(o.str('C', ""))
	}
	return sub.become(args)
}

// become runs a command in place of an applet that is the process, else as a child.
func (c *call) become(args []string) int {
	if c.process {
		c.out.Flush()
		path, _, err := lookPath(c.wd(), c.getenv("PATH"), args[0])
		if err == nil {
			if c.dir != "" {
				err = os.Chdir(c.dir)
			}
			if err == nil {
				err = syscall.Exec(path, args, c.environ())
			}
			if errors.Is(err, syscall.ENOEXEC) {
				err = syscall.Exec("/proc/self/exe", append([]string{"sh", path}, args[1:]...), c.environ())
			}
		}
		st, msg := notRunnable(args[0], err)
		c.die(st, "%s", msg)
	}
	return c.spawn(args, c.rawIn)
}

func printenv(c *call) int {
	if len(c.args) == 0 {
		for _, v := range c.environ() {
			c.printf("%s\n", v)
		}
		return 0
	}
	for _, a := range c.args {
		ok := false
		for _, v := range c.environ() {
			if val, found := strings.CutPrefix(v, a+"="); found {
				c.printf("%s\n", val)
				ok = true
			}
		}
		if !ok {
			c.status = 1
		}
	}
	return c.status
}

func id(c *call) int {
	o := c.getopt("ugGnr", "user=u", "group=g", "groups=G", "name=n", "real=r")
	uid, gid := os.Geteuid(), os.Getegid()
	gids, _ := os.Getgroups()
	if len(o.args) > 0 {
		n, ok := nameID("/etc/passwd", o.args[0])
		if !ok {
			c.die(1, "'%s': no such user", o.args[0])
		}
		uid, gid, gids = n, n, nil
		for _, f := range records("/etc/passwd") {
			if len(f) > 3 && f[2] == strconv.Itoa(n) {
				gid, _ = strconv.Atoi(f[3])
			}
		}
	}
	if !slices.Contains(gids, gid) {
		gids = append([]int{gid}, gids...)
	}
	show := func(n int, name func(int) string) string {
		if o.has('n') {
			return name(n)
		}
		return strconv.Itoa(n)
	}
	var gs []string
	for _, g := range gids {
		if o.has('G') {
			gs = append(gs, show(g, lookupGroup))
		} else {
			gs = append(gs, fmt.Sprintf("%d(%s)", g, lookupGroup(g)))
		}
	}
	switch {
	case o.has('u'):
		c.printf("%s\n", show(uid, lookupUser))
	case o.has('g'):
		c.printf("%s\n", show(gid, lookupGroup))
	case o.has('G'):
		c.printf("%s\n", strings.Join(gs, " "))
	default:
		c.printf("uid=%d(%s) gid=%d(%s) groups=%s\n", uid, lookupUser(uid), gid, lookupGroup(gid), strings.Join(gs, ","))
	}
	return 0
}

func whoami(c *call) int {
	c.printf("%s\n", lookupUser(os.Geteuid()))
	return 0
}

func groups(c *call) int {
	c.args = []string{"-Gn"}
	return id(c)
}

func hostname(c *call) int {
	o := c.getopt("sfidIA", "short=s", "fqdn=f", "long=f", "ip-address=i", "all-ip-addresses=I", "domain=d")
	if len(o.args) > 0 {
		if err := unix.Sethostname([]byte(o.args[0])); err != nil {
			c.die(1, "you must be root to change the host name")
		}
		return 0
	}
	h, _ := os.Hostname()
	if o.has('s') {
		h, _, _ = strings.Cut(h, ".")
	}
	c.printf("%s\n", h)
	return 0
}

func uname(c *call) int {
	o := c.getopt("asnrvmpio", "all=a", "kernel-name=s", "nodename=n", "kernel-release=r", "kernel-version=v", "machine=m", "processor=p", "operating-system=o")
	var u unix.Utsname
	unix.Uname(&u)
	str := func(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }
	var f []string
	add := func(b byte, s string) {
		if o.has('a') && b != 'p' && b != 'i' || o.has(b) || b == 's' && len(o.vals) == 0 {
			f = append(f, s)
		}
	}
	add('s', str(u.Sysname[:]))
	add('n', str(u.Nodename[:]))
	add('r', str(u.Release[:]))
	add('v', str(u.Version[:]))
	add('m', str(u.Machine[:]))
	add('p', "unknown")
	add('i', "unknown")
	add('o', "GNU/Linux")
	c.printf("%s\n", strings.Join(f, " "))
	return 0
}

func arch(c *call) int {
	c.args = []string{"-m"}
	return uname(c)
}

func strftime(format string, t time.Time) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		flag := byte(0)
		if strings.IndexByte("-_0^", format[i]) >= 0 && i+1 < len(format) {
			flag = format[i]
			i++
		}
		digits := 0
		for i+1 < len(format) && format[i] >= '0' && format[i] <= '9' {
			digits = digits*10 + int(format[i]-'0')
			i++
		}
		_, week := t.ISOWeek()
		isoYear, _ := t.ISOWeek()
		layout := map[byte]string{'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'y': "06", 'b': "Jan", 'h': "Jan", 'B': "January",
			'a': "Mon", 'A': "Monday", 'I': "03", 'p': "PM", 'Z': "MST", 'z': "-0700", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06",
			'e': "_2", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05", 'r': "03:04:05 PM", 'j': "002", 'k': "15", 'l': "03", 'P': "pm"}
		var s string
		switch x := format[i]; x {
		case '%':
			s = "%"
		case 'n':
			s = "\n"
		case 't':
			s = "\t"
		case 's':
			s = fmt.Sprint(t.Unix())
		case 'N':
			s = fmt.Sprintf("%09d", t.Nanosecond())
			if digits > 0 && digits < 9 {
				s = s[:digits]
			}
		case 'u':
			s = fmt.Sprint((int(t.Weekday())+6)%7 + 1)
		case 'w':
			s = fmt.Sprint(int(t.Weekday()))
		case 'V':
			s = fmt.Sprintf("%02d", week)
		case 'G':
			s = fmt.Sprint(isoYear)
		case 'U':
			s = fmt.Sprintf("%02d", (t.YearDay()+6-int(t.Weekday()))/7)
		case 'W':
			s = fmt.Sprintf("%02d", (t.YearDay()+6-(int(t.Weekday())+6)%7)/7)
		case 'C':
			s = fmt.Sprintf("%02d", t.Year()/100)
		case 'q':
			s = fmt.Sprint((int(t.Month())-1)/3 + 1)
		case ':':
			if strings.HasPrefix(format[i:], ":z") {
				i++
				s = t.Format("-07:00")
			}
		default:
			if l, ok := layout[x]; ok {
				s = t.Format(l)
			} else {
				s = "%" + string(x)
			}
			if (x == 'k' || x == 'l') && s[0] == '0' {
				s = " " + s[1:]
			}
		}
		switch flag {
		case '-':
			if s = strings.TrimLeft(s, "0 "); s == "" {
				s = "0"
			}
		case '_':
			if strings.HasPrefix(s, "0") && len(s) > 1 {
				s = " " + s[1:]
			}
		case '^':
			s = strings.ToUpper(s)
		}
		b.WriteString(s)
	}
	return b.String()
}

// parseDate reads the dates that scripts give to date -d and touch -d.
func parseDate(s string) (time.Time, bool) {
	s = strings.TrimSpace(s)
	now := time.Now()
	if n, ok := strings.CutPrefix(s, "@"); ok {
		f, err := strconv.ParseFloat(n, 64)
		if err != nil {
			return now, false
		}
		sec := int64(f)
		return time.Unix(sec, int64((f-float64(sec))*1e9)), true
	}
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.Local)
	switch s {
	case "now", "":
		return now, true
	case "today":
		return now, true
	case "yesterday":
		return now.AddDate(0, 0, -1), true
	case "tomorrow":
		return now.AddDate(0, 0, 1), true
	}
	for _, l := range []string{time.RFC3339Nano, time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05.999999999 -0700", "2006-01-02 15:04:05 -0700",
		"2006-01-02 15:04:05 MST", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02", "2006/01/02", "20060102", "01/02/2006", time.RFC1123Z, time.RFC1123,
		time.UnixDate, time.ANSIC, "2 Jan 2006", "Jan 2 2006", "2 Jan 2006 15:04:05", "Jan 2, 2006", "2 January 2006", "January 2, 2006"} {
		if t, err := time.ParseInLocation(l, s, time.Local); err == nil {
			return t, true
		}
	}
	if t, err := time.Parse("15:04:05", s); err == nil {
		return day.Add(time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second), true
	}
	// "+2 days", "1 hour ago", "2024-01-01 +3 days", "next week"
	f := strings.Fields(strings.NewReplacer("+", " +", "next", "+1", "last", "-1").Replace(s))
	at := now
	start := 0
	for n := min(2, len(f)-1); n > 0; n-- {
		if t, ok := parseDate(strings.Join(f[:n], " ")); ok && !strings.HasPrefix(f[0], "+") && !strings.HasPrefix(f[0], "-") && n < len(f) {
			if _, err := strconv.Atoi(f[0]); err != nil {
				at, start = t, n
				break
			}
		}
	}
	f = f[start:]
	if len(f) == 0 {
		return now, false
	}
	sign := 1
	if f[len(f)-1] == "ago" {
		sign, f = -1, f[:len(f)-1]
	}
	for i := 0; i < len(f); i += 2 {
		n, err := strconv.Atoi(strings.TrimPrefix(f[i], "+"))
		if err != nil || i+1 >= len(f) {
			return now, false
		}
		n *= sign
		switch strings.TrimSuffix(f[i+1], "s") {
		case "sec", "second":
			at = at.Add(time.Duration(n) * time.Second)
		case "min", "minute":
			at = at.Add(time.Duration(n) * time.Minute)
		case "hour":
			at = at.Add(time.Duration(n) * time.Hour)
		case "day":
			at = at.AddDate(0, 0, n)
		case "week":
			at = at.AddDate(0, 0, 7*n)
		case "fortnight":
			at = at.AddDate(0, 0, 14*n)
		case "month":
			at = at.AddDate(0, n, 0)
		case "year":
			at = at.AddDate(n, 0, 0)
		default:
			return now, false
		}
	}
	return at, true
}

func date(c *call) int {
	o := c.getopt("ud:r:s:RI?3:", "utc=u", "universal=u", "date=d", "reference=r", "set=s", "rfc-email=R", "iso-8601=I", "rfc-3339=3")
	t := time.Now()
	switch {
	case o.has('d'):
		var ok bool
		if t, ok = parseDate(o.str('d', "")); !ok {
			c.die(1, "invalid date '%s'", o.str('d', ""))
		}
	case o.has('r'):
		fi, err := os.Stat(c.path(o.str('r', "")))
		if err != nil {
			c.die(1, "%s: %s", o.str('r', ""), reason(err))
		}
		t = fi.ModTime()
	case o.has('s'):
		c.die(1, "cannot set date: Operation not permitted")
	}
	if tz := c.getenv("TZ"); tz != "" && !o.has('u') {
		if loc, err := time.LoadLocation(strings.TrimPrefix(tz, ":")); err == nil {
			t = t.In(loc)
		}
	}
	if o.has('u') {
		t = t.UTC()
	}
	format := "%a %b %e %H:%M:%S %Z %Y"
	switch {
	case len(o.args) > 0 && strings.HasPrefix(o.args[0], "+"):
		format = o.args[0][1:]
	case len(o.args) > 0:
		c.die(1, "invalid date '%s'", o.args[0])
	case o.has('R'):
		format = "%a, %d %b %Y %H:%M:%S %z"
	case o.has('3'):
		format = "%F %T%:z"
	case o.has('I'):
		switch v := o.str('I', ""); {
		case strings.HasPrefix(v, "s"):
			format = "%FT%T%:z"
		case strings.HasPrefix(v, "m"):
			format = "%FT%R%:z"
		case strings.HasPrefix(v, "n"):
			format = "%FT%T,%N%:z"
		default:
			format = "%F"
		}
	}
	c.printf("%s\n", strftime(format, t))
	return 0
}

func nproc(c *call) int {
	c.printf("%d\n", runtime.NumCPU())
	return 0
}

func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && f != nil && term.IsTerminal(int(f.Fd()))
}

func tty(c *call) int {
	o := c.getopt("s", "silent=s")
	if !isTerminal(c.rawIn) {
		if !o.has('s') {
			c.printf("not a tty\n")
		}
		return 1
	}
	if !o.has('s') {
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", c.rawIn.(*os.File).Fd()))
		if err != nil {
			name = "/dev/tty"
		}
		c.printf("%s\n", name)
	}
	return 0
}

func stty(c *call) int {
	if !isTerminal(c.rawIn) {
		c.die(1, "standard input: Inappropriate ioctl for device")
	}
	fd := int(c.rawIn.(*os.File).Fd())
	args := c.args
	ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil {
		c.die(1, "%s", reason(err))
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		c.die(1, "%s", reason(err))
	}
	lflags := map[string]uint32{"echo": unix.ECHO, "icanon": unix.ICANON, "isig": unix.ISIG, "iexten": unix.IEXTEN, "echoe": unix.ECHOE, "echok": unix.ECHOK, "tostop": unix.TOSTOP}
	if len(args) == 0 || args[0] == "-a" {
		c.printf("speed 38400 baud; rows %d; columns %d;\n", ws.Row, ws.Col)
		for _, n := range []string{"isig", "icanon", "iexten", "echo", "echoe", "echok", "tostop"} {
			if t.Lflag&lflags[n] == 0 {
				c.printf("-")
			}
			c.printf("%s ", n)
		}
		c.printf("\n")
		return 0
	}
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch bare := strings.TrimPrefix(a, "-"); {
		case a == "size":
			c.printf("%d %d\n", ws.Row, ws.Col)
			return 0
		case a == "-F" && len(args) > 0:
			args = args[1:]
		case (a == "rows" || a == "cols" || a == "columns") && len(args) > 0:
			n, _ := strconv.Atoi(args[0])
			args = args[1:]
			if a == "rows" {
				ws.Row = uint16(n)
			} else {
				ws.Col = uint16(n)
			}
			unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, ws)
		case a == "raw":
			t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
			t.Oflag &^= unix.OPOST
			t.Lflag &^= unix.ICANON | unix.ISIG
			t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
		case a == "sane" || a == "cooked" || a == "-raw":
			t.Iflag |= unix.BRKINT | unix.ICRNL | unix.IXON
			t.Oflag |= unix.OPOST | unix.ONLCR
			t.Lflag |= unix.ICANON | unix.ISIG | unix.IEXTEN | unix.ECHO | unix.ECHOE | unix.ECHOK
		case lflags[bare] != 0:
			if a == bare {
				t.Lflag |= lflags[bare]
			} else {
				t.Lflag &^= lflags[bare]
			}
		case bare == "onlcr":
			if t.Oflag |= unix.ONLCR; a != bare {
				t.Oflag &^= unix.ONLCR
			}
		case bare == "ixon" || bare == "icrnl":
		default:
			c.fail("invalid argument '%s'", a)
		}
	}
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		c.die(1, "%s", reason(err))
	}
	return c.status
}

func free(c *call) int {
	o := c.getopt("bkmghtws:c:", "human=h", "mega=m", "giga=g", "kilo=k", "bytes=b")
	b, _ := os.ReadFile("/proc/meminfo")
	m := map[string]int64{}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 1 {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			m[strings.TrimSuffix(f[0], ":")] = n << 10
		}
	}
	show := func(n int64) string {
		switch {
		case o.has('h'):
			return human(n) + "i"
		case o.has('b'):
			return fmt.Sprint(n)
		case o.has('m'):
			return fmt.Sprint(n >> 20)
		case o.has('g'):
			return fmt.Sprint(n >> 30)
		}
		return fmt.Sprint(n >> 10)
	}
	cache := m["Buffers"] + m["Cached"] + m["SReclaimable"]
	avail := m["MemAvailable"]
	if avail == 0 {
		avail = m["MemFree"] + cache
	}
	c.printf("%19s %11s %11s %11s %11s %11s\n", "total", "used", "free", "shared", "buff/cache", "available")
	c.printf("Mem:    %11s %11s %11s %11s %11s %11s\n", show(m["MemTotal"]), show(max(0, m["MemTotal"]-avail)), show(m["MemFree"]), show(m["Shmem"]), show(cache), show(avail))
	c.printf("Swap:   %11s %11s %11s\n", show(m["SwapTotal"]), show(m["SwapTotal"]-m["SwapFree"]), show(m["SwapFree"]))
	return 0
}

func uptime(c *call) int {
	b, _ := os.ReadFile("/proc/uptime")
	up, _, _ := strings.Cut(string(b), " ")
	f, _ := strconv.ParseFloat(up, 64)
	load, _ := os.ReadFile("/proc/loadavg")
	l := strings.Fields(string(load) + " 0 0 0")
	c.printf(" %s up %s,  load average: %s, %s, %s\n", time.Now().Format("15:04:05"), (time.Duration(f) * time.Second).String(), l[0], l[1], l[2])
	return 0
}

// process is a row of ps.
type process struct {
	pid, ppid, pgid, sid, ttyNr int
	state, comm, args           string
	uid                         int
	utime                       int64
	vsz, rss                    int64
	start                       int64
}

func processes() (ps []process) {
	ents, _ := os.ReadDir("/proc")
	for _, e := range ents {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := "/proc/" + e.Name()
		b, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		s := string(b)
		open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
		if open < 0 || end < 0 {
			continue
		}
		p := process{pid: pid, comm: s[open+1 : end]}
		f := strings.Fields(s[end+1:])
		num := func(i int) int64 {
			if i >= len(f) {
				return 0
			}
			n, _ := strconv.ParseInt(f[i], 10, 64)
			return n
		}
		if len(f) > 0 {
			p.state = f[0]
		}
		p.ppid, p.pgid, p.sid, p.ttyNr = int(num(1)), int(num(2)), int(num(3)), int(num(4))
		p.utime, p.start, p.vsz, p.rss = num(11)+num(12), num(19), num(20)>>10, num(21)*4
		cl, _ := os.ReadFile(dir + "/cmdline")
		if p.args = strings.TrimSpace(strings.ReplaceAll(string(cl), "\x00", " ")); p.args == "" {
			p.args = "[" + p.comm + "]"
		}
		if fi, err := os.Stat(dir); err == nil {
			p.uid = int(fi.Sys().(*syscall.Stat_t).Uid)
		}
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b process) int { return a.pid - b.pid })
	return ps
}

func ps(c *call) int {
	if len(c.args) > 0 && !strings.HasPrefix(c.args[0], "-") { // ps aux
		c.args = append([]string{"-" + c.args[0]}, c.args[1:]...)
		c.args[0] = strings.ReplaceAll(c.args[0], "a", "A")
	}
	o := c.getopt("Aaefuxlwo:p:C:jHTLh", "pid=p", "format=o", "no-headers=h", "forest=H")
	columns := []string{"pid", "tty", "time", "comm"}
	switch {
	case o.has('o'):
		columns = nil
		for _, v := range o.vals['o'] {
			columns = append(columns, strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })...)
		}
	case o.has('f'):
		columns = []string{"user", "pid", "ppid", "tty", "time", "args"}
	case o.has('u'):
		columns = []string{"user", "pid", "vsz", "rss", "tty", "stat", "time", "args"}
	case o.has('x') || o.has('A') && o.has('l'):
		columns = []string{"pid", "tty", "stat", "time", "args"}
	}
	rows := [][]string{{}}
	for i, col := range columns {
		name, head, custom := strings.Cut(col, "=")
		columns[i] = name
		if !custom {
			head = map[string]string{"args": "CMD", "cmd": "CMD", "command": "COMMAND", "comm": "CMD", "pid": "PID"}[name]
			if head == "" {
				head = strings.ToUpper(name)
			}
		}
		rows[0] = append(rows[0], head)
	}
	if o.has('h') || strings.Join(rows[0], "") == "" {
		rows = nil
	}
	all := processes()
	mine := 0
	for _, p := range all {
		if p.pid == os.Getpid() {
			mine = p.ttyNr
		}
	}
	for _, p := range all {
		switch {
		case o.has('p'):
			if !slices.Contains(strings.FieldsFunc(strings.Join(o.vals['p'], ","), func(r rune) bool { return r == ',' || r == ' ' }), strconv.Itoa(p.pid)) {
				continue
			}
		case o.has('C'):
			if p.comm != o.str('C', "") {
				continue
			}
		case o.any("Aaex"):
		case p.uid != os.Geteuid() || p.ttyNr != mine:
			continue
		}
		var row []string
		for _, col := range columns {
			v := "-"
			switch col {
			case "pid":
				v = fmt.Sprint(p.pid)
			case "ppid":
				v = fmt.Sprint(p.ppid)
			case "pgid", "pgrp":
				v = fmt.Sprint(p.pgid)
			case "sid", "sess":
				v = fmt.Sprint(p.sid)
			case "user", "uname", "euser":
				v = lookupUser(p.uid)
			case "uid":
				v = fmt.Sprint(p.uid)
			case "stat", "state", "s":
				v = p.state
			case "comm", "ucmd":
				v = p.comm
			case "args", "cmd", "command":
				v = p.args
			case "vsz":
				v = fmt.Sprint(p.vsz)
			case "rss", "rssize":
				v = fmt.Sprint(p.rss)
			case "tty", "tt":
				if v = "?"; p.ttyNr != 0 {
					v = fmt.Sprintf("pts/%d", p.ttyNr&0xff)
				}
			case "time", "etime", "cputime":
				s := p.utime / 100
				v = fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
			case "%cpu", "pcpu", "%mem", "pmem":
				v = "0.0"
			}
			row = append(row, v)
		}
		rows = append(rows, row)
	}
	if o.has('p') && len(rows) <= 1 && (len(rows) == 0 || !o.has('h')) {
		c.status = 1
	}
	w := make([]int, len(columns))
	for _, r := range rows {
		for i, f := range r {
			w[i] = max(w[i], len(f))
		}
	}
	for _, r := range rows {
		for i, f := range r {
			switch left := strings.Contains("user args cmd command comm tty stat", columns[i]); {
			case i == len(r)-1 && left:
				c.printf("%s", f)
			case left:
				c.printf("%-*s ", w[i], f)
			case i == len(r)-1:
				c.printf("%*s", w[i], f)
			default:
				c.printf("%*s ", w[i], f)
			}
		}
		c.printf("\n")
	}
	return c.status
}

func signalNumber(s string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(s); err == nil {
		return syscall.Signal(n), n >= 0 && n < 65
	}
	s = strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if s == "EXIT" {
		return 0, true
	}
	n := unix.SignalNum("SIG" + s)
	return n, n != 0
}

func kill(c *call) int {
	args := c.args
	sig := syscall.SIGTERM
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "--" {
		a := args[0]
		name := a[1:]
		switch {
		case a == "-l" || a == "-L" || a == "--list":
			if len(args) > 1 {
				n, err := strconv.Atoi(args[1])
				if err != nil {
					s, ok := signalNumber(args[1])
					if !ok {
						c.die(1, "%s: invalid signal specification", args[1])
					}
					c.printf("%d\n", s)
					return 0
				}
				c.printf("%s\n", strings.TrimPrefix(unix.SignalName(syscall.Signal(n&127)), "SIG"))
				return 0
			}
			for i := 1; i < 32; i++ {
				c.printf("%2d) %s\n", i, unix.SignalName(syscall.Signal(i)))
			}
			return 0
		case (a == "-s" || a == "-n" || a == "--signal") && len(args) > 1:
			name = args[1]
			args = args[1:]
		case strings.HasPrefix(a, "-s"):
			if _, ok := signalNumber(name); !ok {
				name = a[2:]
			}
		}
		n, ok := signalNumber(name)
		if !ok {
			c.die(1, "%s: invalid signal specification", name)
		}
		sig = n
		args = args[1:]
		if len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && args[0][1] >= '0' && args[0][1] <= '9' {
			break // a process group
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		c.die(2, "usage: kill [-s SIGNAL | -SIGNAL] PID...")
	}
	c.out.Flush()
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err != nil {
			c.fail("%s: arguments must be process or job IDs", a)
			continue
		}
		if err := syscall.Kill(pid, sig); err != nil {
			c.fail("(%s) - %s", a, reason(err))
			continue
		}
		if (pid == os.Getpid() || pid == 0) && sig != 0 && !signal.Ignored(sig) {
			// Let a signal to ourselves arrive before the next command.
			time.Sleep(2 * time.Millisecond)
		}
	}
	return c.status
}

func pkill(c *call) int {
	sig := syscall.SIGTERM
	var rest []string
	for _, a := range c.args {
		if n, ok := signalNumber(strings.TrimPrefix(a, "-")); strings.HasPrefix(a, "-") && len(a) > 2 && ok {
			sig = n
			continue
		}
		if n, err := strconv.Atoi(strings.TrimPrefix(a, "-")); err == nil && strings.HasPrefix(a, "-") {
			sig = syscall.Signal(n)
			continue
		}
		rest = append(rest, a)
	}
	c.args = rest
	o := c.getopt("flxavncoiu:P:s:", "full=f", "exact=x", "list-name=l", "list-full=a", "newest=n", "oldest=o", "count=c", "signal=s", "parent=P", "ignore-case=i")
	if n, ok := signalNumber(o.str('s', "TERM")); ok && o.has('s') {
		sig = n
	}
	if len(o.args) == 0 && !o.any("P") {
		c.die(2, "no matching criteria specified")
	}
	flags := ""
	if o.has('i') {
		flags = "i"
	}
	pat := ""
	if len(o.args) > 0 {
		pat = o.args[0]
	}
	if o.has('x') {
		pat = "^(" + pat + ")$"
	}
	re := c.compile(pat, true, flags, 2)
	n := 0
	for _, p := range processes() {
		what := p.comm
		if o.has('f') {
			what = p.args
		} else if base := filepath.Base(strings.SplitN(p.args, " ", 2)[0]); strings.HasPrefix(p.comm, "caisson-base") || strings.HasPrefix(base, p.comm) {
			what = base
		}
		if p.pid == os.Getpid() || !re.MatchString(what) || o.has('P') && strconv.Itoa(p.ppid) != o.str('P', "") {
			continue
		}
		n++
		switch {
		case c.name == "pkill":
			if err := syscall.Kill(p.pid, sig); err != nil {
				c.warn("killing pid %d failed: %s", p.pid, reason(err))
			}
		case o.has('c'):
		case o.has('a'):
			c.printf("%d %s\n", p.pid, p.args)
		case o.has('l'):
			c.printf("%d %s\n", p.pid, p.comm)
		default:
			c.printf("%d\n", p.pid)
		}
	}
	if o.has('c') {
		c.printf("%d\n", n)
	}
	if n == 0 {
		return 1
	}
	return 0
}

func pidof(c *call) int {
	o := c.getopt("sx")
	var pids []string
	for _, p := range processes() {
		base := filepath.Base(strings.SplitN(p.args, " ", 2)[0])
		if slices.Contains(o.args, p.comm) || slices.Contains(o.args, base) {
			pids = append([]string{strconv.Itoa(p.pid)}, pids...)
		}
	}
	if len(pids) == 0 {
		return 1
	}
	if o.has('s') {
		pids = pids[:1]
	}
	c.printf("%s\n", strings.Join(pids, " "))
	return 0
}

func timeApplet(c *call) int {
	o := c.getopt("+pvf:o:")
	start := time.Now()
	st := 0
	if len(o.args) > 0 {
		st = c.spawn(o.args, c.rawIn)
	}
	fmt.Fprintf(c.err, "real %.2f\n", time.Since(start).Seconds())
	return st
}

func timeout(c *call) int {
	o := c.getopt("+s:k:fvp", "signal=s", "kill-after=k", "foreground=f", "preserve-status=p", "verbose=v")
	if len(o.args) < 2 {
		c.die(125, "usage: timeout [OPTION] DURATION COMMAND [ARG]...")
	}
	d, ok := parseDuration(o.args[0])
	if !ok {
		c.die(125, "invalid time interval '%s'", o.args[0])
	}
	sig, ok := signalNumber(o.str('s', "TERM"))
	if !ok {
		c.die(125, "%s: invalid signal", o.str('s', ""))
	}
	cmd, err := c.command(o.args[1:])
	if err == nil {
		if !o.has('f') {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if isTerminal(c.rawIn) {
				cmd.SysProcAttr = nil // its own group could not read the terminal
			}
		}
		err = startCmd(cmd)
	}
	if err != nil {
		st, msg := notRunnable(o.args[1], err)
		c.die(st, "%s", msg)
	}
	group := cmd.SysProcAttr != nil
	send := func(s syscall.Signal) {
		if group {
			syscall.Kill(-cmd.Process.Pid, s)
			if s != syscall.SIGKILL && s != syscall.SIGCONT {
				syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT)
			}
		} else {
			cmd.Process.Signal(s)
		}
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var forward chan os.Signal
	if c.process {
		forward = make(chan os.Signal, 4)
		signal.Notify(forward, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	}
	var limit, killAt <-chan time.Time
	if d > 0 {
		limit = time.After(d)
	}
	timedOut := false
	for {
		select {
		case err := <-done:
			st := exitStatus(cmd, err)
			if timedOut && !o.has('p') && st != 128+int(syscall.SIGKILL) {
				return 124
			}
			return st
		case <-limit:
			timedOut, limit = true, nil
			send(sig)
			if k, ok := parseDuration(o.str('k', "")); ok && o.has('k') {
				killAt = time.After(k)
			}
		case <-killAt:
			killAt = nil
			send(syscall.SIGKILL)
		case s := <-forward:
			send(s.(syscall.Signal))
		case <-c.ctx.Done():
			send(syscall.SIGTERM)
			return 130
		}
	}
}

func nohup(c *call) int {
	if len(c.args) == 0 {
		c.die(125, "missing operand")
	}
	signal.Ignore(syscall.SIGHUP)
	if isTerminal(c.rawOut) {
		f, err := os.OpenFile(c.path("nohup.out"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			c.die(125, "nohup.out: %s", reason(err))
		}
		c.warn("appending output to 'nohup.out'")
		unix.Dup3(int(f.Fd()), 1, 0)
		if isTerminal(os.Stderr) {
			unix.Dup3(int(f.Fd()), 2, 0)
		}
	}
	return c.become(c.args)
}

func setsid(c *call) int {
	o := c.getopt("+cwf", "ctty=c", "wait=w", "fork=f")
	if len(o.args) == 0 {
		c.die(1, "no command specified")
	}
	if _, err := syscall.Setsid(); err == nil && !o.has('f') {
		return c.become(o.args)
	}
	cmd, err := c.command(o.args)
	if err == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err = startCmd(cmd)
	}
	if err != nil {
		st, msg := notRunnable(o.args[0], err)
		c.die(st, "%s", msg)
	}
	if !o.has('w') {
		return 0
	}
	return exitStatus(cmd, cmd.Wait())
}

func nice(c *call) int {
	o := c.getopt("+#n:", "adjustment=n")
	if len(o.args) == 0 {
		c.printf("0\n")
		return 0
	}
	if c.process {
		syscall.Setpriority(syscall.PRIO_PROCESS, 0, int(o.num('n', o.num('#', 10))))
	}
	return c.become(o.args)
}

func getent(c *call) int {
	if len(c.args) == 0 {
		c.die(1, "usage: getent DATABASE [KEY]...")
	}
	file, ok := map[string]string{"passwd": "/etc/passwd", "group": "/etc/group", "hosts": "/etc/hosts", "services": "/etc/services", "ahosts": "/etc/hosts"}[c.args[0]]
	if !ok {
		c.die(1, "Unknown database: %s", c.args[0])
	}
	b, _ := os.ReadFile(file)
	keys := c.args[1:]
	status := 0
	match := func(l, key string) bool {
		if strings.HasSuffix(file, "hosts") || strings.HasSuffix(file, "services") {
			return slices.Contains(strings.Fields(l), key)
		}
		f := strings.Split(l, ":")
		return len(f) > 2 && (f[0] == key || f[2] == key)
	}
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); len(keys) == 0 && l != "" && l[0] != '#' {
			c.printf("%s\n", l)
		}
	}
	for _, k := range keys {
		found := false
		for l := range strings.Lines(string(b)) {
			if l = strings.TrimSpace(l); l != "" && l[0] != '#' && match(l, k) {
				c.printf("%s\n", l)
				found = true
				break
			}
		}
		if !found {
			status = 2
		}
	}
	return status
}

func clearScreen(c *call) int {
	if c.name == "reset" {
		c.out.WriteString("\x1bc")
	}
	c.out.WriteString("\x1b[H\x1b[2J\x1b[3J")
	return 0
}

func watch(c *call) int {
	o := c.getopt("+n:tdeg", "interval=n", "no-title=t")
	every, ok := parseDuration(o.str('n', "2"))
	if !ok || len(o.args) == 0 {
		c.die(1, "usage: watch [-n SECONDS] COMMAND")
	}
	for c.ctx.Err() == nil {
		c.printf("\x1b[H\x1b[2JEvery %s: %s\n\n", every, strings.Join(o.args, " "))
		c.spawn([]string{"sh", "-c", strings.Join(o.args, " ")}, nil)
		c.sleep(every)
	}
	return 0
}

// test is test(1); inside of the shell the builtin serves.
func test(c *call) int {
	args := c.args
	if c.name == "[" {
		if len(args) == 0 || args[len(args)-1] != "]" {
			c.die(2, "missing ]")
		}
		args = args[:len(args)-1]
	}
	t := &tester{c: c, args: args}
	if len(args) == 0 {
		return 1
	}
	ok := t.or()
	if len(t.args) > 0 {
		c.die(2, "extra argument '%s'", t.args[0])
	}
	if ok {
		return 0
	}
	return 1
}

type tester struct {
	c    *call
	args []string
}

func (t *tester) next() string {
	if len(t.args) == 0 {
		t.c.die(2, "argument expected")
	}
	a := t.args[0]
	t.args = t.args[1:]
	return a
}

func (t *tester) or() bool {
	v := t.and()
	for len(t.args) > 0 && t.args[0] == "-o" {
		t.next()
		w := t.and()
		v = v || w
	}
	return v
}

func (t *tester) and() bool {
	v := t.not()
	for len(t.args) > 0 && t.args[0] == "-a" {
		t.next()
		w := t.not()
		v = v && w
	}
	return v
}

func (t *tester) not() bool {
	if len(t.args) > 1 && t.args[0] == "!" {
		t.next()
		return !t.not()
	}
	return t.primary()
}

func (t *tester) primary() bool {
	c := t.c
	if len(t.args) >= 3 {
		a, op, b := t.args[0], t.args[1], t.args[2]
		num := func() int {
			x, e1 := strconv.ParseInt(strings.TrimSpace(a), 10, 64)
			y, e2 := strconv.ParseInt(strings.TrimSpace(b), 10, 64)
			if e1 != nil || e2 != nil {
				c.die(2, "integer expression expected")
			}
			return big.NewInt(x).Cmp(big.NewInt(y))
		}
		times := func() (x, y time.Time) {
			if fi, err := os.Stat(c.path(a)); err == nil {
				x = fi.ModTime()
			}
			if fi, err := os.Stat(c.path(b)); err == nil {
				y = fi.ModTime()
			}
			return x, y
		}
		var v bool
		known := true
		switch op {
		case "=", "==":
			v = a == b
		case "!=":
			v = a != b
		case "<":
			v = a < b
		case ">":
			v = a > b
		case "-eq":
			v = num() == 0
		case "-ne":
			v = num() != 0
		case "-lt":
			v = num() < 0
		case "-le":
			v = num() <= 0
		case "-gt":
			v = num() > 0
		case "-ge":
			v = num() >= 0
		case "-nt":
			x, y := times()
			v = x.After(y)
		case "-ot":
			x, y := times()
			v = x.Before(y)
		case "-ef":
			x, e1 := os.Stat(c.path(a))
			y, e2 := os.Stat(c.path(b))
			v = e1 == nil && e2 == nil && os.SameFile(x, y)
		default:
			known = false
		}
		if known {
			t.args = t.args[3:]
			return v
		}
	}
	a := t.next()
	if a == "(" && len(t.args) > 0 {
		v := t.or()
		if t.next() != ")" {
			c.die(2, "missing )")
		}
		return v
	}
	if len(a) == 2 && a[0] == '-' && len(t.args) > 0 && strings.IndexByte("bcdefgGhkLnNOprsStuwxz", a[1]) >= 0 {
		b := t.next()
		switch a[1] {
		case 'n':
			return b != ""
		case 'z':
			return b == ""
		case 't':
			n, _ := strconv.Atoi(b)
			return term.IsTerminal(n)
		case 'r':
			return unix.Access(c.path(b), unix.R_OK) == nil
		case 'w':
			return unix.Access(c.path(b), unix.W_OK) == nil
		case 'x':
			return unix.Access(c.path(b), unix.X_OK) == nil
		}
		var st unix.Stat_t
		stat := unix.Stat
		if a[1] == 'h' || a[1] == 'L' {
			stat = unix.Lstat
		}
		if stat(c.path(b), &st) != nil {
			return false
		}
		kind := st.Mode & unix.S_IFMT
		switch a[1] {
		case 's':
			return st.Size > 0
		case 'u':
			return st.Mode&unix.S_ISUID != 0
		case 'g':
			return st.Mode&unix.S_ISGID != 0
		case 'k':
			return st.Mode&unix.S_ISVTX != 0
		case 'O':
			return int(st.Uid) == os.Geteuid()
		case 'G':
			return int(st.Gid) == os.Getegid()
		case 'e', 'N':
			return true
		}
		return kind == map[byte]uint32{'f': unix.S_IFREG, 'd': unix.S_IFDIR, 'h': unix.S_IFLNK, 'L': unix.S_IFLNK, 'b': unix.S_IFBLK, 'c': unix.S_IFCHR, 'p': unix.S_IFIFO, 'S': unix.S_IFSOCK}[a[1]]
	}
	return a != ""
}

func expr(c *call) int {
	e := &expression{c: c, args: c.args}
	if len(e.args) == 0 {
		c.die(2, "missing operand")
	}
	v := e.binary(0)
	if len(e.args) > 0 {
		c.die(2, "syntax error: unexpected argument '%s'", e.args[0])
	}
	c.printf("%s\n", v)
	if v == "" || v == "0" {
		return 1
	}
	return 0
}

type expression struct {
	c    *call
	args []string
}

var exprLevels = [][]string{{"|"}, {"&"}, {"<", "<=", "=", "==", "!=", ">=", ">"}, {"+", "-"}, {"*", "/", "%"}, {":"}}

func (e *expression) binary(level int) string {
	if level == len(exprLevels) {
		return e.primary()
	}
	l := e.binary(level + 1)
	for len(e.args) > 0 && slices.Contains(exprLevels[level], e.args[0]) {
		op := e.args[0]
		e.args = e.args[1:]
		l = e.apply(op, l, e.binary(level+1))
	}
	return l
}

func (e *expression) primary() string {
	if len(e.args) == 0 {
		e.c.die(2, "syntax error: missing argument")
	}
	a := e.args[0]
	e.args = e.args[1:]
	switch {
	case a == "(":
		v := e.binary(0)
		if len(e.args) == 0 || e.args[0] != ")" {
			e.c.die(2, "syntax error: expecting ')'")
		}
		e.args = e.args[1:]
		return v
	case a == "length" && len(e.args) > 0:
		return strconv.Itoa(len([]rune(e.primary())))
	case a == "match" && len(e.args) > 1:
		l := e.primary()
		return e.apply(":", l, e.primary())
	case a == "substr" && len(e.args) > 2:
		s := []rune(e.primary())
		from, _ := strconv.Atoi(e.primary())
		n, _ := strconv.Atoi(e.primary())
		if from < 1 || n < 1 || from > len(s) {
			return ""
		}
		return string(s[from-1 : min(from-1+n, len(s))])
	case a == "index" && len(e.args) > 1:
		s := e.primary()
		return strconv.Itoa(strings.IndexAny(s, e.primary()) + 1)
	}
	return a
}

func (e *expression) apply(op, a, b string) string {
	null := func(s string) bool { return s == "" || s == "0" }
	x, okX := new(big.Int).SetString(a, 10)
	y, okY := new(big.Int).SetString(b, 10)
	switch op {
	case "|":
		if !null(a) {
			return a
		}
		if null(b) {
			return "0"
		}
		return b
	case "&":
		if null(a) || null(b) {
			return "0"
		}
		return a
	case ":":
		re := e.c.compile("^"+strings.TrimPrefix(b, "^"), false, "", 2)
		m := re.FindStringSubmatch(a)
		if re.NumSubexp() > 0 {
			if m == nil {
				return ""
			}
			return m[1]
		}
		if m == nil {
			return "0"
		}
		return strconv.Itoa(len([]rune(m[0])))
	case "+", "-", "*", "/", "%":
		if !okX || !okY {
			e.c.die(2, "non-integer argument")
		}
		if (op == "/" || op == "%") && y.Sign() == 0 {
			e.c.die(2, "division by zero")
		}
		z := new(big.Int)
		switch op {
		case "+":
			z.Add(x, y)
		case "-":
			z.Sub(x, y)
		case "*":
			z.Mul(x, y)
		case "/":
			z.Quo(x, y)
		case "%":
			z.Rem(x, y)
		}
		return z.String()
	}
	r := strings.Compare(a, b)
	if okX && okY {
		r = x.Cmp(y)
	}
	if map[string]bool{"<": r < 0, "<=": r <= 0, "=": r == 0, "==": r == 0, "!=": r != 0, ">=": r >= 0, ">": r > 0}[op] {
		return "1"
	}
	return "0"
}
