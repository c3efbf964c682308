package register

import (
	"net/netip"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// phase is the phase of the worker, as the registry has it.
type phase uint8

// The phases; doc.go has the table. The zero value is the first.
const (
	away phase = iota // the registry has no record
	announced
	draining
	gone // the machine has ended
)

var phaseNames = [...]string{away: "away", announced: "announced", draining: "draining", gone: "gone"}

func (p phase) String() string { return phaseNames[p] }

// event is what the machine is told: one of the types below.
type event any

type (
	// tick says only that time has passed.
	tick struct{}
	// healthAsked is the answer to verb askHealth.
	healthAsked struct {
		health engine.Health
		err    error
	}
	// refreshed is the answer to verb refresh; each part may have failed.
	refreshed struct {
		facts    engine.Facts
		factsErr error
		notes    map[string]string // annotations
		notesErr error
		addrs    []netip.Addr
		addrErr  error
	}
	// counted is the answer to verb count.
	counted struct {
		n   int
		err error
	}
	// held says that the registry holds the announcement with that number.
	held struct{ seq uint64 }
	// lost says that the engine has closed the connection for health.
	lost struct{}
	// term asks to drain and leave, hurry to leave at once. known says that the registry
	// holds some record of the worker.
	term  struct{ known bool }
	hurry struct{}
)

// verb is what the machine asks the runner to do.
type verb uint8

// The verbs. The first three are questions. Each is answered by one event, and is not
// asked again before.
const (
	askHealth verb = iota + 1
	refresh
	count
	announce
	withdraw
	leave // the last one
	tellHealthy
	tellUnhealthy
	tellSilent
	tellIncomplete
	tellKept
	tellWarning
	tellUncounted
)

// action is a verb with its arguments.
type action struct {
	verb verb
	rec  worker.Worker // of announce
	life uint64        // of announce
	seq  uint64        // of announce
	why  string        // of withdraw, of leave, and of the verbs that only log

	cause cause // of withdraw
}

// cause says why a record was withdrawn, as a metric label.
type cause string

// The causes.
const (
	causeDead    cause = "engine_gone"
	causeIll     cause = "engine_ill"
	causeFacts   cause = "facts_missing"
	causeDrained cause = "drained"
	causeTimeout cause = "drain_timeout"
	causeTold    cause = "told"
)

var causes = [...]cause{causeDead, causeIll, causeFacts, causeDrained, causeTimeout, causeTold}
