package v1

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Mode is permission bits with setuid, setgid and sticky, as in stat(2): octal text ("0644") in JSON and in queries.
type Mode uint32

// MarshalText writes four octal digits.
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%04o", uint32(m)), nil }

// UnmarshalText reads octal digits, at most 7777.
func (m *Mode) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 8, 32)
	if err != nil || v > 0o7777 {
		return fmt.Errorf("%q is not a file mode: write octal digits up to 7777, such as \"0644\"", b)
	}
	*m = Mode(v)
	return nil
}

// FileInfo describes one file. A name that is not UTF-8 is in the _b64 field, and the plain field has replacement
// characters in place of the bad bytes.
type FileInfo struct {
	Path      string    `json:"path" doc:"Absolute path in the sandbox."`
	PathB64   string    `json:"path_b64,omitempty" doc:"The path in base64, when it is not UTF-8."`
	Name      string    `json:"name" doc:"Last element of the path."`
	Type      string    `json:"type" doc:"Type of the file itself; symbolic links are not followed by list." enum:"file,dir,symlink,other"`
	Size      int64     `json:"size" doc:"Bytes."`
	Mode      Mode      `json:"mode" doc:"Permission bits, setuid, setgid and sticky in octal." example:"\"0644\""`
	UID       uint32    `json:"uid" doc:"Owner's number."`
	GID       uint32    `json:"gid" doc:"Group's number."`
	User      string    `json:"user,omitempty" doc:"Owner's name, if the sandbox knows one."`
	Group     string    `json:"group,omitempty" doc:"Group's name, if the sandbox knows one."`
	ModTime   time.Time `json:"mod_time" doc:"When the content last changed."`
	Target    string    `json:"target,omitempty" doc:"Where a symbolic link points."`
	TargetB64 string    `json:"target_b64,omitempty" doc:"The target in base64, when it is not UTF-8."`
}

// RawPath is the path as bytes, whatever its encoding.
func (f FileInfo) RawPath() string { return raw(f.Path, f.PathB64) }

// RawTarget is the link target as bytes.
func (f FileInfo) RawTarget() string { return raw(f.Target, f.TargetB64) }

func raw(s, b64 string) string {
	if b64 != "" {
		if b, err := base64.StdEncoding.DecodeString(b64); err == nil {
			return string(b)
		}
	}
	return s
}

// EncodeFileInfo makes the value of HeaderFileInfo.
func EncodeFileInfo(f FileInfo) string {
	b, err := json.Marshal(f)
	if err != nil {
		return "" // only a year beyond 9999 in ModTime
	}
	return base64.StdEncoding.EncodeToString(b)
}

// DecodeFileInfo reads the value of HeaderFileInfo.
func DecodeFileInfo(s string) (FileInfo, error) {
	var f FileInfo
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return f, fmt.Errorf("header %s: %w", HeaderFileInfo, err)
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("header %s: %w", HeaderFileInfo, err)
	}
	return f, nil
}

// FileList is the entries of a directory.
type FileList struct {
	Files []FileInfo `json:"files" doc:"Entries, parents before their children."`
}

// Mkdir is the body of POST …/files/mkdir.
type Mkdir struct {
	Path    string `json:"path,omitempty" doc:"Directory to make, absolute or relative to the user's home." maxLength:"4096"`
	PathB64 string `json:"path_b64,omitempty" doc:"The path in base64, for one that is not UTF-8; used instead of path." maxLength:"8192"`
	User    string `json:"user,omitempty" doc:"Who owns it and whose rights are used; default: the sandbox's user." maxLength:"256"`
	Mode    Mode   `json:"mode,omitempty" doc:"Permission bits in octal; default 0755."`
	Parents bool   `json:"parents,omitempty" doc:"Make missing parents, and succeed if it is there."`
}

// RawPath is the path as bytes.
func (m Mkdir) RawPath() string { return raw(m.Path, m.PathB64) }

// Move is the body of POST …/files/move.
type Move struct {
	From    string `json:"from,omitempty" doc:"What to move." maxLength:"4096"`
	FromB64 string `json:"from_b64,omitempty" doc:"From in base64, for a path that is not UTF-8." maxLength:"8192"`
	To      string `json:"to,omitempty" doc:"Its new path; a file there is replaced." maxLength:"4096"`
	ToB64   string `json:"to_b64,omitempty" doc:"To in base64, for a path that is not UTF-8." maxLength:"8192"`
	User    string `json:"user,omitempty" doc:"Whose rights are used; default: the sandbox's user." maxLength:"256"`
}

// RawFrom is From as bytes.
func (m Move) RawFrom() string { return raw(m.From, m.FromB64) }

// RawTo is To as bytes.
func (m Move) RawTo() string { return raw(m.To, m.ToB64) }

// FileEvent is a change below a watched directory.
type FileEvent struct {
	Op      string   `json:"op" doc:"What happened. overflow: events were lost, look again. ping: nothing, the stream is alive. error: the watch ended, error says why." enum:"create,write,remove,rename,chmod,overflow,ping,error"`
	Path    string   `json:"path,omitempty" doc:"What changed."`
	PathB64 string   `json:"path_b64,omitempty" doc:"The path in base64, when it is not UTF-8."`
	Error   *Problem `json:"error,omitempty" doc:"Why the watch ended."`
}

// RawPath is the path as bytes.
func (e FileEvent) RawPath() string { return raw(e.Path, e.PathB64) }
