package picker

import (
	"fmt"
	"strings"
)

// Mode is a way to choose among candidates.
type Mode uint8

// The modes. The zero value is KV.
const (
	KV          Mode = iota // lowest cost, from cached blocks and load
	RoundRobin              // each candidate in turn
	Random                  // drawn uniformly
	LeastLoaded             // fewest requests in flight
	PowerOfTwo              // the less loaded of two drawn uniformly
	numModes
)

var modeNames = [...]string{
	KV: "kv", RoundRobin: "round-robin", Random: "random", LeastLoaded: "least-loaded", PowerOfTwo: "power-of-two",
}

// String returns the name of the mode as it is written in configuration, or
// "invalid".
func (m Mode) String() string {
	if m >= numModes {
		return "invalid"
	}
	return modeNames[m]
}

// ModeNames lists the modes, for errors that refuse another name.
func ModeNames() string { return "one of " + strings.Join(modeNames[:], ", ") }

// ParseMode reads the name of a mode.
func ParseMode(s string) (Mode, error) {
	for m, name := range modeNames {
		if s == name {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("picker: mode %q: expected %s", s, ModeNames())
}

// Reason says why a candidate was picked. The set of reasons is fixed, so that it can
// be a label of a metric.
type Reason uint8

// The reasons. The zero value means that nothing was picked.
const (
	NoReason      Reason = iota
	OnlyCandidate        // there was no other candidate
	LowestCost           // strictly cheaper than every other
	Tie                  // drawn from several with the lowest cost
	Sampled              // drawn by softmax (temperature above 0)
	NextInTurn           // in the mode round-robin
	RandomDraw           // in the mode random
	LeastLoad            // in the mode least-loaded, also if drawn from equals
	TwoChoices           // in the mode power-of-two
	Named                // the request names the worker; Pick never returns it
	numReasons
)

var reasonNames = [...]string{
	NoReason: "none", OnlyCandidate: "only-candidate", LowestCost: "lowest-cost", Tie: "tie", Sampled: "sampled",
	NextInTurn: "round-robin", RandomDraw: "random", LeastLoad: "least-loaded", TwoChoices: "two-choices",
	Named: "named",
}

// String returns the label of the reason.
func (r Reason) String() string {
	if r >= numReasons {
		return "invalid"
	}
	return reasonNames[r]
}
