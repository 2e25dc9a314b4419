// Package rootfs writes root filesystems as read-only EROFS images, from a tar stream or from files in memory.
//
// The image is what a sandbox's kernel maps as its lowest layer, so it is kept to what every reader knows: blocks of
// 4 KiB, no compression, no inline data, extended inodes, no feature flags. Data that starts on a block can be mapped
// straight into the sandbox.
//
//	block 0          the superblock, at byte 1024; written last, so a half-written file is not an image
//	block 1 …        file contents and link targets, in the order they arrived
//	then             directories
//	then             inodes, 64 bytes each, the root first
//
// The same input always gives the same bytes: names are sorted, and nothing comes from the clock. Only names and
// inodes are held in memory; contents go straight to the file.
//
// Extended attributes are dropped, file capabilities among them: the sandbox's kernel (gVisor) refuses images that have
// them. It also shows no device numbers of an image, so nodes in /dev must be made at boot.
package rootfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/caisson-sandbox/caisson"
)

// The defaults of Options.
const (
	DefaultMaxBytes   = 64 << 30
	DefaultMaxEntries = 2_000_000
)

// What names and paths may be, as in Linux.
const (
	maxName   = 255
	maxPath   = 4096
	maxTarget = 4095
	maxDepth  = maxPath / 2
	maxLinks  = 40
	// maxNames bounds the memory for names; two million of a usual length fit.
	maxNames = 256 << 20
)

// Options limits what is read. The zero value means the defaults.
type Options struct {
	MaxBytes   int64 // size of the image
	MaxEntries int   // entries of the tar, and inodes of the image
}

func (o Options) withDefaults() Options {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = DefaultMaxEntries
	}
	// Block addresses have 32 bits.
	o.MaxBytes = min(o.MaxBytes, 8<<40)
	o.MaxEntries = min(o.MaxEntries, 1<<30)
	return o
}

// Stats says what was written.
type Stats struct {
	Inodes  int
	Bytes   int64 // size of the image, a multiple of 4096
	Xattrs  int   // extended attributes dropped
	Skipped int   // tar entries of kinds that are not files
}

// FromTar writes the image of a tar stream (plain, gzip or zstd) to out, with the default limits. See [Options.FromTar].
func FromTar(ctx context.Context, r io.Reader, out *os.File) (Stats, error) {
	return Options{}.FromTar(ctx, r, out)
}

// FromFiles writes the image of files to out, with the default limits. See [Options.FromFiles].
func FromFiles(files []File, out *os.File) (Stats, error) {
	return Options{}.FromFiles(files, out)
}

// File is one file of an image made in memory.
type File struct {
	Path string
	// Mode holds permissions and type as stat(2) gives them. Without a type it is a link if Target is set, else a
	// regular file. Devices are not possible.
	Mode     uint32
	UID, GID uint32
	Target   string
	Data     []byte
}

// FromFiles writes an image of the files, whose times are zero. out must be open for reading and writing; what it held
// is lost. The rules for paths are those of FromTar.
func (o Options) FromFiles(files []File, out *os.File) (Stats, error) {
	o = o.withDefaults()
	img, err := newImage(out, o.MaxBytes)
	if err != nil {
		return Stats{}, err
	}
	t := newTree(img, o.MaxEntries)
	for _, f := range files {
		mode := f.Mode
		if mode&modeType == 0 {
			mode |= modeRegular
			if f.Target != "" {
				mode = mode&^modeType | modeLink
			}
		}
		if mode > 0xffff {
			return Stats{}, invalid(f.Path, "the mode has bits that no file has", nil)
		}
		n := &node{mode: uint16(mode), uid: f.UID, gid: f.GID}
		var err error
		switch mode & modeType {
		case modeRegular:
			err = img.content(n, bytes.NewReader(f.Data), int64(len(f.Data)))
		case modeLink:
			err = img.target(n, f.Target)
		case modeDir, modeFIFO, modeSocket:
		default:
			err = errors.New("this type of file cannot be made here")
		}
		if err == nil {
			err = t.add(f.Path, n)
		}
		if err != nil {
			return Stats{}, invalid(f.Path, "cannot be put in the image", err)
		}
	}
	return t.finish()
}

// invalid blames the input for err, unless err already says whose fault it is.
func invalid(subject, msg string, err error) error {
	var e *caisson.Error
	if errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err != nil {
		msg, err = msg+": "+err.Error(), nil
	}
	return caisson.E(caisson.Invalid, "make image", subject, msg, err)
}

// exhausted says that a limit is reached.
func exhausted(msg string) error { return caisson.E(caisson.Exhausted, "make image", "", msg, nil) }

// writeError blames the host's disk.
func writeError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return caisson.E(caisson.Exhausted, "make image", "", "the disk is full", err)
	}
	return caisson.E(caisson.Internal, "make image", "", "cannot write the image", err)
}
