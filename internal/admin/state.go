package admin

import (
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State is all that the page and the JSON show, apart from the decisions. The caller
// makes a new one for each call, and does not write to it afterwards. Its tags and those of
// its rows are what readers of /debug/state know.
type State struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Now       time.Time `json:"-"` // zero: the server sets it

	Ready          bool   `json:"ready"`
	NotReadyReason string `json:"not_ready_reason,omitempty"`

	Troubles    []trouble.Trouble `json:"-"` // what is wrong, worst first
	View        View              `json:"-"`
	Problems    []Problem         `json:"-"` // entries of discovery that cannot be used as they are
	Keys        []KeyRow          `json:"keys"`
	Workers     []WorkerRow       `json:"workers"`
	Channels    []ChannelRow      `json:"kv_event_channels,omitempty"`
	Lately      []Lately          `json:"lately,omitempty"`          // who came and went, newest first
	Replicas    []ReplicaRow      `json:"replicas,omitempty"`        // the others
	OwnSum      string            `json:"booked_checksum,omitempty"` // of what this process has booked; "" if nothing is shared
	Transitions []Transition      `json:"transitions"`               // newest first
	BodyBytes   int64             `json:"body_bytes_in_flight"`
	BodyLimit   int64             `json:"max_body_bytes_in_flight"` // new requests are refused once so many bytes are in flight
	BodiesTight bool              `json:"-"`                        // requests with a large body may be refused already
	Shadow      *Shadow           `json:"shadow,omitempty"`         // of a second policy; nil: there is none
	Config      string            `json:"config,omitempty"`         // effective configuration as text, without secrets
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

// Time is a time in a row. JSON has it in UTC, whatever zone the process has.
type Time struct{ time.Time }

// At returns t as rows have it.
func At(t time.Time) Time { return Time{t} }

// MarshalJSON writes the time in UTC.
func (t Time) MarshalJSON() ([]byte, error) { return t.UTC().MarshalJSON() }

// KeyRow is one model in one namespace: its workers, and whether it can be served.
type KeyRow struct {
	Model      string `json:"model"`
	Namespace  string `json:"namespace"`
	Activation string `json:"activation,omitempty"` // state of the prefill activation
	CanServe   bool   `json:"can_serve"`
	Reason     string `json:"reason,omitempty"` // why it cannot serve
	Since      Time   `json:"since,omitzero"`   // of Reason; zero: not known
	How        string `json:"how,omitempty"`    // how it is served: by two workers or one
	Prefill    int    `json:"prefill_workers"`  // workers that can be picked for the role
	Decode     int    `json:"decode_workers"`
	Aggregated int    `json:"aggregated_workers"`

	QueuedTokens    int64 `json:"queued_isl_tokens"`               // prompt tokens booked on the prefill workers and not done
	MaxQueuedTokens int64 `json:"max_queued_isl_tokens,omitempty"` // new requests are refused once so many are queued; 0: no limit
}

// Name is how people name the model.
func (k *KeyRow) Name() string { return keyName(k.Model, k.Namespace) }

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
	ID        worker.ID     `json:"-"`
	Role      worker.Role   `json:"-"`
	Engine    worker.Engine `json:"engine"`
	Endpoint  string        `json:"endpoint"`
	Models    []string      `json:"models"`
	Namespace string        `json:"namespace"`
	Health    Health        `json:"state"`
	Reason    string        `json:"reason,omitempty"` // why it is not healthy
	Since     Time          `json:"since,omitzero"`   // of Health; zero: since the start
	Doubt     trouble.Kind  `json:"-"`                // what is wrong with a worker in service; "": nothing
	// StaleSince is when its record expired, if it goes on without; zero: its source has it.
	StaleSince Time             `json:"stale_since,omitzero"`
	Ranks      []RankRow        `json:"ranks"` // at least one
	Facts      FactsRow         `json:"facts,omitzero"`
	Pair       worker.PairFacts `json:"-"` // what its partner must share
}

// FactsRow is what is known of the facts of a worker whose engine is asked for them. The
// zero value: it is not asked.
type FactsRow struct {
	State    string `json:"state"`                    // unknown, known or failing
	Since    Time   `json:"since,omitzero"`           // of State
	URL      string `json:"url"`                      // where its engine is asked
	As       string `json:"asked_as"`                 // the engine as which it is asked
	Version  string `json:"engine_version,omitempty"` // of the engine
	ReadAt   Time   `json:"read_at,omitzero"`         // when the engine last answered; zero: never
	Failures int    `json:"failures,omitempty"`       // questions in a row without an answer
	Error    string `json:"error,omitempty"`          // of the last question; "": it was answered
	Unread   string `json:"unread,omitempty"`         // pages that could not be read the last time
	Events   string `json:"kv_events,omitempty"`      // what was found where KV events are published by default
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
		return fmt.Sprintf("facts %s for %s: %s", f.State, duration(now.Sub(f.Since.Time)), f.Error)
	default:
		return fmt.Sprintf("facts %s for %s", f.State, duration(now.Sub(f.Since.Time)))
	}
}

// RankRow is one data-parallel rank of a worker.
type RankRow struct {
	DPRank worker.DPRank `json:"dp_rank"`
	// Health is set only for a rank with a port of its own that is not healthy. If it is
	// empty, the worker's Health holds.
	Health         Health      `json:"state,omitempty"`
	Reason         string      `json:"reason,omitempty"`            // of Health
	Requests       int         `json:"requests"`                    // legs booked on it
	PrefillTokens  int64       `json:"prefill_tokens"`              // prompt tokens booked and not yet prefilled
	DecodeBlocks   int64       `json:"decode_blocks"`               // KV blocks booked for running answers
	IndexBlocks    int64       `json:"index_blocks"`                // blocks that the index knows on it
	ShedBlocks     int64       `json:"index_shed_blocks,omitempty"` // blocks that the index has dropped for lack of memory
	CapacityBlocks int64       `json:"capacity_blocks,omitempty"`   // 0: unknown
	Pace           Pace        `json:"believed"`
	Events         EventStream `json:"kv_events,omitzero"`
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
	State        StreamState `json:"state"`
	Since        Time        `json:"since,omitzero"`          // of State
	Late         bool        `json:"-"`                       // its events are to come, and it has not been connected for too long
	LastSequence *uint64     `json:"last_sequence,omitempty"` // nil: nothing has come since its beginning
	LastAt       Time        `json:"last_at,omitzero"`        // when the last batch came; set with LastSequence
	AsOf         Time        `json:"as_of,omitzero"`          // when its events were last known to be complete; zero: never
	Degraded     bool        `json:"degraded"`                // the index may differ from the worker's cache
	Reason       string      `json:"reason,omitempty"`        // why it is degraded or lost
	Via          string      `json:"via,omitempty"`           // the channel that carries it; "": the engine's own address
	// Refused counts the events that were not used, by reason; normal reasons are
	// included.
	Refused map[string]uint64 `json:"refused,omitempty"`
}

// ChannelRow is one channel that carries the KV events of many workers, or one address at
// which the plugin waits for their publishers.
type ChannelRow struct {
	Name     string            `json:"name"`
	Up       bool              `json:"up"`
	Since    Time              `json:"since,omitzero"` // of Up
	Messages uint64            `json:"messages"`
	Refused  map[string]uint64 `json:"refused,omitempty"` // messages that belong to no rank, by reason
	Reason   string            `json:"reason,omitempty"`  // the latest error
	// Waiting is how many peers have dialed and not yet said to which worker they belong,
	// and MaxWaiting how many may; 0 if nothing dials the channel.
	Waiting    int `json:"waiting_peers,omitempty"`
	MaxWaiting int `json:"max_waiting_peers,omitempty"`
}

// ReplicaRow is another replica, and what is held here of its bookings.
type ReplicaRow struct {
	Address       string  `json:"address"`
	Name          string  `json:"name,omitempty"`
	State         string  `json:"state"`
	Since         Time    `json:"since"`           // of State
	Heard         Time    `json:"heard,omitzero"`  // when its newest message came
	Late          float64 `json:"late_seconds"`    // seconds that it took to answer a message of ours; 0: it has not
	Told          bool    `json:"told"`            // messages of ours reach it
	Error         string  `json:"error,omitempty"` // why not
	Legs          int64   `json:"legs"`
	PrefillTokens int64   `json:"prefill_tokens"`
	DecodeBlocks  int64   `json:"decode_blocks"`
	Sum           string  `json:"booked_checksum"`        // checksum of what it has booked
	DiffersSince  Time    `json:"differs_since,omitzero"` // from what it says itself; zero: it is equal
}

// Lately is something that has changed of late, to be read beside what is wrong now.
type Lately struct {
	At   Time   `json:"at"`
	Text string `json:"text"` // as "1 of 2 prefill workers left"
}

// Transition is one change of state, as the page shows it.
type Transition struct {
	At   Time   `json:"at"`
	What string `json:"what"` // as "worker 7" or "model m"
	From string `json:"from"`
	To   string `json:"to"`
	Why  string `json:"cause"`
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

// IsZero reports whether there is no stream: then JSON leaves it out.
func (e *EventStream) IsZero() bool { return e.State == NoStream }

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
