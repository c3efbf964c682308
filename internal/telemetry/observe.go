package telemetry

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/seed-60ae5743/baton/internal/trouble"
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

// WorkerState is that of workers of a role.
type WorkerState struct {
	Role  worker.Role
	State string // healthy, aside, partly aside, recovering or draining
}

// Standing is that of keys (model and namespace).
type Standing struct {
	Activation string
	CanServe   bool
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
	Workers  map[WorkerState]int64
	Keys     map[Standing]int64
	Queues   []Queue
	Infos    []WorkerInfo
	Pools    []PoolLoad
	Troubles map[string]int64 // by TroubleKinds; nil: nobody judges, and nothing is shown
	Ignored  []string         // parts of another picker's scheduler that have no counterpart
	Problems int64
	Expired  int64            // workers that are served although their records have expired
	Facts    map[string]int64 // workers whose engines are asked for facts, by state
	Replicas map[string]int64 // other replicas, by how far they are heard
	Streams  map[string]int64 // ranks, by the state of their KV events
	Silent   int64            // workers whose KV events are expected and do not come

	BodyBytes, BodyLimit int64 // of request bodies: in flight, and the most that may be
	Waiting              int64 // requests that wait for a worker to return
	Still                int64 // streamed answers whose bytes stand still

	QueueLimit int64 // in tokens, for each of Queues; 0: no limit
}

type observables struct {
	meter metric.Meter
	float map[string]metric.Float64Observable
	whole map[string]metric.Int64Observable // the others, by name
}

func (b *builder) observables() observables {
	o := observables{meter: b.meter, float: map[string]metric.Float64Observable{}, whole: map[string]metric.Int64Observable{}}
	for name, d := range b.defs {
		help, unit := metric.WithDescription(d.Help), metric.WithUnit(d.Unit)
		var err error
		switch {
		case name == MetricIndexShed:
			o.whole[name], err = b.meter.Int64ObservableCounter(name, help, unit)
		case d.Kind != Gauge || name == MetricStreams || name == MetricBuildInfo: // those two are made elsewhere
		case d.Unit == "s":
			o.float[name], err = b.meter.Float64ObservableGauge(name, help, unit)
		default:
			o.whole[name], err = b.meter.Int64ObservableGauge(name, help, unit)
		}
		b.note(err)
	}
	return o
}

// Observe registers a function that is called at each scrape, one call at a time. It
// appends to the slices of the Observation, which are empty and keep their memory from
// the scrape before, and sets the other fields. The function that is returned ends this.
func (i *Instruments) Observe(read func(o *Observation)) (stop func() error, err error) {
	if i.observables.meter == nil {
		return func() error { return nil }, nil
	}
	var (
		mu sync.Mutex // guards o
		o  Observation
		g  = i.observables
	)
	var all []metric.Observable
	for _, x := range g.float {
		all = append(all, x)
	}
	for _, x := range g.whole {
		all = append(all, x)
	}
	reg, err := g.meter.RegisterCallback(func(_ context.Context, w metric.Observer) error {
		mu.Lock()
		defer mu.Unlock()
		o = Observation{Ranks: o.Ranks[:0], Queues: o.Queues[:0], Infos: o.Infos[:0], Pools: o.Pools[:0]}
		read(&o)
		g.show(w, &o)
		return nil
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("telemetry: register gauges: %w", err)
	}
	return reg.Unregister, nil
}

func (g *observables) show(w metric.Observer, o *Observation) {
	w.ObserveInt64(g.whole[MetricReady], zeroOrOne(o.Ready))
	w.ObserveInt64(g.whole[MetricViewRevision], int64(min(o.Revision, 1<<63-1)))
	w.ObserveInt64(g.whole[MetricViewStale], zeroOrOne(o.Stale))
	w.ObserveInt64(g.whole[MetricProblems], o.Problems)
	w.ObserveInt64(g.whole[MetricStaleWorkers], o.Expired)
	w.ObserveFloat64(g.float[MetricViewAge], o.Age.Seconds())
	w.ObserveInt64(g.whole[MetricKVSilent], o.Silent)
	g.showTroubles(w, o.Troubles)
	for _, part := range o.Ignored[:min(len(o.Ignored), trouble.MostOfKind)] {
		w.ObserveInt64(g.whole[MetricIgnored], 1, with(labels{part}, LabelPart))
	}
	g.showInfos(w, o.Infos)
	g.showPools(w, o.Pools)
	for name, states := range map[string]map[string]int64{MetricFacts: o.Facts, MetricReplicas: o.Replicas, MetricKVStreams: o.Streams} {
		for state, n := range states {
			w.ObserveInt64(g.whole[name], n, with(labels{state}, LabelState))
		}
	}
	for c, n := range o.Workers {
		w.ObserveInt64(g.whole[MetricWorkers], n, with(labels{c.Role.String(), c.State}, LabelRole, LabelState))
	}
	for c, n := range o.Keys {
		w.ObserveInt64(g.whole[MetricKeys], n, with(labels{c.Activation, strconv.FormatBool(c.CanServe)}, LabelActivation, LabelCanServe))
	}
	w.ObserveInt64(g.whole[MetricBodyBytes], o.BodyBytes)
	w.ObserveInt64(g.whole[MetricWaiting], o.Waiting)
	w.ObserveInt64(g.whole[MetricStill], o.Still)
	w.ObserveInt64(g.whole[MetricBodyLimit], o.BodyLimit)
	w.ObserveInt64(g.whole[MetricQueueLimit], o.QueueLimit)
	for _, q := range o.Queues {
		w.ObserveInt64(g.whole[MetricQueuedTokens], q.Tokens, with(labels{q.Model}, LabelModel))
	}
	for i := range o.Ranks {
		r := &o.Ranks[i]
		set := with(labels{r.Rank.ID.String(), strconv.FormatUint(uint64(r.Rank.DPRank), 10), r.Role.String()}, perWorker()...)
		w.ObserveInt64(g.whole[MetricPrefillTokens], r.PrefillTokens, set)
		w.ObserveInt64(g.whole[MetricPrefillRequests], r.PrefillRequests, set)
		w.ObserveInt64(g.whole[MetricDecodeBlocks], r.DecodeBlocks, set)
		w.ObserveInt64(g.whole[MetricDecodingBlocks], r.DecodingBlocks, set)
		w.ObserveInt64(g.whole[MetricDecodeRequests], r.DecodeRequests, set)
		w.ObserveInt64(g.whole[MetricIndexBlocks], r.IndexBlocks, set)
		w.ObserveInt64(g.whole[MetricIndexShed], r.IndexShed, set)
	}
}

func zeroOrOne(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
