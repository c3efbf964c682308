package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Running says what one rank of an engine runs.
type Running struct {
	Rank   int
	Blocks int64 // KV blocks that running requests hold
	// Requests are the requests that hold blocks: they run, or wait for KV to come.
	Requests int64
	// Asleep says that the rank has given up its KV cache.
	Asleep bool
}

// ErrNotTold means that an engine's page does not say what the engine runs.
var ErrNotTold = errors.New("does not tell what it runs")

// RunningPath is the page that says what an engine runs, "" if the engine has none.
func RunningPath(k Kind) string {
	switch k {
	case SGLang:
		return "/v1/loads?include=core,disagg"
	case VLLM, VLLMMooncake:
		return "/metrics"
	default:
		return ""
	}
}

// TellsSleep reports whether that page says that the engine sleeps.
func TellsSleep(k Kind) bool { return k == VLLM || k == VLLMMooncake }

// ParseRunning reads that page. blockSize and capacity are known facts of a rank; a
// capacity on the page is used instead. Ranks without the numbers on the page are left
// out. The error wraps ErrNotTold if no rank is left.
func ParseRunning(k Kind, page []byte, blockSize uint32, capacity uint64) ([]Running, error) {
	if k == SGLang {
		return sglangRunning(page, blockSize)
	}
	return vllmRunning(page, capacity)
}

func sglangRunning(page []byte, blockSize uint32) (out []Running, err error) {
	var in struct {
		Loads []struct {
			sglangLoad
			Rank int    `json:"dp_rank"`
			Used *int64 `json:"num_used_tokens"`
		} `json:"loads"`
	}
	if err := json.Unmarshal(page, &in); err != nil {
		return nil, fmt.Errorf("expected a JSON list of loads: %w", err)
	}
	size := int64(max(blockSize, 1))
	for _, l := range in.Loads {
		if l.Running == nil || l.Used == nil || *l.Used < 0 || *l.Running < 0 {
			continue
		}
		r := Running{Rank: l.Rank, Blocks: (*l.Used + size - 1) / size, Requests: int64(*l.Running)}
		if l.Disagg != nil {
			r.Requests += int64(max(l.Disagg.DecodeTransfer, 0))
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: expected num_running_reqs and num_used_tokens", ErrNotTold)
	}
	return out, nil
}

// vllmSleep says whether an engine sleeps, and in which state.
const vllmSleep = "vllm:engine_sleep_state"

// vllmUsage are the names of the share of KV blocks in use, in newer and older versions.
var vllmUsage = []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}

func vllmRunning(page []byte, capacity uint64) (out []Running, err error) {
	const running, info = "vllm:num_requests_running", "vllm:cache_config_info"
	at := map[int]*vllmRank{}
	rank := func(s sample) *vllmRank {
		n, _ := strconv.Atoi(s.label("engine")) // an older vLLM has no such label
		if at[n] == nil {
			at[n] = &vllmRank{usage: math.NaN(), running: math.NaN(), blocks: float64(capacity)}
		}
		return at[n]
	}
	wanted := func(name string) bool {
		return name == running || name == info || name == vllmSleep || name == vllmUsage[0] || name == vllmUsage[1]
	}
	samples(page, wanted, func(s sample) {
		switch s.name {
		case running:
			rank(s).running = s.value
		case vllmSleep:
			// Only these two states mean that the KV cache is gone. The state awake is 0
			// also if the engine is only paused.
			if state := s.label("sleep_state"); s.value == 1 && (state == "weights_offloaded" || state == "discard_all") {
				rank(s).asleep = true
			}
		case info:
			if n, err := strconv.ParseUint(s.label("num_gpu_blocks"), 10, 32); err == nil && n > 0 {
				rank(s).blocks = float64(n)
			}
		default:
			rank(s).usage = s.value
		}
	})
	for n, r := range at {
		if r.usage >= 0 && r.usage <= 1 && r.running >= 0 && r.running <= 1<<31 && r.blocks > 0 {
			out = append(out, Running{Rank: n, Blocks: int64(math.Round(r.usage * r.blocks)), Requests: int64(r.running), Asleep: r.asleep})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: expected %s, %s and the blocks that there are", ErrNotTold, running, vllmUsage[0])
	}
	return out, nil
}

// vllmRank is what the page says of one rank; NaN: not on the page.
type vllmRank struct {
	usage, running, blocks float64
	asleep                 bool
}
