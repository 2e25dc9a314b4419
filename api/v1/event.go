package v1

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// Types of CommandEvent.
const (
	EventPing    = "ping"    // nothing happened; the stream is alive. Seq is 0.
	EventStarted = "started" // PID
	EventStdout  = "stdout"  // Data
	EventStderr  = "stderr"  // Data
	EventGap     = "gap"     // events From to To fell to the log's cap
	EventExit    = "exit"    // Exit; always the last
	EventError   = "error"   // the stream (not the command) ended, Error says why. Seq is 0. Re-attach with from.
)

// CommandEvent is one event of a command. In JSON its output is data, or data_b64 when it is not UTF-8:
//
//	{"seq":1,"time":"…","type":"started","pid":12}
//	{"seq":2,"time":"…","type":"stdout","data":"hello\n"}
//	{"seq":3,"time":"…","type":"exit","exit":{"code":0,"reason":"exited"}}
//
// Numbers start at 1 and grow by 1; a gap has the number of its last lost event. A client that saw seq N goes on with
// …/output?from=N+1.
type CommandEvent struct {
	Seq      uint64
	Time     time.Time
	Type     string
	PID      int
	Data     []byte
	From, To uint64
	Exit     *Exit
	Error    *Problem
}

// eventJSON is the JSON form, for the schema and for decoding.
type eventJSON struct {
	Seq     uint64    `json:"seq,omitempty"`
	Time    time.Time `json:"time,omitzero"`
	Type    string    `json:"type"`
	PID     int       `json:"pid,omitempty"`
	Data    string    `json:"data,omitempty"`
	DataB64 string    `json:"data_b64,omitempty"`
	From    uint64    `json:"from,omitempty"`
	To      uint64    `json:"to,omitempty"`
	Exit    *Exit     `json:"exit,omitempty"`
	Error   *Problem  `json:"error,omitempty"`
}

// AppendJSON appends the JSON form, without a newline. It is on the path of every byte a command prints.
func (e *CommandEvent) AppendJSON(b []byte) ([]byte, error) {
	if e.Type == EventStdout || e.Type == EventStderr {
		b = append(b, `{"seq":`...)
		b = strconv.AppendUint(b, e.Seq, 10)
		b = append(b, `,"time":"`...)
		b = e.Time.UTC().AppendFormat(b, time.RFC3339Nano)
		b = append(b, `","type":"`...)
		b = append(b, e.Type...)
		if utf8.Valid(e.Data) {
			b = append(b, `","data":`...)
			return append(appendString(b, e.Data), '}'), nil
		}
		b = append(b, `","data_b64":"`...)
		b = base64.StdEncoding.AppendEncode(b, e.Data)
		return append(b, `"}`...), nil
	}
	j, err := json.Marshal(eventJSON{Seq: e.Seq, Time: e.Time.UTC(), Type: e.Type, PID: e.PID, From: e.From, To: e.To, Exit: e.Exit, Error: e.Error})
	return append(b, j...), err
}

// appendString appends valid UTF-8 as a JSON string.
func appendString(b, s []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i, c := range s {
		if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(b, s[from:]...), '"')
}

// MarshalJSON is AppendJSON.
func (e CommandEvent) MarshalJSON() ([]byte, error) { return e.AppendJSON(nil) }

// UnmarshalJSON reads the JSON form.
func (e *CommandEvent) UnmarshalJSON(b []byte) error {
	var j eventJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*e = CommandEvent{Seq: j.Seq, Time: j.Time, Type: j.Type, PID: j.PID, From: j.From, To: j.To, Exit: j.Exit, Error: j.Error}
	if j.DataB64 != "" {
		d, err := base64.StdEncoding.DecodeString(j.DataB64)
		e.Data = d
		return err
	}
	if j.Data != "" {
		e.Data = []byte(j.Data)
	}
	return nil
}
