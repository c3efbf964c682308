package hour

import (
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// outcomes are how requests end. The first is for all that are not listed.
var outcomes = [...]string{"unfinished", "ok", "answered", "client_left", "rejected", "refused", "failed", "cut"}

// Outcomes returns how requests end, in the order of [Span.Requests].
func Outcomes() []string { return slices.Clone(outcomes[:]) }

// Times sums up how long something took.
type Times struct {
	Count    int64 // 0: nothing was measured
	P50, P99 time.Duration
}

// Load is the mean of the samples of one role.
type Load struct {
	Known        bool    `json:"-"`             // there was a sample
	QueueSeconds float64 `json:"queue_seconds"` // until a rank is free, in the mean
	DecodeBlocks float64 `json:"decode_blocks"`
}

// Span is what happened in some steps that follow each other.
type Span struct {
	End   time.Time     // of its last step
	Known time.Duration // how much of it is over, and was watched; 0: nothing is known of it

	Requests             [len(outcomes)]int64 // that ended, by outcome
	FirstToken, PerToken Times
	Prompt               Prompt
	Load                 [worker.Aggregated + 1]Load // by role
}

// Spans returns the last hour, oldest first, in spans of as many steps, from 1 to [Steps]. The
// bounds of spans stay where they are as time goes on, so the newest may not be over yet.
func (h *Hour) Spans(now time.Time, steps int) []Span {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.atLocked(now)
	width := int64(min(max(steps, 1), Steps))
	over := h.newest - 1 // the last step that is over
	n := int64(Steps) / width
	first := floor(over, width) - n + 1
	out := make([]Span, 0, n)
	for i := range n {
		from := (first + i) * width
		out = append(out, h.spanLocked(now, from, min(from+width-1, over)))
	}
	return out
}

// floor divides, and rounds down.
func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func (h *Hour) spanLocked(now time.Time, from, to int64) Span {
	s := Span{End: now.Add(h.start.Add(time.Duration(to+1) * Step).Sub(now))} // by the clock of now
	var sum bin
	for step := max(from, 0); step <= to; step++ {
		s.Known += Step
		sum.add(h.binLocked(step))
	}
	for i, n := range sum.requests {
		s.Requests[i] = int64(n)
	}
	s.FirstToken, s.PerToken, s.Prompt = sum.firstToken.times(), sum.perToken.times(), sum.prompt
	for r, l := range sum.load {
		if n := float64(l.samples); n > 0 {
			s.Load[r] = Load{true, l.queue / n, l.blocks / n}
		}
	}
	return s
}
