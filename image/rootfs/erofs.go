package rootfs

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
)

// The format, from https://docs.kernel.org/filesystems/erofs.html and fs/erofs/erofs_fs.h of Linux.
const (
	blockBits   = 12
	blockSize   = 1 << blockBits
	superOffset = 1024
	superMagic  = 0xe0f5e1e2
	superSize   = 128
	inodeSize   = 64
	slotSize    = 32 // inodes are addressed ("nid") in slots of this size
	direntSize  = 12
	// formatExtended is an inode of 64 bytes whose data lies in whole blocks in a row (FLAT_PLAIN).
	formatExtended = 1
)

// nid is the address of an inode. The first inode's place stays empty: a nid of 0 would show as inode number 0, which
// readers of directories take for a deleted entry.
func (n *node) nid() uint64 { return uint64(n.index) * (inodeSize / slotSize) }

// fileType is the type of a node in a dirent.
func (n *node) fileType() byte {
	switch n.mode & modeType {
	case modeRegular:
		return 1
	case modeDir:
		return 2
	case modeChar:
		return 3
	case modeBlock:
		return 4
	case modeFIFO:
		return 5
	case modeSocket:
		return 6
	case modeLink:
		return 7
	}
	return 0
}

// rdev encodes a device number as Linux does in new_encode_dev.
func rdev(major, minor int64) (uint32, error) {
	if major < 0 || major >= 1<<12 || minor < 0 || minor >= 1<<20 {
		return 0, errors.New("its device number is out of range")
	}
	return uint32(minor&0xff | major<<8 | (minor&^0xff)<<12), nil
}

// image is the file being written. Space is given out in whole blocks and never twice, so what is not written reads as
// zeros.
type image struct {
	out  *os.File
	next int64 // where the next data goes, at a block
	max  int64
	buf  []byte
}

func newImage(out *os.File, max int64) (*image, error) {
	if err := out.Truncate(0); err != nil {
		return nil, writeError(err)
	}
	return &image{out: out, next: blockSize, max: max, buf: make([]byte, 256<<10)}, nil
}

// alloc reserves size bytes and returns where.
func (m *image) alloc(size int64) (int64, error) {
	if size > m.max-m.next || (size+blockSize-1)&^(blockSize-1) > m.max-m.next {
		return 0, exhausted("the image would be larger than allowed")
	}
	at := m.next
	m.next += (size + blockSize - 1) &^ (blockSize - 1)
	return at, nil
}

// content stores size bytes of r as the data of n.
func (m *image) content(n *node, r io.Reader, size int64) error {
	if size == 0 {
		return nil
	}
	at, err := m.alloc(size)
	if err != nil {
		return err
	}
	n.size, n.block = size, uint32(at>>blockBits)
	for size > 0 {
		b := m.buf[:min(size, int64(len(m.buf)))]
		if _, err := io.ReadFull(r, b); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if !zero(b) {
			if _, err := m.out.WriteAt(b, at); err != nil {
				return writeError(err)
			}
		}
		at, size = at+int64(len(b)), size-int64(len(b))
	}
	return nil
}

// zero reports whether b, shorter than a few hundred KiB, is all zeros.
func zero(b []byte) bool {
	for len(b) >= 8 {
		if binary.NativeEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// target stores the target of a symbolic link. It goes to the file like contents do, so that targets need no memory.
func (m *image) target(n *node, target string) error {
	switch {
	case target == "":
		return errors.New("a symbolic link to nothing")
	case len(target) > maxTarget:
		return errors.New("the target of the symbolic link is too long")
	case strings.IndexByte(target, 0) >= 0:
		return errors.New("the target of the symbolic link has a zero byte")
	}
	return m.content(n, strings.NewReader(target), int64(len(target)))
}

func (m *image) readTarget(n *node) (string, error) {
	b := make([]byte, n.size)
	if _, err := m.out.ReadAt(b, int64(n.block)<<blockBits); err != nil {
		return "", writeError(err)
	}
	return string(b), nil
}

// finish writes directories, inodes and the superblock.
func (t *tree) finish() (Stats, error) {
	m, order := t.img, t.number()
	w := bufio.NewWriterSize(io.NewOffsetWriter(m.out, m.next), 256<<10)
	for _, n := range order {
		if n.is(modeDir) {
			if err := m.directory(w, n); err != nil {
				return Stats{}, err
			}
		}
	}
	meta, err := m.alloc(int64(len(order)+1) * inodeSize)
	if err != nil {
		return Stats{}, err
	}
	if _, err := w.Write(make([]byte, inodeSize)); err != nil {
		return Stats{}, writeError(err)
	}
	for _, n := range order {
		if _, err := w.Write(n.encode()); err != nil {
			return Stats{}, writeError(err)
		}
	}
	if err := w.Flush(); err != nil {
		return Stats{}, writeError(err)
	}
	// Readers map the file, so it ends with a whole block.
	if err := m.out.Truncate(m.next); err != nil {
		return Stats{}, writeError(err)
	}
	if _, err := m.out.WriteAt(m.super(order, meta), superOffset); err != nil {
		return Stats{}, writeError(err)
	}
	return Stats{Inodes: len(order), Bytes: m.next}, nil
}

// directory writes the blocks of a directory to w, which stands at m.next. Each block holds its dirents first and their
// names after; the first name of each block is found by binary search.
func (m *image) directory(w io.Writer, d *node) error {
	var block [blockSize]byte
	start := m.next
	for rest := d.sorted; len(rest) > 0; {
		count, used := 0, 0
		for count < len(rest) && used+direntSize+len(rest[count].name) <= blockSize {
			used += direntSize + len(rest[count].name)
			count++
		}
		clear(block[:])
		name := count * direntSize
		for i, e := range rest[:count] {
			b := block[i*direntSize:]
			binary.LittleEndian.PutUint64(b, e.node.nid())
			binary.LittleEndian.PutUint16(b[8:], uint16(name))
			b[10] = e.node.fileType()
			name += copy(block[name:], e.name)
		}
		rest = rest[count:]
		if len(rest) == 0 {
			d.size = m.next - start + int64(used)
		}
		if _, err := m.alloc(blockSize); err != nil {
			return err
		}
		if _, err := w.Write(block[:]); err != nil {
			return writeError(err)
		}
	}
	d.block, d.sorted = uint32(start>>blockBits), nil
	return nil
}

// encode gives the inode of n.
func (n *node) encode() []byte {
	b, le := make([]byte, inodeSize), binary.LittleEndian
	le.PutUint16(b[0:], formatExtended)
	le.PutUint16(b[4:], n.mode)
	le.PutUint64(b[8:], uint64(n.size))
	if n.is(modeChar) || n.is(modeBlock) {
		le.PutUint32(b[16:], n.rdev)
	} else {
		le.PutUint32(b[16:], n.block)
	}
	le.PutUint32(b[20:], uint32(n.index))
	le.PutUint32(b[24:], n.uid)
	le.PutUint32(b[28:], n.gid)
	le.PutUint64(b[32:], n.mtime)
	le.PutUint32(b[40:], n.nsec)
	le.PutUint32(b[44:], n.nlink)
	return b
}

// super gives the superblock. It carries no time, no UUID and no feature flags.
func (m *image) super(order []*node, meta int64) []byte {
	b, le := make([]byte, superSize), binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	b[12] = blockBits
	le.PutUint16(b[14:], uint16(order[0].nid()))
	le.PutUint64(b[16:], uint64(len(order)))
	le.PutUint32(b[36:], uint32(m.next>>blockBits))
	le.PutUint32(b[40:], uint32(meta>>blockBits))
	return b
}
