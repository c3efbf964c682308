package admin

import (
	"cmp"
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
)

// barWidth is the length of the longest bar. The page stretches it.
const barWidth = 1000

// barView is one leg of a request on the scale of the whole request, and the same in words.
type barView struct {
	Name, Words string
	Pieces      []piece
}

type piece struct{ X, Width, Class string }

// bars draws the times of a request: the decision, the prefill leg if there was one, and the
// answer.
func bars(r *decision.Record) []barView {
	t := &r.Timings
	whole := max(r.DecisionIn, t.PrefillStarted, t.PrefillWell, t.PrefillEnded, t.ResponseHeaders, t.FirstToken, t.End)
	if whole == 0 {
		return nil
	}
	decided := barView{Name: "decided", Words: "in " + after(r.DecisionIn)}
	decided.add(0, r.DecisionIn, whole, "b-decide")
	out := []barView{decided}
	if t.PrefillStarted > 0 || t.PrefillEnded > 0 {
		b := barView{Name: "prefill"}
		b.say("started", t.PrefillStarted)
		b.say("well", t.PrefillWell)
		b.say("ended", t.PrefillEnded)
		end := cmp.Or(t.PrefillEnded, whole)
		well := min(cmp.Or(t.PrefillWell, end), end)
		b.add(t.PrefillStarted, well, whole, "b-work")
		b.add(well, end, whole, "b-out")
		out = append(out, b)
	}
	b := barView{Name: "answer"}
	b.say("response headers", t.ResponseHeaders)
	b.say("first token", t.FirstToken)
	b.say("end", t.End)
	b.Words = cmp.Or(b.Words, "nothing yet")
	from, rest := r.DecisionIn, "b-out"
	if t.ResponseHeaders == 0 && t.FirstToken == 0 {
		rest = "b-wait" // no answer has come
	}
	for _, x := range []struct {
		to    time.Duration
		class string
	}{{t.ResponseHeaders, "b-wait"}, {t.FirstToken, "b-work"}, {t.End, rest}} {
		if x.to > from {
			b.add(from, x.to, whole, x.class)
			from = x.to
		}
	}
	return append(out, b)
}

func (b *barView) say(what string, at time.Duration) {
	if at == 0 {
		return
	}
	if b.Words != "" {
		b.Words += ", "
	}
	b.Words += what + " at " + duration(at)
}

// add draws a piece; a short one is still seen.
func (b *barView) add(from, to, whole time.Duration, class string) {
	if to <= from {
		return
	}
	x, end := barWidth*from.Seconds()/whole.Seconds(), barWidth*to.Seconds()/whole.Seconds()
	width := max(end-x, 2)
	b.Pieces = append(b.Pieces, piece{fmt.Sprintf("%.1f", min(x, barWidth-width)), fmt.Sprintf("%.1f", width), class})
}
