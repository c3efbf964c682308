package kvevents

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State is how far the index can be trusted for a rank.
type State uint8

// The states.
const (
	// StateNone: the worker publishes no events, or at no possible port.
	StateNone State = iota
	// StateConnecting: not connected; what was known is kept.
	StateConnecting
	// StateReplaying: catching up; what was known is kept.
	StateReplaying
	// StateConnected: in step.
	StateConnected
	// StateDegraded: in step from some point on; the worker may hold more.
	StateDegraded
)

var stateNames = [...]string{"none", "connecting", "replaying", "connected", "degraded"}

// String returns the lower-case name of the state.
func (s State) String() string {
	if int(s) >= len(stateNames) {
		return "invalid"
	}
	return stateNames[s]
}

// RankStatus is what is known of the events of one rank.
type RankStatus struct {
	Rank      worker.Rank
	State     State
	Since     time.Time // of the state
	Seen      bool      // a message was applied since the last reset
	LastSeq   uint64    // of the last one applied
	Messages  uint64    // applied
	Events    uint64    // applied
	Blocks    int       // in the index now, on any tier
	Replays   uint64    // that ended well
	Resets    uint64    // times the rank's blocks were dropped
	Refused   Refusals
	LastError string // of the last failed connection, replay or payload; "" when there was none
	LastFault time.Time
}
