package route

import (
	"slices"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file writes the record of a decision, with its reasons in words. No prompt text
// passes through it.

// recording is a decision while its record is written, out of what it was made of.
type recording struct{ *decider }

// record fills in the record of the decision, in the scratch's memory.
func (d recording) record() *decision.Record {
	q, v, r := d.q, &d.v, &d.sc.record
	*r = decision.Record{}
	r.BodyBytes = int64(len(q.req.Body))
	r.Outcome = decision.Routed
	switch {
	case q.preview():
		r.Outcome = decision.Answered
	case q.apart && v.fail == nil && q.req.Sidecar:
		r.Leg = decision.LegBySidecar
	case q.apart && v.fail == nil:
		r.Leg = decision.LegDispatched
	}
	r.Model, r.Namespace = q.pool.Key.Model, q.pool.Key.Namespace
	r.TokenSource = decision.TokenSource(v.prompt.Source.String())
	r.TokenReason = string(v.prompt.Reason)
	r.ISLTokens, r.PromptBlocks, r.BlockSize = int64(v.prompt.ISLTokens), int64(v.blocks), v.size
	r.Split = v.split.String()
	d.fillChoice(&r.Prefill, &v.prefill)
	d.fillChoice(&r.Decode, &v.decode)
	return r
}

func (d recording) fillChoice(out *decision.Choice, c *choice) {
	q := d.q
	if c.explain == nil {
		return
	}
	out.Role, out.Mode = c.role, c.mode()
	out.InSeconds = c.params.InSeconds && out.Mode == picker.KV.String()
	if c.made {
		out.Rank = c.decision.Rank
		out.Endpoint = endpointOf(q, out.Rank)
		out.Reason = c.decision.Reason.String()
		out.Target, out.Late = q.req.Target, c.decision.Late
		out.OverlapBlocks, out.Cost = int64(c.decision.OverlapBlocks), c.decision.Cost
	}
	if c.full != nil {
		out.Refused = queueNote(c.full)
	}
	for i := range c.explain.Rows {
		row := rowOf(&c.explain.Rows[i])
		row.Endpoint = endpointOf(q, row.Rank)
		out.Offer(&row)
	}
	d.fillOut(out, c)
	out.Skip(c.explain.More, c.explain.Left-c.explain.More)
}

// endpointOf returns the endpoint of a rank; "" if the worker is not in the question's
// world.
func endpointOf(q *Question, r worker.Rank) string {
	w := q.world.Worker(r.ID)
	if w == nil {
		return ""
	}
	e := w.EndpointOf(r.DPRank)
	return e.String()
}

func queueNote(e *picker.SaturatedError) string {
	return "its workers have " + strconv.FormatInt(e.QueuedISLTokens, 10) + " prompt tokens queued, the limit is " +
		strconv.FormatInt(e.MaxQueuedISLTokens, 10)
}

func (d recording) strandedNote(role worker.Role) string {
	switch {
	case role != worker.Prefill || d.q.places.Decode != nil:
		return "counts the tokens of prompts otherwise than the other worker"
	case d.sides != nil:
		return "no decode worker may be picked that fits, counts tokens as it does and is in its transfer domain"
	default:
		return "no decode worker may be picked in its transfer domain"
	}
}

// fillOut adds the ranks that could not be picked, each with the reason.
func (d recording) fillOut(out *decision.Choice, c *choice) {
	q := d.q
	x := c.explain
	for i := range x.Out {
		o := &x.Out[i]
		row := decision.Row{Rank: o.Rank, Endpoint: endpointOf(q, o.Rank), Out: true}
		switch o.Cause {
		case load.OutExcluded:
			row.Note = "has failed this request before"
			if slices.Contains(c.stranded, o.Rank) {
				row.Note = d.strandedNote(c.role)
			}
		case load.OutUnknown:
			row.Note = "has left"
		case load.OutTaint:
			row.Note = "lacks the taint " + o.Taint
			if o.Taint == noTaint {
				row.Note = "lacks the taint " + c.missing
			}
		case load.OutSubset:
			row.Note = c.without
		case load.OutOverloaded:
			row.Note = o.Overload.String()
		case load.OutAside:
			row.Note = d.asideNote(o.Rank)
		}
		out.Offer(&row)
	}
}

func (d recording) asideNote(r worker.Rank) string {
	if h, known := d.cfg.Health.Lookup(r); known && h.State != health.Healthy {
		return h.State.String() + ": " + string(h.Reason)
	}
	return "was aside" // the rank came back after the pick
}

func rowOf(r *picker.Row) decision.Row {
	row := decision.Row{
		Rank: r.Rank, OverlapBlocks: int64(r.OverlapBlocks), PredictedBlocks: r.PredictedBlocks, HostBlocks: r.HostBlocks, DiskBlocks: r.DiskBlocks, SharedBlocks: r.SharedBlocks, Estimated: r.Estimated, Degraded: r.Degraded,
		CachedTokens: r.CachedTokens, UncachedTokens: r.UncachedTokens,
		ActivePrefillTokens: r.ActivePrefillTokens, ActiveDecodeBlocks: r.ActiveDecodeBlocks,
		ActiveRequests: int64(r.ActiveRequests), CreditBlocks: r.CreditBlocks,
		WaitSeconds: r.WaitSeconds, OwnSeconds: r.OwnSeconds, PrefillCost: r.PrefillCost, DecodeCost: r.DecodeCost, Cost: r.Cost,
	}
	if r.Late {
		row.Note = "is believed to miss the target"
	}
	if r.Degraded && !r.Estimated {
		row.Note = "degraded: not all of its events came"
	}
	if r.Overload != picker.NotOverloaded {
		row.Note = r.Overload.String()
	}
	return row
}
