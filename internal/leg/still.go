package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// awaitPiece starts the time in which the next piece of a streamed answer has to come, if its
// pieces pass the plugin. Where they do not, Envoy keeps that time.
func awaitPiece(a *attempt, now time.Time) {
	a.timers.stop(timerGap)
	if a.phase == mainStreaming && a.plan != nil && a.plan.GapWithin > 0 && a.answer.streams && a.answer.throughUs() && !a.answer.whole() {
		a.timers.set(timerGap, now.Add(a.plan.GapWithin))
	}
}

// heldUpBy is how many bytes a client that does not read may take before it holds up the worker.
const heldUpBy = 64 << 10

// SightOfStill returns what is seen in an answer that stands still after so many bytes: a client
// that does not read holds up the worker, too.
func SightOfStill(bytes uint64) blame.Sight {
	if bytes > heldUpBy {
		return blame.Expired
	}
	return blame.Stalled
}

// stalled ends an answer that stands still. One whose stream the plugin has left Envoy ends.
func stalled(m *attempt, now time.Time, bytes uint64) {
	m.timers.stop(timerGap)
	if m.phase != mainStreaming {
		return
	}
	s := SightOfStill(bytes)
	m.charge(now, blame.Of(m.decodeLeg(), s), m.plan.Decode, false)
	f := failCut
	if s == blame.Expired {
		f = failDeadline
	}
	f.Said = m.answer.said(&m.req, "the answer stands still")
	m.cut(&f)
}
