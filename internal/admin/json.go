package admin

import (
	"math"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// DecisionJSON is a record of the journal in JSON. Worker ids are strings,
// since they exceed what a JSON number holds; durations are seconds; what has
// not happened is left out.
type DecisionJSON struct {
	Seq         uint64    `json:"seq"`
	Time        time.Time `json:"time"`
	RequestID   string    `json:"request_id"`
	Attempt     int       `json:"attempt"`
	Model       string    `json:"model"`
	Namespace   string    `json:"namespace,omitempty"`
	Path        string    `json:"path"`
	BodyBytes   int64     `json:"body_bytes"`
	TokenSource string    `json:"token_source,omitempty"`
	TokenReason string    `json:"token_reason,omitempty"`
	ISLTokens   int64     `json:"isl_tokens"`
	Blocks      int64     `json:"prompt_blocks"`
	BlockSize   int       `json:"block_size,omitempty"`

	Split   string      `json:"split,omitempty"` // why one worker, or two, where that was to be chosen
	Prefill *choiceJSON `json:"prefill,omitempty"`
	Decode  *choiceJSON `json:"decode,omitempty"`

	Outcome   string `json:"outcome"`
	Detail    string `json:"detail,omitempty"`
	Status    int    `json:"status,omitempty"`
	Leg       string `json:"prefill_leg,omitempty"`
	LegDetail string `json:"prefill_leg_detail,omitempty"`

	DecisionSeconds float64     `json:"decision_seconds,omitempty"`
	Timings         timingsJSON `json:"timings"`
}

type timingsJSON struct {
	PrefillStarted  float64 `json:"prefill_started_seconds,omitempty"`
	PrefillWell     float64 `json:"prefill_well_seconds,omitempty"`
	PrefillEnded    float64 `json:"prefill_ended_seconds,omitempty"`
	ResponseHeaders float64 `json:"response_headers_seconds,omitempty"`
	End             float64 `json:"end_seconds,omitempty"`
}

type choiceJSON struct {
	WorkerID      worker.ID     `json:"worker_id,string,omitempty"`
	DPRank        worker.DPRank `json:"dp_rank"`
	Endpoint      string        `json:"endpoint,omitempty"`
	Mode          string        `json:"mode"`
	Reason        string        `json:"reason,omitempty"`
	Why           string        `json:"why"`
	OverlapBlocks int64         `json:"overlap_blocks"`
	Cost          *float64      `json:"cost"`
	Table         []rowJSON     `json:"table"`
	LeftOut       int           `json:"left_out"`
}

type rowJSON struct {
	WorkerID            worker.ID     `json:"worker_id,string"`
	DPRank              worker.DPRank `json:"dp_rank"`
	Endpoint            string        `json:"endpoint,omitempty"`
	Picked              bool          `json:"picked"`
	Eligible            bool          `json:"eligible"`
	OverlapBlocks       int64         `json:"overlap_blocks"`
	PredictedBlocks     uint32        `json:"predicted_blocks,omitempty"` // of those
	HostBlocks          uint32        `json:"host_blocks,omitempty"`      // beyond those
	DiskBlocks          uint32        `json:"disk_blocks,omitempty"`      // beyond both
	SharedBlocks        int64         `json:"shared_blocks,omitempty"`    // in the cache outside, beyond all of those
	Estimated           bool          `json:"overlap_estimated"`
	CachedTokens        int64         `json:"cached_tokens"`
	UncachedTokens      int64         `json:"uncached_tokens"`
	ActivePrefillTokens int64         `json:"active_prefill_tokens"`
	ActiveDecodeBlocks  int64         `json:"active_decode_blocks"`
	ActiveRequests      int64         `json:"active_requests"`
	CreditBlocks        *float64      `json:"credit_blocks"`
	PrefillCost         *float64      `json:"prefill_cost"`
	DecodeCost          *float64      `json:"decode_cost"`
	Cost                *float64      `json:"cost"`
	Note                string        `json:"note,omitempty"`
	// How long ago it was known last that none of its events is missing; of an answer
	// to explain.
	KnownSecondsAgo *float64 `json:"known_seconds_ago,omitempty"`
}

// NewDecisionJSON converts a record. It keeps nothing of r.
func NewDecisionJSON(r *decision.Record) *DecisionJSON {
	return &DecisionJSON{
		Seq: r.Seq, Time: r.Time.UTC(), RequestID: r.RequestID, Attempt: r.Attempt,
		Model: r.Model, Namespace: r.Namespace, Path: r.Path, BodyBytes: r.BodyBytes,
		TokenSource: string(r.TokenSource), TokenReason: r.TokenReason,
		ISLTokens: r.ISLTokens, Blocks: r.PromptBlocks, BlockSize: r.BlockSize,
		Split:   r.Split,
		Prefill: newChoiceJSON(&r.Prefill, r.PromptBlocks),
		Decode:  newChoiceJSON(&r.Decode, 0),
		Outcome: string(r.Outcome), Detail: r.Detail, Status: r.Status,
		Leg: string(r.Leg), LegDetail: r.LegDetail,
		DecisionSeconds: r.DecisionIn.Seconds(),
		Timings: timingsJSON{
			PrefillStarted:  r.Timings.PrefillStarted.Seconds(),
			PrefillWell:     r.Timings.PrefillWell.Seconds(),
			PrefillEnded:    r.Timings.PrefillEnded.Seconds(),
			ResponseHeaders: r.Timings.ResponseHeaders.Seconds(),
			End:             r.Timings.End.Seconds(),
		},
	}
}

func newChoiceJSON(c *decision.Choice, promptBlocks int64) *choiceJSON {
	if !c.Made() && len(c.Rows()) == 0 && c.Refused == "" {
		return nil
	}
	out := &choiceJSON{
		WorkerID: c.Rank.ID, DPRank: c.Rank.DPRank, Endpoint: c.Endpoint, Mode: c.Mode, Reason: c.Reason,
		Why: c.Why(promptBlocks), OverlapBlocks: c.OverlapBlocks, Cost: number(c.Cost),
		Table: make([]rowJSON, 0, len(c.Rows())), LeftOut: c.Left(),
	}
	for _, r := range c.Rows() {
		out.Table = append(out.Table, rowJSON{
			WorkerID: r.Rank.ID, DPRank: r.Rank.DPRank, Endpoint: r.Endpoint, Picked: c.Made() && r.Rank == c.Rank, Eligible: !r.Out,
			OverlapBlocks: r.OverlapBlocks, PredictedBlocks: r.PredictedBlocks, HostBlocks: r.HostBlocks, DiskBlocks: r.DiskBlocks, SharedBlocks: r.SharedBlocks, Estimated: r.Estimated,
			CachedTokens: r.CachedTokens, UncachedTokens: r.UncachedTokens, CreditBlocks: number(r.CreditBlocks),
			ActivePrefillTokens: r.ActivePrefillTokens,
			ActiveDecodeBlocks:  r.ActiveDecodeBlocks, ActiveRequests: r.ActiveRequests,
			PrefillCost: number(r.PrefillCost), DecodeCost: number(r.DecodeCost), Cost: number(r.Cost), Note: r.Note,
		})
	}
	return out
}

// know adds how old what is known of each candidate is.
func (d *DecisionJSON) know(s *State) {
	ages := map[worker.Rank]*float64{}
	for i := range s.Workers {
		w := &s.Workers[i]
		for _, r := range w.Ranks {
			if at := r.Events.AsOf; !at.IsZero() {
				ago := s.Now.Sub(at).Seconds()
				ages[worker.Rank{ID: w.ID, DPRank: r.DPRank}] = &ago
			}
		}
	}
	for _, c := range []*choiceJSON{d.Prefill, d.Decode} {
		if c == nil {
			continue
		}
		for i := range c.Table {
			r := &c.Table[i]
			r.KnownSecondsAgo = ages[worker.Rank{ID: r.WorkerID, DPRank: r.DPRank}]
		}
	}
}

// number returns nil for what JSON has no number for.
func number(f float64) *float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return &f
}

type stateDoc struct {
	Version        string           `json:"version"`
	StartedAt      time.Time        `json:"started_at"`
	UptimeSeconds  float64          `json:"uptime_seconds"`
	Ready          bool             `json:"ready"`
	NotReadyReason string           `json:"not_ready_reason,omitempty"`
	Trouble        []string         `json:"trouble"`
	View           viewJSON         `json:"view"`
	Problems       []string         `json:"problems"`
	Keys           []keyJSON        `json:"keys"`
	Workers        []workerJSON     `json:"workers"`
	Channels       []channelJSON    `json:"kv_event_channels,omitempty"`
	Transitions    []transitionJSON `json:"transitions"`
	Failures       []failureJSON    `json:"failures"`
	BodyBytes      int64            `json:"body_bytes_in_flight"`
	BodyLimit      int64            `json:"max_body_bytes_in_flight"`
	Config         string           `json:"config,omitempty"`
}

type viewJSON struct {
	Revision    uint64  `json:"revision,string"`
	Source      string  `json:"source,omitempty"`
	AgeSeconds  float64 `json:"age_seconds"`
	Stale       bool    `json:"stale"`
	StaleReason string  `json:"stale_reason,omitempty"`
}

type keyJSON struct {
	Model      string `json:"model"`
	Namespace  string `json:"namespace"`
	Activation string `json:"activation,omitempty"`
	CanServe   bool   `json:"can_serve"`
	Reason     string `json:"reason,omitempty"`
	How        string `json:"how,omitempty"`
	Prefill    int    `json:"prefill_workers"`
	Decode     int    `json:"decode_workers"`
	Aggregated int    `json:"aggregated_workers"`

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
	Ranks     []rankJSON `json:"ranks"`
}

type rankJSON struct {
	DPRank         worker.DPRank `json:"dp_rank"`
	State          string        `json:"state,omitempty"` // of a rank with a port of its own, unless it is healthy
	Reason         string        `json:"reason,omitempty"`
	Requests       int           `json:"requests"`
	PrefillTokens  int64         `json:"prefill_tokens"`
	DecodeBlocks   int64         `json:"decode_blocks"`
	IndexBlocks    int64         `json:"index_blocks"`
	ShedBlocks     int64         `json:"index_shed_blocks,omitempty"`
	CapacityBlocks int64         `json:"capacity_blocks,omitempty"`
	Events         *streamJSON   `json:"kv_events,omitempty"`
}

type streamJSON struct {
	State        string     `json:"state"`
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

type transitionJSON struct {
	At    time.Time `json:"at"`
	What  string    `json:"what"`
	From  string    `json:"from"`
	To    string    `json:"to"`
	Cause string    `json:"cause"`
}

type failureJSON struct {
	Code   string     `json:"code"`
	Status int        `json:"status"`
	Count  uint64     `json:"count"`
	Last   *time.Time `json:"last,omitempty"`
}

func stateJSON(s *State) *stateDoc {
	d := &stateDoc{
		Version: s.Version, StartedAt: s.StartedAt.UTC(), UptimeSeconds: s.Now.Sub(s.StartedAt).Seconds(),
		Ready: s.Ready, NotReadyReason: s.NotReadyReason, Trouble: []string{},
		View:     viewJSON{s.View.Revision, s.View.Source, s.View.Age.Seconds(), s.View.Stale, s.View.StaleReason},
		Problems: append([]string{}, s.Problems...), Keys: []keyJSON{}, Workers: []workerJSON{}, Transitions: []transitionJSON{}, Failures: []failureJSON{},
		Config: s.Config, BodyBytes: s.BodyBytes, BodyLimit: s.BodyLimit,
	}
	for _, t := range troubles(s, nil) {
		d.Trouble = append(d.Trouble, strings.TrimPrefix(t.Tag+": "+t.Text, ": "))
	}
	for _, k := range s.Keys {
		d.Keys = append(d.Keys, keyJSON{
			k.Key.Model, k.Key.Namespace, k.Activation, k.CanServe, k.Reason, k.How, k.Prefill, k.Decode, k.Aggregated,
			k.QueuedTokens, k.MaxQueuedTokens,
		})
	}
	for i := range s.Workers {
		d.Workers = append(d.Workers, newWorkerJSON(&s.Workers[i]))
	}
	for _, c := range s.Channels {
		d.Channels = append(d.Channels, channelJSON{c.Name, c.Up, moment(c.Since), c.Messages, c.Refused, c.Reason, c.Waiting, c.MaxWaiting})
	}
	for _, t := range s.Transitions {
		d.Transitions = append(d.Transitions, transitionJSON{t.At.UTC(), t.What, t.From, t.To, t.Why})
	}
	for _, f := range s.Failures {
		d.Failures = append(d.Failures, failureJSON{f.Code, f.Status, f.Count, moment(f.Last)})
	}
	return d
}

func newWorkerJSON(w *WorkerRow) workerJSON {
	out := workerJSON{
		ID: w.ID, Role: w.Role.String(), Engine: string(w.Engine), Endpoint: w.Endpoint, Models: w.Models,
		Namespace: w.Namespace, State: string(w.Health), Reason: w.Reason, Since: moment(w.Since),
		Ranks: make([]rankJSON, 0, len(w.Ranks)),
	}
	for _, r := range w.Ranks {
		rj := rankJSON{
			DPRank: r.DPRank, State: string(r.Health), Reason: r.Reason, Requests: r.Requests, PrefillTokens: r.PrefillTokens,
			DecodeBlocks: r.DecodeBlocks, IndexBlocks: r.IndexBlocks, ShedBlocks: r.ShedBlocks, CapacityBlocks: r.CapacityBlocks,
		}
		if e := r.Events; e.State != NoStream {
			rj.Events = &streamJSON{State: string(e.State), Degraded: e.Degraded, Reason: e.Reason, Via: e.Via, Refused: e.Refused, AsOf: moment(e.AsOf)}
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
