package enginesim

import (
	"context"
	"net/http"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// protocol is how one engine differs from others: how the halves of a request meet, and
// the pages that only this engine has. Other code does not depend on the engine. The
// goroutines of requests call the methods.
type protocol interface {
	// pages adds the engine's own pages to those of all engines.
	pages(mux *http.ServeMux)
	// plan checks the request's fields, sets the call's leg, and returns one item for
	// each choice of each prompt.
	plan(c *call, h http.Header) ([]*item, error)
	// prepare computes or fetches the KV of an item, up to its first token.
	prepare(ctx context.Context, c *call, it *item) error
	// output returns the number of tokens of the answer, and the finish reason.
	output(c *call) (tokens int, reason string)
	// handOver is called once, when the answer is known and before any byte of it is
	// sent. From then on the KV of a prefill may be held for its decode.
	handOver(c *call, reason string)
	// errorBody is the JSON value of an error, as an answer or inside a stream.
	errorBody(e *apiError, stream bool) any
	// shape returns what the engine's answers have in addition to those of all engines.
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

// leg says which part of a request a call serves.
type leg uint8

const (
	legWhole   leg = iota // served from prompt to last token
	legPrefill            // a decode takes its KV; its answer is one token
	legDecode             // it takes its KV from a prefill
)

// String returns the leg's name in the request log.
func (l leg) String() string { return [...]string{"", "prefill", "decode"}[l] }
