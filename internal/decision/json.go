package decision

import (
	"encoding/json"
	"math"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file writes and reads a record as JSON. Worker ids are strings, since they exceed
// what a JSON number holds; durations are in seconds; a cost that is no number is null;
// what has not happened is left out.

type recordForm struct {
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

	Split   string      `json:"split,omitempty"`
	Prefill *choiceForm `json:"prefill,omitempty"`
	Decode  *choiceForm `json:"decode,omitempty"`

	Outcome   string `json:"outcome"`
	Detail    string `json:"detail,omitempty"`
	Error     string `json:"error,omitempty"`
	Status    int    `json:"status,omitempty"`
	Leg       string `json:"prefill_leg,omitempty"`
	LegDetail string `json:"prefill_leg_detail,omitempty"`
	LegError  string `json:"prefill_leg_error,omitempty"`

	DecisionSeconds float64     `json:"decision_seconds,omitempty"`
	Timings         timingsForm `json:"timings"`
}

type timingsForm struct {
	PrefillStarted  float64 `json:"prefill_started_seconds,omitempty"`
	PrefillWell     float64 `json:"prefill_well_seconds,omitempty"`
	PrefillEnded    float64 `json:"prefill_ended_seconds,omitempty"`
	ResponseHeaders float64 `json:"response_headers_seconds,omitempty"`
	End             float64 `json:"end_seconds,omitempty"`
}

type choiceForm struct {
	WorkerID      worker.ID     `json:"worker_id,string,omitempty"`
	DPRank        worker.DPRank `json:"dp_rank"`
	Endpoint      string        `json:"endpoint,omitempty"`
	Mode          string        `json:"mode"`
	Reason        string        `json:"reason,omitempty"`
	Why           string        `json:"why"`
	OverlapBlocks int64         `json:"overlap_blocks"`
	Cost          *float64      `json:"cost"`
	Table         []rowForm     `json:"table"`
	LeftOut       int           `json:"left_out"`
	EligibleOut   int           `json:"left_out_eligible,omitempty"` // of LeftOut
}

type rowForm struct {
	WorkerID            worker.ID     `json:"worker_id,string"`
	DPRank              worker.DPRank `json:"dp_rank"`
	Endpoint            string        `json:"endpoint,omitempty"`
	Picked              bool          `json:"picked"`
	Eligible            bool          `json:"eligible"`
	OverlapBlocks       int64         `json:"overlap_blocks"`
	PredictedBlocks     uint32        `json:"predicted_blocks,omitempty"`
	HostBlocks          uint32        `json:"host_blocks,omitempty"`
	DiskBlocks          uint32        `json:"disk_blocks,omitempty"`
	SharedBlocks        int64         `json:"shared_blocks,omitempty"`
	Estimated           bool          `json:"overlap_estimated"`
	Degraded            bool          `json:"overlap_degraded,omitempty"`
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
	KnownSecondsAgo     *float64      `json:"known_seconds_ago,omitempty"`
	StaleSeconds        *float64      `json:"stale_seconds,omitempty"`
}

// MarshalJSON writes the record with the sentences of its picks, so that a reader of the
// JSON need not make them.
func (r *Record) MarshalJSON() ([]byte, error) {
	t := &r.Timings
	f := recordForm{
		Seq: r.Seq, Time: r.Time.UTC(), RequestID: r.RequestID, Attempt: r.Attempt,
		Model: r.Model, Namespace: r.Namespace, Path: r.Path, BodyBytes: r.BodyBytes,
		TokenSource: string(r.TokenSource), TokenReason: r.TokenReason,
		ISLTokens: r.ISLTokens, Blocks: r.PromptBlocks, BlockSize: r.BlockSize,
		Split:   r.Split,
		Outcome: string(r.Outcome), Detail: r.Detail, Error: r.Error, Status: r.Status,
		Leg: string(r.Leg), LegDetail: r.LegDetail, LegError: r.LegError,
		DecisionSeconds: r.DecisionIn.Seconds(),
		Timings: timingsForm{
			t.PrefillStarted.Seconds(), t.PrefillWell.Seconds(), t.PrefillEnded.Seconds(),
			t.ResponseHeaders.Seconds(), t.End.Seconds(),
		},
	}
	for _, leg := range r.Legs() {
		if leg.Choice == &r.Prefill {
			f.Prefill = formOf(leg.Choice, leg.Why)
		} else {
			f.Decode = formOf(leg.Choice, leg.Why)
		}
	}
	return json.Marshal(&f)
}

// UnmarshalJSON reads what MarshalJSON has written. Why of a choice then returns the
// sentence in the JSON.
func (r *Record) UnmarshalJSON(b []byte) error {
	var f recordForm
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	t := &f.Timings
	*r = Record{
		Seq: f.Seq, Time: f.Time, RequestID: f.RequestID, Attempt: f.Attempt,
		Model: f.Model, Namespace: f.Namespace, Path: f.Path, BodyBytes: f.BodyBytes,
		TokenSource: TokenSource(f.TokenSource), TokenReason: f.TokenReason,
		ISLTokens: f.ISLTokens, PromptBlocks: f.Blocks, BlockSize: f.BlockSize,
		Split:   f.Split,
		Outcome: Outcome(f.Outcome), Detail: f.Detail, Error: f.Error, Status: f.Status,
		Leg: LegOutcome(f.Leg), LegDetail: f.LegDetail, LegError: f.LegError,
		DecisionIn: seconds(f.DecisionSeconds),
		Timings: Timings{
			seconds(t.PrefillStarted), seconds(t.PrefillWell), seconds(t.PrefillEnded),
			seconds(t.ResponseHeaders), seconds(t.End),
		},
	}
	f.Prefill.into(&r.Prefill)
	f.Decode.into(&r.Decode)
	return nil
}

func formOf(c *Choice, why string) *choiceForm {
	f := &choiceForm{
		WorkerID: c.Rank.ID, DPRank: c.Rank.DPRank, Endpoint: c.Endpoint, Mode: c.Mode, Reason: c.Reason,
		Why: why, OverlapBlocks: c.OverlapBlocks, Cost: number(c.Cost),
		Table: make([]rowForm, 0, c.n), LeftOut: c.left, EligibleOut: c.more,
	}
	for i := range c.Rows() {
		r := &c.rows[i]
		f.Table = append(f.Table, rowForm{
			WorkerID: r.Rank.ID, DPRank: r.Rank.DPRank, Endpoint: r.Endpoint, Picked: c.Picked(r), Eligible: !r.Out,
			OverlapBlocks: r.OverlapBlocks, PredictedBlocks: r.PredictedBlocks, HostBlocks: r.HostBlocks,
			DiskBlocks: r.DiskBlocks, SharedBlocks: r.SharedBlocks, Estimated: r.Estimated, Degraded: r.Degraded,
			CachedTokens: r.CachedTokens, UncachedTokens: r.UncachedTokens,
			ActivePrefillTokens: r.ActivePrefillTokens, ActiveDecodeBlocks: r.ActiveDecodeBlocks, ActiveRequests: r.ActiveRequests,
			CreditBlocks: number(r.CreditBlocks), PrefillCost: number(r.PrefillCost), DecodeCost: number(r.DecodeCost), Cost: number(r.Cost),
			Note: r.Note, KnownSecondsAgo: secondsOf(r.KnownAgo), StaleSeconds: secondsOf(r.StaleFor),
		})
	}
	return f
}

// into writes the form to an empty choice; a nil form is no pick.
func (f *choiceForm) into(c *Choice) {
	if f == nil {
		return
	}
	c.Rank, c.Endpoint = worker.Rank{ID: f.WorkerID, DPRank: f.DPRank}, f.Endpoint
	c.Mode, c.Reason, c.OverlapBlocks, c.Cost, c.said = f.Mode, f.Reason, f.OverlapBlocks, float(f.Cost), f.Why
	c.n = min(len(f.Table), MaxRows)
	c.left, c.more = f.LeftOut+len(f.Table)-c.n, f.EligibleOut
	for i := range f.Table[c.n:] {
		if f.Table[c.n+i].Eligible {
			c.more++
		}
	}
	for i := range c.n {
		r := &f.Table[i]
		c.rows[i] = Row{
			Rank: worker.Rank{ID: r.WorkerID, DPRank: r.DPRank}, Endpoint: r.Endpoint, Out: !r.Eligible,
			OverlapBlocks: r.OverlapBlocks, PredictedBlocks: r.PredictedBlocks, HostBlocks: r.HostBlocks,
			DiskBlocks: r.DiskBlocks, SharedBlocks: r.SharedBlocks, Estimated: r.Estimated, Degraded: r.Degraded,
			CachedTokens: r.CachedTokens, UncachedTokens: r.UncachedTokens,
			ActivePrefillTokens: r.ActivePrefillTokens, ActiveDecodeBlocks: r.ActiveDecodeBlocks, ActiveRequests: r.ActiveRequests,
			CreditBlocks: float(r.CreditBlocks), PrefillCost: float(r.PrefillCost), DecodeCost: float(r.DecodeCost), Cost: float(r.Cost),
			Note: r.Note,
		}
		if r.KnownSecondsAgo != nil {
			c.rows[i].KnownAgo = max(seconds(*r.KnownSecondsAgo), 1)
		}
		if r.StaleSeconds != nil {
			c.rows[i].StaleFor = max(seconds(*r.StaleSeconds), 1)
		}
	}
}

// number returns nil for a number that JSON cannot write.
func number(f float64) *float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return &f
}

func float(f *float64) float64 {
	if f == nil {
		return math.NaN()
	}
	return *f
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * float64(time.Second))) }

// secondsOf returns nil for a duration of zero, which means that there is none.
func secondsOf(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}
