package unixsock

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLongPaths(t *testing.T) {
	for _, depth := range []int{0, 3} {
		dir := t.TempDir()
		for range depth {
			dir = filepath.Join(dir, strings.Repeat("d", 60))
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "x.sock")
		l, err := Listen(path)
		if err != nil {
			t.Fatalf("%d bytes: %v", len(path), err)
		}
		go func() { // ends with its one connection
			c, err := l.Accept()
			if err == nil {
				io.WriteString(c, "hello")
				c.Close()
			}
		}()
		c, err := Dial(context.Background(), path)
		if err != nil {
			t.Fatalf("%d bytes: %v", len(path), err)
		}
		if b, _ := io.ReadAll(c); string(b) != "hello" {
			t.Errorf("got %q", b)
		}
		c.Close()
		l.Close()
	}
}
