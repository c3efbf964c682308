package handoff

import "github.com/seed-60ae5743/baton/pkg/worker"

// Kind says how the KV of a prompt gets from prefill to decode. The zero value is no
// kind.
type Kind uint8

// The kinds.
const (
	Rendezvous   Kind = iota + 1 // both legs at once; they meet at a bootstrap server
	NIXLPull                     // prefill first; decode pulls the KV from where prefill's answer says
	ContextFirst                 // prefill first, with TensorRT-LLM's context_only
	Mooncake                     // both legs at once; decode pulls the KV from where prefill's bootstrap server says
	BySidecar                    // decode's sidecar sends the prefill leg, and hands over as the engine needs it
)

// String returns the kind as labels and the status page show it.
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
	case BySidecar:
		return "by_sidecar"
	default:
		return "invalid"
	}
}

// PrefillFirst reports whether decode needs prefill's answer
// (docs/behaviour.md#prefill-first).
func (k Kind) PrefillFirst() bool { return k == NIXLPull || k == ContextFirst }

// Holds reports whether prefill, which begins together with decode, keeps its KV until
// a decode fetches it: the end of prefill's own request does not free it
// (docs/engines.md#mooncake-holds).
func (k Kind) Holds() bool { return k == Mooncake }

// KindOf returns the kind that the workers of an engine use, or 0 for an unknown
// engine. BySidecar is of no engine: whoever knows that decode has a sidecar says so.
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
