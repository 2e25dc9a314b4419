package v1

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// The binary framing of command events, media type application/vnd.caisson.events. A stream is frames back to back,
// numbers big-endian:
//
//	offset 0   u8   type: 0 ping, 1 started, 2 stdout, 3 stderr, 4 gap, 5 exit, 6 error
//	offset 1   u64  seq
//	offset 9   i64  time, nanoseconds since 1970-01-01 UTC
//	offset 17  u32  length of the payload
//	offset 21       payload: the bytes printed for stdout and stderr; nothing for ping; else the event's JSON form
//
// A payload of output is at most MaxFrameData bytes, a JSON one at most MaxFrameJSON; a reader refuses more, and types it
// does not know.
const (
	FrameHeader  = 21
	MaxFrameData = 1 << 20
	MaxFrameJSON = 64 << 10
)

var frameTypes = []string{EventPing, EventStarted, EventStdout, EventStderr, EventGap, EventExit, EventError}

// AppendFrame appends the event as one frame.
func AppendFrame(b []byte, e *CommandEvent) ([]byte, error) {
	t := slices.Index(frameTypes, e.Type)
	if t < 0 {
		return b, fmt.Errorf("event type %q has no frame", e.Type)
	}
	payload, limit := e.Data, MaxFrameData
	switch e.Type {
	case EventStdout, EventStderr:
	case EventPing:
		payload = nil
	default:
		var err error
		if payload, err = e.AppendJSON(nil); err != nil {
			return b, err
		}
		limit = MaxFrameJSON
	}
	if len(payload) > limit {
		return b, fmt.Errorf("event %d of type %s has %d bytes, more than the %d of a frame", e.Seq, e.Type, len(payload), limit)
	}
	b = append(b, byte(t))
	b = binary.BigEndian.AppendUint64(b, e.Seq)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Time.UnixNano()))
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...), nil
}

// FrameReader reads frames. Give it a buffered reader.
type FrameReader struct {
	r    io.Reader
	head [FrameHeader]byte
	buf  []byte
}

// NewFrameReader reads frames from r.
func NewFrameReader(r io.Reader) *FrameReader { return &FrameReader{r: r} }

// Next reads one event. Its Data is good until the next call. At the end of the stream, between frames, it returns io.EOF;
// inside one io.ErrUnexpectedEOF.
func (f *FrameReader) Next() (CommandEvent, error) {
	var e CommandEvent
	if _, err := io.ReadFull(f.r, f.head[:]); err != nil {
		return e, err
	}
	t := int(f.head[0])
	if t >= len(frameTypes) {
		return e, fmt.Errorf("frame of unknown type %d", t)
	}
	e.Type = frameTypes[t]
	e.Seq = binary.BigEndian.Uint64(f.head[1:])
	e.Time = time.Unix(0, int64(binary.BigEndian.Uint64(f.head[9:]))).UTC()
	n := binary.BigEndian.Uint32(f.head[17:])
	output := e.Type == EventStdout || e.Type == EventStderr
	limit := uint32(MaxFrameJSON)
	switch {
	case output:
		limit = MaxFrameData
	case e.Type == EventPing:
		limit = 0
	}
	if n > limit {
		return e, fmt.Errorf("frame of type %s with %d bytes, more than %d", e.Type, n, limit)
	}
	if cap(f.buf) < int(n) {
		f.buf = make([]byte, n)
	}
	b := f.buf[:n]
	if _, err := io.ReadFull(f.r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return e, err
	}
	switch {
	case output:
		e.Data = b
	case e.Type != EventPing:
		var j CommandEvent
		if err := json.Unmarshal(b, &j); err != nil {
			return e, fmt.Errorf("frame of type %s: %w", e.Type, err)
		}
		j.Seq, j.Time, j.Type, j.Data = e.Seq, e.Time, e.Type, nil
		return j, nil
	}
	return e, nil
}
