package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

type op uint8

const (
	opContinue     op = iota + 1 // answer the message with nothing changed
	opRoute                      // answer the request's end: set, body
	opRouteHeaders               // answer the request's headers, whose body passes by: set
	opRelay                      // answer the response headers: set
	opImmediate                  // ImmediateResponse: imm
	opExtend                     // extend Envoy's message timeout: wait
	opPrefill                    // ask for prefill: set, body, wait; answers evPrefilled
	opCollect                    // let a decode take what prefill holds: body; answers evCollected
	opPick                       // resolve tokens, pick, reserve; answers evPicked or evRefused. fail: one worker only, in its place
	opModels                     // answer GET /v1/models, or of one model
	opReport                     // tell the leg's owner: leg, report
	opAbortLeg                   // end the prefill leg
	opCharge                     // tell health: rank, charge, proven
	opSuspect                    // have health probe a worker: rank
	opPairFailed                 // a hand-off has failed: rank, other
	opPairServed                 // one has worked
	opServed                     // another rank serves in decode's place: rank, zero where it is none of ours
	opReleaseDecode
	opReleasePrefill
	opMark   // the journal's timings and leg outcome: report
	opFinish // the attempt's outcome for journal and metrics: outcome, fail
	opLeave  // end the stream in order; the answer goes on
	opFound  // what decode's first events have said: found
	opPass   // let them go on
	opForget // the attempt is over: drop it from the registry
)

var opNames = [...]string{
	"", "continue", "route", "route headers", "relay", "immediate", "extend", "prefill", "collect", "pick", "models", "report",
	"abort-leg", "charge", "suspect", "pair failed", "pair served", "served", "release decode", "release prefill", "mark", "finish", "leave", "found", "pass", "forget",
}

func (o op) String() string { return opNames[o] }

// effect is one thing the runner is to do. Which fields count depends on op.
type effect struct {
	op          op
	of          wire.Kind
	set         []wire.Header
	remove      []string
	body        []byte      // opRoute: the new body; nil: as it came
	path        openai.Path // opCollect
	model       string      // opModels: the one that is asked for; empty: all
	trailers    bool        // opRoute: request trailers end the body
	retry       bool        // opModels: a fresh attempt is allowed
	holds       bool        // opExtend: decode's head waits for prefill
	token       string      // opRoute: goes with the answer
	newRoute    bool        // opRoute: the headers choose the route
	imm         *wire.Immediate
	wait        time.Duration
	report      legReport
	rank        worker.Rank
	other       worker.Rank // opPairFailed, opPairServed: decode, rank is prefill
	charge      blame.Charge
	proven      bool
	outcome     outcome
	fail        *failure
	found       openai.Finding
	endOfStream bool
}

// outcome is how an attempt ended. The names are metric labels.
type outcome = blame.Outcome

// The outcomes that no leg makes.
const (
	outcomeRefused  outcome = "refused"  // by the plugin: no worker was asked
	outcomeAnswered outcome = "answered" // by the plugin itself
)
