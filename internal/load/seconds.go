package load

import (
	"math"
	"time"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file keeps what a cost in seconds reads: how long each rank is believed to be busy, what it has
// lately computed, and what comes to a pool.

// flowTime is over how long what comes to a pool is averaged, and what ranks have computed.
const flowTime = time.Minute

// flow sums what has come to the ranks of a pool, older ones counting less.
type flow struct {
	arrivals, work float64 // of work: seconds of one rank
	at             time.Duration
	since          time.Duration // when the first came
	ranks          int           // of the pool
}

func (f *flow) to(now time.Duration) {
	fade := math.Exp(-(now - f.at).Seconds() / flowTime.Seconds())
	f.arrivals, f.work, f.at = f.arrivals*fade, f.work*fade, now
}

// each returns the averages for each rank of the pool.
func (f *flow) each(now time.Duration) picker.Flow {
	if f == nil || f.ranks == 0 || f.arrivals == 0 {
		return picker.Flow{}
	}
	f.to(now)
	// What began a short while ago has not been summed for the whole time yet.
	seconds := flowTime.Seconds() * (1 - math.Exp(-max(now-f.since, time.Second).Seconds()/flowTime.Seconds())) * float64(f.ranks)
	return picker.Flow{Arrivals: f.arrivals / seconds, Busy: f.work / seconds}
}

// foreign is what a rank's engine has said to have of prompts that the book does not know, such as those
// that other routers send.
type foreign struct {
	seconds float64       // of work
	at      time.Duration // when it was said
	since   time.Duration // when the rank was last picked, or had prompts
}

const (
	// mostForeign bounds what is believed of a report.
	mostForeign = 30 * time.Second
	// believedFor is how long all of it is believed of a rank that is not picked.
	believedFor = 2 * time.Second
	// A prompt that the book does not know is taken for one like those that it knows, or, if it knows none,
	// for one of so many tokens.
	foreignTokens = 1000
)

// left returns how much of the work is believed to be left at a time, in seconds.
func (f *foreign) left(at time.Duration) float64 {
	return max(0, f.seconds-max(0, (at-f.at).Seconds()))
}

// doubt is by how many times less a rank's own words count. It grows while the rank is not picked, so that
// one which says for ever that it is busy gets requests within two minutes, full of answers within four.
func (f *foreign) doubt(now time.Duration) float64 {
	return max(1, float64(now-f.since)/float64(believedFor))
}

// ReportQueue says that the rank's engine had so many prompts at a time, those of the book's included.
// Unknown ranks are ignored.
func (b *Book) ReportQueue(r worker.Rank, prompts int64, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.grownLocked(r, at)
	if e == nil {
		return
	}
	each := e.pace.Seconds(foreignTokens)
	if f := e.flow; f != nil && f.arrivals > 0 {
		each = f.work / f.arrivals
	}
	f := &e.foreign
	if e.queue.n > 0 || f.since == 0 {
		f.since = b.now
	}
	f.seconds = min(max(0, float64(prompts)-float64(e.queue.n)-float64(e.behind))*each, mostForeign.Seconds()) / f.doubt(b.now)
	f.at = b.now
	b.writeLocked(e)
}

// SetPace says how long a rank takes to compute prompts. Unknown ranks are ignored.
func (b *Book) SetPace(r worker.Rank, p picker.Pace) {
	if !(p.PerToken >= 0 && p.PerRequest >= 0 && p.PerToken+p.PerRequest > 0 && p.PerToken < 1 && p.PerRequest < 3600) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if slot := b.slotLocked(r); slot >= 0 && b.entries[slot].pace != p {
		b.entries[slot].pace = p
		b.writeLocked(&b.entries[slot])
	}
}

// SetWriting says how long a rank takes for a token of each answer that it runs. Unknown ranks are ignored.
func (b *Book) SetWriting(r worker.Rank, w picker.Writing) {
	if !(w.Base >= 0 && w.PerBlock >= 0 && w.Base+w.PerBlock > 0 && w.Base < 60 && w.PerBlock < 1) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if slot := b.slotLocked(r); slot >= 0 && b.entries[slot].writing != w {
		b.entries[slot].writing = w
		b.writeLocked(&b.entries[slot])
	}
}

// HandOffs say how long it takes to bring a prompt from prefill to decode. The slices of Far are not changed
// once they are set.
type HandOffs struct {
	Usual picker.Pace                  // of most pairs; the zero value: not known
	Far   map[worker.Rank][]FarHandOff // by the rank of prefill: pairs that differ from it
}

// FarHandOff is a pair that takes longer, or less long, than others.
type FarHandOff struct {
	To   worker.Rank
	Pace picker.Pace
}

// SetHandOffs replaces what is believed of hand-offs between workers of the model.
func (b *Book) SetHandOffs(k worker.Key, h HandOffs) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.Usual.PerToken >= 0 && h.Usual.PerRequest >= 0 {
		b.handOffs[k] = h
	}
}

// HandOff returns how long bringing a prompt from prefill to decode is believed to take, in seconds.
func (b *Book) HandOff(k worker.Key, tokens int) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	usual := b.usualLocked(k)
	return usual.Seconds(float64(max(tokens, 0)))
}

func (b *Book) usualLocked(k worker.Key) picker.Pace {
	if usual := b.handOffs[k].Usual; usual != (picker.Pace{}) {
		return usual
	}
	return picker.Pace{PerToken: picker.UnlearnedHandOff}
}

// targetLocked returns within how many seconds a rank has to compute the prompt; 0: there is no target.
func (b *Book) targetLocked(req *Request) float64 {
	target := req.Target.Seconds()
	if target > 0 && req.Pick.Role == worker.Prefill {
		usual := b.usualLocked(req.Key)
		target = max(target-usual.Seconds(float64(max(req.Pick.ISLTokens, 0))), math.SmallestNonzeroFloat64)
	}
	return target
}

// handsOffLocked writes what bringing the prompt from req.From takes to the request and to the column
// Farther, which the caller has to clear.
func (b *Book) handsOffLocked(t *table, req *Request) {
	usual, tokens := b.usualLocked(req.Key), float64(max(req.Pick.ISLTokens, 0))
	req.Pick.HandOff = usual.PerToken
	for _, far := range b.handOffs[req.Key].Far[req.From] {
		if i := t.find(b, far.To); i >= 0 {
			t.cols.Farther = t.farther
			t.farther[i] = max(0, far.Pace.Seconds(tokens)-usual.Seconds(tokens))
		}
	}
}

// Wait returns how long the rank is believed to be busy with what is booked, in seconds.
func (b *Book) Wait(r worker.Rank, now time.Time) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	slot := b.slotLocked(r)
	if slot < 0 {
		return 0
	}
	b.tellLocked(now)
	return b.entries[slot].wait(b.now)
}

// wait returns how long the rank is busy, from now.
func (e *entry) wait(now time.Duration) float64 {
	top, floor := e.busy()
	return max(floor, top-now.Seconds())
}

// busy returns for how long a rank has work: at a time t in seconds the greater of floor and top - t.
func (e *entry) busy() (top, floor float64) {
	q, p := &e.queue, e.pace
	if q.head == nil {
		return e.foreign.seconds + e.foreign.at.Seconds(), 0
	}
	all := p.PerToken*float64(e.load.PrefillTokens) + p.PerRequest*float64(q.n+int(e.behind))
	k, left := q.sides(), 0.0
	for r, i := q.head, 0; i < k; r, i = r.after, i+1 {
		whole := p.Seconds(float64(r.load.PrefillTokens))
		had := min(r.had.Seconds(), whole)
		all -= had
		left += whole - had
	}
	// What passes is taken off the queue's own work, so the rest stays.
	return all + q.until.Seconds() + e.foreign.seconds, max(0, all-left)
}

// flowLocked returns the flow that work in the role at a rank belongs to.
func (b *Book) flowLocked(e *entry, role worker.Role) *flow {
	key := cursorKey{e.base, role}
	f := b.flows[key]
	if f == nil {
		f = &flow{at: b.now, since: b.now}
		if p := b.latest.Pool(e.base); p != nil {
			f.ranks = len(p.Ranks(role))
		}
		b.flows[key] = f
	}
	return f
}

// computesLocked notes that work for so many tokens has come to a rank, and to the pool of its flow.
func (b *Book) computesLocked(e *entry, tokens int64) {
	f := e.flow
	f.to(b.now)
	work := e.pace.Seconds(float64(tokens))
	f.arrivals++
	f.work += work
	// All ranks' sums fade alike, so instead of making them smaller each new part is made greater.
	grown := (b.now - b.faded).Seconds() / flowTime.Seconds()
	const most = 200
	if grown > most {
		for i := range b.entries {
			b.entries[i].lately *= math.Exp(-grown)
			b.writeLocked(&b.entries[i])
		}
		b.faded, grown = b.now, 0
	}
	e.lately += work * math.Exp(grown)
}
