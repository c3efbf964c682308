package pin

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Trust is how far a filter believes requests that name workers.
type Trust uint8

// The degrees. The zero value believes nothing.
const (
	Normal    Trust = iota // the plugin picks, whatever the request says
	Prerouted              // what is named is used, and the plugin picks the rest
	Direct                 // another picker has chosen: the plugin picks nothing
	numTrusts
)

var trustNames = [...]string{Normal: "normal", Prerouted: "pre-routed", Direct: "direct"}

// String returns the name shown on pages and in metrics.
func (t Trust) String() string {
	if t >= numTrusts {
		return "invalid"
	}
	return trustNames[t]
}

// Target is what a request says about one leg. The zero value says nothing.
type Target struct {
	ID      worker.ID       // 0: not said
	Address worker.Endpoint // zero: not said
	DPRank  worker.DPRank   // with HasRank
	HasRank bool

	// The header or member that gives each; empty: none does.
	IDBy, AddressBy, RankBy string

	other otherRank
}

// otherRank is the rank that the body gives for a worker by its id, while the headers
// name a worker by its address. It counts if the two are one worker, which the snapshot
// shows.
type otherRank struct {
	id     worker.ID // 0: there is none
	dpRank worker.DPRank
	by     string
}

// rankOf returns t with the rank that the body gives for w.
func (t *Target) rankOf(w *worker.Worker) *Target {
	if t.HasRank || t.other.id != w.ID {
		return t
	}
	own := *t
	own.DPRank, own.HasRank, own.RankBy = t.other.dpRank, true, t.other.by
	return &own
}

// Named reports whether the request names a worker for this leg.
func (t *Target) Named() bool { return t.ID != 0 || !t.Address.IsZero() }

// Worker returns the named worker if it is in the snapshot: found by its id if that is
// given, else by its address. Whether it can serve has not been checked.
func (t *Target) Worker(s *worker.Snapshot) *worker.Worker {
	if t.ID != 0 {
		return s.Worker(t.ID)
	}
	w, _ := s.RankAt(t.Address.AddrPort())
	return w
}

// by returns the header or member that names the worker.
func (t *Target) by() string {
	if t.ID != 0 {
		return t.IDBy
	}
	return t.AddressBy
}

// Pins is what a request says about both legs.
type Pins struct{ Prefill, Decode Target }

// Kind says what is wrong with what a request names: the code of the error that a client
// gets.
type Kind string

// The kinds.
const (
	Malformed   Kind = "invalid_routing"      // not a number, not an address, not an object
	Conflict    Kind = "routing_conflict"     // two spellings of one thing differ
	NotNamed    Kind = "worker_not_named"     // a worker must be named, and none is
	Unknown     Kind = "worker_unknown"       // there is no such worker
	Gone        Kind = "worker_gone"          // there was one, and it has left
	WrongModel  Kind = "worker_wrong_model"   // it serves neither this model nor in this namespace
	WrongRole   Kind = "worker_wrong_role"    // its role is not the one for which it is named
	Draining    Kind = "worker_draining"      // it takes no new requests
	NotUsable   Kind = "worker_not_usable"    // not all facts that it needs are known, or it speaks no HTTP
	NeedsOther  Kind = "worker_needs_prefill" // it needs a prefill worker, and none is known
	RankTooHigh Kind = "rank_out_of_range"    // it has no such rank
	Unfit       Kind = "workers_do_not_fit"   // the two cannot hand KV over to each other
)

// Error is a fault in what a request names. It holds no part of a prompt.
type Error struct {
	Kind Kind
	// Param is the header or member at fault, or the one that is missing.
	Param string
	// Subject names the worker or the fault, in words fit for a client.
	Subject string
}

// Error returns the fault for logs. internal/extproc chooses what a client reads.
func (e *Error) Error() string {
	return fmt.Sprintf("pin: %s: %s", e.Param, e.Subject)
}
