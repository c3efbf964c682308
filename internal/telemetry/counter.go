package telemetry

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// maxSets is how many label combinations a counter counts each for itself.
const maxSets = 256

// labels are the values of a counter's labels, in the order of its keys.
type labels [4]string

// counter is a counter that makes the attribute set of each label combination once.
type counter struct {
	// Set at construction, read-only.
	inst metric.Int64Counter
	keys []string
	over []metric.AddOption
	most int // label combinations that are counted each for itself; with ofWorkers: workers

	ofWorkers bool // the first label is a worker; the others are few

	// With mu only one writer at a time replaces sets. The map is never changed in place:
	// readers load it without a lock.
	mu    sync.Mutex
	named map[string]bool // guarded by mu: the workers that are counted by name
	sets  atomic.Pointer[map[labels][]metric.AddOption]
}

func (c *counter) add(n int64, v labels) {
	o, ok := (*c.sets.Load())[v]
	if !ok {
		o = c.learn(v)
	}
	c.inst.Add(context.Background(), n, o...)
}

// learn adds a combination, or returns the options that count all further ones together.
func (c *counter) learn(v labels) []metric.AddOption {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := *c.sets.Load()
	if c.ofWorkers && !c.hasRoomFor(v[0]) {
		v[0] = Other
	}
	if o, ok := old[v]; ok {
		return o
	}
	if !c.ofWorkers && len(old) >= c.most {
		return c.over
	}
	for i := range v {
		v[i] = strings.Clone(v[i]) // the value may be part of a large string
	}
	o := addOptions(c.keys, v)
	next := maps.Clone(old)
	next[v] = o
	c.sets.Store(&next)
	return o
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

func addOptions(keys []string, v labels) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attributeSet(keys, v))}
}

func attributeSet(keys []string, v labels) attribute.Set {
	kv := make([]attribute.KeyValue, len(keys))
	for i, k := range keys {
		val := strings.ToValidUTF8(v[i], "?")
		if val == "" {
			val = None
		}
		kv[i] = attribute.String(k, val)
	}
	return attribute.NewSet(kv...)
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
	inst, err := b.meter.Int64Counter(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
	b.note(err)
	if len(d.Labels) > len(labels{}) {
		b.note(errors.New(name + ": more labels than a counter can take"))
		return nil
	}
	c := &counter{inst: inst, keys: d.Labels, most: maxSets}
	c.over = addOptions(d.Labels, labels{Other, Other, Other, Other})
	c.sets.Store(&map[labels][]metric.AddOption{})
	if len(d.Labels) == 0 {
		// Shown as 0 from the start: a rate over a counter that appears with its first event
		// misses that event.
		c.add(0, labels{})
	}
	return c
}

func (b *builder) histogram(name string) metric.Float64Histogram {
	d := b.defs[name]
	h, err := b.meter.Float64Histogram(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit),
		metric.WithExplicitBucketBoundaries(d.Buckets...))
	b.note(err)
	return h
}

func (b *builder) upDown(name string) metric.Int64UpDownCounter {
	d := b.defs[name]
	u, err := b.meter.Int64UpDownCounter(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
	b.note(err)
	return u
}

func (b *builder) gauge(name string) metric.Int64ObservableGauge {
	d := b.defs[name]
	g, err := b.meter.Int64ObservableGauge(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
	b.note(err)
	return g
}

func (b *builder) observedCounter(name string) metric.Int64ObservableCounter {
	d := b.defs[name]
	c, err := b.meter.Int64ObservableCounter(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
	b.note(err)
	return c
}

func (b *builder) floatGauge(name string) metric.Float64ObservableGauge {
	d := b.defs[name]
	g, err := b.meter.Float64ObservableGauge(name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
	b.note(err)
	return g
}
