package native

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caisson-sandbox/caisson"
)

// metrics are the server's own; /metrics shows the whole registry.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	create   prometheus.Histogram
	start    prometheus.Histogram
	streamed *prometheus.CounterVec
	inFlight prometheus.Gauge
}

func newMetrics(reg *prometheus.Registry, stats func(context.Context) (map[caisson.State]int, error)) *metrics {
	quick := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "caisson_http_requests_total",
			Help: "HTTP requests that ended, by route (the OpenAPI operation id; ingress; none) and status."}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "caisson_http_request_duration_seconds",
			Help: "Time to the end of the answer, streams included.", Buckets: quick}, []string{"route"}),
		create: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "caisson_sandbox_create_duration_seconds",
			Help: "Time of a successful create, until the agent answered.", Buckets: quick}),
		start: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "caisson_sandbox_start_duration_seconds",
			Help: "Time of a successful start, until the agent answered.", Buckets: quick}),
		streamed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "caisson_stream_bytes_total",
			Help: "Bytes moved through streams: events, file_read, file_write, archive_read, archive_write, attach."}, []string{"stream"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "caisson_http_requests_in_flight", Help: "HTTP requests being served."}),
	}
	reg.MustRegister(m.requests, m.duration, m.create, m.start, m.streamed, m.inFlight)
	if stats != nil {
		reg.MustRegister(&stateCollector{stats: stats, desc: prometheus.NewDesc("caisson_sandboxes", "Sandboxes by state.", []string{"state"}, nil)})
	}
	return m
}

func (m *metrics) done(route string, status int, d time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(route).Observe(d.Seconds())
}

// stateCollector asks for the counts when /metrics is read.
type stateCollector struct {
	stats func(context.Context) (map[caisson.State]int, error)
	desc  *prometheus.Desc
}

func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	counts, err := c.stats(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.desc, err)
		return
	}
	for s, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), string(s))
	}
}
