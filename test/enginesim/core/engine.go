package core

import (
	"context"
	"net/http"
)

// Kind is an engine as its package gives it: what holds of its settings, and how it is
// made for a worker.
type Kind struct {
	// Defaults sets the defaults that differ between engines. It runs before those of all
	// engines.
	Defaults func(c *Config)
	// Check reports settings that the engine does not have.
	Check func(c Config, bad func(format string, a ...any))
	// Make returns the engine of one worker. No address is bound yet.
	Make func(s *Sim, c Config) *Engine
}

// Engine is how one engine differs from others: facts, and functions of its package,
// which the goroutines of requests call. A nil function means that the engine has nothing
// of the kind.
type Engine struct {
	Shape *Shape
	// Members are names of members of requests that only this engine reads ([GenRequest.Own]).
	Members []string

	Owner        string // of its models, at /v1/models
	Reserved     int    // KV blocks of each rank that are not for requests
	Nodes        bool   // its cache evicts the nodes of a radix tree
	ClearsFirst  bool   // it empties its cache when it begins, and publishes that
	Growing      bool   // blocks of an answer are shared and published as soon as they are full; else when it ends
	AnyBody      bool   // it takes bodies of any type
	NoResponses  bool   // it refuses requests for a response that it would have to keep
	CachedCounts bool   // the count of a message's tokens says what context management has left

	// Pages adds the engine's own pages to those of all engines.
	Pages func(mux *http.ServeMux)
	// Keyed reports whether a path is served only with the key.
	Keyed func(path string) bool
	// Healthy is asked by the page of health; nil: always.
	Healthy func(ctx context.Context) bool
	// Model adds what the engine says of a model at /v1/models.
	Model func(said map[string]any)
	// Rendezvous serves Config.BootstrapListen.
	Rendezvous http.Handler
	// Bind opens what the engine has besides, once the ports of all engines are bound.
	Bind func() error
	// Close ends that. Nothing is served any more.
	Close func()

	// Serves reports whether requests may name the model, which is none of the worker's
	// names and adapters.
	Serves func(model string) bool
	// Space reads what keeps the blocks of prompt i apart.
	Space func(q *GenRequest, i int) (Namespace, error)
	// Plan checks the request's fields, sets the call's leg, and returns one item for each
	// choice of each prompt, and what is done for them.
	Plan func(c *Call, h http.Header) ([]*Item, Job, error)
	// ErrorBody is the JSON value of an error, as an answer or inside a stream.
	ErrorBody func(of API, e *APIError, stream bool) any
	// AppendEvents appends the payload of one batch of KV events.
	AppendEvents encoder

	// Identity, state and reset see to the engine's part of [Sim.Identity], [Sim.State]
	// and [Sim.Reset].
	Identity func(id *Identity)
	State    func(st *State)
	Reset    func()
}

// Job is what an engine does for one planned request.
type Job interface {
	// Prepare computes or fetches the KV of an item, up to its first token.
	Prepare(ctx context.Context, it *Item) error
	// Output returns the number of tokens of the answer, and the finish reason.
	Output() (tokens int, reason string)
	// HandOver is called once, when the answer is known and before any byte of it is
	// sent. From then on the KV of a prefill may be held for its decode.
	HandOver(reason string)
	// Abandon is called in place of prepare, if the client has left by then.
	Abandon()
	// Release leaves what the request has joined. It may be called several times.
	Release()
}

// Leg says which part of a request a call serves.
type Leg uint8

// The legs.
const (
	LegWhole   Leg = iota // served from prompt to last token
	LegPrefill            // a decode takes its KV; its answer is one token
	LegDecode             // it takes its KV from a prefill
)

// String returns the leg's name in the request log.
func (l Leg) String() string { return [...]string{"", "prefill", "decode"}[l] }
