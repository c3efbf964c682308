package telemetry

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// RankLoad is what is booked on one rank, and what the index knows about it.
type RankLoad struct {
	Rank            worker.Rank
	Role            worker.Role
	PrefillTokens   int64
	PrefillRequests int64
	DecodeBlocks    int64
	DecodingBlocks  int64 // that picks count for the rank
	DecodeRequests  int64
	IndexBlocks     int64
	IndexShed       int64 // since the rank was attached to the index
}

// WorkerCount is how many workers of a role are in a state.
type WorkerCount struct {
	Role  worker.Role
	State string // healthy, aside, partly aside, recovering or draining
	Count int64
}

// StandingCount is how many keys (model and namespace) have one standing.
type StandingCount struct {
	Activation string
	CanServe   bool
	Count      int64
}

// Queue is how many prompt tokens are queued at the prefill workers of one model.
type Queue struct {
	Model  string
	Tokens int64
}

// Observation is what the gauges show at a scrape.
type Observation struct {
	Ready    bool
	Revision uint64
	Age      time.Duration
	Stale    bool
	Ranks    []RankLoad
	Workers  []WorkerCount
	Keys     []StandingCount
	Queues   []Queue
	Problems int64
	Expired  int64            // workers that are served although their records have expired
	Facts    map[string]int64 // workers whose engines are asked for facts, by state
	Streams  map[string]int64 // ranks, by the state of their KV events

	BodyBytes, BodyLimit int64 // of request bodies: in flight, and the most that may be
	Waiting              int64 // requests that wait for a worker to return
	Still                int64 // streamed answers whose bytes stand still

	QueueLimit int64 // in tokens, for each of Queues; 0: no limit
}

type observables struct {
	meter                             metric.Meter
	ready, revision, stale            metric.Int64ObservableGauge
	workers, keys, problems, facts    metric.Int64ObservableGauge
	queued, queueLimit, staleWorkers  metric.Int64ObservableGauge
	bodyBytes, bodyLimit              metric.Int64ObservableGauge
	waiting, still                    metric.Int64ObservableGauge
	age                               metric.Float64ObservableGauge
	prefillTokens, prefillRequests    metric.Int64ObservableGauge
	decodeBlocks, decodeRequests, idx metric.Int64ObservableGauge
	decodingBlocks, streams           metric.Int64ObservableGauge
	shed                              metric.Int64ObservableCounter
}

func (b *builder) observables() observables {
	return observables{
		meter:           b.meter,
		ready:           b.gauge(MetricReady),
		revision:        b.gauge(MetricViewRevision),
		stale:           b.gauge(MetricViewStale),
		workers:         b.gauge(MetricWorkers),
		staleWorkers:    b.gauge(MetricStaleWorkers),
		keys:            b.gauge(MetricKeys),
		problems:        b.gauge(MetricProblems),
		facts:           b.gauge(MetricFacts),
		streams:         b.gauge(MetricKVStreams),
		age:             b.floatGauge(MetricViewAge),
		queued:          b.gauge(MetricQueuedTokens),
		queueLimit:      b.gauge(MetricQueueLimit),
		bodyBytes:       b.gauge(MetricBodyBytes),
		waiting:         b.gauge(MetricWaiting),
		still:           b.gauge(MetricStill),
		bodyLimit:       b.gauge(MetricBodyLimit),
		prefillTokens:   b.gauge(MetricPrefillTokens),
		prefillRequests: b.gauge(MetricPrefillRequests),
		decodeBlocks:    b.gauge(MetricDecodeBlocks),
		decodingBlocks:  b.gauge(MetricDecodingBlocks),
		decodeRequests:  b.gauge(MetricDecodeRequests),
		idx:             b.gauge(MetricIndexBlocks),
		shed:            b.observedCounter(MetricIndexShed),
	}
}

// Observe registers a function that is called at each scrape, one call at a time. It
// appends to the slices of the Observation, which are empty and keep their memory from
// the scrape before, and sets the other fields. The function that is returned ends this.
func (i *Instruments) Observe(read func(o *Observation)) (stop func() error, err error) {
	if i == nil {
		return func() error { return nil }, nil
	}
	var (
		mu sync.Mutex // guards o
		o  Observation
		g  = i.observables
	)
	reg, err := g.meter.RegisterCallback(func(_ context.Context, w metric.Observer) error {
		mu.Lock()
		defer mu.Unlock()
		o = Observation{Ranks: o.Ranks[:0], Workers: o.Workers[:0], Keys: o.Keys[:0], Queues: o.Queues[:0]}
		read(&o)
		g.show(w, &o)
		return nil
	}, g.ready, g.revision, g.stale, g.workers, g.staleWorkers, g.keys, g.problems, g.facts, g.streams, g.age, g.queued, g.queueLimit, g.bodyBytes, g.bodyLimit, g.waiting, g.still,
		g.prefillTokens, g.prefillRequests, g.decodeBlocks, g.decodingBlocks, g.decodeRequests, g.idx, g.shed)
	if err != nil {
		return nil, fmt.Errorf("telemetry: register gauges: %w", err)
	}
	return reg.Unregister, nil
}

func (g *observables) show(w metric.Observer, o *Observation) {
	w.ObserveInt64(g.ready, zeroOrOne(o.Ready))
	w.ObserveInt64(g.revision, int64(min(o.Revision, 1<<63-1)))
	w.ObserveInt64(g.stale, zeroOrOne(o.Stale))
	w.ObserveInt64(g.problems, o.Problems)
	w.ObserveInt64(g.staleWorkers, o.Expired)
	w.ObserveFloat64(g.age, o.Age.Seconds())
	for state, n := range o.Facts {
		w.ObserveInt64(g.facts, n, metric.WithAttributeSet(attributeSet([]string{LabelState}, labels{state})))
	}
	for state, n := range o.Streams {
		w.ObserveInt64(g.streams, n, metric.WithAttributeSet(attributeSet([]string{LabelState}, labels{state})))
	}
	for _, c := range o.Workers {
		set := attributeSet([]string{LabelRole, LabelState}, labels{c.Role.String(), c.State})
		w.ObserveInt64(g.workers, c.Count, metric.WithAttributeSet(set))
	}
	for _, c := range o.Keys {
		set := attributeSet([]string{LabelActivation, LabelCanServe}, labels{c.Activation, strconv.FormatBool(c.CanServe)})
		w.ObserveInt64(g.keys, c.Count, metric.WithAttributeSet(set))
	}
	w.ObserveInt64(g.bodyBytes, o.BodyBytes)
	w.ObserveInt64(g.waiting, o.Waiting)
	w.ObserveInt64(g.still, o.Still)
	w.ObserveInt64(g.bodyLimit, o.BodyLimit)
	w.ObserveInt64(g.queueLimit, o.QueueLimit)
	for _, q := range o.Queues {
		w.ObserveInt64(g.queued, q.Tokens, metric.WithAttributeSet(attributeSet([]string{LabelModel}, labels{q.Model})))
	}
	for i := range o.Ranks {
		r := &o.Ranks[i]
		set := metric.WithAttributeSet(attributeSet(perWorker(), labels{
			r.Rank.ID.String(), strconv.FormatUint(uint64(r.Rank.DPRank), 10), r.Role.String(),
		}))
		w.ObserveInt64(g.prefillTokens, r.PrefillTokens, set)
		w.ObserveInt64(g.prefillRequests, r.PrefillRequests, set)
		w.ObserveInt64(g.decodeBlocks, r.DecodeBlocks, set)
		w.ObserveInt64(g.decodingBlocks, r.DecodingBlocks, set)
		w.ObserveInt64(g.decodeRequests, r.DecodeRequests, set)
		w.ObserveInt64(g.idx, r.IndexBlocks, set)
		w.ObserveInt64(g.shed, r.IndexShed, set)
	}
}

func zeroOrOne(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
