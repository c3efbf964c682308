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

// plain is a record without its methods.
type plain Record

type recordForm struct {
	plain

	DecisionSeconds float64     `json:"decision_seconds,omitempty"`
	Timings         timingsForm `json:"timings"`
}

type timingsForm struct {
	PrefillStarted  float64 `json:"prefill_started_seconds,omitempty"`
	PrefillWell     float64 `json:"prefill_well_seconds,omitempty"`
	PrefillEnded    float64 `json:"prefill_ended_seconds,omitempty"`
	ResponseHeaders float64 `json:"response_headers_seconds,omitempty"`
	FirstToken      float64 `json:"first_token_seconds,omitempty"`
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
	CostIn        string        `json:"cost_in,omitempty"` // "seconds"; else blocks, or what the mode compares
	TargetSeconds float64       `json:"target_seconds,omitempty"`
	Late          bool          `json:"late,omitempty"`
	Table         []rowForm     `json:"table"`
	LeftOut       int           `json:"left_out"`
	EligibleOut   int           `json:"left_out_eligible,omitempty"` // of LeftOut
}

const inSeconds = "seconds" // a value of choiceForm.CostIn

type rowForm struct {
	WorkerID worker.ID     `json:"worker_id,string"`
	DPRank   worker.DPRank `json:"dp_rank"`
	Picked   bool          `json:"picked"`
	Eligible bool          `json:"eligible"`
	Row
	CreditBlocks    *float64 `json:"credit_blocks"`
	PrefillCost     *float64 `json:"prefill_cost"`
	DecodeCost      *float64 `json:"decode_cost"`
	Cost            *float64 `json:"cost"`
	Note            string   `json:"note,omitempty"`
	KnownSecondsAgo *float64 `json:"known_seconds_ago,omitempty"`
	StaleSeconds    *float64 `json:"stale_seconds,omitempty"`
}

// MarshalJSON writes the record with the sentences of its picks, so that a reader of the
// JSON need not make them.
func (r *Record) MarshalJSON() ([]byte, error) {
	t := &r.Timings
	f := recordForm{plain(*r), r.DecisionIn.Seconds(), timingsForm{
		t.PrefillStarted.Seconds(), t.PrefillWell.Seconds(), t.PrefillEnded.Seconds(),
		t.ResponseHeaders.Seconds(), t.FirstToken.Seconds(), t.End.Seconds(),
	}}
	f.Time = r.Time.UTC()
	for _, leg := range r.Legs() {
		if leg.Choice == &r.Prefill {
			f.Prefill.said = leg.Why
		} else {
			f.Decode.said = leg.Why
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
	*r = Record(f.plain)
	r.DecisionIn = seconds(f.DecisionSeconds)
	r.Timings = Timings{
		seconds(t.PrefillStarted), seconds(t.PrefillWell), seconds(t.PrefillEnded),
		seconds(t.ResponseHeaders), seconds(t.FirstToken), seconds(t.End),
	}
	return nil
}

// IsZero reports whether the choice has nothing to show: then JSON leaves it out.
func (c *Choice) IsZero() bool { return !c.Told() }

// MarshalJSON writes a choice whose sentence is said.
func (c *Choice) MarshalJSON() ([]byte, error) {
	f := choiceForm{
		WorkerID: c.Rank.ID, DPRank: c.Rank.DPRank, Endpoint: c.Endpoint, Mode: c.Mode, Reason: c.Reason,
		Why: c.said, OverlapBlocks: c.OverlapBlocks, Cost: number(c.Cost),
		TargetSeconds: c.Target.Seconds(), Late: c.Late,
		Table: make([]rowForm, 0, c.n), LeftOut: c.left, EligibleOut: c.more,
	}
	if c.InSeconds {
		f.CostIn = inSeconds
	}
	for i := range c.Rows() {
		r := &c.rows[i]
		f.Table = append(f.Table, rowForm{
			WorkerID: r.Rank.ID, DPRank: r.Rank.DPRank, Picked: c.Picked(r), Eligible: !r.Out, Row: *r,
			CreditBlocks: number(r.CreditBlocks), PrefillCost: number(r.PrefillCost), DecodeCost: number(r.DecodeCost), Cost: number(r.Cost),
			Note: r.Note, KnownSecondsAgo: secondsOf(r.KnownAgo), StaleSeconds: secondsOf(r.StaleFor),
		})
	}
	return json.Marshal(&f)
}

// UnmarshalJSON reads what MarshalJSON has written, into an empty choice.
func (c *Choice) UnmarshalJSON(b []byte) error {
	var f *choiceForm
	if err := json.Unmarshal(b, &f); f == nil {
		return err
	}
	c.Rank, c.Endpoint = worker.Rank{ID: f.WorkerID, DPRank: f.DPRank}, f.Endpoint
	c.Mode, c.Reason, c.OverlapBlocks, c.Cost, c.said = f.Mode, f.Reason, f.OverlapBlocks, float(f.Cost), f.Why
	c.InSeconds, c.Target, c.Late = f.CostIn == inSeconds, seconds(f.TargetSeconds), f.Late
	c.n = min(len(f.Table), MaxRows)
	c.left, c.more = f.LeftOut+len(f.Table)-c.n, f.EligibleOut
	for i := range f.Table[c.n:] {
		if f.Table[c.n+i].Eligible {
			c.more++
		}
	}
	for i := range c.n {
		r := &f.Table[i]
		row := &c.rows[i]
		*row = r.Row
		row.Rank, row.Out = worker.Rank{ID: r.WorkerID, DPRank: r.DPRank}, !r.Eligible
		row.CreditBlocks, row.PrefillCost = float(r.CreditBlocks), float(r.PrefillCost)
		row.DecodeCost, row.Cost, row.Note = float(r.DecodeCost), float(r.Cost), r.Note
		if r.KnownSecondsAgo != nil {
			row.KnownAgo = max(seconds(*r.KnownSecondsAgo), 1)
		}
		if r.StaleSeconds != nil {
			row.StaleFor = max(seconds(*r.StaleSeconds), 1)
		}
	}
	return nil
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
	return new(d.Seconds())
}
