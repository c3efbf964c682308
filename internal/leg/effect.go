package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Op is what an effect asks for.
type Op uint8

// The kinds of effects, with the fields that count.
const (
	OpContinue     Op = iota + 1 // answer the message with nothing changed
	OpRoute                      // answer the request's end: Set, Body
	OpRouteHeaders               // answer the request's headers, whose body passes by: Set
	OpRelay                      // answer the response headers: Set
	OpImmediate                  // ImmediateResponse: Imm
	OpExtend                     // extend Envoy's message timeout: Wait
	OpPrefill                    // ask for prefill: Set, Body, Wait; answers EventPrefilled
	OpCollect                    // let a decode take what prefill holds: Body; answers EventCollected
	OpPick                       // resolve tokens, pick, reserve; answers EventPicked or EventRefused. Fail: one worker only, in its place
	OpModels                     // answer GET /v1/models, or of one model
	OpReport                     // tell the leg's owner: Report
	OpAbortLeg                   // end the prefill leg
	OpCharge                     // tell health: Rank, Charge, Proven
	OpSuspect                    // have health probe a worker: Rank
	OpPairFailed                 // a hand-off has failed: Rank, Other
	OpPairServed                 // one has worked
	OpServed                     // another rank serves in decode's place: Rank, zero where it is none of ours
	OpReleaseDecode
	OpReleasePrefill
	OpMark   // the journal's timings and leg outcome: Report
	OpFinish // the attempt's outcome for journal and metrics: Outcome, Fail
	OpLeave  // end the stream in order; the answer goes on
	OpFound  // what decode's first events have said: Found
	OpPass   // let them go on
	OpForget // the attempt is over: drop it from the registry
)

var opNames = [...]string{
	"", "continue", "route", "route headers", "relay", "immediate", "extend", "prefill", "collect", "pick", "models", "report",
	"abort-leg", "charge", "suspect", "pair failed", "pair served", "served", "release decode", "release prefill", "mark", "finish", "leave", "found", "pass", "forget",
}

func (o Op) String() string { return opNames[o] }

// Effect is one thing the runner is to do. Which fields count depends on Op.
type Effect struct {
	Op          Op
	Of          wire.Kind
	Set         []wire.Header
	Remove      []string
	Body        []byte      // OpRoute: the new body; nil: as it came
	Path        openai.Path // OpCollect
	Model       string      // OpModels: the one that is asked for; empty: all
	Trailers    bool        // OpRoute: request trailers end the body
	Retry       bool        // OpModels: a fresh attempt is allowed
	Holds       bool        // OpExtend: decode's head waits for prefill
	Token       string      // OpRoute: goes with the answer
	NewRoute    bool        // OpRoute: the headers choose the route
	Imm         *wire.Immediate
	Wait        time.Duration
	Report      Report
	Rank        worker.Rank
	Other       worker.Rank // OpPairFailed, OpPairServed: decode, Rank is prefill
	Charge      blame.Charge
	Proven      bool
	Outcome     Outcome
	Fail        *Failure
	Found       openai.Finding
	EndOfStream bool
}

// Outcome is how an attempt ended. The names are metric labels.
type Outcome = blame.Outcome

// The outcomes that no leg makes.
const (
	Refused  Outcome = "refused"  // by the plugin: no worker was asked
	Answered Outcome = "answered" // by the plugin itself
)
