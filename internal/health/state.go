package health

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State is what may be done with a worker. See the package comment.
type State uint8

// The states. The zero value is Healthy.
const (
	Healthy State = iota
	Aside
	Probing
	Recovering
	numStates
)

var stateNames = [...]string{Healthy: "healthy", Aside: "aside", Probing: "probing", Recovering: "recovering"}

// String returns the label of the state.
func (s State) String() string {
	if s >= numStates {
		return "invalid"
	}
	return stateNames[s]
}

func (s State) aside() bool { return s == Aside || s == Probing }

// Outcome is what a request met at a worker.
type Outcome uint8

// The outcomes.
const (
	OK             Outcome = iota // it served a request to its end
	NotStarted                    // the request did not reach it, or says nothing of it
	ConnectFailed                 // the connection was refused or could not be made
	ConnectionLost                // the connection broke before the answer began
	BrokeOff                      // the answer broke off after its headers
	ServerError                   // a 5xx status, or an answer that says error
	Refused                       // a 4xx status, 408 and 429 among them
	Overdue                       // its booked prefill took longer than the rule allows
	Timeout                       // past the time-out of the leg
	numOutcomes
)

var outcomeNames = [...]string{
	OK: "ok", NotStarted: "not-started", ConnectFailed: "connect-failed", ConnectionLost: "connection-lost",
	BrokeOff: "broke-off", ServerError: "server-error", Refused: "refused", Overdue: "overdue", Timeout: "timeout",
}

// String returns the label of the outcome.
func (o Outcome) String() string {
	if o >= numOutcomes {
		return "invalid"
	}
	return outcomeNames[o]
}

// Report is what one attempt of a request met at a worker.
type Report struct {
	Outcome Outcome

	// Request names the client's request, the same for all its attempts. 0: not
	// known; it counts as another one than any.
	Request uint64

	// Since is when this worker was asked. Read with Overdue and Timeout; zero:
	// not known, taken for after all that the worker has served.
	Since time.Time

	// Proven: another worker has served the same request, so that the fault is
	// this worker's.
	Proven bool
}

// Reason is why a worker changed its state: a closed set, fit for a label.
type Reason string

// The reasons that are not the label of an Outcome. Of outcomes there are
// connect-failed, connection-lost, overdue and timeout.
const (
	ReasonServerErrors Reason = "server-errors" // several in a row
	ReasonHandoff      Reason = "handoff"       // hand-offs failed with different partners
	ReasonAnswered     Reason = "answered"      // a request was answered
	ReasonProbe        Reason = "probe"         // a probe succeeded
	ReasonShare        Reason = "share"         // let back, since too much of a pool was aside
)

func reasonOf(o Outcome) Reason { return Reason(o.String()) }

// Transition is one change of state. Probing counts as Aside here: a probe that
// begins or fails is no transition.
type Transition struct {
	Rank     worker.Rank
	OwnPort  bool // the rank has a port of its own; else it is rank 0, and all of the worker
	From, To State
	Reason   Reason
	At       time.Time
}

// Silent reports whether it went aside because it does not answer: what waits
// for it waits in vain.
func (t *Transition) Silent() bool {
	return t.To == Aside && (t.Reason == reasonOf(ConnectFailed) || t.Reason == reasonOf(Overdue) || t.Reason == reasonOf(Timeout))
}

// Hooks are called when something happens, in order and under the Tracker's
// lock: they must be quick and must not call the Tracker. Any may be nil.
type Hooks struct {
	// Transition is called once for each change of state.
	Transition func(Transition)

	// Spared is called when a worker should go aside and there is no room:
	// once until it has served a request or gone aside.
	Spared func(rank worker.Rank, r Reason, at time.Time)
}

// RankHealth is one worker, or one rank of it, as the status page shows it.
type RankHealth struct {
	Rank              worker.Rank
	OwnPort           bool // the rank has a port of its own; else it is rank 0, and all of the worker
	State             State
	Reason            Reason    // of the last transition; empty if there was none
	Since             time.Time // of the last transition; zero if there was none
	ConsecutiveErrors int       // server errors in a row
	Relapses          int       // times it failed while recovering
	SparedFor         Reason    // why it should be aside, while too many others are; else empty
	Suspected         bool      // a probe of it is under way or to come, though it is in service
}
