package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Op is what an effect asks the runner to do.
type Op uint8

// The values of Op. The comments name the fields of Effect that count, and the event that
// answers.
const (
	OpContinue     Op = iota + 1 // let a message go on unchanged, or a piece of an answer: Of, Body, EndOfStream
	OpRoute                      // answer the request's end, with its destination: Set, Body, Until; EventStale answers if that is past
	OpRouteHeaders               // the same for a request without a body, after its headers: Set
	OpRelay                      // let the response headers go on: Set, Gap; Holds, Wait
	OpImmediate                  // send an ImmediateResponse: Imm
	OpExtend                     // make Envoy's message timeout longer: Wait
	OpPrefill                    // send the prefill leg: Set, Body, Wait, Unread; EventPrefilled answers
	OpCollect                    // send a collecting leg, which fetches the KV that prefill holds: Path, Body, Until; EventCollected answers
	OpPick                       // resolve tokens, pick, reserve; EventPicked, EventRefused or EventAnswered answers. Fail: pick one worker, since the pair has failed so
	OpModels                     // answer a question about all models, or about one: Model, Retry
	OpHealth                     // answer whether the plugin is ready: Retry
	OpReport                     // tell the prefill leg's owner: Report
	OpAbortLeg                   // end the prefill leg
	OpCharge                     // charge a worker in internal/health: Rank, Charge, Proven
	OpSuspect                    // ask internal/health to probe a worker: Rank
	OpPairFailed                 // tell internal/health that a hand-off has failed: Rank, Other
	OpPairServed                 // the same of a hand-off that has worked: Rank, Other
	OpServed                     // another rank has answered in place of decode: Rank; zero: none of our workers
	OpReleaseDecode
	OpReleasePrefill
	OpMark   // note how far the prefill leg has come, for journal and metrics: Report
	OpFinish // note the attempt's outcome, for journal and metrics: Outcome, Fail
	OpLeave  // end the stream without an error: the answer goes on
	OpFound  // note what decode's first events have said: Found
	OpPass   // answer EventFound: the events go on to the client
	OpForget // drop the attempt from the registry: it is over
)

// Effect is one thing the runner is to do. Which fields count depends on Op.
type Effect struct {
	Op          Op
	Of          wire.Kind
	Set         []wire.Header
	Remove      []string
	Body        []byte        // OpRoute: the new body; nil: the client's body goes on
	Gap         time.Duration // OpRelay: how long the answer may stand still; 0: no limit
	Path        openai.Path   // OpCollect
	Model       string        // OpModels: the model that is asked about; "": all of them
	Unread      bool          // OpPrefill: an answer that is too long to be kept is still awaited
	Until       time.Time     // OpRoute, OpCollect: nothing of it is sent after that, since the hand-off is too old then; zero: at any time
	Trailers    bool          // OpRoute: request trailers end the body
	Retry       bool          // OpModels, OpHealth: a fresh attempt is allowed
	Holds       bool          // OpRelay: the head of decode's answer has waited for prefill, for the time Wait
	Token       string        // OpRoute: Plan.AnswerToken
	NewRoute    bool          // OpRoute: Envoy chooses the route again, by the new headers
	Imm         *wire.Immediate
	Wait        time.Duration
	Report      Report
	Rank        worker.Rank
	Other       worker.Rank // OpPairFailed, OpPairServed: the decode rank; Rank is prefill's
	Charge      blame.Charge
	Proven      bool
	Outcome     Outcome
	Fail        *Failure
	Found       openai.Finding
	EndOfStream bool
}

// Late reports whether the hand-off in the effect is too old to be sent at that time.
func (e *Effect) Late(now time.Time) bool { return !e.Until.IsZero() && now.After(e.Until) }

// Outcome is how an attempt ended. The names are metric labels.
type Outcome = blame.Outcome

// The outcomes in which no leg has a part.
const (
	Refused  Outcome = "refused"  // an error of the plugin's or the proxy's, before any worker was asked
	Answered Outcome = "answered" // an answer of the plugin itself
)
