package shim

import (
	"os"
	"sync"
)

// maxLog bounds the shim's log; the older half is kept in shim.log.1.
const maxLog = 4 << 20

// logFile is an append-only file that is moved aside when it is full.
type logFile struct {
	name string

	mu   sync.Mutex
	f    *os.File
	size int64
}

func openLog(name string) (*logFile, error) {
	l := &logFile{name: name}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l.f, l.size = f, 0
	if st, err := f.Stat(); err == nil {
		l.size = st.Size()
	}
	return nil
}

// Write never fails: a log that cannot be written must not stop a sandbox.
func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(b)) > maxLog {
		l.f.Close()
		os.Rename(l.name, l.name+".1")
		if l.open() != nil {
			return len(b), nil
		}
	}
	n, _ := l.f.Write(b)
	l.size += int64(n)
	return len(b), nil
}
