package telemetry

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// maxSets is how many label combinations a counter counts each for itself.
const maxSets = 256

// labels are the values of a counter's labels, in the order of its keys.
type labels [4]string

// counter counts by label combinations. It adds without OpenTelemetry, which makes and
// compares the attributes at each addition: a request adds some twenty times. OpenTelemetry
// reads the sums.
type counter struct {
	// Set at construction, read-only.
	keys []string
	over *sum
	most int // label combinations that are counted each for itself; with ofWorkers: workers

	ofWorkers bool // the first label is a worker; the others are few

	// With mu only one writer at a time replaces sums. The map is never changed in place:
	// readers load it without a lock.
	mu    sync.Mutex
	named map[string]bool // guarded by mu: the workers that are counted by name
	sums  atomic.Pointer[map[labels]*sum]
}

// sum is what was counted of one combination.
type sum struct {
	n  atomic.Int64
	at metric.ObserveOption
}

func newSum(keys []string, v labels) *sum {
	return &sum{at: with(v, keys...)}
}

// add counts n. A nil counter counts nothing.
func (c *counter) add(n int64, v labels) {
	if c == nil {
		return
	}
	s, ok := (*c.sums.Load())[v]
	if !ok {
		s = c.learn(v)
	}
	s.n.Add(n)
}

// learn adds a combination, or returns the sum of all further ones together.
func (c *counter) learn(v labels) *sum {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := *c.sums.Load()
	if c.ofWorkers && !c.hasRoomFor(v[0]) {
		v[0] = Other
	}
	if s, ok := old[v]; ok {
		return s
	}
	if !c.ofWorkers && len(old) >= c.most {
		return c.over
	}
	for i := range v {
		v[i] = strings.Clone(v[i]) // the value may be part of a large string
	}
	s := newSum(c.keys, v)
	next := maps.Clone(old)
	next[v] = s
	c.sums.Store(&next)
	return s
}

func (c *counter) observe(_ context.Context, o metric.Int64Observer) error {
	for _, s := range *c.sums.Load() {
		o.Observe(s.n.Load(), s.at)
	}
	if n := c.over.n.Load(); n > 0 {
		o.Observe(n, c.over.at)
	}
	return nil
}

// hasRoomFor reports whether a worker is counted by its name; if not, it is counted as
// Other. The caller holds mu.
func (c *counter) hasRoomFor(name string) bool {
	if c.named[name] {
		return true
	}
	if len(c.named) >= c.most {
		return false
	}
	if c.named == nil {
		c.named = make(map[string]bool)
	}
	c.named[strings.Clone(name)] = true
	return true
}

// with returns the attributes of an observation: the values of the labels with the keys.
func with(v labels, keys ...string) metric.ObserveOption { return withAll(v[:], keys...) }

func withAll(v []string, keys ...string) metric.ObserveOption {
	kv := make([]attribute.KeyValue, len(keys))
	for i, k := range keys {
		kv[i] = attribute.String(k, cmp.Or(strings.ToValidUTF8(v[i], "?"), None))
	}
	return metric.WithAttributeSet(attribute.NewSet(kv...))
}

// builder makes instruments from the list of metrics, and joins the errors.
type builder struct {
	meter metric.Meter
	reg   prometheus.Registerer
	defs  map[string]Metric
	err   error
}

func (b *builder) note(err error) { b.err = errors.Join(b.err, err) }

func (b *builder) counter(name string) *counter {
	d := b.defs[name]
	c := b.sums(d)
	_, err := b.meter.Int64ObservableCounter(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit), metric.WithInt64Callback(c.observe))
	b.note(err)
	if len(d.Labels) == 0 {
		// Shown as 0 from the start: a rate over a counter that appears with its first event
		// misses that event.
		c.add(0, labels{})
	}
	return c
}

func (b *builder) sums(d Metric) *counter {
	if len(d.Labels) > len(labels{}) {
		b.note(errors.New(d.Name + ": more labels than a counter can take"))
		d.Labels = nil
	}
	c := &counter{keys: d.Labels, most: maxSets, over: newSum(d.Labels, labels{Other, Other, Other, Other})}
	c.sums.Store(&map[labels]*sum{})
	return c
}

// histogram measures durations without labels. The zero value measures nothing.
type histogram struct{ metric.Float64Histogram }

func (h histogram) record(d time.Duration) {
	if h.Float64Histogram != nil {
		h.Record(context.Background(), d.Seconds())
	}
}

func (b *builder) histogram(name string) histogram {
	d := b.defs[name]
	h, err := b.meter.Float64Histogram(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit),
		metric.WithExplicitBucketBoundaries(d.Buckets...))
	b.note(err)
	return histogram{h}
}

// upDown returns a counter that may also go down.
func (b *builder) upDown(name string) *counter {
	d := b.defs[name]
	c := b.sums(d)
	_, err := b.meter.Int64ObservableUpDownCounter(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit), metric.WithInt64Callback(c.observe))
	b.note(err)
	return c
}
