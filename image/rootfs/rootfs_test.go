package rootfs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"gvisor.dev/gvisor/pkg/erofs"

	"github.com/caisson-sandbox/caisson"
)

// seen is what a reader sees of one path.
type seen struct {
	Mode     uint16
	UID, GID uint32
	MTime    uint64
	NSec     uint32
	NLink    uint32
	Data     string // contents, or their hash if long, or the target
}

// inspect reads an image with gVisor's reader, checking on the way that lookup finds what listing shows.
func inspect(t testing.TB, name string) map[string]seen {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	img, err := erofs.OpenImage(f)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if st, _ := f.Stat(); st.Size() != int64(img.Blocks())*blockSize {
		t.Fatalf("the file has %d bytes and the image %d blocks", st.Size(), img.Blocks())
	}
	all := map[string]seen{}
	var visit func(p string, nid, parent uint64)
	visit = func(p string, nid, parent uint64) {
		n, err := img.Inode(nid)
		if err != nil {
			t.Fatalf("%q: %v", p, err)
		}
		s := seen{Mode: n.Mode(), UID: n.UID(), GID: n.GID(), MTime: n.Mtime(), NSec: n.MtimeNsec(), NLink: n.Nlink()}
		switch {
		case n.IsDir():
			last := ""
			err := n.IterDirents(func(name string, typ uint8, child uint64) error {
				if name <= last {
					t.Fatalf("%q: %q after %q", p, name, last)
				}
				last = name
				if got, err := n.Lookup(name); err != nil || got != child {
					t.Fatalf("%q: lookup of %q gives %d, %v; listed is %d", p, name, got, err, child)
				}
				switch name {
				case ".":
					if child != nid {
						t.Fatalf("%q: . is %d", p, child)
					}
				case "..":
					if child != parent {
						t.Fatalf("%q: .. is %d", p, child)
					}
				default:
					visit(filepath.Join(p, name), child, nid)
				}
				return nil
			})
			if err != nil {
				t.Fatalf("%q: %v", p, err)
			}
			if _, err := n.Lookup("no such name"); err == nil {
				t.Fatalf("%q: found what is not there", p)
			}
		case n.IsSymlink():
			if s.Data, err = n.Readlink(); err != nil {
				t.Fatal(err)
			}
		case n.IsRegular() && n.Size() > 0:
			off, err := n.DataOffset()
			if err != nil || off%blockSize != 0 {
				t.Fatalf("%q: data at %d: %v", p, off, err)
			}
			b, err := img.BytesAt(off, n.Size())
			if err != nil {
				t.Fatal(err)
			}
			s.Data = digest(string(b))
		}
		all[p] = s
	}
	visit("/", img.RootNid(), img.RootNid())
	return all
}

func digest(s string) string {
	if len(s) < 100 {
		return s
	}
	return fmt.Sprintf("%d:%x", len(s), sha256.Sum256([]byte(s)))
}

// pack makes a tar of the headers; contents stand in Linkname of regular files.
func pack(t testing.TB, hs ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range hs {
		data := ""
		if h.Typeflag == tar.TypeReg {
			data, h.Linkname = h.Linkname, ""
			h.Size = int64(len(data))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func create(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func convert(t testing.TB, b []byte) (string, Stats) {
	t.Helper()
	f := create(t)
	st, err := FromTar(context.Background(), bytes.NewReader(b), f)
	if err != nil {
		t.Fatal(err)
	}
	fsck(t, f.Name())
	return f.Name(), st
}

// fsck asks erofs-utils for its opinion, where there is one.
func fsck(t testing.TB, name string) {
	t.Helper()
	if p, err := exec.LookPath("fsck.erofs"); err == nil {
		if out, err := exec.Command(p, name).CombinedOutput(); err != nil {
			t.Fatalf("fsck.erofs: %v\n%s", err, out)
		}
	}
}

func TestOddTar(t *testing.T) {
	when := time.Unix(1_700_000_000, 123_456_789)
	big := strings.Repeat("0123456789abcdef", 5<<20/16) + "x"
	holes := strings.Repeat("\x00", 1<<20) + "end"
	deep := strings.Repeat("d/", 300)
	hs := []tar.Header{
		{Typeflag: tar.TypeDir, Name: "./", Mode: 0o711, Uid: 3, Gid: 4, ModTime: when},
		{Typeflag: tar.TypeReg, Name: "new\nline \xff", Mode: 0o644, Linkname: "odd"},
		{Typeflag: tar.TypeReg, Name: "!before dot", Mode: 0o600, Uid: 70000, Gid: 4_000_000_000, Linkname: "!", ModTime: when, Format: tar.FormatPAX},
		{Typeflag: tar.TypeReg, Name: "bin/su", Mode: 0o4755, Linkname: "su"},
		{Typeflag: tar.TypeDir, Name: "tmp", Mode: 0o1777},
		{Typeflag: tar.TypeReg, Name: "empty", Mode: 0o444},
		{Typeflag: tar.TypeReg, Name: "big", Mode: 0o644, Linkname: big},
		{Typeflag: tar.TypeReg, Name: "holes", Mode: 0o644, Linkname: holes},
		{Typeflag: tar.TypeReg, Name: "block", Mode: 0o644, Linkname: strings.Repeat("b", blockSize)},
		{Typeflag: tar.TypeReg, Name: deep + "leaf", Mode: 0o644, Linkname: "deep"},
		{Typeflag: tar.TypeLink, Name: "hard/one", Linkname: "bin/su"},
		{Typeflag: tar.TypeLink, Name: "hard/two", Linkname: "/hard/one"},
		{Typeflag: tar.TypeLink, Name: "hard/two", Linkname: "hard/two"},
		{Typeflag: tar.TypeSymlink, Name: "lib", Linkname: "usr/lib", Mode: 0o777},
		{Typeflag: tar.TypeReg, Name: "lib/through", Mode: 0o644, Linkname: "a link"},
		{Typeflag: tar.TypeSymlink, Name: "usr/abs", Linkname: "/../lib/./more", Mode: 0o777},
		{Typeflag: tar.TypeReg, Name: "usr/abs/x", Mode: 0o644, Linkname: "x"},
		{Typeflag: tar.TypeSymlink, Name: "long", Linkname: strings.Repeat("t", maxTarget), Mode: 0o777},
		{Typeflag: tar.TypeReg, Name: "../../escape", Mode: 0o644, Linkname: "in"},
		{Typeflag: tar.TypeReg, Name: "/absolute", Mode: 0o644, Linkname: "in"},
		{Typeflag: tar.TypeReg, Name: "twice", Mode: 0o644, Linkname: "first"},
		{Typeflag: tar.TypeReg, Name: "twice", Mode: 0o600, Linkname: "second"},
		{Typeflag: tar.TypeReg, Name: "file then dir", Mode: 0o644, Linkname: "f"},
		{Typeflag: tar.TypeReg, Name: "file then dir/in", Mode: 0o644, Linkname: "f"},
		{Typeflag: tar.TypeReg, Name: "dir then file/gone", Mode: 0o644, Linkname: "f"},
		{Typeflag: tar.TypeReg, Name: "dir then file", Mode: 0o644, Linkname: "f"},
		{Typeflag: tar.TypeReg, Name: "late/in", Mode: 0o644, Linkname: "kept"},
		{Typeflag: tar.TypeDir, Name: "late", Mode: 0o700, Uid: 9},
		{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3},
		{Typeflag: tar.TypeBlock, Name: "dev/sda", Mode: 0o660, Devmajor: 8, Devminor: 300},
		{Typeflag: tar.TypeFifo, Name: "dev/pipe", Mode: 0o600},
		{Typeflag: tar.TypeReg, Name: "xattr", Mode: 0o644, Linkname: "x", PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}},
		{Typeflag: tar.TypeReg, Name: strings.Repeat("n", maxName), Mode: 0o644, Linkname: "n"},
	}
	reg := func(mode uint16, data string) seen {
		return seen{Mode: modeRegular | mode, NLink: 1, Data: digest(data)}
	}
	dir := func(mode uint16, subs uint32) seen { return seen{Mode: modeDir | mode, NLink: 2 + subs} }
	link := func(target string) seen { return seen{Mode: modeLink | 0o777, NLink: 1, Data: target} }
	want := map[string]seen{
		"/":               {Mode: modeDir | 0o711, UID: 3, GID: 4, MTime: 1_700_000_000, NLink: 2 + 9},
		"/new\nline \xff": reg(0o644, "odd"),
		"/!before dot": {Mode: modeRegular | 0o600, UID: 70000, GID: 4_000_000_000, MTime: 1_700_000_000,
			NSec: 123_456_789, NLink: 1, Data: "!"},
		"/bin": dir(0o755, 0), "/tmp": dir(0o1777, 0), "/hard": dir(0o755, 0), "/dev": dir(0o755, 0), "/many": dir(0o755, 0),
		"/bin/su": {Mode: modeRegular | 0o4755, NLink: 3, Data: "su"}, "/hard/one": {Mode: modeRegular | 0o4755, NLink: 3, Data: "su"},
		"/hard/two": {Mode: modeRegular | 0o4755, NLink: 3, Data: "su"},
		"/empty":    reg(0o444, ""), "/big": reg(0o644, big), "/holes": reg(0o644, holes), "/block": reg(0o644, strings.Repeat("b", blockSize)),
		"/lib": link("usr/lib"), "/usr": dir(0o755, 1), "/usr/lib": dir(0o755, 1), "/usr/lib/through": reg(0o644, "a link"),
		"/usr/abs": link("/../lib/./more"), "/usr/lib/more": dir(0o755, 0), "/usr/lib/more/x": reg(0o644, "x"),
		"/long":   link(strings.Repeat("t", maxTarget)),
		"/escape": reg(0o644, "in"), "/absolute": reg(0o644, "in"), "/twice": reg(0o600, "second"),
		"/file then dir": dir(0o755, 0), "/file then dir/in": reg(0o644, "f"), "/dir then file": reg(0o644, "f"),
		"/late": {Mode: modeDir | 0o700, UID: 9, NLink: 2}, "/late/in": reg(0o644, "kept"),
		"/dev/null": {Mode: modeChar | 0o666, NLink: 1}, "/dev/sda": {Mode: modeBlock | 0o660, NLink: 1}, "/dev/pipe": {Mode: modeFIFO | 0o600, NLink: 1},
		"/xattr": reg(0o644, "x"), "/" + strings.Repeat("n", maxName): reg(0o644, "n"),
	}
	for i := range 5000 {
		name := fmt.Sprintf("many/%d %s", i, strings.Repeat("x", i%200))
		hs = append(hs, tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Linkname: name})
		want["/"+name] = reg(0o644, name)
	}
	for i := 1; i <= 300; i++ {
		want["/"+strings.TrimSuffix(deep[:2*i], "/")] = dir(0o755, 1)
	}
	want["/"+strings.TrimSuffix(deep, "/")] = dir(0o755, 0)
	want["/"+deep+"leaf"] = reg(0o644, "deep")

	b := pack(t, hs...)
	name, st := convert(t, b)
	got := inspect(t, name)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the image differs (-want +got):\n%s", d)
	}
	if st.Xattrs != 1 || st.Skipped != 0 || st.Inodes != len(want)-2 {
		t.Errorf("stats are %+v for %d paths", st, len(want))
	}

	// Compressed, and again: the same bytes.
	first, _ := os.ReadFile(name)
	var z, zs bytes.Buffer
	gw := gzip.NewWriter(&z)
	gw.Write(b)
	gw.Close()
	zw, _ := zstd.NewWriter(&zs)
	zw.Write(b)
	zw.Close()
	for kind, b := range map[string][]byte{"plain": b, "gzip": z.Bytes(), "zstd": zs.Bytes()} {
		name, _ := convert(t, b)
		if again, _ := os.ReadFile(name); !bytes.Equal(first, again) {
			t.Errorf("%s: the image differs from the first", kind)
		}
	}
	// A lost tail is noticed even where the tar is complete.
	for kind, b := range map[string][]byte{"gzip": z.Bytes()[:z.Len()-4], "zstd": zs.Bytes()[:zs.Len()-4]} {
		if _, err := FromTar(t.Context(), bytes.NewReader(b), create(t)); !caisson.Is(err, caisson.Invalid) {
			t.Errorf("cut %s: %v", kind, err)
		}
	}
}

func TestRefused(t *testing.T) {
	f := func(h ...tar.Header) []byte { return pack(t, h...) }
	file := tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o644, Linkname: "data"}
	for name, c := range map[string]struct {
		in   []byte
		o    Options
		kind caisson.Kind
	}{
		"empty":         {nil, Options{}, caisson.Invalid},
		"noise":         {bytes.Repeat([]byte("noise"), 1000), Options{}, caisson.Invalid},
		"cut":           {f(file)[:514], Options{}, caisson.Invalid},
		"gzip of noise": {[]byte{0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8}, Options{}, caisson.Invalid},
		"dangling":      {f(tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "b"}), Options{}, caisson.Invalid},
		"link to dir": {f(tar.Header{Typeflag: tar.TypeDir, Name: "d"}, tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "d"}),
			Options{}, caisson.Invalid},
		"loop": {f(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "l"},
			tar.Header{Typeflag: tar.TypeReg, Name: "l/x"}), Options{}, caisson.Invalid},
		"root is a file": {f(tar.Header{Typeflag: tar.TypeReg, Name: "/."}), Options{}, caisson.Invalid},
		"long name":      {f(tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("n", maxName+1)}), Options{}, caisson.Invalid},
		"long path":      {f(tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("n/", maxPath/2) + "n"}), Options{}, caisson.Invalid},
		"long target":    {f(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: strings.Repeat("t", maxTarget+1)}), Options{}, caisson.Invalid},
		"large":          {f(file), Options{MaxBytes: 2 * blockSize}, caisson.Exhausted},
		"many":           {f(file, file, file), Options{MaxEntries: 2}, caisson.Exhausted},
		"many parents":   {f(tar.Header{Typeflag: tar.TypeReg, Name: "a/b/c/d/e"}), Options{MaxEntries: 5}, caisson.Exhausted},
		"fits":           {f(file), Options{MaxBytes: 4 * blockSize, MaxEntries: 2}, ""},
		"empty tar":      {f(), Options{}, ""},
	} {
		if _, err := c.o.FromTar(t.Context(), bytes.NewReader(c.in), create(t)); caisson.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want kind %q", name, err, c.kind)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := FromTar(ctx, bytes.NewReader(f(file)), create(t)); !caisson.Is(err, caisson.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestFromFiles(t *testing.T) {
	f := create(t)
	_, err := FromFiles([]File{
		{Path: "/", Mode: modeDir | 0o700},
		{Path: "bin/x", Mode: 0o755, UID: 5, GID: 6, Data: []byte("x")},
		{Path: "l", Mode: 0o777, Target: "bin/x"},
		{Path: "s", Mode: modeSocket | 0o600},
	}, f)
	if err != nil {
		t.Fatal(err)
	}
	fsck(t, f.Name())
	want := map[string]seen{
		"/": {Mode: modeDir | 0o700, NLink: 3}, "/bin": {Mode: modeDir | 0o755, NLink: 2},
		"/bin/x": {Mode: modeRegular | 0o755, UID: 5, GID: 6, NLink: 1, Data: "x"},
		"/l":     {Mode: modeLink | 0o777, NLink: 1, Data: "bin/x"}, "/s": {Mode: modeSocket | 0o600, NLink: 1},
	}
	if d := cmp.Diff(want, inspect(t, f.Name())); d != "" {
		t.Error(d)
	}
	if _, err := FromFiles([]File{{Path: "d", Mode: modeBlock}}, f); !caisson.Is(err, caisson.Invalid) {
		t.Errorf("device: %v", err)
	}
}

// FuzzFromTar: whatever comes in, the writer does not panic, stays within its limits, and what it accepts can be read.
// Run it with -fuzzminimizetime 20x: the decoders' goroutines make coverage vary, and the fuzzer would only minimize.
func FuzzFromTar(f *testing.F) {
	seed := pack(f,
		tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Mode: 0o644, Linkname: "data"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../d"},
		tar.Header{Typeflag: tar.TypeReg, Name: "l/../x", Mode: 0o644, Linkname: "data"},
		tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/f"},
		tar.Header{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3})
	f.Add(seed)
	f.Add(seed[:700])
	f.Add([]byte{})
	var z, zs bytes.Buffer
	gw := gzip.NewWriter(&z)
	gw.Write(seed)
	gw.Close()
	zw, _ := zstd.NewWriter(&zs)
	zw.Write(seed)
	zw.Close()
	f.Add(z.Bytes())
	f.Add(zs.Bytes())
	o := Options{MaxBytes: 1 << 20, MaxEntries: 1000}
	f.Fuzz(func(t *testing.T, b []byte) {
		out := create(t)
		_, err := o.FromTar(context.Background(), bytes.NewReader(b), out)
		if st, e := out.Stat(); e != nil || st.Size() > o.MaxBytes {
			t.Fatalf("the image has %d bytes", st.Size())
		}
		if k := caisson.KindOf(err); k != "" && k != caisson.Invalid && k != caisson.Exhausted {
			t.Fatalf("%v is of kind %s", err, k)
		}
		if err == nil {
			inspect(t, out.Name())
		}
	})
}
