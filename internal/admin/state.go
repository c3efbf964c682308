package admin

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State is everything that the page and the JSON show besides the decisions.
// The caller builds a fresh one for each call and does not write to it after.
type State struct {
	Version   string
	StartedAt time.Time
	Now       time.Time // zero: the server fills in the present

	Ready          bool
	NotReadyReason string

	BodyBytes   int64     // of request bodies, in flight
	BodyLimit   int64     // from so many on, new requests are refused
	BodiesTight bool      // those with a large body may be refused already
	Warnings    []Warning // what holds, and is not as it should be
	View        View
	Problems    []string // what discovery says that cannot be used as it is
	Keys        []KeyRow
	Workers     []WorkerRow
	Channels    []ChannelRow // of KV events
	Transitions []Transition // newest first
	Failures    []FailureRow
	Config      string // effective configuration as text, without secrets
}

// View describes the present view of the workers.
type View struct {
	Revision    uint64
	Source      string // as "file /etc/baton/workers.yaml"
	Age         time.Duration
	Stale       bool
	StaleReason string
}

// KeyRow is one model in one namespace: what it has, and whether it can serve.
type KeyRow struct {
	Key        worker.Key
	Activation string // state of the prefill activation
	CanServe   bool
	Reason     string // why it cannot serve
	How        string // how it serves: by two workers or one
	Prefill    int    // workers that can be picked for the role
	Decode     int
	Aggregated int

	QueuedTokens    int64 // prompt tokens booked on the prefill workers and not done
	MaxQueuedTokens int64 // from so many on, new requests are refused; 0: no limit
}

// full reports whether new requests are refused for what is queued.
func (k *KeyRow) full() bool { return k.MaxQueuedTokens > 0 && k.QueuedTokens >= k.MaxQueuedTokens }

// Health is the state of a worker as the picker sees it.
type Health string

// The states.
const (
	Healthy    Health = "healthy"
	Aside      Health = "aside"
	Partly     Health = "partly aside" // some of its ranks are, which have ports of their own
	Recovering Health = "recovering"
	Draining   Health = "draining"
)

// WorkerRow is one worker.
type WorkerRow struct {
	ID        worker.ID
	Role      worker.Role
	Engine    worker.Engine
	Endpoint  string
	Models    []string
	Namespace string
	Health    Health
	Reason    string    // why it is not healthy
	Since     time.Time // of Health; zero: from the start
	Ranks     []RankRow // at least one
}

// RankRow is one data-parallel rank of a worker.
type RankRow struct {
	DPRank worker.DPRank
	// Health of a rank with a port of its own, where it is not healthy; else the worker's
	// is all there is, and this empty.
	Health         Health
	Reason         string // of Health
	Requests       int    // legs booked on it
	PrefillTokens  int64  // prompt tokens booked and not yet prefilled
	DecodeBlocks   int64  // KV blocks booked for running answers
	IndexBlocks    int64  // blocks that the index knows on it
	ShedBlocks     int64  // blocks that the index has dropped for want of memory
	CapacityBlocks int64  // 0: unknown
	Events         EventStream
}

// StreamState says how a KV event stream stands.
type StreamState string

// The states of a stream. The zero value means that the worker publishes none.
const (
	NoStream   StreamState = ""
	Connecting StreamState = "connecting"
	Connected  StreamState = "connected"
	Lost       StreamState = "lost"
)

// EventStream is the KV event stream of one rank.
type EventStream struct {
	State        StreamState
	LastSequence uint64
	Any          bool      // whether LastSequence and LastAt mean anything
	LastAt       time.Time // when the last batch came
	AsOf         time.Time // when it was known last that none is missing; zero: never
	Degraded     bool      // the index may differ from the worker's cache
	Reason       string    // why it is degraded or lost
	Via          string    // the channel that it comes by; "": the engine's own
	// Refused is how many events were not used, by reason, normal ones included.
	Refused map[string]uint64
}

// ChannelRow is one channel that carries the KV events of many workers, or an
// address that their publishers dial.
type ChannelRow struct {
	Name     string
	Up       bool
	Since    time.Time // of Up
	Messages uint64
	Refused  map[string]uint64 // of what belongs to no rank
	Reason   string            // the latest error
	// Waiting is how many peers have dialed and not said yet whose they are, and
	// MaxWaiting how many may; 0 of a channel that nobody dials.
	Waiting, MaxWaiting int
}

// Transition is one change of a state that a person would want to know of.
type Transition struct {
	At            time.Time
	What          string // as "worker 7" or "model m"
	From, To, Why string
}

// FailureRow counts one row of the failure table.
type FailureRow struct {
	Code   string
	Status int
	Count  uint64
	Last   time.Time
}

// totals adds up the ranks.
func (w *WorkerRow) totals() RankRow {
	var t RankRow
	for _, r := range w.Ranks {
		t.Requests += r.Requests
		t.PrefillTokens += r.PrefillTokens
		t.DecodeBlocks += r.DecodeBlocks
		t.IndexBlocks += r.IndexBlocks
		t.ShedBlocks += r.ShedBlocks
		t.CapacityBlocks += r.CapacityBlocks
	}
	return t
}

// shed counts the blocks that the index has dropped for want of memory, and the
// ranks that have lost some so.
func (s *State) shed() (blocks int64, ranks int) {
	for i := range s.Workers {
		for _, r := range s.Workers[i].Ranks {
			if r.ShedBlocks > 0 {
				blocks, ranks = blocks+r.ShedBlocks, ranks+1
			}
		}
	}
	return blocks, ranks
}

// degraded returns the first rank whose stream is lost or degraded, or nil.
func (w *WorkerRow) degraded() *RankRow {
	for i := range w.Ranks {
		if e := &w.Ranks[i].Events; e.Degraded || e.State == Lost {
			return &w.Ranks[i]
		}
	}
	return nil
}

// Warning is a sentence without its full stop, and one word to catch the eye.
type Warning struct {
	Tag, Text string
}
