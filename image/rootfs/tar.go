package rootfs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// FromTar writes the image of a tar stream to out. The stream may be plain, gzip or zstd, told by its first bytes.
// out must be open for reading and writing, and what it held is lost; after an error it holds no image. The caller
// syncs it.
//
// Paths are taken relative to the root whatever they look like: "/a", "../a" and "./a" are "a". A parent that is a
// symbolic link is followed inside the image; one that is missing is made, 0755 and root's. A later entry replaces an
// earlier one, but a directory on a directory keeps what is in it. A hard link must come after its target. Holes and
// zeros of files are not written.
//
// Errors are Invalid for what the stream says, Exhausted for limits and a full disk, and ctx's.
func (o Options) FromTar(ctx context.Context, r io.Reader, out *os.File) (Stats, error) {
	o = o.withDefaults()
	img, err := newImage(out, o.MaxBytes)
	if err != nil {
		return Stats{}, err
	}
	plain, done, err := decompress(&ctxReader{ctx, r})
	if err != nil {
		return Stats{}, invalid("", "not a readable tar stream", err)
	}
	defer done()
	// Headers are outside the image's limit, so what surrounds the contents has a generous one of its own.
	plain = &boundedReader{plain, o.MaxBytes + int64(o.MaxEntries)*8<<10 + 1<<20}

	var dropped Stats
	t, tr := newTree(img, o.MaxEntries), tar.NewReader(plain)
	for entries := 0; ; entries++ {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil && !(errors.Is(err, tar.ErrInsecurePath) && h != nil) {
			return Stats{}, invalid("", "not a readable tar stream", err)
		}
		if entries >= o.MaxEntries {
			return Stats{}, exhausted("the tar has too many entries")
		}
		for k := range h.PAXRecords {
			if strings.HasPrefix(k, "SCHILY.xattr.") {
				dropped.Xattrs++
			}
		}
		known, err := t.addTar(h, tr)
		if err != nil {
			return Stats{}, invalid(short(h.Name), "cannot be put in the image", err)
		}
		if !known {
			dropped.Skipped++
		}
	}
	// What is left is padding; reading it has the checksums of gzip and zstd compared.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return Stats{}, invalid("", "the tar stream ends badly", err)
	}
	s, err := t.finish()
	s.Xattrs, s.Skipped = dropped.Xattrs, dropped.Skipped
	return s, err
}

// addTar adds one entry; known is false for kinds that are not files.
func (t *tree) addTar(h *tar.Header, content io.Reader) (known bool, err error) {
	n := &node{mode: uint16(h.Mode & 0o7777)}
	if h.Uid < 0 || h.Uid > math.MaxUint32 || h.Gid < 0 || h.Gid > math.MaxUint32 {
		return true, errors.New("its owner is out of range")
	}
	n.uid, n.gid = uint32(h.Uid), uint32(h.Gid)
	if sec := h.ModTime.Unix(); sec >= 0 {
		n.mtime, n.nsec = uint64(sec), uint32(h.ModTime.Nanosecond())
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		n.mode |= modeRegular
		err = t.img.content(n, content, h.Size)
	case tar.TypeLink:
		return true, t.link(h.Name, h.Linkname)
	case tar.TypeSymlink:
		n.mode |= modeLink
		err = t.img.target(n, h.Linkname)
	case tar.TypeDir:
		n.mode |= modeDir
	case tar.TypeFifo:
		n.mode |= modeFIFO
	case tar.TypeChar, tar.TypeBlock:
		n.mode |= modeChar
		if h.Typeflag == tar.TypeBlock {
			n.mode = n.mode&^modeType | modeBlock
		}
		n.rdev, err = rdev(h.Devmajor, h.Devminor)
	default:
		return false, nil
	}
	if err != nil {
		return true, err
	}
	return true, t.add(h.Name, n)
}

// decompress looks at the first bytes of r. done releases the decoder.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	b := bufio.NewReaderSize(r, 256<<10)
	magic, err := b.Peek(4)
	switch {
	case len(magic) == 0 && err == io.EOF:
		return nil, nil, errors.New("it is empty")
	case err != nil && err != io.EOF:
		return nil, nil, err
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		return z, func() {}, err
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// 128 MiB is the largest window of zstd -19 --long.
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderConcurrency(2))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return b, func() {}, nil
}

// ctxReader stops reading when ctx ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// boundedReader fails, rather than ends, when its limit is reached.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, exhausted("the tar stream is too long")
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// short cuts a name for an error message.
func short(name string) string {
	if len(name) > 200 {
		return name[:200] + "…"
	}
	return name
}
