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
	Rank    worker.Rank
	State   State
	Since   time.Time // of the state
	Via     string    // the channel that its events come by; "": the engine's own
	Seen    bool      // a message was applied since the last reset
	LastSeq uint64    // of the last one applied; of an event, where a channel carries them
	LastAt  time.Time // of the last one applied
	// AsOf is when it was known last that nothing is missing: when a message was
	// applied, or the publisher said that it has sent no more. A worker that can be
	// asked is asked each Config.Check; of another one it is the last message.
	AsOf     time.Time
	Messages uint64 // applied
	Events   uint64 // applied
	Blocks   int    // in the index now, on any tier
	Replays  uint64 // that ended well
	Resets   uint64 // times the rank's blocks were dropped
	Refused  Refusals
	// Missing is what was refused, but for what is Normal, since the worker's
	// blocks were last known to be none. Above zero, the index lacks something.
	Missing Refusals
	// LeftOut is how many blocks the worker has that the index leaves out because
	// they depend on what cannot be read. All others are right.
	LeftOut int
	// Kept is how many blocks an earlier process held that wait for the proof that
	// the stream is the same; none of them is in the index.
	Kept      int
	LastError string // of the last failed connection, replay or payload; "" when there was none
	LastFault time.Time
}

// ChannelStatus is what is known of a channel of an event plane, or of an
// address that publishers dial.
type ChannelStatus struct {
	Name     string
	Up       bool
	Since    time.Time // of Up
	Messages uint64    // envelopes, or connections of publishers
	// Waiting is how many peers have dialed and not said yet whose they are, and
	// MaxWaiting how many may.
	Waiting, MaxWaiting int
	Refused             Refusals // of what belongs to no rank
	LastError           string
	LastFault           time.Time
}
