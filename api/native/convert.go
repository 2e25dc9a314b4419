package native

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/caisson-sandbox/caisson"
	v1 "github.com/caisson-sandbox/caisson/api/v1"
)

func sandboxOut(b caisson.Sandbox) v1.Sandbox {
	c := b.Config
	return v1.Sandbox{
		ID: string(b.ID), Name: c.Name, Team: string(b.Team), State: string(b.State), Reason: b.Reason, Template: c.Template,
		TemplateDigest: b.TemplateDigest, Metadata: c.Metadata, Env: c.Env, Resources: v1.Resources(c.Resources.WithDefaults()),
		User: c.User, Cwd: c.Cwd, MaxLifetime: v1.Duration(c.MaxLifetime), Driver: b.Driver, DriverVersion: b.DriverVersion,
		Isolation: string(b.Isolation), DiskDurability: b.DiskDurability, Epoch: b.Epoch, Revision: b.Revision,
		CreatedAt: b.CreatedAt.UTC(), StartedAt: b.StartedAt.UTC(), ExpiresAt: b.ExpiresAt.UTC(), UpdatedAt: b.UpdatedAt.UTC(),
	}
}

func commandSpec(c v1.CommandCreate) (caisson.CommandSpec, error) {
	if (len(c.Argv) == 0) == (c.Shell == "") {
		return caisson.CommandSpec{}, invalid("run command", "", "exactly one of argv and shell must be given", `{"argv":["ls","-l"]} or {"shell":"ls -l"}`)
	}
	if len(c.Argv) > 0 && c.Argv[0] == "" {
		return caisson.CommandSpec{}, invalid("run command", "", "argv[0] is empty", "it names the program")
	}
	if c.Timeout < 0 {
		return caisson.CommandSpec{}, invalid("run command", "", "timeout is negative", "0 means none")
	}
	for _, a := range append([]string{c.Shell, c.Cwd, c.User}, c.Argv...) {
		if strings.ContainsRune(a, 0) {
			return caisson.CommandSpec{}, invalid("run command", "", "argv, shell, cwd and user may not hold NUL bytes", "")
		}
	}
	if err := validEnv("run command", c.Env); err != nil {
		return caisson.CommandSpec{}, err
	}
	s := caisson.CommandSpec{Argv: c.Argv, Shell: c.Shell, Cwd: c.Cwd, Env: c.Env, User: c.User, Stdin: c.Stdin, Timeout: c.Timeout.D()}
	if c.TTY != nil {
		s.TTY = &caisson.TTYSize{Rows: uint16(c.TTY.Rows), Cols: uint16(c.TTY.Cols)}
	}
	return s, nil
}

func validEnv(op string, env map[string]string) error {
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return invalid(op, clip(k, 64), "not a good environment variable", "names are not empty and hold no \"=\"; neither names nor values hold NUL bytes")
		}
	}
	return nil
}

func commandOut(c caisson.Command) v1.Command {
	o := v1.Command{
		ID: string(c.ID), Argv: c.Spec.Argv, Shell: c.Spec.Shell, Cwd: c.Spec.Cwd, User: c.Spec.User, Stdin: c.Spec.Stdin,
		Timeout: v1.Duration(c.Spec.Timeout), PID: c.PID, StartedAt: c.StartedAt.UTC(), EndedAt: c.EndedAt.UTC(), LastSeq: c.LastSeq, Exit: exitOut(c.Exit),
	}
	if c.Spec.TTY != nil {
		o.TTY = &v1.TTY{Rows: int(c.Spec.TTY.Rows), Cols: int(c.Spec.TTY.Cols)}
	}
	return o
}

func exitOut(e *caisson.CommandExit) *v1.Exit {
	if e == nil {
		return nil
	}
	return &v1.Exit{Code: e.Code, Signal: e.Signal, Reason: string(e.Reason), Error: e.Error}
}

func eventOut(e caisson.CommandEvent) v1.CommandEvent {
	return v1.CommandEvent{Seq: e.Seq, Time: e.Time, Type: string(e.Type), PID: e.PID, Data: e.Data, From: e.From, To: e.To, Exit: exitOut(e.Exit)}
}

// utf8Of splits bytes into the text and, when they are not UTF-8, their base64.
func utf8Of(s string) (text, b64 string) {
	if utf8.ValidString(s) {
		return s, ""
	}
	return strings.ToValidUTF8(s, "\uFFFD"), base64.StdEncoding.EncodeToString([]byte(s))
}

func fileOut(f caisson.FileInfo) v1.FileInfo {
	o := v1.FileInfo{Type: string(f.Type), Size: f.Size, Mode: v1.Mode(f.Mode & 0o7777), UID: f.UID, GID: f.GID, User: f.User, Group: f.Group, ModTime: f.ModTime.UTC()}
	o.Path, o.PathB64 = utf8Of(f.Path)
	o.Name, _ = utf8Of(f.Name)
	o.Target, o.TargetB64 = utf8Of(f.Target)
	if y := o.ModTime.Year(); y < 0 || y > 9999 {
		o.ModTime = o.ModTime.AddDate(-y+1970, 0, 0) // what a guest sets must not break the JSON of a whole listing
	}
	return o
}

func keyOut(k caisson.Key) v1.Key {
	o := v1.Key{ID: string(k.ID), Name: k.Name, Team: string(k.Team), CreatedAt: k.CreatedAt.UTC(), LastUsed: k.LastUsed.UTC(), ExpiresAt: k.ExpiresAt.UTC()}
	for _, s := range k.Scopes {
		o.Scopes = append(o.Scopes, string(s))
	}
	return o
}

func templateOut(t caisson.Template) v1.Template {
	return v1.Template{Name: t.Name, Digest: t.Digest, Size: t.Size, User: t.User, Cwd: t.Cwd, Env: t.Env, CreatedAt: t.CreatedAt.UTC()}
}

func serverEventOut(e caisson.Event) v1.Event {
	return v1.Event{Seq: e.Seq, Time: e.Time.UTC(), Type: e.Type, Sandbox: string(e.Sandbox), Epoch: e.Epoch, Data: e.Data}
}

// metricsOut maps what a sandbox uses.
func metricsOut(m caisson.GuestMetrics) v1.Metrics {
	return v1.Metrics{
		Time: m.Time, CPUSeconds: m.CPUSeconds, MemoryUsed: m.MemoryUsed, MemoryTotal: m.MemoryTotal, DiskUsed: m.DiskUsed, DiskTotal: m.DiskTotal,
		Processes: m.Processes, LastSpawn: m.LastSpawn.Seconds(), HostMemoryPSS: m.HostMemoryPSS,
	}
}
