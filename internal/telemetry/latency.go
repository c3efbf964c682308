package telemetry

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// latency is a histogram in both of Prometheus' forms: native, which a scrape in
// protobuf gets, and with the buckets of the list for all others. OpenTelemetry's
// exporter writes one form or the other. Safe for concurrent use.
type latency struct {
	// Set at construction, read-only.
	vec *prometheus.HistogramVec

	// mu lets one writer at a time replace sets, which is never changed in place.
	mu   sync.Mutex
	sets atomic.Pointer[map[labels]prometheus.Observer]
}

// nativeGrowth is how far apart the bounds of native buckets are at most: 10 %.
const nativeGrowth = 1.1

func (b *builder) latency(name string) *latency {
	d := b.defs[name]
	l := &latency{vec: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: d.Name, Help: d.Help, Buckets: d.Buckets,
		NativeHistogramBucketFactor: nativeGrowth, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, d.Labels)}
	b.note(b.reg.Register(l.vec))
	l.sets.Store(&map[labels]prometheus.Observer{})
	return l
}

// observe takes a time; one that is not known, 0, is none.
func (l *latency) observe(d time.Duration, values ...string) {
	if d <= 0 {
		return
	}
	var v labels
	copy(v[:], values)
	o, ok := (*l.sets.Load())[v]
	if !ok {
		o = l.learn(v, len(values))
	}
	o.Observe(d.Seconds())
}

// learn adds a combination, or returns the one for all others.
func (l *latency) learn(v labels, n int) prometheus.Observer {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := *l.sets.Load()
	if o, ok := old[v]; ok {
		return o
	}
	values := make([]string, n)
	for i := range values {
		if values[i] = strings.ToValidUTF8(strings.Clone(v[i]), "?"); values[i] == "" {
			values[i] = None
		}
		v[i] = strings.Clone(v[i]) // it may be a part of something large
	}
	if len(old) >= maxSets {
		for i := range values {
			values[i] = Other
		}
		return l.vec.WithLabelValues(values...)
	}
	o := l.vec.WithLabelValues(values...)
	next := maps.Clone(old)
	next[v] = o
	l.sets.Store(&next)
	return o
}

// Served is what came of a request that a worker was picked for. Times count from when
// the data plane received it; 0 is one that nobody knows.
type Served struct {
	Operation string // what was asked for, as OpenTelemetry's GenAI conventions name it
	Model     string // one that discovery lists
	Error     string // a row of the failure table, or how it ended otherwise; empty: well

	FirstByte, FirstToken, Whole time.Duration
	PerToken                     time.Duration // from the first token to the last, for each after the first
}

// Took measures a request that has ended.
func (i *Instruments) Took(s *Served) {
	if i == nil {
		return
	}
	i.whole.observe(s.Whole, s.Operation, s.Model, s.Error)
	i.firstByte.observe(s.FirstByte, s.Operation, s.Model)
	i.firstTokenSeconds.observe(s.FirstToken, s.Operation, s.Model)
	i.perToken.observe(s.PerToken, s.Operation, s.Model)
}

// PromptTokens is what the cache was good for in one request, in tokens of its prompt.
type PromptTokens struct {
	Model, Role string // of the worker that had to compute the prompt
	Prompt      int64
	Available   int64 // held by the best of those who could be picked, as the index knows it
	Predicted   int64 // held by the one that was
	Delivered   int64 // not computed, as the engine says; with Told
	Told        bool
}

// Prompt counts the tokens of a prompt.
func (i *Instruments) Prompt(p *PromptTokens) {
	if i == nil {
		return
	}
	add := func(kind string, n int64) { i.promptTokens.add(n, labels{p.Model, p.Role, kind}) }
	add(PromptAsked, p.Prompt)
	add(PromptAvailable, p.Available)
	add(PromptPredicted, p.Predicted)
	if p.Told {
		add(PromptTold, p.Prompt)
		add(PromptToldPredicted, p.Predicted)
		add(PromptDelivered, p.Delivered)
	}
}
