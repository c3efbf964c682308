package enginesim

import (
	"context"
	"net/http"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// protocol is what one engine does in its own way: how the halves of a request
// meet, and the pages that no other engine has. The rest of the package knows
// no engine. Methods are called by the goroutines of requests.
type protocol interface {
	// pages adds the engine's own pages to those that all engines have.
	pages(mux *http.ServeMux)
	// plan checks what the request must carry, sets the call's leg, and returns
	// one item per prompt and choice.
	plan(c *call, h http.Header) ([]*item, error)
	// prepare brings an item to where its first token exists.
	prepare(ctx context.Context, c *call, it *item) error
	// output returns how many tokens the answer has, and the finish reason.
	output(c *call) (tokens int, reason string)
	// handOver is called once, when the answer is known and no byte of it sent:
	// from here on the KV of a prefill may be held for its decode.
	handOver(c *call, reason string)
	// errorBody is the JSON of an error, as an answer or inside a stream.
	errorBody(e *apiError, stream bool) any
	// shape is what its answers have beside what all have.
	shape() *shape
	// appendEvents appends the payload of one batch of KV events.
	appendEvents(dst []byte, ts float64, events []event, rank uint32) []byte
}

func (s *Sim) newProtocol() protocol {
	switch s.cfg.Engine {
	case worker.VLLM, worker.VLLMMooncake:
		return newVLLM(s)
	case worker.TensorRTLLM:
		return newTRTLLM(s)
	default:
		return sglang{s}
	}
}

// leg is which half of a request a call is.
type leg uint8

const (
	legWhole   leg = iota // served from prompt to last token
	legPrefill            // its KV is for a decode; its answer is one token
	legDecode             // its KV comes from a prefill
)

// String returns the leg as the request log names it.
func (l leg) String() string { return [...]string{"", "prefill", "decode"}[l] }
