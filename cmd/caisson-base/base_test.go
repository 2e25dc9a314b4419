package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var bin string // a folder with a link for every applet

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "caisson-base")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		exe := filepath.Join(dir, "caisson-base")
		build := exec.Command("go", "build", "-o", exe, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
		bin = filepath.Join(dir, "bin")
		os.Mkdir(bin, 0o755)
		applets = table()
		for name := range applets {
			os.Symlink(exe, filepath.Join(bin, name))
		}
		return m.Run()
	}())
}

// run runs a script in an empty folder with nothing but the applets in PATH.
func run(t *testing.T, dir, stdin string, args ...string) (stdout, stderr string, ws syscall.WaitStatus) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, args[0]), args[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + bin, "HOME=" + dir, "TZ=UTC", "TMPDIR=" + dir}
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill(); t.Error("timed out") })
	defer timer.Stop()
	err := cmd.Wait()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func TestScripts(t *testing.T) {
	for _, tt := range []struct {
		name, script, want string
		code               int
	}{
		{"for seq", `for i in $(seq 1 3); do echo line $i; done`, "line 1\nline 2\nline 3\n", 0},
		{"exit", `exit 7`, "", 7},
		{"not found", `nosuchcommand`, "", 127},
		{"not found path", `/no/such`, "", 127},
		{"not executable", `echo hi > f; ./f`, "", 126},
		{"folder", `mkdir d; ./d`, "", 126},
		{"syntax error", `if then`, "", 2},
		{"script without shebang", `echo 'echo "ran $0 $1"' > f; chmod +x f; ./f x`, "ran ./f x\n", 0},
		{"signal status", `sh -c 'kill -TERM $$'; echo $?`, "143\n", 0},
		{"pipeline status", `false | true; echo $?; set -o pipefail; false | true; echo $?`, "0\n1\n", 0},
		{"errexit", `set -e; false; echo no`, "", 1},
		{"cd", `mkdir -p a/b; cd a/b; touch x; cd ..; pwd | sed 's|.*/||'; ls b`, "a\nx\n", 0},
		{"here-doc", "cat <<EOF\na $((1+2))\nEOF\ncat <<'EOF'\n$x\nEOF\n", "a 3\n$x\n", 0},
		{"here-string", `tr a-z A-Z <<< hello`, "HELLO\n", 0},
		{"subst", `x=$(printf 'a\nb\n\n'); echo "[$x]"`, "[a\nb]\n", 0},
		{"quotes", "printf '<%s>' 'a\nb' \"c d\" e\\ f", "<a\nb><c d><e f>", 0},
		{"positional", `set -- a 'b c'; for x in "$@"; do echo "<$x>"; done; echo $#`, "<a>\n<b c>\n2\n", 0},
		{"background", `(sleep 0.1; exit 3) & wait $!; echo $?`, "3\n", 0},
		{"background order", `{ sleep 0.1; echo b; } & echo a; wait; echo c`, "a\nb\nc\n", 0},
		{"background state", `x=1; f() { echo "$x $1"; }; f 'q r' & wait; arr=(a 'b c'); (echo "${arr[1]}") & wait`, "1 q r\nb c\n", 0},
		{"background quotes", `{ echo "it's"; echo 'a  b'; } & wait`, "it's\na  b\n", 0},
		{"background shell pid", `a=$$; { [ $$ = $a ] && echo same; } & wait`, "same\n", 0},
		{"kill job", `sleep 100 & kill $!; wait $!; echo $?`, "143\n", 0},
		{"kill job number", `sleep 100 & kill %1; wait %1; echo $?`, "143\n", 0},
		{"bg in eval", `eval 'sleep 100 & kill -9 $!'; wait $!; echo $?`, "137\n", 0},
		{"bg in source", `echo 'sleep 0 & wait $!; echo src $1 $?' > s; . ./s x`, "src x 0\n", 0},
		{"bg in function", `f() { sleep 100 & p=$!; kill $p; wait $p; }; f; echo $?`, "143\n", 0},
		{"wait -n", `sleep 100 & a=$!; (exit 4) & wait -n; echo $?; kill $a`, "4\n", 0},
		{"trap exit", `trap 'echo bye' EXIT; exit 5`, "bye\n", 5},
		{"trap term", `trap 'echo got; exit 3' TERM; kill -TERM $$; sleep 5; echo no`, "got\n", 3},
		{"trap and wait", `trap 'echo got' USR1; (sleep 0.1; kill -USR1 $$) & sleep 100 & wait $!; echo $?; kill $!`, "got\n138\n", 0},
		{"trap ignored", `trap '' TERM; kill -TERM $$; echo alive`, "alive\n", 0},
		{"echo loop ends", `while true; do echo y; done | head -2`, "y\ny\n", 0},
		{"yes", `yes 0123456789abcde | head -c 100000 | wc -c`, "100000\n", 0},
		{"stderr", `ls /nonexistent 2>&1 >/dev/null | cut -d: -f1`, "ls\n", 0},
		{"clobber", `echo a >| f; cat f`, "a\n", 0},
		{"append", `echo a > f; echo b >> f; cat f`, "a\nb\n", 0},
		{"proc subst", `diff <(echo a) <(echo b)`, "1c1\n< a\n---\n> b\n", 1},
		{"while read", `printf 'a b\nc d\n' | while read x y; do echo "$y-$x"; done`, "b-a\nd-c\n", 0},
		{"read -d", `printf 'a b\0c\0' | while IFS= read -r -d '' f; do echo "<$f>"; done`, "<a b>\n<c>\n", 0},
		{"read -n", `echo abc | { read -n 2 x; echo $x; }`, "ab\n", 0},
		{"case", `case foo.go in *.go) echo go;; *) echo no;; esac`, "go\n", 0},
		{"arith", `i=0; while [ $i -lt 3 ]; do i=$((i+1)); done; echo $i`, "3\n", 0},
		{"command -v", `command -v echo; command -v nosuch; echo $?`, "echo\n1\n", 0},
		{"exec", `exec sh -c 'echo $0' x; echo no`, "x\n", 0},
		{"exec pid", `sh -c 'echo $$; exec sh -c "echo \$\$"' | uniq | wc -l`, "1\n", 0},
		{"printf", `printf '%5.2f|%-4s|%04d|%x|%q\n' 3.14159 ab 42 255 "a b"; printf -v v '%03d' 7; echo $v`, " 3.14|ab  |0042|ff|'a b'\n007\n", 0},
		{"echo -ne", `echo -ne 'a\tb\n'; echo -n x; echo`, "a\tb\nx\n", 0},
		{"umask", `umask 077; touch f; stat -c %a f`, "600\n", 0},
		{"group in pipe", `{ head -1; cat; } < <(printf 'a\nb\n') | wc -l`, "1\n", 0},
		{"shared file", `printf 'a\nb\nc\n' > f; { head -1 >/dev/null; cat; } < f`, "b\nc\n", 0},

		{"sort uniq", `printf 'b\na\nb\n' | sort | uniq -c`, "      1 a\n      2 b\n", 0},
		{"sort -n -k", `printf 'x 10\ny 9\nz 100\n' | sort -k2 -n -r`, "z 100\nx 10\ny 9\n", 0},
		{"sort -t", `printf 'a:3\nb:1\n' | sort -t: -k2,2n`, "b:1\na:3\n", 0},
		{"sort -u -h -V", `printf '2\n1\n2\n' | sort -u; printf '1M\n2K\n' | sort -h; printf 'v10\nv9\n' | sort -V`, "1\n2\n2K\n1M\nv9\nv10\n", 0},
		{"cut", `echo a,b,c,d | cut -d, -f2-3; echo abcdef | cut -c 1,3-4; echo a:b | cut -d: -f 2`, "b,c\nacd\nb\n", 0},
		{"tr", `echo hello | tr -d l; echo aabbc | tr -s ab; echo 'a b' | tr ' ' '\n'; echo abc1 | tr -cd '[:alpha:]'`, "heo\nabc\na\nb\nabc", 0},
		{"head tail", `seq 10 | head -n 2; seq 10 | tail -2; seq 10 | tail -n +9; seq 5 | head -n -3; printf abcdef | tail -c 2`, "1\n2\n9\n10\n9\n10\n1\n2\nef", 0},
		{"wc", `printf 'a b\nc\n' | wc; printf 'a b\n' > f; wc -l f; wc -w < f`, "      2       3       6\n1 f\n2\n", 0},
		{"grep", `printf 'foo\nBar\nbaz\n' > f; grep -i bar f; grep -vn foo f; grep -c ba f; grep -E '^(foo|baz)$' f; grep -o 'a[rz]' f; grep -q no f; echo $?`,
			"Bar\n2:Bar\n3:baz\n1\nfoo\nbaz\nar\naz\n1\n", 0},
		{"grep context", `seq 9 | grep -A1 -B1 5; echo "a.b" | grep -F .; echo foobar foo | grep -ow foo; mkdir d; echo x > d/f; grep -rl x d`, "4\n5\n6\na.b\nfoo\nd/f\n", 0},
		{"grep bre", `echo 'a+b' | grep 'a+b'; echo aab | grep 'a\{2\}b'; echo '[x]' | grep '\[x\]'; echo a | grep b`, "a+b\naab\n[x]\n", 1},
		{"sed", `echo foo bar | sed 's/o/0/g; s/\(b\)\(a\)/\2\1/'; seq 5 | sed -n '2,3p'; seq 5 | sed '/3/d'; seq 3 | sed '$d'; seq 3 | sed 2q`,
			"f00 abr\n2\n3\n1\n2\n4\n5\n1\n2\n1\n2\n", 0},
		{"sed more", `printf 'a/b\n' | sed 's|/|-|'; echo abc | sed -E 's/(b)(c)/\2\1/'; seq 2 | sed 'a x'; seq 2 | sed '1i\
y'; echo aXb | sed 's/x/_/I'; echo hello | sed 's/l/L/2'; seq 3 | sed ':a;N;$!ba;s/\n/,/g'; echo ab | sed 's/./\U&/'; echo 'a b' | sed 'y/ab/xy/'`,
			"a-b\nacb\n1\nx\n2\nx\ny\n1\n2\na_b\nhelLo\n1,2,3\nAb\nx y\n", 0},
		{"sed -i", `echo a > f; sed -i 's/a/b/' f; cat f; sed -i.bak s/b/c/ f; cat f f.bak`, "b\nc\nb\n", 0},
		{"find", `mkdir -p a/b; touch a/x.go a/b/y.go a/z; find a -name '*.go' | sort; find a -type d | sort; find a -maxdepth 1 -type f | wc -l; find a -name z -exec echo got {} \; ; find a -name '*.go' -delete; find a -type f`,
			"a/b/y.go\na/x.go\na\na/b\n2\ngot a/z\na/z\n", 0},
		{"xargs", `printf 'a b\nc\n' | xargs echo; printf 'a\nb\n' | xargs -n1 echo x; printf 'a b\nc\n' | xargs -I{} echo '<{}>'; printf '' | xargs -r echo no`, "a b c\nx a\nx b\n<a b>\n<c>\n", 0},
		{"files", `mkdir -p d/e; echo hi > d/f; cp -r d g; mv g/f g/h; ln -s h g/l; readlink g/l; cat g/l; rm -r g; ls; rm d; echo $?; rmdir d/e; ls d`, "h\nhi\nd\n1\nf\n", 0},
		{"paths", `basename /a/b.txt .txt; dirname /a/b/c; dirname x; realpath -m /a/../b`, "b\n/a/b\n.\n/b\n", 0},
		{"chmod", `touch f; chmod 640 f; stat -c '%a %s %F' f; chmod u+x,g-r f; stat -c %A f; chmod -x f; stat -c %a f`, "640 0 regular empty file\n-rwx------\n600\n", 0},
		{"tar", `mkdir d; echo hi > d/f; ln -s f d/l; tar czf t.tgz d; tar tzf t.tgz | sort; rm -r d; tar xf t.tgz; cat d/l; mkdir o; tar -xzf t.tgz -C o --strip-components=1; ls o`, "d/\nd/f\nd/l\nhi\nf\nl\n", 0},
		{"gzip", `echo hi > f; gzip f; ls; zcat f.gz; gunzip f.gz; cat f; echo x | gzip -c | gzip -dc`, "f.gz\nhi\nhi\nx\n", 0},
		{"sums", `printf abc | sha256sum; printf abc | md5sum; echo a > f; sha1sum f > s; sha1sum -c s`,
			"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  -\n900150983cd24fb0d6963f7d28e17f72  -\nf: OK\n", 0},
		{"encodings", `printf hello | base64; echo aGVsbG8= | base64 -d; echo; printf AB | od -An -tx1; printf AB | xxd -p; printf 'AB\n' | hexdump -C | head -1`,
			"aGVsbG8=\nhello\n 41 42\n4142\n00000000  41 42 0a                                          |AB.|\n", 0},
		{"diff -u", `printf 'a\nb\nc\n' > x; printf 'a\nB\nc\n' > y; diff -u x y | tail -n +3; cmp x y; cmp -s x x && echo same`, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\nx y differ: byte 3, line 2\nsame\n", 0},
		{"dd", `dd if=/dev/zero bs=1000 count=3 2>/dev/null | wc -c; printf abcdef > f; dd if=f bs=1 skip=2 count=2 2>/dev/null`, "3000\ncd", 0},
		{"date", `date -u -d @0 +%Y-%m-%dT%H:%M:%S; date -u -d '2024-02-29' '+%j %a'`, "1970-01-01T00:00:00\n060 Thu\n", 0},
		{"expr", `expr 2 + 3 \* 4; expr abc : 'a\(.\)'; expr 1 = 2`, "14\nb\n0\n", 1},
		{"timeout", `timeout 0.1 sleep 5; echo $?; timeout 5 true; echo $?; timeout -s KILL 0.1 sleep 5; echo $?`, "124\n0\n137\n", 0},
		{"env", `env -i A=1 env; A=2 printenv A; env B='x y' sh -c 'echo "$B"'`, "A=1\n2\nx y\n", 0},
		{"misc", `seq 3 | paste -sd,; seq 3 | tac; echo abc | rev; printf 'a\n' | nl; echo abcdef | fold -w 4; test 1 -lt 2 && echo lt; [ -d . ] && echo dir`,
			"1,2,3\n3\n2\n1\ncba\n     1\ta\nabcd\nef\nlt\ndir\n", 0},
		{"comm split", `printf 'a\nb\n' > x; printf 'b\nc\n' > y; comm -12 x y; seq 5 | split -l 2 - p; ls p*`, "b\npaa\npab\npac\n", 0},
		{"tee", `echo a | tee f g; cat f g`, "a\na\na\n", 0},
		{"kill -l", `kill -l 9; kill -0 $$ && echo up`, "KILL\nup\n", 0},
		{"which", `which sh | sed 's|.*/||'; which nosuch; echo $?`, "sh\n1\n", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, errOut, ws := run(t, t.TempDir(), "", "sh", "-c", tt.script)
			if out != tt.want || ws.ExitStatus() != tt.code {
				t.Errorf("got status %d and\n%q, want status %d and\n%q\nstderr: %s", ws.ExitStatus(), out, tt.code, tt.want, errOut)
			}
		})
	}
}

func TestShellInvocation(t *testing.T) {
	dir := t.TempDir()
	if out, _, _ := run(t, dir, "", "sh", "-c", `echo "$0 $1 $#"`, "name", "a", "b"); out != "name a 2\n" {
		t.Errorf("-c with a name: %q", out)
	}
	if out, _, ws := run(t, dir, "echo hi\nread x\nline\necho \"$x\"\nexit 4\n", "sh"); out != "hi\nline\n" || ws.ExitStatus() != 4 {
		t.Errorf("stdin: %q, %v", out, ws)
	}
	if out, _, ws := run(t, dir, "trap 'echo bye' EXIT\nfalse\n", "sh"); out != "bye\n" || ws.ExitStatus() != 1 {
		t.Errorf("stdin with a trap: %q, %v", out, ws)
	}
	os.WriteFile(filepath.Join(dir, "s"), []byte("#!/bin/sh\necho \"$0:$1\"\n"), 0o644)
	if out, _, _ := run(t, dir, "", "bash", "s", "x"); out != "s:x\n" {
		t.Errorf("script file: %q", out)
	}
	if _, _, ws := run(t, dir, "", "sh", "-c", "kill -9 $$"); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("kill -9 $$: %v", ws)
	}
	if out, _, _ := run(t, dir, "", "sh", "-ec", "echo a; false; echo b"); out != "a\n" {
		t.Errorf("-e: %q", out)
	}
	if out, _, ws := run(t, dir, "", "sh", "-o", "pipefail", "-c", "false | true"); out != "" || ws.ExitStatus() != 1 {
		t.Errorf("-o pipefail: %v", ws)
	}
	if _, _, ws := run(t, dir, "", "sh", "nosuchfile"); ws.ExitStatus() != 127 {
		t.Errorf("missing script: %v", ws)
	}
}

// A signal ends the shell as the system would, without its handling it.
func TestSignalToShell(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := exec.Command(filepath.Join(bin, "sh"), "-c", "sleep 10; echo no")
		cmd.Env = []string{"PATH=" + bin}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		syscall.Kill(-cmd.Process.Pid, sig)
		cmd.Wait()
		if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != sig {
			t.Errorf("%v: %v", sig, ws)
		}
	}
}

// Who writes to a closed pipe ends quietly by SIGPIPE.
func TestClosedPipe(t *testing.T) {
	for _, args := range [][]string{{"yes"}, {"cat", "/dev/zero"}, {"seq", "100000000"}, {"head", "-c", "1G", "/dev/zero"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var errOut bytes.Buffer
		cmd := exec.Command(filepath.Join(bin, args[0]), args[1:]...)
		cmd.Stdout, cmd.Stderr = w, &errOut
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		r.Read(make([]byte, 10))
		r.Close()
		cmd.Wait()
		if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGPIPE || errOut.Len() > 0 {
			t.Errorf("%v: %v, %q", args, ws, errOut.String())
		}
	}
}

func TestHTTP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	script := fmt.Sprintf(`
		mkdir www; echo hello > www/f
		httpd -p 127.0.0.1:%[1]d -h www & srv=$!
		i=0; until nc -z 127.0.0.1 %[1]d 2>/dev/null; do i=$((i+1)); [ $i -gt 100 ] && exit 9; sleep 0.05; done
		curl -s http://127.0.0.1:%[1]d/f
		curl -s -o /dev/null -w '%%{http_code}\n' http://127.0.0.1:%[1]d/none
		curl -sf http://127.0.0.1:%[1]d/none; echo $?
		wget -q -O - http://127.0.0.1:%[1]d/f
		kill $srv; wait $srv; echo $?
		curl -s http://127.0.0.1:%[1]d/f; echo $?`, port)
	out, errOut, _ := run(t, t.TempDir(), "", "sh", "-c", script)
	if want := "hello\n404\n22\nhello\n143\n7\n"; out != want {
		t.Errorf("got %q, want %q\n%s", out, want, errOut)
	}
}

func TestApplets(t *testing.T) {
	cmd := exec.Command(filepath.Join(bin, "..", "caisson-base"), "--applets")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(out))
	if len(names) != len(applets) || !strings.Contains(string(out), "\nsh\n") || !strings.Contains(string(out), "\nbash\n") {
		t.Errorf("--applets: %v", names)
	}
	if out, err := exec.Command(filepath.Join(bin, "..", "caisson-base"), "echo", "x").Output(); string(out) != "x\n" || err != nil {
		t.Errorf("caisson-base echo: %q, %v", out, err)
	}
}
