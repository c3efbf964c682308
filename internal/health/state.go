package health

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State says what may be done with a worker. See the package comment.
type State uint8

// The states. The zero value is Healthy.
const (
	Healthy State = iota
	Doubted
	Aside
	Probing
	Recovering
	numStates
)

var stateNames = [...]string{Healthy: "healthy", Doubted: "doubted", Aside: "aside", Probing: "probing", Recovering: "recovering"}

// String returns the label of the state.
func (s State) String() string {
	if s >= numStates {
		return "invalid"
	}
	return stateNames[s]
}

func (s State) aside() bool { return s == Aside || s == Probing }

func (s State) away() bool { return s.aside() || s == Doubted }

// Outcome is what a request has met at a worker.
type Outcome uint8

// The outcomes.
const (
	OK             Outcome = iota // a request was served to its end
	NotStarted                    // the request did not reach the worker, or tells nothing about it
	ConnectFailed                 // this process was refused the connection
	Unreached                     // a data plane says that it was
	ConnectionLost                // the connection broke before the answer began
	BrokeOff                      // the answer broke off after its headers
	ServerError                   // a 5xx status, or an answer that says error
	Refused                       // a 4xx status, 408 and 429 among them
	Overdue                       // the booked prefill took longer than the rule allows
	Timeout                       // the leg took longer than its time-out
	numOutcomes
)

var outcomeNames = [...]string{
	OK: "ok", NotStarted: "not-started", ConnectFailed: "connect-failed", Unreached: "unreached", ConnectionLost: "connection-lost",
	BrokeOff: "broke-off", ServerError: "server-error", Refused: "refused", Overdue: "overdue", Timeout: "timeout",
}

// String returns the label of the outcome.
func (o Outcome) String() string {
	if o >= numOutcomes {
		return "invalid"
	}
	return outcomeNames[o]
}

// Report is what one attempt of a request has met at a worker.
type Report struct {
	Outcome Outcome

	// Request names the client's request; all its attempts have the same number. 0: not
	// known, and then it counts as different from any other.
	Request uint64

	// Since is when this worker was asked. It is used with Overdue and Timeout. Zero: not
	// known, and then it counts as after all that the worker has served.
	Since time.Time

	// Proven says that another worker has served the same request, which shows that the
	// fault is this worker's.
	Proven bool
}

// Reason is why a worker changed its state: one of few, so that it can be a metric label.
type Reason string

// The reasons that are not the label of an Outcome. Outcomes that are reasons, too:
// connect-failed, unreached, overdue and timeout.
const (
	ReasonServerErrors Reason = "server-errors" // several in a row
	ReasonHandoff      Reason = "handoff"       // hand-offs failed with different partners
	ReasonAnswered     Reason = "answered"      // a request was answered
	ReasonProbe        Reason = "probe"         // a probe succeeded, or the page of a doubted worker came
	ReasonPageLate     Reason = "page-late"     // the page that a probe asks for does not come
	ReasonSilent       Reason = "silent"        // nor does any other
	ReasonUnconnected  Reason = "no-connection" // connections to it are not made, and not refused
	ReasonLeadsBack    Reason = "leads-back"    // a Baton answers at its endpoint or bootstrap address
	ReasonOtherModels  Reason = "other-models"  // an engine of other models answers at its endpoint
	ReasonShare        Reason = "share"         // brought back, since more than the share of a pool was aside
)

func reasonOf(o Outcome) Reason { return Reason(o.String()) }

// Transition is one change of state. Probing counts as Aside here: a probe that begins or
// fails is no transition. A worker that is aside for another reason goes from Aside to
// Aside when it is seen that it cannot be reached, or that its address leads back.
type Transition struct {
	Rank     worker.Rank
	OwnPort  bool // the rank has a port of its own; else Rank is rank 0 and stands for the whole worker
	From, To State
	Reason   Reason
	At       time.Time

	// Mates says that each pool of the worker has another worker that is healthy.
	Mates bool
}

// silence reports whether the reason is that the worker does not answer.
func (r Reason) silence() bool {
	return r == ReasonUnconnected || r == ReasonSilent || r == reasonOf(Overdue) || r == reasonOf(Timeout)
}

// proof reports whether the reason shows that the worker cannot serve: there is nothing to wait
// for.
func (r Reason) proof() bool {
	return r == reasonOf(ConnectFailed) || r == ReasonLeadsBack || r == ReasonOtherModels
}

// Silent reports whether the worker was set aside because it does not answer, or another
// in its place: legs that wait for it wait in vain.
func (t *Transition) Silent() bool { return t.To == Aside && (t.Reason.silence() || t.Reason.proof()) }

// Mute reports whether the worker is doubted since nothing of it answers, while a mate is
// healthy: legs that wait for it may do better there.
func (t *Transition) Mute() bool { return t.To == Doubted && t.Reason == ReasonSilent && t.Mates }

// Hooks are called when something happens, in order, under the Tracker's lock: they must
// be quick and must not call the Tracker. Each may be nil.
type Hooks struct {
	// Transition is called once for each change of state.
	Transition func(Transition)

	// Spared is called when a worker should be set aside and its pools have no room:
	// once, until it has served a request or is set aside.
	Spared func(rank worker.Rank, r Reason, at time.Time)
}

// RankHealth is the health of a worker, or of one of its ranks, for the status page.
type RankHealth struct {
	Rank              worker.Rank
	OwnPort           bool // the rank has a port of its own; else Rank is rank 0 and stands for the whole worker
	State             State
	Reason            Reason    // of the last transition; empty if there was none
	Since             time.Time // of the last transition; zero if there was none
	ConsecutiveErrors int       // server errors in a row
	Relapses          int       // how often it has failed while recovering
	SparedFor         Reason    // why it should be aside, if there is no room; else empty
	Suspected         bool      // it is in service, and a probe of it is under way or due
	Unheard           string    // why nothing of it has been heard yet; "": something has
}

// Silent reports whether the worker is set aside for what [Transition.Silent] tells of.
func (h *RankHealth) Silent() bool {
	return h.State.aside() && (h.Reason.silence() || h.Reason.proof())
}
