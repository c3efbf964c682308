package telemetry

import (
	"cmp"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-60ae5743/baton/internal/hour"
)

// latency is a histogram in both of Prometheus' forms: native, for a scrape in protobuf,
// and with the listed buckets for all other scrapes. OpenTelemetry's exporter can write
// only one of them. Safe for concurrent use.
type latency struct {
	// Set at construction, read-only.
	vec *prometheus.HistogramVec

	// With mu only one writer at a time replaces sets, which is never changed in place.
	mu   sync.Mutex
	sets atomic.Pointer[map[labels]prometheus.Observer]
}

// nativeGrowth bounds the width of native buckets: each bound is at most 10 % above the
// one before.
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

// observe records a time. 0 means that the time is not known, and is ignored. A nil latency
// records nothing.
func (l *latency) observe(d time.Duration, values ...string) {
	l.record(d.Seconds(), values...)
}

func (l *latency) record(f float64, values ...string) {
	if l == nil || f <= 0 {
		return
	}
	var v labels
	copy(v[:], values)
	o, ok := (*l.sets.Load())[v]
	if !ok {
		o = l.learn(v, len(values))
	}
	o.Observe(f)
}

// learn adds a combination, or returns the observer that takes all further ones together.
func (l *latency) learn(v labels, n int) prometheus.Observer {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := *l.sets.Load()
	if o, ok := old[v]; ok {
		return o
	}
	values := make([]string, n)
	for i := range values {
		v[i] = strings.Clone(v[i]) // the value may be part of a large string
		values[i] = cmp.Or(strings.ToValidUTF8(v[i], "?"), None)
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

// Served describes a request for which a worker was picked, after its end. Times count
// from when the data plane received the request; 0: not known.
type Served struct {
	Operation string // the operation's name in OpenTelemetry's GenAI conventions
	Model     string // one that discovery lists
	Error     string // a code of the failure table, or another way in which it ended; empty: well

	FirstByte, FirstToken, Whole time.Duration
	PerToken                     time.Duration // mean time of each token after the first

	Target time.Duration // within which the first token was wanted; 0: there was none
	Late   bool          // nobody was believed to keep it

	HandOff    string        // the kind of hand-off, where decode needs prefill's answer
	HandOffAge time.Duration // at the first token, else the first byte; 0: there was none
}

// Took measures a request that has ended.
func (i *Instruments) Took(s *Served) {
	i.whole.observe(s.Whole, s.Operation, s.Model, s.Error)
	i.firstByte.observe(s.FirstByte, s.Operation, s.Model)
	i.firstTokenSeconds.observe(s.FirstToken, s.Operation, s.Model)
	i.perToken.observe(s.PerToken, s.Operation, s.Model)
	i.handOffAge.observe(s.HandOffAge, s.HandOff)
	i.hour.Took(time.Now(), s.FirstToken, s.PerToken)
	if first := cmp.Or(s.FirstToken, s.FirstByte); s.Target > 0 && first > 0 {
		kept := map[bool]string{true: "kept", false: "missed"}
		i.targets.add(1, labels{s.Model, kept[!s.Late], kept[first <= s.Target]})
	}
}

// Expected measures how long a rank of the role took for a prompt, over what was expected.
func (i *Instruments) Expected(role string, ratio float64) { i.expected.record(ratio, role) }

// PromptTokens says how much of one request's prompt was cached, in tokens.
type PromptTokens struct {
	Model, Role string // Role: of the worker that had to compute the prompt
	Prompt      int64
	Available   int64 // that the best eligible worker holds, as far as the index knows
	Predicted   int64 // that the picked worker holds, as far as the index knows
	Delivered   int64 // not computed, by the engine's usage; only with Told
	Told        bool
}

// Prompt counts the tokens of one prompt.
func (i *Instruments) Prompt(p *PromptTokens) {
	add := func(kind string, n int64) { i.promptTokens.add(n, labels{p.Model, p.Role, kind}) }
	add(PromptAsked, p.Prompt)
	add(PromptAvailable, p.Available)
	add(PromptPredicted, p.Predicted)
	lately := hour.Prompt{Asked: p.Prompt, Available: p.Available, Predicted: p.Predicted}
	if p.Told {
		lately.Told, lately.Delivered = p.Prompt, p.Delivered
		add(PromptTold, p.Prompt)
		add(PromptToldPredicted, p.Predicted)
		add(PromptDelivered, p.Delivered)
	}
	i.hour.Prompt(time.Now(), lately)
}
