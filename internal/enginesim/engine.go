package enginesim

import (
	"context"
	"net/http"
)

// kind is an engine as its package gives it: what holds of its settings, and how it is
// made for a worker.
type kind struct {
	// defaults sets the defaults that differ between engines. It runs before those of all
	// engines.
	defaults func(c *Config)
	// check reports settings that the engine does not have.
	check func(c Config, bad func(format string, a ...any))
	// make returns the engine of one worker. No address is bound yet.
	make func(s *Sim, c Config) *engine
}

// engine is how one engine differs from others: facts, and functions of its package,
// which the goroutines of requests call. A nil function means that the engine has nothing
// of the kind.
type engine struct {
	shape *shape

	owner        string // of its models, at /v1/models
	reserved     int    // KV blocks of each rank that are not for requests
	nodes        bool   // its cache evicts the nodes of a radix tree
	clearsFirst  bool   // it empties its cache when it begins, and publishes that
	growing      bool   // blocks of an answer are shared and published as soon as they are full; else when it ends
	anyBody      bool   // it takes bodies of any type
	noResponses  bool   // it refuses requests for a response that it would have to keep
	cachedCounts bool   // the count of a message's tokens says what context management has left

	// pages adds the engine's own pages to those of all engines.
	pages func(mux *http.ServeMux)
	// keyed reports whether a path is served only with the key.
	keyed func(path string) bool
	// healthy is asked by the page of health; nil: always.
	healthy func(ctx context.Context) bool
	// model adds what the engine says of a model at /v1/models.
	model func(said map[string]any)
	// rendezvous serves Config.BootstrapListen.
	rendezvous http.Handler
	// bind opens what the engine has besides, once the ports of all engines are bound.
	bind func() error
	// close ends that. Nothing is served any more.
	close func()

	// serves reports whether requests may name the model, which is none of the worker's
	// names and adapters.
	serves func(model string) bool
	// space reads what keeps the blocks of prompt i apart.
	space func(q *genRequest, i int) (namespace, error)
	// plan checks the request's fields, sets the call's leg, and returns one item for each
	// choice of each prompt, and what is done for them.
	plan func(c *call, h http.Header) ([]*item, job, error)
	// errorBody is the JSON value of an error, as an answer or inside a stream.
	errorBody func(of api, e *apiError, stream bool) any
	// appendEvents appends the payload of one batch of KV events.
	appendEvents encoder

	// identity, state and reset see to the engine's part of [Sim.Identity], [Sim.State]
	// and [Sim.Reset].
	identity func(id *Identity)
	state    func(st *State)
	reset    func()
}

// job is what an engine does for one planned request.
type job interface {
	// prepare computes or fetches the KV of an item, up to its first token.
	prepare(ctx context.Context, it *item) error
	// output returns the number of tokens of the answer, and the finish reason.
	output() (tokens int, reason string)
	// handOver is called once, when the answer is known and before any byte of it is
	// sent. From then on the KV of a prefill may be held for its decode.
	handOver(reason string)
	// abandon is called in place of prepare, if the client has left by then.
	abandon()
	// release leaves what the request has joined. It may be called several times.
	release()
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
