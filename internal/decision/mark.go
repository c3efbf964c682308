package decision

import "time"

// Event is a moment in the life of an attempt, for [Record.Mark].
type Event uint8

// The events, in the usual order.
const (
	PrefillStarted Event = iota + 1
	PrefillWell
	PrefillEnded
	ResponseHeaders
	FirstToken
)

// Mark records that e happened at the given time. The first mark of an event stands.
// Marks of the prefill leg move Leg forward unless it has failed.
func (r *Record) Mark(e Event, at time.Time) {
	d := at.Sub(r.Time)
	leg := LegNone
	switch e {
	case PrefillStarted:
		setOnce(&r.Timings.PrefillStarted, d)
		leg = LegStarted
	case PrefillWell:
		setOnce(&r.Timings.PrefillWell, d)
		leg = LegWell
	case PrefillEnded:
		setOnce(&r.Timings.PrefillEnded, d)
		leg = LegEnded
	case ResponseHeaders:
		setOnce(&r.Timings.ResponseHeaders, d)
	case FirstToken:
		setOnce(&r.Timings.FirstToken, d)
	}
	if legOrder[leg] > legOrder[r.Leg] {
		r.Leg = leg
	}
}

// EndLeg records that the prefill leg failed or was aborted, and why. The first such end
// stands.
func (r *Record) EndLeg(o LegOutcome, detail string, at time.Time) {
	if r.Leg == LegFailed || r.Leg == LegAborted {
		return
	}
	r.Leg, r.LegDetail = o, detail
	setOnce(&r.Timings.PrefillEnded, at.Sub(r.Time))
}

// Meet records what the leg that failed has met, and what the prefill leg has; "" is
// nothing. Words may come after a leg's status, so a later text of the prefill leg stands.
func (r *Record) Meet(failed, prefillLeg string) {
	if r.Error == "" {
		r.Error = failed
	}
	if prefillLeg != "" {
		r.LegError = prefillLeg
	}
}

// End records how the attempt ended: its outcome, the outcome's detail ("" for none), the
// status that the client got (0: none), and when. The first end stands, so that a late
// report cannot hide the cause.
func (r *Record) End(o Outcome, detail string, status int, at time.Time) {
	if r.Timings.End != 0 {
		return
	}
	r.Outcome, r.Detail = o, detail
	if status != 0 {
		r.Status = status
	}
	setOnce(&r.Timings.End, at.Sub(r.Time))
}

// legOrder orders the outcomes: a mark moves Leg only to a later one, so that a late
// report takes nothing back. Others than these come first.
var legOrder = map[LegOutcome]int{LegDispatched: 1, LegStarted: 2, LegWell: 3, LegEnded: 4, LegFailed: 4, LegAborted: 4}

// setOnce keeps the first value. Zero means unset, so an event at the very start is kept
// as one nanosecond.
func setOnce(p *time.Duration, d time.Duration) {
	if *p == 0 {
		*p = max(d, 1)
	}
}
