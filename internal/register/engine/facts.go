package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Kind says which engine to expect.
type Kind string

// The kinds. Auto tries SGLang's way, then TensorRT-LLM's, then vLLM's.
const (
	Auto        Kind = "auto"
	SGLang      Kind = Kind(worker.SGLang)
	VLLM        Kind = Kind(worker.VLLM)
	TensorRTLLM Kind = Kind(worker.TensorRTLLM)
	// VLLMMooncake is never found by itself: no page tells of vLLM's connector.
	VLLMMooncake Kind = Kind(worker.VLLMMooncake)
)

// ParseKind reads a kind; "" is Auto.
func ParseKind(s string) (Kind, error) {
	switch k := Kind(s); k {
	case "":
		return Auto, nil
	case Auto, SGLang, VLLM, VLLMMooncake, TensorRTLLM:
		return k, nil
	}
	return "", fmt.Errorf("engine %q: expected auto, sglang, vllm, vllm-mooncake or trtllm", s)
}

// Facts is what an engine tells of itself. A zero field was not told.
type Facts struct {
	Engine  worker.Engine
	Version string
	Role    worker.Role
	Models  []string
	// Adapters are those of Models that are LoRA adapters of another.
	Adapters []string

	DPSize         uint32
	BlockSize      uint32 // tokens
	CapacityBlocks uint64 // per rank
	MaxModelLen    uint32 // tokens of prompt and answer
	Eagle          bool   // KV blocks are of token pairs

	Host          string // that the engine listens on, unless that says nothing of where it is
	BootstrapPort uint16
	EngineIDs     []string // of the ranks, as Mooncake's bootstrap server names them
	KV            KVEvents
	Mark          Mark

	Unread Unread
}

// Unread names the pages that the engine has and that could not be read this
// time: what they tell is not known, which is not the same as not told. That a
// page is missing (404, 405) is an answer.
type Unread struct {
	Models  error // /v1/models of SGLang
	Metrics error // /metrics
	Events  error // /kv_event_sources of vLLM
	Engines error // /query of Mooncake's bootstrap server
}

// Err returns what could not be read, or nil.
func (u Unread) Err() error { return errors.Join(u.Models, u.Metrics, u.Events, u.Engines) }

// Keeping returns f with what could not be read taken from before, which must
// be facts of the same process.
func (f Facts) Keeping(before Facts) Facts {
	if f.Engine != before.Engine {
		return f
	}
	// Adapters are named after the model itself, which is told elsewhere.
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
		if f.Engine == worker.VLLM || f.Engine == worker.VLLMMooncake {
			f.DPSize, f.BlockSize, f.CapacityBlocks = before.DPSize, before.BlockSize, before.CapacityBlocks
		}
	}
	return f
}

// KVEvents is where the engine says that it publishes its KV events.
type KVEvents struct {
	worker.KVEvents        // Host "" is the worker's own
	BlockSize       uint32 // 0: not told
}

// Mark is by which one life of an engine's process is told from the next.
type Mark struct {
	Start string // process_start_time_seconds, as it was written; "": not told
	Seed  string // SGLang's random_seed, drawn at each start unless set; "": not told
}

// Same compares two marks: known is false where they tell nothing.
//
// The start time decides alone. Of seeds only a difference is proof: an
// operator may have set one for good.
func (m Mark) Same(o Mark) (same, known bool) {
	switch {
	case m.Start != "" && o.Start != "":
		return m.Start == o.Start, true
	case m.Seed != "" && o.Seed != "" && m.Seed != o.Seed:
		return false, true
	}
	return false, false
}

// Health is the outcome of one question after health.
type Health uint8

// The outcomes. Refused means that nobody listens: the process is gone.
const (
	Healthy Health = iota + 1
	Unhealthy
	Refused
)

var healthNames = [...]string{Healthy: "ok", Unhealthy: "failed", Refused: "refused"}

// String returns "ok", "failed" or "refused"; "unknown" for the zero value.
func (h Health) String() string {
	if h < Healthy || h > Refused {
		return "unknown"
	}
	return healthNames[h]
}

// ErrNotCounted is what InFlight returns when the engine was asked and tells no
// count, for example because its metrics are off.
var ErrNotCounted = errors.New("the engine tells no count of its requests")
