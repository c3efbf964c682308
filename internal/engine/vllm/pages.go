package vllm

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// foreignOwner is the owner that trtllm-serve gives for its model: its other pages are as vLLM's.
const foreignOwner = "tensorrt_llm"

// Pages is how vLLM is asked.
var Pages = ask.Reader{
	Title: "vLLM", Facts: Facts, Gauges: gauges,
	Count: func(ctx context.Context, p ask.Pages) (int, error) { return ask.Sum(ctx, p, gauges) },
	Running: &ask.RunningPage{
		Path: "/metrics",
		Read: func(page []byte, _ uint32, capacity uint64) ([]ask.Running, error) { return running(page, capacity) },
		Losses: []ask.LossCounter{ // docs/engines.md#vllm-losses
			{Name: "vllm:nixl_num_kv_expired_reqs_total", Of: ask.Expired},
			{Name: "vllm:nixl_num_notifications_after_expiry_total", Of: ask.ReadLate},
			{Name: "vllm:nixl_num_failed_transfers_total", Of: ask.Failed},
		},
	},
}

// Facts reads what vLLM says of itself. Without its page of metrics the ranks and blocks are not known.
func Facts(ctx context.Context, p ask.Pages) (ask.Facts, error) {
	version, err := ask.Version(ctx, p)
	if err != nil {
		return ask.Facts{}, err
	}
	body, err := p.Get(ctx, "/v1/models")
	if err != nil {
		return ask.Facts{}, err
	}
	f := ask.Facts{Engine: worker.VLLM, Version: version}
	list, err := ask.Models(body)
	if err != nil {
		return ask.Facts{}, fmt.Errorf("/v1/models: %w", err)
	}
	f.Models, f.Adapters, f.MaxModelLen = list.Names, list.Adapters, list.Length
	f.Pair[worker.EngineVersion], f.Pair[worker.Weights] = version, list.Root
	if slices.Contains(list.Owners, foreignOwner) {
		return ask.Facts{}, fmt.Errorf("/v1/models: owned_by %s: not of vLLM, expected --engine trtllm", foreignOwner)
	}
	page, err := ask.IfThere(ctx, p, "/metrics")
	readCacheConfig(&f, page)
	f.Mark.Start, f.Unread.Metrics = ask.StartTime(page), err
	var sources sources
	sources, f.Unread.Events = events(ctx, p)
	f.KV = sources.kv
	if f.DPSize == 0 && f.Unread.Metrics == nil { // its metrics are off
		f.DPSize, f.FirstRank = sources.ranks, sources.first
	}
	return f, nil
}

// sources is what /kv_event_sources says: where the ranks of the process publish.
type sources struct {
	kv    ask.KVEvents
	first worker.DPRank // by the engine's numbers
	ranks uint32
}

// events reads where the engine publishes its KV events. 0.32 has a page for it;
// older versions have not.
func events(ctx context.Context, p ask.Pages) (sources, error) {
	const path = "/kv_event_sources"
	body, err := ask.IfThere(ctx, p, path)
	if err != nil || body == nil {
		return sources{kv: ask.KVEvents{Untold: true}}, err
	}
	s, err := parseEventSources(body)
	if err != nil {
		return sources{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// source is where one rank publishes.
type source struct {
	Enabled   bool   `json:"enable_kv_cache_events"`
	Publisher string `json:"publisher"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint"`
	Topic     string `json:"topic"`
}

// parseEventSources reads the answer of /kv_event_sources, which has a source for each
// rank of the process, by the engine's numbers: 2 and 3 of the second process, if each
// has two (docs/engines.md#vllm-event-sources).
func parseEventSources(body []byte) (out sources, err error) {
	var told map[worker.DPRank]source
	if err := json.Unmarshal(body, &told); err != nil {
		return out, ask.WrongJSON(err)
	}
	ranks := slices.Sorted(maps.Keys(told))
	if len(ranks) == 0 {
		return out, nil
	}
	out.first = ranks[0]
	out.ranks = uint32(ranks[len(ranks)-1]-ranks[0]) + 1
	if out.ranks > worker.MaxDPSize {
		return out, fmt.Errorf("ranks %d to %d: expected at most %d", ranks[0], ranks[len(ranks)-1], worker.MaxDPSize)
	}
	kv := &out.kv
	kv.Exact, kv.Topic = true, told[out.first].Topic
	places := make([]worker.EventsPlace, out.ranks)
	for dp := range places {
		s, ok := told[out.first+worker.DPRank(dp)] //nolint:gosec // bounded above
		if !ok || !s.Enabled || s.Publisher != "zmq" {
			continue
		}
		places[dp] = s.place()
		if places[dp].Port == 0 {
			kv.Fault = fmt.Sprintf("rank %d publishes its KV events at %.80q, where no other machine can read them: "+
				"expected \"endpoint\":\"tcp://*:PORT\" in the engine's --kv-events-config", int(out.first)+dp, s.Endpoint)
		}
	}
	kv.Host, kv.Port, kv.ReplayPort, kv.Ranks = places[0].Host, places[0].Port, places[0].ReplayPort, places
	kv.KVEvents = kv.Placed(out.ranks)
	return out, nil
}

// place returns where a rank publishes; the zero port: where no other machine can read it. vLLM
// dials 0.0.0.0, where others listen.
func (s *source) place() (at worker.EventsPlace) {
	host, port := ask.TCPEndpoint(s.Endpoint)
	_, at.ReplayPort = ask.TCPEndpoint(s.Replay)
	if host != "0.0.0.0" {
		at.Host, at.Port = ask.Bound(host), port
	}
	return at
}

// readCacheConfig reads vllm:cache_config_info, which has its facts in labels, and one
// sample for each data-parallel engine of the process, with the engine's number.
func readCacheConfig(f *ask.Facts, page []byte) {
	engines := map[string]bool{}
	ask.Samples(page, func(name string) bool { return name == "vllm:cache_config_info" }, func(s ask.Sample) {
		// vLLM writes None for what is not known yet. With context parallelism a block of
		// the cache, of its hashes and of its events has block_size tokens on each of the
		// devices: the second label counts them all. Older versions lack it.
		for _, label := range []string{"block_size", "effective_attention_block_size"} {
			if n, err := strconv.ParseUint(s.Label(label), 10, 32); err == nil && n > 0 {
				f.BlockSize = uint32(n)
			}
		}
		if n, err := strconv.ParseUint(s.Label("num_gpu_blocks"), 10, 64); err == nil {
			f.CapacityBlocks = n
		}
		f.Pair[worker.KVDType] = s.Label("cache_dtype")
		n, _ := strconv.ParseUint(s.Label("engine"), 10, 16) // an older vLLM has no such label
		if rank := worker.DPRank(n); len(engines) == 0 || rank < f.FirstRank {
			f.FirstRank = rank
		}
		if len(engines) < worker.MaxDPSize {
			engines[s.Label("engine")] = true
		}
	})
	f.DPSize = uint32(len(engines))              //nolint:gosec // bounded above
	f.CapacityBlocks /= max(uint64(f.DPSize), 1) // each sample has the sum of all
}

var gauges = []string{"vllm:num_requests_running", "vllm:num_requests_waiting"}

// sleep says whether an engine sleeps, and in which state.
const sleep = "vllm:engine_sleep_state"

// usage are the names of the share of KV blocks in use, in newer and older versions.
var usage = []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}

func running(page []byte, capacity uint64) (out []ask.Running, err error) {
	const running, waiting, info = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:cache_config_info"
	at, infos := map[int]*rankRuns{}, 0.0
	rank := func(s ask.Sample) *rankRuns {
		n, _ := strconv.Atoi(s.Label("engine")) // an older vLLM has no such label
		if at[n] == nil {
			at[n] = &rankRuns{usage: math.NaN(), running: math.NaN(), blocks: float64(capacity)}
		}
		return at[n]
	}
	wanted := func(name string) bool {
		return name == running || name == waiting || name == info || name == sleep || name == usage[0] || name == usage[1]
	}
	ask.Samples(page, wanted, func(s ask.Sample) {
		switch s.Name {
		case running:
			rank(s).running = s.Value
		case waiting:
			rank(s).waiting = s.Value
		case sleep:
			// Only these two states mean that the KV cache is gone. The state awake is 0
			// also if the engine is only paused.
			if state := s.Label("sleep_state"); s.Value == 1 && (state == "weights_offloaded" || state == "discard_all") {
				rank(s).asleep = true
			}
		case info:
			if n, err := strconv.ParseUint(s.Label("num_gpu_blocks"), 10, 32); err == nil && n > 0 {
				rank(s).blocks, rank(s).told = float64(n), true
				infos++
			}
		default:
			rank(s).usage = s.Value
		}
	})
	for n, r := range at {
		if r.told { // each sample has the sum of all
			r.blocks /= infos
		}
		if r.usage >= 0 && r.usage <= 1 && r.running >= 0 && r.running <= 1<<31 && r.blocks > 0 {
			out = append(out, ask.Running{Rank: n, Blocks: int64(math.Round(r.usage * r.blocks)), Requests: int64(r.running), Waiting: int64(min(max(r.waiting, 0), 1<<31)), Asleep: r.asleep})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: expected %s, %s and the blocks that there are", ask.ErrNotTold, running, usage[0])
	}
	return out, nil
}

// rankRuns is what the page says of one rank; NaN: not on the page.
type rankRuns struct {
	usage, running, blocks float64
	waiting                float64 // 0 also if it is not on the page
	asleep                 bool
	told                   bool // blocks is of the page
}
