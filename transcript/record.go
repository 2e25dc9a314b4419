package transcript

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"time"

	"github.com/caisson-sandbox/caisson"
)

// A record in a segment file, little endian:
//
//	uint32 length   of what follows the checksum: 17 + payload
//	uint32 crc32c   of length and of what follows
//	uint64 seq
//	int64  time     nanoseconds since 1970
//	uint8  type
//	payload         stdout, stderr: the bytes; started: uint64 pid; exit: JSON
const (
	headerLen  = 8
	fixedLen   = 17
	maxPayload = MaxData + 16<<10 // an exit's text may be longer than its neighbours, output never is
	maxRecord  = headerLen + fixedLen + maxPayload
)

// MaxData is the most bytes of output in one event.
const MaxData = 64 << 10

const (
	kindStarted = 1
	kindStdout  = 2
	kindStderr  = 3
	kindExit    = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errShort says that a record goes on beyond the bytes at hand; errDamaged that there is no record here.
var (
	errShort   = errors.New("record is cut short")
	errDamaged = errors.New("record is damaged")
)

// appendRecord encodes e after dst. The caller has bounded e.Data.
func appendRecord(dst []byte, e *caisson.CommandEvent) ([]byte, error) {
	var kind byte
	var small [8]byte
	payload := e.Data
	switch e.Type {
	case caisson.EventStarted:
		kind, payload = kindStarted, small[:]
		binary.LittleEndian.PutUint64(small[:], uint64(e.PID))
	case caisson.EventStdout:
		kind = kindStdout
	case caisson.EventStderr:
		kind = kindStderr
	case caisson.EventExit:
		x := caisson.CommandExit{}
		if e.Exit != nil {
			x = *e.Exit
		}
		b, err := json.Marshal(x)
		if err != nil {
			return dst, err
		}
		kind, payload = kindExit, b
	default:
		return dst, errors.New("an event of type " + string(e.Type) + " is not recorded")
	}
	if len(payload) > maxPayload {
		return dst, errors.New("the event is too large")
	}
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(fixedLen+len(payload)))
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, e.Seq)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Time.UnixNano()))
	dst = append(dst, kind)
	dst = append(dst, payload...)
	binary.LittleEndian.PutUint32(dst[start+4:], checksum(dst[start:]))
	return dst, nil
}

func checksum(record []byte) uint32 {
	c := crc32.Update(0, castagnoli, record[:4])
	return crc32.Update(c, castagnoli, record[headerLen:])
}

// decodeRecord reads the record at the start of b and its length. The event's Data is a part of b.
func decodeRecord(b []byte) (caisson.CommandEvent, int, error) {
	var e caisson.CommandEvent
	if len(b) < headerLen {
		return e, 0, errShort
	}
	length := binary.LittleEndian.Uint32(b)
	if length < fixedLen || length > fixedLen+maxPayload {
		return e, 0, errDamaged
	}
	n := headerLen + int(length)
	if len(b) < n {
		return e, 0, errShort
	}
	if checksum(b[:n]) != binary.LittleEndian.Uint32(b[4:]) {
		return e, 0, errDamaged
	}
	e.Seq = binary.LittleEndian.Uint64(b[8:])
	e.Time = time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:]))).UTC()
	payload := b[headerLen+fixedLen : n : n]
	switch b[24] {
	case kindStarted:
		if len(payload) != 8 {
			return e, 0, errDamaged
		}
		e.Type, e.PID = caisson.EventStarted, int(binary.LittleEndian.Uint64(payload))
	case kindStdout:
		e.Type, e.Data = caisson.EventStdout, payload
	case kindStderr:
		e.Type, e.Data = caisson.EventStderr, payload
	case kindExit:
		e.Type, e.Exit = caisson.EventExit, &caisson.CommandExit{}
		if err := json.Unmarshal(payload, e.Exit); err != nil {
			return e, 0, errDamaged
		}
	default:
		return e, 0, errDamaged
	}
	if e.Seq == 0 {
		return e, 0, errDamaged
	}
	return e, n, nil
}
