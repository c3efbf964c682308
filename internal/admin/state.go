package admin

import (
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State is all that the page and the JSON show, apart from the decisions. The caller
// makes a new one for each call, and does not write to it afterwards.
type State struct {
	Version   string
	StartedAt time.Time
	Now       time.Time // zero: the server sets it

	Ready          bool
	NotReadyReason string

	BodyBytes   int64             // of request bodies, in flight
	BodyLimit   int64             // new requests are refused once so many bytes are in flight
	BodiesTight bool              // requests with a large body may be refused already
	Troubles    []trouble.Trouble // what is wrong, worst first
	View        View
	Problems    []Problem // entries of discovery that cannot be used as they are
	Keys        []KeyRow
	Workers     []WorkerRow
	Channels    []ChannelRow // of KV events
	Replicas    []ReplicaRow // the others
	OwnSum      string       // checksum of what this process has booked; "" if nothing is shared
	Lately      []Lately     // who came and went, newest first
	Transitions []Transition // newest first
	Shadow      *Shadow      // of a second policy; nil: there is none
	Config      string       // effective configuration as text, without secrets
}

// View describes the present view of the workers.
type View struct {
	Revision    uint64
	Source      string // as "file /etc/baton/workers.yaml"
	Age         time.Duration
	Stale       bool
	StaleReason string
}

// Problem is something that discovery or the set of workers has wrong.
type Problem struct {
	Kind trouble.Kind
	Text string
}

// KeyRow is one model in one namespace: its workers, and whether it can be served.
type KeyRow struct {
	Key        worker.Key
	Activation string // state of the prefill activation
	CanServe   bool
	Reason     string    // why it cannot serve
	Since      time.Time // of Reason; zero: not known
	How        string    // how it is served: by two workers or one
	Prefill    int       // workers that can be picked for the role
	Decode     int
	Aggregated int

	QueuedTokens    int64 // prompt tokens booked on the prefill workers and not done
	MaxQueuedTokens int64 // new requests are refused once so many are queued; 0: no limit
}

// Full reports whether new requests are refused because of the queue.
func (k *KeyRow) Full() bool { return k.MaxQueuedTokens > 0 && k.QueuedTokens >= k.MaxQueuedTokens }

// Health is the state of a worker as the picker sees it.
type Health string

// The states.
const (
	Healthy    Health = "healthy"
	Aside      Health = "aside"
	Partly     Health = "partly aside" // some of its ranks are aside; each has a port of its own
	Recovering Health = "recovering"
	Unheard    Health = "not heard from yet" // in service, and nothing of it has answered so far
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
	Reason    string       // why it is not healthy
	Since     time.Time    // of Health; zero: since the start
	Doubt     trouble.Kind // what is wrong with a worker in service; "": nothing
	// StaleSince is when its record expired, if it goes on without; zero: its source has it.
	StaleSince time.Time
	Ranks      []RankRow // at least one
	Facts      FactsRow
	Pair       worker.PairFacts // what its partner must share
}

// FactsRow is what is known of the facts of a worker whose engine is asked for them. The
// zero value: it is not asked.
type FactsRow struct {
	State    string    // unknown, known or failing
	Since    time.Time // of State
	URL      string    // where its engine is asked
	As       string    // the engine as which it is asked
	Version  string    // of the engine
	ReadAt   time.Time // when the engine last answered; zero: never
	Failures int       // questions in a row without an answer
	Error    string    // of the last question; "": it was answered
	Unread   string    // pages that could not be read the last time
	Events   string    // what was found where KV events are published by default
}

// knownFacts is the state in which nothing has to be said on the page.
const knownFacts = "known"

// Answered reports whether the engine answers, as far as it is asked.
func (f *FactsRow) Answered() bool { return f.State == "" || f.State == knownFacts }

// text says what is wrong with the facts; "": nothing.
func (f *FactsRow) text(now time.Time) string {
	switch {
	case f.Answered():
		return ""
	case f.Error != "":
		return fmt.Sprintf("facts %s for %s: %s", f.State, duration(now.Sub(f.Since)), f.Error)
	default:
		return fmt.Sprintf("facts %s for %s", f.State, duration(now.Sub(f.Since)))
	}
}

// RankRow is one data-parallel rank of a worker.
type RankRow struct {
	DPRank worker.DPRank
	// Health is set only for a rank with a port of its own that is not healthy. If it is
	// empty, the worker's Health holds.
	Health         Health
	Reason         string // of Health
	Requests       int    // legs booked on it
	PrefillTokens  int64  // prompt tokens booked and not yet prefilled
	DecodeBlocks   int64  // KV blocks booked for running answers
	IndexBlocks    int64  // blocks that the index knows on it
	ShedBlocks     int64  // blocks that the index has dropped for lack of memory
	CapacityBlocks int64  // 0: unknown
	Events         EventStream
	Pace           Pace
}

// Pace is what is believed of how long a rank takes, in seconds: of a prompt's token and of a request, or, if it
// decodes, of a token of its answers for each block that it holds, and beside that.
type Pace struct {
	Token   float64 `json:"seconds_per_token"`   // decode: for each KV block held
	Request float64 `json:"seconds_per_request"` // decode: of a token, whatever is held
	Legs    float64 `json:"legs"`                // on which it rests, older ones counting less; 0: on those of other ranks
	Wait    float64 `json:"wait_seconds"`        // until the rank has computed the prompts that are booked
}

// text says it to people; decodes: the rank answers only.
func (p *Pace) text(decodes bool) string {
	switch {
	case p.Token == 0 && p.Request == 0:
		return "how fast it is has not been learned"
	case decodes:
		return fmt.Sprintf("believed to take %.3g ms for a token and %.3g µs more for each block that it holds, by %.0f answers", 1e3*p.Request, 1e6*p.Token, p.Legs)
	default:
		return fmt.Sprintf("believed to take %.3g ms for a token and %.3g ms for a prompt, by %.0f legs; busy for %.1f s", 1e3*p.Token, 1e3*p.Request, p.Legs, p.Wait)
	}
}

// StreamState is the state of a stream of KV events.
type StreamState string

// The states of a stream. The zero value means that the worker publishes no events.
const (
	NoStream   StreamState = ""
	Connecting StreamState = "connecting" // no event has come yet
	Replaying  StreamState = "replaying"  // connected, and catching up
	Connected  StreamState = "connected"
	Lost       StreamState = "lost" // not connected any more
)

// EventStream is the KV event stream of one rank.
type EventStream struct {
	State        StreamState
	Since        time.Time // of State
	Late         bool      // its events are to come, and it has not been connected for too long
	LastSequence uint64
	Any          bool      // LastSequence and LastAt are set
	LastAt       time.Time // when the last batch came
	AsOf         time.Time // when its events were last known to be complete; zero: never
	Degraded     bool      // the index may differ from the worker's cache
	Reason       string    // why it is degraded or lost
	Via          string    // the channel that carries it; "": the engine's own address
	// Refused counts the events that were not used, by reason; normal reasons are
	// included.
	Refused map[string]uint64
}

// ChannelRow is one channel that carries the KV events of many workers, or one address at
// which the plugin waits for their publishers.
type ChannelRow struct {
	Name     string
	Up       bool
	Since    time.Time // of Up
	Messages uint64
	Refused  map[string]uint64 // messages that belong to no rank, by reason
	Reason   string            // the latest error
	// Waiting is how many peers have dialed and not yet said to which worker they belong,
	// and MaxWaiting how many may; 0 if nothing dials the channel.
	Waiting, MaxWaiting int
}

// ReplicaRow is another replica, and what is held here of its bookings.
type ReplicaRow struct {
	Address, Name string
	State         string
	Since         time.Time // of State
	Heard         time.Time // when its newest message came
	Late          float64   // seconds that it took to answer a message of ours; 0: it has not
	Told          bool      // messages of ours reach it
	Error         string    // why not
	Legs          int64
	PrefillTokens int64
	DecodeBlocks  int64
	Sum           string    // checksum of what it has booked
	DiffersSince  time.Time // from what it says itself; zero: it is equal
}

// Lately is something that has changed of late, to be read beside what is wrong now.
type Lately struct {
	At   time.Time
	Text string // as "1 of 2 prefill workers left"
}

// Transition is one change of state, as the page shows it.
type Transition struct {
	At            time.Time
	What          string // as "worker 7" or "model m"
	From, To, Why string
}

// totals adds up the ranks.
func (w *WorkerRow) totals() RankRow {
	var t RankRow
	for i := range w.Ranks {
		t.add(&w.Ranks[i])
	}
	return t
}

func (t *RankRow) add(r *RankRow) {
	t.Requests += r.Requests
	t.PrefillTokens += r.PrefillTokens
	t.DecodeBlocks += r.DecodeBlocks
	t.IndexBlocks += r.IndexBlocks
	t.ShedBlocks += r.ShedBlocks
	t.CapacityBlocks += r.CapacityBlocks
}

// Shed counts the blocks that the index has dropped for lack of memory, and the ranks
// that have lost some.
func (s *State) Shed() (blocks int64, ranks int) {
	for i := range s.Workers {
		for _, r := range s.Workers[i].Ranks {
			if r.ShedBlocks > 0 {
				blocks, ranks = blocks+r.ShedBlocks, ranks+1
			}
		}
	}
	return blocks, ranks
}

// Silent reports whether the stream is trouble since nothing comes by it.
func (e *EventStream) Silent() bool { return e.Late || e.State == Lost }

// Partial reports whether the stream is trouble since something of it was lost.
func (e *EventStream) Partial() bool { return e.Degraded && e.State == Connected }

// InTrouble returns the first rank whose stream is in a kind of trouble, or nil. A worker
// that is aside or leaves has no stream of events: that needs no line of its own.
func (w *WorkerRow) InTrouble(is func(*EventStream) bool) *RankRow {
	if w.Health == Aside || w.Health == Draining || w.Health == Unheard {
		return nil
	}
	for i := range w.Ranks {
		if is(&w.Ranks[i].Events) {
			return &w.Ranks[i]
		}
	}
	return nil
}
