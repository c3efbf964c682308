package engine

import (
	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engine is what is known of one engine. Nobody changes it. What is not known of an engine is
// false, zero or nil.
type Engine struct {
	Name    worker.Engine
	HandOff handoff.Kind // nil: none is known, so nothing is handed over

	// Of its requests.

	// FetchesLacking says that a decode worker fetches from prefill only those blocks of a
	// prompt that it lacks.
	FetchesLacking bool
	// Truncates says that the engine cuts a prompt if the request asks for that
	// (docs/engines.md#truncation).
	Truncates bool
	// ServesAnyModel says that the engine serves a request for a model that it does not have.
	ServesAnyModel bool
	// DefaultModel is the name by which a request asks for the engine's only model; "": none is.
	DefaultModel string
	// AdapterInModel says that a request names a LoRA adapter behind the model's name and a
	// colon, or in a member; else an adapter is a model of its own.
	AdapterInModel bool
	// NamesResponses says that the id of a response is what its request has as request_id.
	NamesResponses bool
	// PrefillServes says that a prefill worker can serve a whole request, too.
	PrefillServes bool
	// DecodePrefills says that a decode worker can serve a request without a prefill, unless
	// its record says otherwise.
	DecodePrefills bool

	// HealthComputes says that /health has a token computed, and answers 503 if that takes too
	// long: the engine may be busy.
	HealthComputes bool

	// Of its KV events.

	// TellsAsItWrites says that KV events name each block of an answer as soon as the block is
	// full; else they name the blocks of an answer when it has ended.
	TellsAsItWrites bool
	// FirstClears says that the first message of a publisher says that its cache is empty.
	FirstClears bool

	// Of its tokens.

	// TellsPictures says that the engine can be asked which pictures a prompt has, and counts
	// the tokens of pictures when it tokenizes a prompt (docs/engines.md#render).
	TellsPictures bool

	// AsChat returns the chat request that the engine makes of a body of /v1/responses or
	// /v1/messages; ok is false if that is not known. Nil: of none is.
	AsChat func(body []byte, r *openai.Request) (chat []byte, ok bool)
	// RendersOn are the paths of which a page below tells the tokens of a request.
	RendersOn []openai.Path

	// ChatCaller has the rules by which the engine renders chat templates. nil: none are known,
	// so no tokens are made here for such an engine.
	ChatCaller *chat.Caller

	// Of its record and its pages.

	// NoBootstrap says why a prefill worker that lacks what [worker.Worker.LacksBootstrap] asks
	// for is not picked, and what to add.
	NoBootstrap string
	// HidesRole says that no page of the engine names the role of a worker.
	HidesRole bool
	// HidesBlockSize says that older versions do not tell the size of a KV block.
	HidesBlockSize bool
	// RanksInMetrics says that the number of ranks, how the KV cache is cut, and the process are
	// known from the page of metrics alone.
	RanksInMetrics bool
	// Bootstrap is the port of the server at which decode workers find a prefill worker, where a
	// worker's record does not say it and the engine's pages do not; 0: none is to be asked.
	Bootstrap uint16
	Pages     ask.Reader
	// Recognized says that no other engine is taken for this one when it is asked by this
	// one's own pages.
	Recognized bool
}
