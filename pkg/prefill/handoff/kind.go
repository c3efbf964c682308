package handoff

import "github.com/seed-60ae5743/baton/pkg/worker"

// Kind is how the KV of a prompt gets from prefill to decode. The zero value
// is no kind.
type Kind uint8

// The kinds.
const (
	Rendezvous   Kind = iota + 1 // both at once, meeting at a bootstrap server
	NIXLPull                     // prefill first; decode pulls from where its answer says
	ContextFirst                 // prefill first, as TensorRT-LLM's context_only
	Mooncake                     // both at once; decode pulls from where prefill's bootstrap server says
)

// String returns the kind as it stands in labels and on the status page.
func (k Kind) String() string {
	switch k {
	case Rendezvous:
		return "rendezvous"
	case NIXLPull:
		return "nixl_pull"
	case ContextFirst:
		return "context_first"
	case Mooncake:
		return "mooncake"
	default:
		return "invalid"
	}
}

// PrefillFirst reports whether decode needs prefill's answer
// (docs/behaviour.md#prefill-first).
func (k Kind) PrefillFirst() bool { return k == NIXLPull || k == ContextFirst }

// Holds reports whether prefill, which starts beside decode, keeps what it has computed
// for a decode that never comes: no end of its own request frees it
// (docs/engines.md#mooncake-holds).
func (k Kind) Holds() bool { return k == Mooncake }

// KindOf returns the kind that an engine's workers speak, 0 for none.
func KindOf(e worker.Engine) Kind {
	switch e {
	case worker.SGLang:
		return Rendezvous
	case worker.VLLM:
		return NIXLPull
	case worker.TensorRTLLM:
		return ContextFirst
	case worker.VLLMMooncake:
		return Mooncake
	default:
		return 0
	}
}
