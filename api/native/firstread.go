package native

import (
	"errors"
	"io"
)

// firstRead does the first read of a reader early, and gives it back later.
type firstRead struct {
	r   io.Reader
	buf []byte
	err error
}

// peek reads until there is something or the end. It returns an error that is not the end.
func (f *firstRead) peek() error {
	b := make([]byte, 32<<10)
	for range 100 { // a reader that gives nothing a hundred times is broken
		n, err := f.r.Read(b)
		f.buf, f.err = b[:n], err
		if n > 0 || err != nil {
			break
		}
	}
	if f.err != nil && !errors.Is(f.err, io.EOF) && len(f.buf) == 0 {
		return f.err
	}
	return nil
}

// Read gives what peek read, then the rest.
func (f *firstRead) Read(p []byte) (int, error) {
	if len(f.buf) > 0 {
		n := copy(p, f.buf)
		f.buf = f.buf[n:]
		return n, nil
	}
	if f.err != nil {
		return 0, f.err
	}
	return f.r.Read(p)
}
