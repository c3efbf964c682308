package ask

import (
	"cmp"
	"errors"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Facts are what an engine says of itself. A zero field is not known.
type Facts struct {
	Engine  worker.Engine
	Version string
	Role    worker.Role
	Models  []string
	// Adapters are those of Models that are LoRA adapters.
	Adapters []string

	DPSize uint32
	// FirstRank is what the engine calls the first of these ranks, if other processes have
	// those before it.
	FirstRank      worker.DPRank
	BlockSize      uint32 // tokens
	CapacityBlocks uint64 // per rank
	MaxModelLen    uint32 // tokens of prompt and answer
	Eagle          bool   // KV blocks are of pairs of tokens
	// Pair has those facts that the workers of a pair must share by this engine's rules.
	Pair worker.PairFacts

	Host          string // on which the engine listens; "" if that does not say where the engine is
	BootstrapPort uint16
	EngineIDs     []string // of the ranks, by Mooncake's bootstrap server
	KV            KVEvents
	Mark          Mark

	Unread Unread
}

// Unread names the pages that the engine has and that could not be read this time. Their
// facts may have changed. A page that is missing (404, 405) is not named: it has no
// facts.
type Unread struct {
	Models  error // /v1/models of SGLang
	Metrics error // /metrics
	Events  error // /kv_event_sources of vLLM
	Engines error // /query of Mooncake's bootstrap server
}

// Err returns the errors joined, or nil.
func (u Unread) Err() error { return errors.Join(u.Models, u.Metrics, u.Events, u.Engines) }

// AdaptersAmong returns the adapters that are in a list of models; nil if none are.
func (f Facts) AdaptersAmong(models []string) (out []string) {
	for _, n := range f.Adapters {
		if slices.Contains(models, n) {
			out = append(out, n)
		}
	}
	return out
}

// CapacityIn returns CapacityBlocks, which the engine counts in blocks of its own size, in
// blocks of so many tokens, at least 1.
func (f Facts) CapacityIn(blockSize uint32) uint64 {
	return f.CapacityBlocks * uint64(cmp.Or(f.BlockSize, blockSize)) / uint64(blockSize)
}

// Keeping returns f with the facts of unread pages taken from an earlier reading, which
// must be of the same process. ranksInMetrics says that the number of ranks and how the KV cache
// is cut are on the page of metrics alone.
func (f Facts) Keeping(before Facts, ranksInMetrics bool) Facts {
	if f.Engine != before.Engine {
		return f
	}
	// Adapters may be listed beside the model, whose name is also on another page.
	if f.Unread.Models != nil && (len(f.Models) == 0 || slices.Contains(before.Models, f.Models[0])) {
		f.Models, f.Adapters, f.MaxModelLen = before.Models, before.Adapters, before.MaxModelLen
	}
	if f.Unread.Events != nil {
		f.KV = before.KV
	}
	if f.Unread.Engines != nil {
		f.EngineIDs = before.EngineIDs
	}
	if f.Unread.Metrics != nil {
		f.Mark.Start = before.Mark.Start
		if ranksInMetrics {
			f.DPSize, f.FirstRank, f.BlockSize, f.CapacityBlocks = before.DPSize, before.FirstRank, before.BlockSize, before.CapacityBlocks
			f.Pair[worker.KVDType] = before.Pair[worker.KVDType]
		}
	}
	return f
}

// KVEvents is where the engine publishes its KV events, by its own account.
type KVEvents struct {
	worker.KVEvents        // Host "", of a rank, too: the worker's own
	BlockSize       uint32 // 0: not told
	// Exact says that the ports are those of the process that was asked; else they are
	// rank 0's of the engine.
	Exact bool
	// Listens says that the engine listens at Host, though a host there mostly is one that it dials.
	Listens bool
	// Fault says why the events that the engine publishes cannot be followed, or not of all
	// ranks, and what to change.
	Fault string
	// Nodes is on how many machines the ranks are, if no page says where these are; 0: the
	// ranks are where they are told.
	Nodes uint32
	// Untold says that no page of the engine says whether it publishes events, as of an
	// older version.
	Untold bool
}

// At returns the places with the worker's own address where the engine says no host.
func (k *KVEvents) At(own string) worker.KVEvents {
	at := k.KVEvents
	at.Host, at.Ranks = cmp.Or(at.Host, own), slices.Clone(at.Ranks)
	for i := range at.Ranks {
		at.Ranks[i].Host = cmp.Or(at.Ranks[i].Host, own)
	}
	return at
}

// Mark tells one life of an engine's process from the next.
type Mark struct {
	Start string // process_start_time_seconds, as written on the page; "": not known
	Seed  string // SGLang's random_seed, drawn at each start unless set; "": not known
}

// Same compares two marks. The second result is false if they do not decide.
//
// If both have a start time, it decides. Of seeds only a difference decides, since an
// operator may have set a fixed one.
func (m Mark) Same(o Mark) (same, known bool) {
	switch {
	case m.Start != "" && o.Start != "":
		return m.Start == o.Start, true
	case m.Seed != "" && o.Seed != "" && m.Seed != o.Seed:
		return false, true
	}
	return false, false
}

// ErrNotCounted is the error of InFlight if the engine was asked and gives no count, for
// example because its metrics are off.
var ErrNotCounted = errors.New("the engine tells no count of its requests")
