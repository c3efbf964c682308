package blame

import "strings"

// Leg says which leg of a request was seen.
type Leg uint8

// The legs.
const (
	Mirrored Leg = iota // prefill, beside its decode: they meet at a rendezvous
	First               // prefill, ended before decode begins
	Decode              // decode of a pair
	Alone               // the one worker that serves the whole request
	numLegs
)

var legNames = [...]string{"mirrored prefill", "first prefill", "decode", "alone"}

func (l Leg) String() string { return legNames[l] }

var legLabels = [...]string{"mirrored_prefill", "first_prefill", "decode", "alone"}

// Label returns the leg as a metric label.
func (l Leg) Label() string { return legLabels[l] }

// Prefill reports whether the leg is a prefill leg.
func (l Leg) Prefill() bool { return l <= First }

// Sight is what was seen of a leg's end. The names are metric labels.
type Sight string

// The sights.
const (
	NotStarted  Sight = "not_started"    // the leg did not begin in time, and Envoy names no worker
	NotSent     Sight = "not_sent"       // the leg ended before a worker saw it
	Overflow    Sight = "overflow"       // Envoy has no room: a circuit breaker, or the overload manager
	Unconnected Sight = "connect_failed" // the connection was refused, or broke while it was made (UF)
	Unmade      Sight = "connect_timeout"
	Lost        Sight = "connection_lost"
	Raced       Sight = "idle_connection_lost" // one that an earlier request had used: the engine may have closed it just then
	Ended       Sight = "ended"                // before any answer, and Envoy says nothing about the worker
	TimedOut    Sight = "timeout"
	Aborted     Sight = "aborted"      // by its owner, or a drain
	CarrierLost Sight = "carrier_lost" // the replica that carried the leg has died
	Gone        Sight = "gone"         // the worker left discovery, or was set aside, while the leg waited for it
	Overdue     Sight = "overdue"      // the leg took longer than such a leg may
	Stuck       Sight = "stuck"        // the same, and no other worker can be tried: the request waits on
	Busy        Sight = "busy"         // 408 or 429
	Rejected    Sight = "rejected"
	Unfetched   Sight = "handoff_failed" // decode: 5xx, or 2xx with nothing
	Redirected  Sight = "redirected"     // 3xx
	Errored     Sight = "status"         // 5xx, and any status that is no answer
	BrokeOff    Sight = "broke_off"
	Unsent      Sight = "broke_off_unsent"
	Stalled     Sight = "stalled"       // the answer's bytes have stood still for longer than they may
	Expired     Sight = "expired"       // the deadline passed after the answer had begun
	Empty       Sight = "empty"         // 2xx without a body
	Failing     Sight = "finish_reason" // 2xx that says error or abort
	Unreadable  Sight = "bad_answer"    // 2xx that cannot be read
	Uncomputed  Sight = "not_computed"  // 2xx whose usage shows that another prompt, or none, was computed
	Stale       Sight = "stale_handoff" // not sent, since the hand-off was too old
	NoHandoff   Sight = "no_handoff"    // 2xx without the hand-off data that decode needs
	TooLong     Sight = "too_long"      // 2xx, longer than can be passed to decode because of what the client asks for
	Served      Sight = "served"
	ClientLeft  Sight = "client_left"
	Unfinished  Sight = "unfinished" // no report says how it ended
)

// Charge is what a leg's end counts as against its worker, or for it.
type Charge uint8

// The charges.
const (
	None    Charge = iota
	Credit         // it has served a request to its end
	Connect        // it refuses connections
	Loss           // it lost a connection before an answer
	Break          // its answer broke off
	Error          // it answered with an error, or with nothing
	Refusal        // it refused the request
	Slow           // it is silent while a request waits for it
	Held           // a charge is held back until a mate has shown whose fault it was
)

var chargeNames = [...]string{"nobody", "ok", "connect failed", "connection lost", "answer broke off", "server error", "refused", "slow", "held"}

func (c Charge) String() string { return chargeNames[c] }

// Label returns the charge as a metric label.
func (c Charge) Label() string { return strings.ReplaceAll(chargeNames[c], " ", "_") }

// waits reports whether the charge is held back until a mate has shown whose fault it
// was.
func (c Charge) waits() bool { return c == Loss || c == Error || c == Refusal || c == Slow }

// Fresh says whether a fresh attempt may do better.
type Fresh uint8

// The values of Fresh.
const (
	No      Fresh = iota
	Yes           // yes, if an attempt is left
	IfSpare       // only if another worker can be tried
	IfOdd         // the same, and only if this worker refuses more than its pool
)

// Avoid says which workers a fresh attempt does not pick, if it can pick others.
type Avoid uint8

// The values of Avoid.
const (
	Nobody Avoid = iota
	It           // the leg's own worker
	Both         // both workers of the pair
)

// Outcome is how a request ended. The names are metric labels.
type Outcome string

// The outcomes that a leg's end can give a request.
const (
	OK         Outcome = "ok"
	OfWorker   Outcome = "rejected" // by a worker, with its status
	Retried    Outcome = "retried"  // another attempt follows
	Failed     Outcome = "failed"
	Cut        Outcome = "cut"
	Left       Outcome = "client_left"
	Unknown    Outcome = "unfinished"
	notTheLegs Outcome = "" // the other leg's end gives it
)

// Row is one row of the blame table.
type Row struct {
	Sight   Sight
	Leg     Leg
	Charge  Charge
	Pair    bool // the hand-off between the two workers may have failed
	Suspect bool // the worker is probed at once
	Fresh   Fresh
	Avoid   Avoid
	Outcome Outcome // of a request that gets no fresh attempt; "": the other leg's end gives it
}

// MostLost is how many workers a request may lose while they answer it. It may be what ended
// them, so it gets no further one.
const MostLost = 2

// Loses reports whether the request has lost the worker that was to answer it: the connection
// broke after the request had been sent, and before the client had anything of an answer.
func (r Row) Loses() bool {
	return !r.Leg.Prefill() && (r.Sight == Lost || r.Sight == Raced || r.Sight == Unsent)
}

// Of returns the row of a sight. If a leg of this kind cannot have that sight, the row
// charges no worker.
func Of(leg Leg, s Sight) Row {
	if r, ok := table[key{leg, s}]; ok {
		return r
	}
	return Row{Sight: s, Leg: leg, Outcome: Failed}
}
