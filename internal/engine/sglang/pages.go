package sglang

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// loadsPath is the page that says what the schedulers have.
const loadsPath = "/v1/loads?include=core,disagg"

var pages = ask.Reader{
	Title: "SGLang", Facts: facts, Count: count, Gauges: gauges,
	Running: &ask.RunningPage{
		Path: loadsPath,
		Read: func(page []byte, blockSize uint32, _ uint64) ([]ask.Running, error) { return running(page, blockSize) },
	},
}

// serverInfo is the part of SGLang's /server_info that matters for routing. A pointer is
// nil if the field is absent or null.
type serverInfo struct {
	Mode          *string      `json:"disaggregation_mode"`
	ModelPath     string       `json:"model_path"`
	ServedModel   string       `json:"served_model_name"`
	Host          string       `json:"host"`
	BootstrapPort *uint16      `json:"disaggregation_bootstrap_port"`
	DPSize        *uint32      `json:"dp_size"`
	AttnDPSize    *uint32      `json:"attn_dp_size"` // since 0.5.23; then --enable-dp-attention leaves dp_size at 1
	PageSize      *uint32      `json:"page_size"`
	MaxTokens     *uint64      `json:"max_total_num_tokens"`
	Seed          *json.Number `json:"random_seed"`
	Speculative   string       `json:"speculative_algorithm"`
	Version       string       `json:"version"`
	Revision      string       `json:"revision"`
	KVDType       string       `json:"kv_cache_dtype"`
	KV            *kvEvents    `json:"kv_events"`
	// KVConfig is --kv-events-config: null without it. Versions before 0.5.15 have no
	// kv_events beside it.
	KVConfig *json.RawMessage `json:"kv_events_config"`
	Nodes    uint32           `json:"nnodes"`
}

type kvEvents struct {
	Publisher  string  `json:"publisher"`
	Host       string  `json:"endpoint_host"`
	Port       *uint16 `json:"endpoint_port_base"`
	ReplayPort *uint16 `json:"replay_endpoint_port_base"`
	Topic      string  `json:"topic"`
	BlockSize  *uint32 `json:"block_size"`
}

// parseServerInfo reads an answer of /server_info. JSON that is not SGLang's is an error:
// vLLM has a page of this name, too.
func parseServerInfo(body []byte) (ask.Facts, error) {
	var in serverInfo
	if err := json.Unmarshal(body, &in); err != nil {
		return ask.Facts{}, ask.WrongJSON(err)
	}
	if in.Mode == nil && in.ModelPath == "" {
		return ask.Facts{}, errors.New("neither model_path nor disaggregation_mode: not of SGLang")
	}
	f := ask.Facts{
		Engine: worker.SGLang, Version: in.Version, Role: worker.Aggregated,
		DPSize: in.ranks(), BlockSize: ask.Or0(in.PageSize), BootstrapPort: ask.Or0(in.BootstrapPort), Host: ask.Telling(in.Host),
	}
	if in.Mode != nil && *in.Mode != "null" {
		var err error
		f.Role, err = worker.ParseRole(*in.Mode)
		if err != nil || f.Role == worker.Aggregated {
			return ask.Facts{}, fmt.Errorf("disaggregation_mode %q: expected null, prefill or decode", *in.Mode)
		}
	}
	if in.ServedModel != "" {
		f.Models = []string{in.ServedModel}
	} else if in.ModelPath != "" {
		f.Models = []string{in.ModelPath}
	}
	f.KV = in.events()
	// With --dcp-size a block of the cache and of its events has page_size tokens on each of
	// the devices (kv_event_block_size_of).
	f.BlockSize = cmp.Or(f.KV.BlockSize, f.BlockSize)
	if f.BlockSize > 0 {
		f.CapacityBlocks = ask.Or0(in.MaxTokens) / uint64(f.BlockSize)
	}
	if in.Seed != nil {
		f.Mark.Seed = in.Seed.String()
	}
	f.Eagle = eagle(in.Speculative)
	f.Pair = worker.PairFacts{worker.EngineVersion: in.Version, worker.Weights: in.ModelPath, worker.KVDType: in.KVDType}
	if in.Revision != "" {
		f.Pair[worker.Weights] += "@" + in.Revision
	}
	return f, nil
}

// eagle reports whether a speculative algorithm makes the radix cache work by pairs of
// tokens. It follows SGLang's own predicate SpeculativeAlgorithm.is_eagle(). Older
// versions call EAGLE NEXTN on some models.
// https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/speculative/spec_info.py
func eagle(algorithm string) bool {
	switch strings.ToUpper(algorithm) {
	case "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN":
		return true
	}
	return false
}

// ranks is the number of data-parallel ranks: of the replicas, each of whose groups of DP attention is
// one; 0: not told.
func (in *serverInfo) ranks() uint32 { return ask.Or0(in.DPSize) * max(ask.Or0(in.AttnDPSize), 1) }

// events returns where the engine publishes its KV events, by its own account.
func (in *serverInfo) events() (kv ask.KVEvents) {
	k := in.KV
	switch {
	case k == nil:
		kv.Untold = in.KVConfig != nil
		c := in.configured()
		if _, port := ask.TCPEndpoint(c.Endpoint); c.Publisher == "zmq" && c.Endpoint != "" && port == 0 {
			kv.Untold = false
			kv.Fault = fmt.Sprintf("it publishes its KV events at %.80q, where nobody can find them: "+
				"expected \"endpoint\":\"tcp://*:PORT\" with a port above 0 in the engine's --kv-events-config", c.Endpoint)
		}
	case ask.Or0(k.Port) > 0 && (k.Publisher == "" || k.Publisher == "zmq"):
		kv.KVEvents = worker.KVEvents{Host: ask.Bound(k.Host), Port: *k.Port, ReplayPort: ask.Or0(k.ReplayPort), Topic: k.Topic}
		kv.BlockSize = ask.Or0(k.BlockSize)
		kv.Listens = in.configured().Bind || strings.Contains(k.Host, "::")
		if ranks := in.ranks(); in.Nodes > 1 && ranks > 1 {
			kv.Fault = fmt.Sprintf("its %d ranks are on %d nodes (--nnodes), each publishes its KV events on its own node, and no page names these", ranks, in.Nodes)
			kv.Nodes = in.Nodes
		}
	}
	return kv
}

// kvConfig is --kv-events-config as it was given; the zero value: it was not, or cannot be read.
type kvConfig struct {
	Publisher, Endpoint string
	Bind                bool // it listens, also where the endpoint names a host
}

func (in *serverInfo) configured() (c kvConfig) {
	var text string
	if in.KVConfig != nil && json.Unmarshal(*in.KVConfig, &text) == nil {
		_ = json.Unmarshal([]byte(text), &c)
	}
	return c
}

func facts(ctx context.Context, p ask.Pages) (ask.Facts, error) {
	path := "/server_info"
	body, err := p.Get(ctx, path)
	if ask.Missing(err) {
		path = "/get_server_info"
		body, err = p.Get(ctx, path)
	}
	if err != nil {
		return ask.Facts{}, err
	}
	f, err := parseServerInfo(body)
	if err != nil {
		return ask.Facts{}, fmt.Errorf("%s: %w", path, err)
	}
	body, err = ask.IfThere(ctx, p, "/v1/models")
	if err == nil && body != nil {
		var list ask.List
		list, err = ask.Models(body)
		if err != nil {
			err = fmt.Errorf("/v1/models: %w", err)
		}
		f.Adapters, f.MaxModelLen = list.Adapters, list.Length
		for _, m := range list.Names {
			if !slices.Contains(f.Models, m) {
				f.Models = append(f.Models, m)
			}
		}
	}
	f.Unread.Models = err
	page, err := ask.IfThere(ctx, p, "/metrics")
	f.Mark.Start, f.Unread.Metrics = ask.StartTime(page), err
	return f, nil
}

// load is one rank's part of an answer of /v1/loads.
type load struct {
	Rank    int    `json:"dp_rank"`
	Running *int   `json:"num_running_reqs"`
	Waiting int    `json:"num_waiting_reqs"`
	Used    *int64 `json:"num_used_tokens"`
	Disagg  *struct {
		PrefillPrealloc int `json:"prefill_prealloc_queue_reqs"`
		PrefillAlone    int `json:"prefill_bootstrap_queue_reqs"` // the name in 0.5.23
		PrefillInflight int `json:"prefill_inflight_queue_reqs"`
		DecodePrealloc  int `json:"decode_prealloc_queue_reqs"`
		DecodeTransfer  int `json:"decode_transfer_queue_reqs"`
		DecodeRetracted int `json:"decode_retracted_queue_reqs"`
	} `json:"disaggregation"`
}

// parseLoads returns the loads of those ranks that tell what they run.
func parseLoads(body []byte) ([]load, error) {
	var in struct {
		Loads []load `json:"loads"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("expected a JSON list of loads: %w", err)
	}
	return slices.DeleteFunc(in.Loads, func(l load) bool { return l.Running == nil }), nil
}

// requests counts a rank's requests. One in several queues is counted more than once: what
// matters is whether there are any.
func (l *load) requests() int {
	n := *l.Running + l.Waiting
	if d := l.Disagg; d != nil {
		n += d.PrefillPrealloc + d.PrefillAlone + d.PrefillInflight + d.DecodePrealloc + d.DecodeTransfer + d.DecodeRetracted
	}
	return n
}

// gauges count a worker's requests: running, waiting, and in the queues of the
// hand-off.
var gauges = []string{
	"sglang:num_running_reqs", "sglang:num_queue_reqs",
	"sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_inflight_queue_reqs",
	"sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs",
}

// count prefers /v1/loads, which asks the scheduler, and is there when metrics
// are off. The gauges are used if that page is missing, but not if it fails: they are
// written at intervals, and may still be zero.
func count(ctx context.Context, p ask.Pages) (int, error) {
	body, err := ask.IfThere(ctx, p, loadsPath)
	if err != nil {
		return 0, err
	}
	loads, err := parseLoads(body)
	if err != nil || len(loads) == 0 {
		return ask.Sum(ctx, p, gauges)
	}
	n := 0
	for _, l := range loads {
		n += l.requests()
	}
	return n, nil
}

func running(page []byte, blockSize uint32) (out []ask.Running, err error) {
	loads, err := parseLoads(page)
	if err != nil {
		return nil, err
	}
	size := int64(max(blockSize, 1))
	for _, l := range loads {
		if l.Used == nil || *l.Used < 0 || *l.Running < 0 {
			continue
		}
		r := ask.Running{Rank: l.Rank, Blocks: (*l.Used + size - 1) / size, Requests: int64(*l.Running), Waiting: int64(max(l.Waiting, 0))}
		if l.Disagg != nil {
			r.Requests += int64(max(l.Disagg.DecodeTransfer, 0))
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: expected num_running_reqs and num_used_tokens", ask.ErrNotTold)
	}
	return out, nil
}
