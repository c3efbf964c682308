package telemetry

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// WorkerInfo says where a worker is, and what it serves.
type WorkerInfo struct {
	ID             worker.ID
	Role           worker.Role
	Endpoint, Host string
	Models         []string
}

// How many series baton_worker_info has at most: discovery bounds neither models nor workers.
const (
	infoModels = 16
	infoSeries = 1 << 14
)

// PoolLoad is what the ranks in service that serve a model in a role have to do.
type PoolLoad struct {
	Model        string
	Role         worker.Role
	Backlog      float64 // seconds of prompts, the mean of the ranks
	LeastBacklog float64 // the same of the rank that has the least
	FreeBlocks   int64   // of ranks whose capacity is known
	Capacity     int64   // of these ranks, in blocks; 0: of none is it known, or they run no answers
}

// Why a cache's blocks were of no use for a prompt, as values of the label cause.
const (
	LossLoad         = "load"          // the holder had more to do than computing the blocks again costs
	LossConstraint   = "constraint"    // the request, or its pair, ruled the holder out
	LossAside        = "aside"         // the holder was not in service
	LossStaleIndex   = "stale_index"   // the index was behind the engine
	LossEvicted      = "evicted"       // the engine has evicted the blocks since the pick
	LossEstimate     = "estimate"      // the prompt's tokens were estimated
	LossOtherReplica = "other_replica" // another replica's requests came between
	LossEngineSilent = "engine_silent" // the holder's KV events do not come
)

// LossCauses returns every cause of lost overlap.
func LossCauses() []string {
	return []string{LossLoad, LossConstraint, LossAside, LossStaleIndex, LossEvicted, LossEstimate, LossOtherReplica, LossEngineSilent}
}

// OverlapLost counts prompt tokens of a request for the model that a cache held and that were computed all
// the same. The cause is one of LossCauses.
func (i *Instruments) OverlapLost(model, cause string, tokens int64) {
	if tokens > 0 {
		i.overlapLost.add(tokens, labels{model, cause})
	}
}

// TroubleKinds returns every kind of trouble, as values of the label kind: first those by which requests
// fail or wait.
func TroubleKinds() []string {
	return []string{
		"not_ready", "no_workers", "model_unserved", "queue_full", "bodies_full", "socket_lost", "leg_unreachable", "listener_missing",
		"worker_aside", "worker_spared", "worker_doubted", "worker_unheard", "worker_recovering", "worker_stale", "worker_ineligible", "facts_failing",
		"view_stale", "discovery_problem", "pool_mixed", "kv_events_silent", "kv_events_lost", "kv_channel_down", "index_shed", "overlap_wrong",
		"requests_failing", "prompts_estimated", "model_files", "pair_counts", "handoff_lost", "requests_held", "clock_off", "access_log",
		"replica_silent", "replica_unshared", "replica_unmet", "replica_untold", "replica_differs", "replicas_unlisted",
		"config_ignored", "exposed", "key_hidden", "index_dump", "certificate", "record_lost",
	}
}

// showTroubles shows every kind, those of which there are none as 0: an alert on a series that is not there
// never fires.
func (g *observables) showTroubles(w metric.Observer, troubles map[string]int64) {
	if troubles == nil {
		return
	}
	show := func(kind string, n int64) { w.ObserveInt64(g.whole[MetricTrouble], n, with(labels{kind}, LabelKind)) }
	for _, kind := range TroubleKinds() {
		show(kind, 0) // the last observation of a kind counts
	}
	for kind, n := range troubles {
		show(kind, n)
	}
}

func (g *observables) showInfos(w metric.Observer, infos []WorkerInfo) {
	shown, left := 0, 0
	for i := range infos {
		x := &infos[i]
		models := x.Models
		if len(models) == 0 {
			models = []string{None}
		}
		n := min(len(models), infoModels, infoSeries-shown)
		shown, left = shown+n, left+len(models)-n
		for _, m := range models[:n] {
			w.ObserveInt64(g.whole[MetricWorkerInfo], 1, withAll([]string{x.ID.String(), x.Endpoint, x.Role.String(), m, x.Host},
				LabelWorker, LabelEndpoint, LabelRole, LabelModel, LabelHost))
		}
	}
	w.ObserveInt64(g.whole[MetricLeftOut], int64(left))
}

func (g *observables) showPools(w metric.Observer, pools []PoolLoad) {
	for i := range pools {
		x := &pools[i]
		at := with(labels{x.Model, x.Role.String()}, LabelModel, LabelRole)
		w.ObserveFloat64(g.float[MetricBacklog], x.Backlog, at)
		w.ObserveFloat64(g.float[MetricLeastBacklog], x.LeastBacklog, at)
		if x.Capacity > 0 {
			w.ObserveInt64(g.whole[MetricFreeBlocks], x.FreeBlocks, at)
			w.ObserveInt64(g.whole[MetricCapacityBlocks], x.Capacity, at)
		}
	}
}
