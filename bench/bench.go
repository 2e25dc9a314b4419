// Package bench measures a Caisson server as a client sees it, and what else the machine has beside it, in one run: absolute
// times differ from machine to machine, the ratios of one run can be compared.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	v1 "github.com/caisson-sandbox/caisson/api/v1"
	"github.com/caisson-sandbox/caisson/client"
)

// Options of a run. Zero fields have the defaults given.
type Options struct {
	Client      *client.Client
	Template    string // default base
	Rounds      int    // of each measurement of one sandbox; default 20
	Concurrency []int  // creates at once; default 1, 10, 50
	MemoryMiB   int    // of each sandbox; default 128
	Bytes       int64  // of output and of files; default 256 MiB
	Progress    func(string)
	Runsc       string // paths of baselines; "": not measured
	Runc        string
	Bwrap       string
	WorkDir     string // for the baselines' roots
}

func (o Options) withDefaults() Options {
	if o.Template == "" {
		o.Template = "base"
	}
	if o.Rounds == 0 {
		o.Rounds = 20
	}
	if len(o.Concurrency) == 0 {
		o.Concurrency = []int{1, 10, 50}
	}
	if o.MemoryMiB == 0 {
		o.MemoryMiB = 128
	}
	if o.Bytes == 0 {
		o.Bytes = 256 << 20
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o
}

// Row is one measurement.
type Row struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"` // ms, MB/s, MiB
	N      int     `json:"n"`
	P50    float64 `json:"p50"`
	P95    float64 `json:"p95"`
	P99    float64 `json:"p99"`
	Ratio  float64 `json:"ratio,omitempty"`  // P50 over Against's P50
	Target float64 `json:"target,omitempty"` // what Ratio, or P50 where there is none, should not exceed
	// Against names the row of the same run that Ratio is against.
	Against string `json:"against,omitempty"`
}

// Report is one run.
type Report struct {
	Time   time.Time `json:"time"`
	Server v1.Info   `json:"server"`
	Rows   []Row     `json:"rows"`
	Notes  []string  `json:"notes,omitempty"`
}

// row looks a measurement up.
func (r *Report) row(name string) *Row {
	for i := range r.Rows {
		if r.Rows[i].Name == name {
			return &r.Rows[i]
		}
	}
	return nil
}

func (r *Report) add(name, unit string, values []float64) *Row {
	slices.Sort(values)
	at := func(q float64) float64 {
		if len(values) == 0 {
			return 0
		}
		return values[min(len(values)-1, int(q*float64(len(values))))]
	}
	r.Rows = append(r.Rows, Row{Name: name, Unit: unit, N: len(values), P50: at(0.5), P95: at(0.95), P99: at(0.99)})
	return &r.Rows[len(r.Rows)-1]
}

// compare sets the ratio of two rows that are there.
func (r *Report) compare(name, against string, target float64) {
	a, b := r.row(name), r.row(against)
	if a == nil || b == nil || b.P50 == 0 {
		return
	}
	a.Ratio, a.Against, a.Target = a.P50/b.P50, against, target
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Names of rows.
const (
	CreateFirst = "create to first output"
	ExecTrue    = "exec round trip of true"
	AgentSpawn  = "agent: fork and exec of true"
	AgentRun    = "agent: true from fork to reaped"
	Output      = "output of one command"
	Upload      = "file upload"
	Download    = "file download"
	IdlePSS     = "idle memory of a sandbox (PSS)"
	HostSpawn   = "host: spawn of true"
	RunscRun    = "runsc run of the same root"
	RuncRun     = "runc run of the same root"
	BwrapRun    = "bwrap of the same root"
)

// Run measures everything. What fails is a note; an error means that nothing could be measured.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	r := &Report{Time: time.Now().UTC()}
	var err error
	if r.Server, err = o.Client.Info(ctx); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		name string
		do   func(context.Context, Options, *Report) error
	}{
		{"baselines", baselines}, {"creates", creates}, {"one sandbox", oneSandbox}, {"concurrent creates", concurrent},
	} {
		o.Progress(step.name)
		if err := step.do(ctx, o, r); err != nil {
			if ctx.Err() != nil {
				return r, context.Cause(ctx)
			}
			r.Notes = append(r.Notes, fmt.Sprintf("%s: %v", step.name, err))
		}
	}
	r.compare(CreateFirst, RunscRun, 1)
	r.compare(ExecTrue, AgentRun, 1.3)
	if p := r.row(IdlePSS); p != nil {
		p.Target = 45
	}
	return r, nil
}

func (o Options) create(ctx context.Context) (string, error) {
	b, _, err := o.Client.Create(ctx, v1.SandboxCreate{
		Template: o.Template, Metadata: map[string]string{"caisson.bench": "1"}, Resources: v1.Resources{MemoryMiB: o.MemoryMiB},
	}, "")
	return b.ID, err
}

// first makes a sandbox, runs echo in it, and returns when its output is there.
func (o Options) first(ctx context.Context) (time.Duration, string, error) {
	begin := time.Now()
	id, err := o.create(ctx)
	if err != nil {
		return 0, "", err
	}
	d, err := o.run(ctx, id, v1.CommandCreate{Argv: []string{"echo", "x"}}, begin, true)
	return d, id, err
}

// run runs a command to its end and gives the time since begin until its first output, or until its end.
func (o Options) run(ctx context.Context, id string, cmd v1.CommandCreate, begin time.Time, first bool) (d time.Duration, err error) {
	f, err := o.Client.Run(ctx, id, cmd)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		e, err := f.Next()
		if errors.Is(err, io.EOF) {
			return 0, errors.New("the command's events ended before its exit")
		}
		if err != nil {
			return 0, err
		}
		if e.Type == v1.EventStdout && first && d == 0 {
			d = time.Since(begin)
		}
		if e.Type == v1.EventExit {
			if e.Exit == nil || e.Exit.Code != 0 {
				return d, fmt.Errorf("the command ended with %+v", e.Exit)
			}
			if d == 0 {
				d = time.Since(begin)
			}
			return d, nil
		}
	}
}

// trip runs true and gives the time between its first and its last event, by the agent's clock.
func (o Options) trip(ctx context.Context, id string) (time.Duration, error) {
	f, err := o.Client.Run(ctx, id, v1.CommandCreate{Argv: []string{"true"}})
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var started time.Time
	for {
		e, err := f.Next()
		if err != nil {
			return 0, err
		}
		switch e.Type {
		case v1.EventStarted:
			started = e.Time
		case v1.EventExit:
			return e.Time.Sub(started), nil
		}
	}
}

func creates(ctx context.Context, o Options, r *Report) error {
	var times []float64
	for range o.Rounds {
		d, id, err := o.first(ctx)
		if id != "" {
			if derr := o.Client.Delete(ctx, id); err == nil {
				err = derr
			}
		}
		if err != nil {
			return err
		}
		times = append(times, ms(d))
	}
	r.add(CreateFirst, "ms", times)
	return nil
}

func oneSandbox(ctx context.Context, o Options, r *Report) error {
	_, id, err := o.first(ctx)
	if id != "" {
		defer o.Client.Delete(context.WithoutCancel(ctx), id)
	}
	if err != nil {
		return err
	}
	o.idle(ctx, r, IdlePSS, id)
	var trips, spawns, whole []float64
	for range 5 * o.Rounds {
		begin := time.Now()
		inside, err := o.trip(ctx, id)
		if err != nil {
			return err
		}
		trips = append(trips, ms(time.Since(begin)))
		if m, err := o.Client.Metrics(ctx, id); err == nil && m.LastSpawn > 0 {
			spawns = append(spawns, m.LastSpawn*1e3)
			whole = append(whole, m.LastSpawn*1e3+ms(inside))
		}
	}
	r.add(ExecTrue, "ms", trips)
	r.add(AgentSpawn, "ms", spawns)
	r.add(AgentRun, "ms", whole)
	return errors.Join(o.output(ctx, id, r), o.files(ctx, id, r))
}

// idleWait is how long after the last call a sandbox counts as idle: it has given back by then what only its start needed.
const idleWait = 6 * time.Second

// idle measures what sandboxes that wait take of the host's memory. Pages that several processes have in common count for
// each in part, so the more sandboxes there are, the less each takes.
func (o Options) idle(ctx context.Context, r *Report, name string, ids ...string) {
	time.Sleep(idleWait)
	var sizes []float64
	for _, id := range ids {
		if m, err := o.Client.Metrics(ctx, id); err == nil && m.HostMemoryPSS > 0 {
			sizes = append(sizes, float64(m.HostMemoryPSS)/(1<<20))
		}
	}
	if len(sizes) > 0 {
		r.add(name, "MiB", sizes)
	}
}

func (o Options) output(ctx context.Context, id string, r *Report) error {
	var rates []float64
	for range 3 {
		begin := time.Now()
		if _, err := o.run(ctx, id, v1.CommandCreate{Argv: []string{"head", "-c", fmt.Sprint(o.Bytes), "/dev/zero"}}, begin, false); err != nil {
			return err
		}
		rates = append(rates, float64(o.Bytes)/1e6/time.Since(begin).Seconds())
	}
	r.add(Output, "MB/s", rates)
	return nil
}

func (o Options) files(ctx context.Context, id string, r *Report) error {
	var up, down []float64
	for range 3 {
		begin := time.Now()
		if _, err := o.Client.WriteFile(ctx, id, "/tmp/bench", io.LimitReader(pattern{}, o.Bytes), client.WriteOptions{}); err != nil {
			return err
		}
		up = append(up, float64(o.Bytes)/1e6/time.Since(begin).Seconds())
		begin = time.Now()
		_, rc, err := o.Client.ReadFile(ctx, id, "/tmp/bench", client.ReadOptions{})
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, rc)
		rc.Close()
		if err != nil || n != o.Bytes {
			return fmt.Errorf("download: %d of %d bytes: %w", n, o.Bytes, err)
		}
		down = append(down, float64(o.Bytes)/1e6/time.Since(begin).Seconds())
	}
	r.add(Upload, "MB/s", up)
	r.add(Download, "MB/s", down)
	return o.Client.Remove(ctx, id, "/tmp/bench", "", false)
}

// pattern is endless data that is not all zeros.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i * 7)
	}
	return len(p), nil
}

func concurrent(ctx context.Context, o Options, r *Report) error {
	for _, n := range o.Concurrency {
		var mu sync.Mutex
		var times []float64
		var ids []string
		var first error
		var wg sync.WaitGroup
		begin := time.Now()
		for range n {
			wg.Go(func() {
				d, id, err := o.first(ctx)
				mu.Lock()
				defer mu.Unlock()
				if id != "" {
					ids = append(ids, id)
				}
				if err != nil {
					first = errors.Join(first, err)
					return
				}
				times = append(times, ms(d))
			})
		}
		wg.Wait()
		all := time.Since(begin)
		if n > 1 {
			o.idle(ctx, r, fmt.Sprintf("idle memory of each of %d (PSS)", n), ids...)
		}
		for _, id := range ids {
			wg.Go(func() { o.Client.Delete(context.WithoutCancel(ctx), id) })
		}
		wg.Wait()
		r.add(fmt.Sprintf("%d creates at once: each", n), "ms", times)
		r.add(fmt.Sprintf("%d creates at once: all", n), "ms", []float64{ms(all)})
		if first != nil {
			return fmt.Errorf("%d at once: %w", n, first)
		}
	}
	return nil
}
