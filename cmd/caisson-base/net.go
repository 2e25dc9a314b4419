package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// fetchClient is an HTTP client for one command.
func fetchClient(insecure, follow bool, limit, connect time.Duration, proxy bool, unix string, resolve []string) *http.Client {
	d := &net.Dialer{Timeout: connect}
	t := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: insecure}, //nolint:gosec // curl -k
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if unix != "" {
				return d.DialContext(ctx, "unix", unix)
			}
			for _, r := range resolve { // HOST:PORT:ADDR
				if f := strings.SplitN(r, ":", 3); len(f) == 3 && addr == f[0]+":"+f[1] {
					addr = net.JoinHostPort(strings.Trim(f[2], "[]"), f[1])
				}
			}
			return d.DialContext(ctx, network, addr)
		},
		DisableCompression: true,
	}
	if proxy {
		t.Proxy = http.ProxyFromEnvironment
	}
	c := &http.Client{Transport: t, Timeout: limit}
	if !follow {
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	return c
}

func withScheme(u string) string {
	if !strings.Contains(u, "://") {
		return "http://" + u
	}
	return u
}

func curl(c *call) int {
	o := c.getopt("sSfLkiIvgNnqGo:OX:d:H:u:A:b:m:w:F:T:e:x:461:2:3:5:7:8:", "silent=s", "show-error=S", "fail=f", "location=L", "insecure=k", "include=i", "head=I", "verbose=v", "output=o",
		"remote-name=O", "request=X", "data=d", "data-raw=1", "data-binary=2", "data-urlencode=3", "header=H", "user=u", "user-agent=A", "cookie=b", "max-time=m", "connect-timeout=5", "write-out=w",
		"json=8", "upload-file=T", "referer=e", "proxy=x", "fail-with-body=f", "unix-socket=7", "get=G", "no-buffer=N", "globoff=g", "http1.1=6", "compressed=4")
	if len(o.args) == 0 {
		c.die(2, "no URL specified")
	}
	seconds := func(b byte) time.Duration { d, _ := parseDuration(o.str(b, "0")); return d }
	client := fetchClient(o.has('k'), o.has('L'), seconds('m'), seconds('5'), true, o.str('7', ""), nil)
	method := o.str('X', "")
	var body []byte
	hasBody := false
	add := func(b []byte) {
		if hasBody {
			body = append(body, '&')
		}
		body, hasBody = append(body, b...), true
	}
	file := func(v string, strip bool) []byte {
		name, ok := strings.CutPrefix(v, "@")
		if !ok {
			return []byte(v)
		}
		b, ok := c.readAll(name)
		if !ok {
			c.exit(26)
		}
		if strip {
			b = bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\r"), nil), []byte("\n"), nil)
		}
		return b
	}
	for _, v := range o.vals['d'] {
		add(file(v, true))
	}
	for _, v := range o.vals['1'] {
		add([]byte(v))
	}
	for _, v := range o.vals['2'] {
		add(file(v, false))
	}
	for _, v := range o.vals['3'] {
		if name, val, ok := strings.Cut(v, "="); ok {
			if name != "" {
				name += "="
			}
			add([]byte(name + url.QueryEscape(val)))
		} else {
			add([]byte(url.QueryEscape(v)))
		}
	}
	contentType := "application/x-www-form-urlencoded"
	for _, v := range o.vals['8'] {
		add(file(v, false))
		contentType = "application/json"
	}
	if o.has('T') {
		b, ok := c.readAll(o.str('T', ""))
		if !ok {
			return 26
		}
		body, hasBody, contentType = b, true, ""
		if method == "" {
			method = "PUT"
		}
	}
	status := 0
	for i, u := range o.args {
		u = withScheme(u)
		m := method
		reqBody := io.Reader(nil)
		if hasBody {
			if o.has('G') {
				sep := "?"
				if strings.Contains(u, "?") {
					sep = "&"
				}
				u += sep + string(body)
			} else {
				reqBody = bytes.NewReader(body)
				if m == "" {
					m = "POST"
				}
			}
		}
		if m == "" {
			m = "GET"
			if o.has('I') {
				m = "HEAD"
			}
		}
		req, err := http.NewRequestWithContext(c.ctx, m, u, reqBody)
		if err != nil {
			c.warn("(3) %v", err)
			return 3
		}
		if reqBody != nil && contentType != "" {
			req.Header.Set("Content-Type", contentType)
		}
		req.Header.Set("User-Agent", o.str('A', "curl/8.0 (caisson-base)"))
		req.Header.Set("Accept", "*/*")
		if o.has('b') {
			req.Header.Set("Cookie", o.str('b', ""))
		}
		if o.has('e') {
			req.Header.Set("Referer", o.str('e', ""))
		}
		if user, pass, _ := strings.Cut(o.str('u', ""), ":"); o.has('u') {
			req.SetBasicAuth(user, pass)
		}
		for _, h := range o.vals['H'] {
			k, v, ok := strings.Cut(h, ":")
			switch v = strings.TrimSpace(v); {
			case !ok:
			case v == "":
				req.Header.Del(k)
			case strings.EqualFold(k, "Host"):
				req.Host = v
			default:
				req.Header.Set(k, v)
			}
		}
		start := time.Now()
		res, err := client.Do(req)
		if err != nil {
			code, msg := fetchError(err)
			if !o.has('s') || o.has('S') {
				c.warn("(%d) %s", code, msg)
			}
			status = code
			if o.has('w') {
				c.out.WriteString(writeOut(o.str('w', ""), nil, u, 0, time.Since(start)))
			}
			continue
		}
		if o.has('v') {
			fmt.Fprintf(c.err, "> %s %s HTTP/1.1\n> Host: %s\n", m, req.URL.RequestURI(), req.URL.Host)
			for k, v := range req.Header {
				fmt.Fprintf(c.err, "> %s: %s\n", k, strings.Join(v, ", "))
			}
			fmt.Fprintf(c.err, ">\n< %s %s\n", res.Proto, res.Status)
			for _, k := range sortedKeys(res.Header) {
				fmt.Fprintf(c.err, "< %s: %s\n", k, strings.Join(res.Header[k], ", "))
			}
			fmt.Fprintln(c.err, "<")
		}
		var n int64
		if o.has('f') && res.StatusCode >= 400 {
			res.Body.Close()
			if !o.has('s') || o.has('S') {
				c.warn("(22) The requested URL returned error: %d", res.StatusCode)
			}
			status = 22
		} else {
			out := io.Writer(liveWriter{c})
			name := ""
			if i < len(o.vals['o']) {
				name = o.vals['o'][i]
			} else if o.has('O') {
				if name = path.Base(res.Request.URL.Path); name == "/" || name == "." {
					c.die(23, "Remote file name has no length!")
				}
			}
			if name != "" && name != "-" {
				f, err := os.Create(c.path(name))
				if err != nil {
					c.die(23, "(23) %s: %s", name, reason(err))
				}
				defer f.Close()
				out = f
			}
			if o.any("iI") {
				fmt.Fprintf(out, "%s %s\r\n", res.Proto, res.Status)
				for _, k := range sortedKeys(res.Header) {
					for _, v := range res.Header[k] {
						fmt.Fprintf(out, "%s: %s\r\n", k, v)
					}
				}
				fmt.Fprint(out, "\r\n")
			}
			var err error
			n, err = io.Copy(out, res.Body)
			res.Body.Close()
			if err != nil {
				c.warn("(18) %v", err)
				status = 18
			}
		}
		if o.has('w') {
			c.out.WriteString(writeOut(o.str('w', ""), res, u, n, time.Since(start)))
		}
	}
	return status
}

// liveWriter writes and flushes: a server may send little by little.
type liveWriter struct{ c *call }

func (w liveWriter) Write(b []byte) (int, error) {
	w.c.write(b)
	return len(b), nil
}

func sortedKeys(h http.Header) []string {
	ks := make([]string, 0, len(h))
	for k := range h {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

func writeOut(format string, res *http.Response, u string, n int64, took time.Duration) string {
	s, _ := unescape(format, false)
	code, kind, to := 0, "", ""
	if res != nil {
		code, kind, to = res.StatusCode, res.Header.Get("Content-Type"), res.Header.Get("Location")
		u = res.Request.URL.String()
	}
	t := fmt.Sprintf("%.6f", took.Seconds())
	return strings.NewReplacer("%{http_code}", fmt.Sprintf("%03d", code), "%{response_code}", fmt.Sprintf("%03d", code), "%{size_download}", fmt.Sprint(n),
		"%{time_total}", t, "%{time_connect}", t, "%{time_starttransfer}", t, "%{url_effective}", u, "%{content_type}", kind, "%{redirect_url}", to, "%%", "%").Replace(s)
}

// fetchError is curl's code and words for an error.
func fetchError(err error) (int, string) {
	var dns *net.DNSError
	var ue *url.Error
	if errors.As(err, &ue) && ue.Timeout() {
		return 28, "Operation timed out"
	}
	switch {
	case errors.As(err, &dns):
		return 6, "Could not resolve host: " + dns.Name
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.ENOENT):
		return 7, "Failed to connect: " + reason(err)
	case errors.Is(err, io.EOF):
		return 52, "Empty reply from server"
	case errors.Is(err, syscall.ECONNRESET):
		return 56, "Recv failure: Connection reset by peer"
	case strings.Contains(err.Error(), "certificate") || strings.Contains(err.Error(), "tls:"):
		return 60, "SSL problem: " + err.Error()
	case strings.Contains(err.Error(), "unsupported protocol"):
		return 1, err.Error()
	}
	return 7, err.Error()
}

func wget(c *call) int {
	o := c.getopt("qO:P:ScT:t:U:nv1:2:3", "quiet=q", "output-document=O", "directory-prefix=P", "server-response=S", "continue=c", "timeout=T", "tries=t", "user-agent=U",
		"no-check-certificate=3", "header=1", "post-data=2", "no-verbose=n")
	if len(o.args) == 0 {
		c.die(1, "missing URL")
	}
	limit, _ := parseDuration(o.str('T', "0"))
	client := fetchClient(o.has('3'), true, limit, limit, true, "", nil)
	for _, u := range o.args {
		u = withScheme(u)
		method, body := "GET", io.Reader(nil)
		if o.has('2') {
			method, body = "POST", strings.NewReader(o.str('2', ""))
		}
		req, err := http.NewRequestWithContext(c.ctx, method, u, body)
		if err != nil {
			c.die(1, "%v", err)
		}
		req.Header.Set("User-Agent", o.str('U', "Wget/1.21 (caisson-base)"))
		if body != nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		for _, h := range o.vals['1'] {
			if k, v, ok := strings.Cut(h, ":"); ok {
				req.Header.Set(k, strings.TrimSpace(v))
			}
		}
		res, err := client.Do(req)
		if err != nil {
			_, msg := fetchError(err)
			c.warn("%s", msg)
			c.status = 4
			continue
		}
		if res.StatusCode >= 400 {
			res.Body.Close()
			c.warn("server returned error: %s %s", res.Proto, res.Status)
			c.status = 8
			continue
		}
		name := o.str('O', "")
		if name == "" {
			if name = path.Base(req.URL.Path); name == "/" || name == "." {
				name = "index.html"
			}
			if o.has('P') {
				name = o.str('P', "") + "/" + name
			}
		}
		if name == "-" {
			io.Copy(liveWriter{c}, res.Body)
		} else {
			f, err := os.Create(c.path(name))
			if err != nil {
				c.die(3, "%s: %s", name, reason(err))
			}
			n, err := io.Copy(f, res.Body)
			f.Close()
			if err != nil {
				c.fail("%s: %v", name, err)
			} else if !o.has('q') {
				fmt.Fprintf(c.err, "'%s' saved [%d]\n", name, n)
			}
		}
		res.Body.Close()
	}
	return c.status
}

func nc(c *call) int {
	o := c.getopt("lkuvnzUNdw:p:q:s:e:", "listen=l")
	network := "tcp"
	if o.has('u') {
		network = "udp"
	}
	if o.has('U') {
		network = "unix"
	}
	limit, _ := parseDuration(o.str('w', "0"))
	args := o.args
	if o.has('l') {
		port := o.str('p', "")
		host := ""
		switch {
		case len(args) > 1:
			host, port = args[0], args[1]
		case len(args) == 1 && port == "":
			port = args[0]
		case len(args) == 1:
			host = args[0]
		}
		addr := net.JoinHostPort(host, port)
		if o.has('U') {
			addr = c.path(args[0])
		}
		if o.has('u') {
			p, err := net.ListenPacket("udp", addr)
			if err != nil {
				c.die(1, "%v", err)
			}
			buf := make([]byte, bufSize)
			for {
				n, _, err := p.ReadFrom(buf)
				if err != nil {
					return 1
				}
				c.write(buf[:n])
			}
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			c.die(1, "%v", err)
		}
		defer l.Close()
		for {
			conn, err := l.Accept()
			if err != nil {
				c.die(1, "%v", err)
			}
			if !o.has('k') {
				l.Close()
			}
			c.pipe(conn, o)
			if !o.has('k') {
				return 0
			}
		}
	}
	if len(args) < 2 && !o.has('U') {
		c.die(1, "usage: nc [-u] HOST PORT | nc -l PORT")
	}
	addr := args[0]
	if !o.has('U') {
		addr = net.JoinHostPort(args[0], args[1])
	} else {
		addr = c.path(addr)
	}
	d := net.Dialer{Timeout: limit}
	conn, err := d.DialContext(c.ctx, network, addr)
	if err != nil {
		c.die(1, "connect to %s: %s", addr, reason(err))
	}
	if o.has('v') {
		c.warn("connection to %s succeeded", addr)
	}
	if o.has('z') {
		conn.Close()
		return 0
	}
	c.pipe(conn, o)
	return 0
}

// pipe joins a connection with stdin and stdout; it ends when the other side has sent all.
func (c *call) pipe(conn net.Conn, o *options) {
	defer conn.Close()
	if !o.has('d') && c.rawIn != nil {
		go func() {
			io.Copy(conn, c.rawIn)
			if t, ok := conn.(interface{ CloseWrite() error }); ok {
				t.CloseWrite()
			} else if o.has('u') {
				time.Sleep(200 * time.Millisecond)
				conn.Close()
			}
		}()
	}
	buf := make([]byte, bufSize)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			c.write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func httpd(c *call) int {
	o := c.getopt("p:h:fv", "port=p", "home=h")
	dir := c.wd()
	if o.has('h') {
		dir = c.abs(o.str('h', ""))
	}
	addr := o.str('p', "8080")
	if len(o.args) > 0 {
		addr = o.args[0]
	}
	if !strings.Contains(addr, ":") {
		addr = ":" + addr
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		c.die(1, "%v", err)
	}
	var mu sync.Mutex
	files := http.FileServer(http.Dir(dir))
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o.has('v') {
			mu.Lock()
			fmt.Fprintf(c.err, "%s %s %s\n", r.RemoteAddr, r.Method, r.URL.Path)
			mu.Unlock()
		}
		files.ServeHTTP(w, r)
	})}
	if c.process {
		signal.Ignore(syscall.SIGHUP)
	}
	if err := s.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		c.die(1, "%v", err)
	}
	return 0
}
