package kvevents

import (
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State is how far the index can be trusted for a rank.
type State uint8

// The states of a rank.
const (
	// StateNone: no events have come. The worker names no address for them, or an
	// impossible port.
	StateNone State = iota
	// StateConnecting: not connected; the blocks that were known are kept.
	StateConnecting
	// StateReplaying: catching up; the blocks that were known are kept.
	StateReplaying
	// StateConnected: in step with the publisher.
	StateConnected
	// StateDegraded: in step from some message on; the worker may hold more blocks.
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
	Since   time.Time // when State changed last
	Via     string    // the channel that its events come through; "": the engine's own socket
	Seen    bool      // a message was applied since the last reset
	LastSeq uint64    // of the message applied last; on an event plane, the id of the event
	LastAt  time.Time // when a message was applied last
	// AsOf is the last time at which it was certain that no message is missing: a message
	// was applied, or the publisher answered that it has sent no more. A quiet worker
	// with a replay port is asked at each Config.Check. For any other worker AsOf is the
	// time of its last message.
	AsOf     time.Time
	Messages uint64 // applied since the rank was attached
	Events   uint64 // applied since then
	Blocks   int    // in the index now, on any tier
	Replays  uint64 // replays that ended well
	Resets   uint64 // times the rank's blocks were dropped
	Refused  Refusals
	// Missing counts refusals whose reason is not Normal, since the worker was last known
	// to hold no blocks. Above zero, the index lacks something.
	Missing Refusals
	// Told is what the last refused events say, where the worker's record says otherwise.
	Told Told
	// LeftOut is how many blocks of the worker the index leaves out because they depend
	// on something that cannot be read, or share their hash with one of another adapter or
	// salt. All other blocks are right.
	LeftOut int
	// Kept is how many blocks of an earlier process wait for the proof that the stream is
	// the same. None of them is in the index yet.
	Kept int
	// OtherGroups: the engine keeps blocks in KV cache groups whose events are not used. It
	// may deliver less than its other events tell, if those blocks have gone.
	OtherGroups bool
	LastError   string // of the last failed connection, replay or payload; "" if nothing has failed
	LastFault   time.Time
}

// Told is what refused events say of their worker.
type Told struct {
	BlockSize uint64 // of BlockSizeMismatch, in tokens
	Rank      uint64 // of ForeignRank
	// Unusable: no store could be used so far, of which the last was refused for Why. The
	// rank counts as one without events, see Subscriber.Tells.
	Unusable bool
	Why      Reason
}

// channelState keeps the status of a channel. Safe for concurrent use.
type channelState struct {
	// mu guards status. No other lock is taken under it.
	mu     sync.Mutex
	status ChannelStatus
}

func (c *channelState) snapshot() ChannelStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// setUp notes that the channel is up or down, and reports whether it was not so before.
func (c *channelState) setUp(up bool) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = c.status.Up != up
	if changed {
		c.status.Up, c.status.Since = up, time.Now()
	}
	return changed
}

// counted notes one more message, or connection.
func (c *channelState) counted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Messages++
}

// failed notes an error.
func (c *channelState) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.LastError, c.status.LastFault = err.Error(), time.Now()
}

// refused counts what cannot be used.
func (c *channelState) refused(h *Hooks, why Reason, n uint64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	c.status.Refused[why] += n
	c.mu.Unlock()
	h.Refused(worker.Rank{}, why, n)
}

// ChannelStatus is what is known of a channel of an event plane, or of an address that
// publishers dial.
type ChannelStatus struct {
	Name     string
	Up       bool
	Since    time.Time // when Up changed last
	Messages uint64    // envelopes received, or connections taken from publishers
	// Waiting is how many peers have dialed and not named their worker yet. MaxWaiting is
	// how many may.
	Waiting, MaxWaiting int
	Refused             Refusals // counted at no rank
	LastError           string
	LastFault           time.Time
}
