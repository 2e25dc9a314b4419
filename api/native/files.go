package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

// FilePath is the query of everything about one path. Any bytes but NUL may be in it, percent-encoded.
type FilePath struct {
	SandboxPath
	Path string `query:"path" doc:"Absolute, or relative to the user's home. Bytes that are not UTF-8 are percent-encoded." required:"true" minLength:"1" maxLength:"4096"`
	User string `query:"user" doc:"Whose rights are used: a name or uid[:gid]; default: the sandbox's user." maxLength:"256"`
}

func (f FilePath) check(op string) error { return checkPath(op, f.Path) }

func checkPath(op, path string) error {
	switch {
	case path == "":
		return invalid(op, "", "the path is empty", "give an absolute path, or one relative to the user's home")
	case strings.ContainsRune(path, 0):
		return invalid(op, "", "the path holds a NUL byte", "")
	case len(path) > 4096:
		return invalid(op, "", "the path is longer than 4096 bytes", "")
	}
	return nil
}

type readInput struct {
	FilePath
	Range string `header:"Range" doc:"One range of bytes: bytes=0-99, bytes=100-, bytes=-50." maxLength:"128"`
}

type writeInput struct {
	FilePath
	Mode    string `query:"mode" doc:"Permission bits in octal; default: what the file has, else 0644." pattern:"^0?[0-7]{1,4}$"`
	Parents bool   `query:"parents" doc:"Make missing parent directories." default:"false"`
}

type removeInput struct {
	FilePath
	Recursive bool `query:"recursive" doc:"Remove a directory with all that is in it." default:"false"`
}

type fileOutput struct{ Body v1.FileInfo }

func (s *server) fileRoutes() {
	const tag, path = "files", "/v1/sandboxes/{id}/files"
	info := map[string]*huma.Param{
		v1.HeaderFileInfo: headerDoc("base64 of the JSON of FileInfo."),
		"Content-Range":   headerDoc("With 206: which bytes these are."),
		"Last-Modified":   headerDoc("When the content last changed."),
	}
	addStream(s, caisson.ScopeRead, route{id: "readFile", method: http.MethodGet, path: path, tag: tag, summary: "Read a file", errors: []int{409, 416}, headers: info,
		produces: map[string]*huma.MediaType{v1.MediaBytes: media(binary())},
		text:     "Streams a file of any size, or a range of it (206). HEAD gives the headers alone, for directories and other types too. An answer that cannot be completed is cut, never ended as if it were whole."}, s.readFile)
	addStream(s, caisson.ScopeWrite, route{id: "writeFile", method: http.MethodPut, path: path, tag: tag, summary: "Write a file", errors: []int{409},
		body: rawBody("The content, of any size.", v1.MediaBytes), produces: map[string]*huma.MediaType{v1.MediaJSON: media(schemaOf[v1.FileInfo](s))},
		text: "Replaces the file with the body. If the body does not arrive whole, the old file stays."}, s.writeFile)
	add(s, caisson.ScopeWrite, route{id: "removeFile", method: http.MethodDelete, path: path, tag: tag, summary: "Remove a file", status: http.StatusNoContent, errors: []int{409}},
		func(ctx context.Context, p caisson.Principal, in *removeInput) (*struct{}, error) {
			if err := in.check("remove file"); err != nil {
				return nil, err
			}
			g, err := s.guest(ctx, p, in.ID)
			if err != nil {
				return nil, err
			}
			return nil, g.Remove(ctx, in.Path, in.User, in.Recursive)
		})
}

func setFileHeaders(h http.Header, f caisson.FileInfo) {
	o := fileOut(f)
	h.Set("Content-Type", v1.MediaBytes)
	h.Set("Accept-Ranges", "bytes")
	h.Set(v1.HeaderFileInfo, v1.EncodeFileInfo(o))
	h.Set("Last-Modified", o.ModTime.Format(http.TimeFormat))
	// Bytes from a sandbox are never to be run as a page of this origin.
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
}

func (s *server) readFile(ctx context.Context, p caisson.Principal, in *readInput, w http.ResponseWriter, r *http.Request) error {
	if err := in.check("read file"); err != nil {
		return err
	}
	g, err := s.guest(ctx, p, in.ID)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		f, err := g.StatFile(ctx, in.Path, in.User)
		if err != nil {
			return err
		}
		setFileHeaders(w.Header(), f)
		if f.Type == caisson.TypeFile {
			w.Header().Set("Content-Length", strconv.FormatInt(f.Size, 10))
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
	var rng *byteRange
	if in.Range != "" {
		f, err := g.StatFile(ctx, in.Path, in.User)
		if err != nil {
			return err
		}
		if rng, err = parseRange(in.Range, f.Size); err != nil {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", f.Size))
			return err
		}
	}
	var offset, length int64
	if rng != nil {
		offset, length = rng.from, rng.length
	}
	f, rc, err := g.ReadFile(ctx, in.Path, in.User, offset, length)
	if err != nil {
		return err
	}
	defer rc.Close()
	return s.sendFile(w, f, rc, rng)
}

// sendFile streams. The size a file says it has is not always what it gives (/proc, a log that grows): a short one is read
// whole before its length is announced, and one that says 0 goes out without a length.
func (s *server) sendFile(w http.ResponseWriter, f caisson.FileInfo, rc io.Reader, rng *byteRange) error {
	head := make([]byte, 64<<10)
	n, err := io.ReadFull(rc, head)
	whole := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !whole {
		return err
	}
	setFileHeaders(w.Header(), f)
	size, status := f.Size, http.StatusOK
	if rng != nil {
		size, status = rng.length, http.StatusPartialContent
	}
	if whole {
		size = int64(n)
	}
	if rng != nil {
		total := max(f.Size, rng.from+size)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", rng.from, rng.from+max(size, 1)-1, total))
	}
	src := io.MultiReader(bytes.NewReader(head[:n]), rc)
	known := whole || size > int64(n)
	if known {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		src = io.LimitReader(src, size)
	}
	w.WriteHeader(status)
	sent, err := s.copyOut(w, src, "file_read")
	if err == nil && known && sent < size {
		err = fmt.Errorf("the file gave %d bytes of %d", sent, size)
	}
	return err
}

// copyOut streams to the client; each piece has its deadline.
func (s *server) copyOut(w http.ResponseWriter, r io.Reader, name string) (int64, error) {
	out, count := s.progressWriter(w), s.metrics.streamed.WithLabelValues(name)
	buf := make([]byte, 256<<10)
	var sent int64
	for {
		n, err := r.Read(buf)
		if n > 0 {
			k, werr := out.Write(buf[:n])
			sent += int64(k)
			count.Add(float64(k))
			if werr != nil {
				return sent, werr
			}
		}
		if errors.Is(err, io.EOF) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
}

func (s *server) writeFile(ctx context.Context, p caisson.Principal, in *writeInput, w http.ResponseWriter, r *http.Request) error {
	if err := in.check("write file"); err != nil {
		return err
	}
	var mode v1.Mode
	if in.Mode != "" {
		if err := mode.UnmarshalText([]byte(in.Mode)); err != nil {
			return invalid("write file", "", err.Error(), "")
		}
	}
	g, err := s.guest(ctx, p, in.ID)
	if err != nil {
		return err
	}
	f, err := g.WriteFile(ctx, in.Path, s.progressBody(w, r, "file_write"), caisson.WriteOptions{Mode: uint32(mode), User: in.User, Parents: in.Parents})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, fileOut(f))
}

type byteRange struct{ from, length int64 }

// parseRange reads a single range of RFC 9110. Several ranges, and units other than bytes, are answered with the whole
// file, as that allows; one outside the file is 416.
func parseRange(s string, size int64) (*byteRange, error) {
	spec, ok := strings.CutPrefix(s, "bytes=")
	if !ok || strings.Contains(spec, ",") {
		return nil, nil
	}
	a, b, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || a == "" && b == "" {
		return nil, nil
	}
	num := func(t string) (int64, bool) {
		n, err := strconv.ParseUint(t, 10, 63)
		return int64(n), err == nil && t[0] != '+'
	}
	from, to := int64(0), size-1
	if a == "" {
		n, ok := num(b)
		if !ok {
			return nil, nil
		}
		from = max(0, size-n)
		if n == 0 {
			from = size
		}
	} else {
		if from, ok = num(a); !ok {
			return nil, nil
		}
		if b != "" {
			n, ok := num(b)
			if !ok || n < from {
				return nil, nil
			}
			to = min(to, n)
		}
	}
	if from >= size {
		return nil, problem(http.StatusRequestedRangeNotSatisfiable, string(caisson.Invalid), "Range not satisfiable",
			fmt.Sprintf("the file has %d bytes", size), "")
	}
	return &byteRange{from: from, length: to - from + 1}, nil
}
