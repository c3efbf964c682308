package admin

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// know adds to each candidate how long ago its events were last known to be complete, and
// since when it is stale.
func know(d *decision.Record, s *State) {
	ages, stale := map[worker.Rank]time.Duration{}, map[worker.ID]time.Duration{}
	for i := range s.Workers {
		w := &s.Workers[i]
		if !w.StaleSince.IsZero() {
			stale[w.ID] = max(s.Now.Sub(w.StaleSince), 1)
		}
		for _, r := range w.Ranks {
			if at := r.Events.AsOf; !at.IsZero() {
				ages[worker.Rank{ID: w.ID, DPRank: r.DPRank}] = max(s.Now.Sub(at), 1)
			}
		}
	}
	for _, c := range []*decision.Choice{&d.Prefill, &d.Decode} {
		for i, r := range c.Rows() {
			c.Rows()[i].KnownAgo, c.Rows()[i].StaleFor = ages[r.Rank], stale[r.Rank.ID]
		}
	}
}

type stateDoc struct {
	Version        string           `json:"version"`
	StartedAt      time.Time        `json:"started_at"`
	UptimeSeconds  float64          `json:"uptime_seconds"`
	Ready          bool             `json:"ready"`
	NotReadyReason string           `json:"not_ready_reason,omitempty"`
	Trouble        []string         `json:"trouble"`  // a line each
	Troubles       []troubleJSON    `json:"troubles"` // the same, in parts
	View           viewJSON         `json:"view"`
	Problems       []string         `json:"problems"`
	Keys           []keyJSON        `json:"keys"`
	Workers        []workerJSON     `json:"workers"`
	Channels       []channelJSON    `json:"kv_event_channels,omitempty"`
	Lately         []latelyJSON     `json:"lately,omitempty"`
	Replicas       []replicaJSON    `json:"replicas,omitempty"`
	OwnSum         string           `json:"booked_checksum,omitempty"`
	Transitions    []transitionJSON `json:"transitions"`
	BodyBytes      int64            `json:"body_bytes_in_flight"`
	BodyLimit      int64            `json:"max_body_bytes_in_flight"`
	Shadow         *Shadow          `json:"shadow,omitempty"`
	Config         string           `json:"config,omitempty"`
}

type troubleJSON struct {
	Kind    trouble.Kind `json:"kind"`
	Subject string       `json:"subject,omitempty"`
	Severe  bool         `json:"severe"`
	Count   int64        `json:"count"`
	Since   *time.Time   `json:"since,omitempty"`
	What    string       `json:"what"`
	Effect  string       `json:"effect,omitempty"`
	Do      string       `json:"do,omitempty"`
}

type viewJSON struct {
	Revision    uint64  `json:"revision,string"`
	Source      string  `json:"source,omitempty"`
	AgeSeconds  float64 `json:"age_seconds"`
	Stale       bool    `json:"stale"`
	StaleReason string  `json:"stale_reason,omitempty"`
}

type keyJSON struct {
	Model      string     `json:"model"`
	Namespace  string     `json:"namespace"`
	Activation string     `json:"activation,omitempty"`
	CanServe   bool       `json:"can_serve"`
	Reason     string     `json:"reason,omitempty"`
	Since      *time.Time `json:"since,omitempty"`
	How        string     `json:"how,omitempty"`
	Prefill    int        `json:"prefill_workers"`
	Decode     int        `json:"decode_workers"`
	Aggregated int        `json:"aggregated_workers"`

	QueuedTokens    int64 `json:"queued_isl_tokens"`
	MaxQueuedTokens int64 `json:"max_queued_isl_tokens,omitempty"`
}

type workerJSON struct {
	ID        worker.ID  `json:"worker_id,string"`
	Role      string     `json:"role"`
	Engine    string     `json:"engine"`
	Endpoint  string     `json:"endpoint"`
	Models    []string   `json:"models"`
	Namespace string     `json:"namespace"`
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Stale     *time.Time `json:"stale_since,omitempty"`
	Ranks     []rankJSON `json:"ranks"`
	Facts     *factsJSON `json:"facts,omitempty"`
	// Pair has what its partner must share; null: not known.
	Pair map[string]*string `json:"pair_facts"`
}

type factsJSON struct {
	State    string     `json:"state"`
	Since    *time.Time `json:"since,omitempty"`
	URL      string     `json:"url"`
	As       string     `json:"asked_as"`
	Version  string     `json:"engine_version,omitempty"`
	ReadAt   *time.Time `json:"read_at,omitempty"`
	Failures int        `json:"failures,omitempty"`
	Error    string     `json:"error,omitempty"`
	Unread   string     `json:"unread,omitempty"`
	Events   string     `json:"kv_events,omitempty"`
}

type rankJSON struct {
	DPRank         worker.DPRank `json:"dp_rank"`
	State          string        `json:"state,omitempty"` // only for a rank with a port of its own that is not healthy
	Reason         string        `json:"reason,omitempty"`
	Requests       int           `json:"requests"`
	PrefillTokens  int64         `json:"prefill_tokens"`
	DecodeBlocks   int64         `json:"decode_blocks"`
	IndexBlocks    int64         `json:"index_blocks"`
	ShedBlocks     int64         `json:"index_shed_blocks,omitempty"`
	CapacityBlocks int64         `json:"capacity_blocks,omitempty"`
	Pace           Pace          `json:"believed"`
	Events         *streamJSON   `json:"kv_events,omitempty"`
}

type streamJSON struct {
	State        string     `json:"state"`
	Since        *time.Time `json:"since,omitempty"`
	LastSequence *uint64    `json:"last_sequence,omitempty"`
	LastAt       *time.Time `json:"last_at,omitempty"`
	AsOf         *time.Time `json:"as_of,omitempty"`
	Degraded     bool       `json:"degraded"`
	Reason       string     `json:"reason,omitempty"`
	Via          string     `json:"via,omitempty"`

	Refused map[string]uint64 `json:"refused,omitempty"`
}

type channelJSON struct {
	Name     string            `json:"name"`
	Up       bool              `json:"up"`
	Since    *time.Time        `json:"since,omitempty"`
	Messages uint64            `json:"messages"`
	Refused  map[string]uint64 `json:"refused,omitempty"`
	Reason   string            `json:"reason,omitempty"`

	Waiting    int `json:"waiting_peers,omitempty"`
	MaxWaiting int `json:"max_waiting_peers,omitempty"`
}

type latelyJSON struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

type replicaJSON struct {
	Address       string     `json:"address"`
	Name          string     `json:"name,omitempty"`
	State         string     `json:"state"`
	Since         time.Time  `json:"since"`
	Heard         *time.Time `json:"heard,omitempty"`
	LateSeconds   float64    `json:"late_seconds"`
	Told          bool       `json:"told"`
	Error         string     `json:"error,omitempty"`
	Legs          int64      `json:"legs"`
	PrefillTokens int64      `json:"prefill_tokens"`
	DecodeBlocks  int64      `json:"decode_blocks"`
	Sum           string     `json:"booked_checksum"`
	DiffersSince  *time.Time `json:"differs_since,omitempty"`
}

type transitionJSON struct {
	At    time.Time `json:"at"`
	What  string    `json:"what"`
	From  string    `json:"from"`
	To    string    `json:"to"`
	Cause string    `json:"cause"`
}

func stateJSON(s *State) *stateDoc {
	d := &stateDoc{
		Version: s.Version, StartedAt: s.StartedAt.UTC(), UptimeSeconds: s.Now.Sub(s.StartedAt).Seconds(),
		Ready: s.Ready, NotReadyReason: s.NotReadyReason, Trouble: []string{}, Troubles: []troubleJSON{},
		View:     viewJSON{s.View.Revision, s.View.Source, s.View.Age.Seconds(), s.View.Stale, s.View.StaleReason},
		Problems: []string{}, Keys: []keyJSON{}, Workers: []workerJSON{}, Transitions: []transitionJSON{},
		Config: s.Config, BodyBytes: s.BodyBytes, BodyLimit: s.BodyLimit,
	}
	for _, x := range s.Problems {
		d.Problems = append(d.Problems, x.Text)
	}
	for i := range s.Troubles {
		t := &s.Troubles[i]
		d.Trouble = append(d.Trouble, t.Line())
		d.Troubles = append(d.Troubles, troubleJSON{t.Kind, t.Subject, t.Severe(), t.N(), moment(t.Since), t.What, t.Means(), t.Help()})
	}
	for _, k := range s.Keys {
		d.Keys = append(d.Keys, keyJSON{
			k.Key.Model, k.Key.Namespace, k.Activation, k.CanServe, k.Reason, moment(k.Since), k.How, k.Prefill, k.Decode, k.Aggregated,
			k.QueuedTokens, k.MaxQueuedTokens,
		})
	}
	for i := range s.Workers {
		d.Workers = append(d.Workers, newWorkerJSON(&s.Workers[i]))
	}
	for _, c := range s.Channels {
		d.Channels = append(d.Channels, channelJSON{c.Name, c.Up, moment(c.Since), c.Messages, c.Refused, c.Reason, c.Waiting, c.MaxWaiting})
	}
	for _, l := range s.Lately {
		d.Lately = append(d.Lately, latelyJSON{l.At.UTC(), l.Text})
	}
	d.OwnSum, d.Shadow = s.OwnSum, s.Shadow
	for _, r := range s.Replicas {
		d.Replicas = append(d.Replicas, replicaJSON{
			r.Address, r.Name, r.State, r.Since.UTC(), moment(r.Heard), r.Late, r.Told, r.Error, r.Legs, r.PrefillTokens, r.DecodeBlocks, r.Sum, moment(r.DiffersSince),
		})
	}
	for _, t := range s.Transitions {
		d.Transitions = append(d.Transitions, transitionJSON{t.At.UTC(), t.What, t.From, t.To, t.Why})
	}
	return d
}

func newWorkerJSON(w *WorkerRow) workerJSON {
	out := workerJSON{
		ID: w.ID, Role: w.Role.String(), Engine: string(w.Engine), Endpoint: w.Endpoint, Models: append([]string{}, w.Models...),
		Namespace: w.Namespace, State: string(w.Health), Reason: w.Reason, Since: moment(w.Since), Stale: moment(w.StaleSince),
		Ranks: make([]rankJSON, 0, len(w.Ranks)), Pair: make(map[string]*string),
	}
	for i := range w.Pair {
		name := worker.PairFact(i).String() //nolint:gosec // few
		out.Pair[name] = &w.Pair[i]
		if w.Pair[i] == "" {
			out.Pair[name] = nil
		}
	}
	if f := w.Facts; f.State != "" {
		out.Facts = &factsJSON{f.State, moment(f.Since), f.URL, f.As, f.Version, moment(f.ReadAt), f.Failures, f.Error, f.Unread, f.Events}
	}
	for _, r := range w.Ranks {
		rj := rankJSON{
			DPRank: r.DPRank, State: string(r.Health), Reason: r.Reason, Requests: r.Requests, PrefillTokens: r.PrefillTokens,
			DecodeBlocks: r.DecodeBlocks, IndexBlocks: r.IndexBlocks, ShedBlocks: r.ShedBlocks, CapacityBlocks: r.CapacityBlocks, Pace: r.Pace,
		}
		if e := r.Events; e.State != NoStream {
			rj.Events = &streamJSON{State: string(e.State), Since: moment(e.Since), Degraded: e.Degraded, Reason: e.Reason, Via: e.Via, Refused: e.Refused, AsOf: moment(e.AsOf)}
			if e.Any {
				seq := e.LastSequence
				rj.Events.LastSequence, rj.Events.LastAt = &seq, moment(e.LastAt)
			}
		}
		out.Ranks = append(out.Ranks, rj)
	}
	return out
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
