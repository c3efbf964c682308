package sides

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	// firstCompared is how many counts of each worker are compared before few are.
	firstCompared = 8
	// askAgain is how long after a question a worker is asked again, once that many are compared
	// or if it has not answered.
	askAgain = 5 * time.Minute
	// mostPairs bounds the pairs that are kept apart.
	mostPairs = 1024
)

// life is what is known of a worker since it joined or began anew.
type life struct {
	id       worker.ID
	compared int       // counts of it that were compared with another's
	backed   bool      // one of them was equal
	asking   bool      // its tokenizer is being asked
	next     time.Time // it is not asked before, unless few of its counts are compared; zero: at any time
	mute     bool      // it has not answered the last question
}

// Pair is the two workers of an attempt in the lives that they had when they were picked. The zero
// Pair is of no workers.
type Pair struct{ prefill, decode *life }

// Counts is how many tokens a prompt has. 0: not told.
type Counts struct{ Ours, Prefill, Decode int64 }

// Difference is two workers that have counted the tokens of one prompt differently.
type Difference struct {
	Prefill, Decode worker.ID
	Counts          Counts    // of that prompt; Ours only if it is exact
	Alone           worker.ID // the one that nobody else counts alike; 0: not known
}

// Book knows which pairs differ. The zero value knows no workers.
type Book struct {
	lives map[worker.ID]*life
	found []found
	apart *Apart
}

type found struct {
	Pair
	counts Counts
}

// Keep makes the book know these workers and forget all others, and what it knows of those that have
// changed.
func (b *Book) Keep(ids, changed []worker.ID) {
	for _, id := range changed {
		delete(b.lives, id)
	}
	lives := make(map[worker.ID]*life, len(ids))
	for _, id := range ids {
		if l := b.lives[id]; l != nil {
			lives[id] = l
		} else {
			lives[id] = &life{id: id}
		}
	}
	b.lives = lives
	b.publish()
}

// Renew forgets what is known of a worker: another process has its place.
func (b *Book) Renew(id worker.ID) {
	if b.lives[id] != nil {
		b.lives[id] = &life{id: id}
		b.publish()
	}
}

// Begin returns the pair of an attempt.
func (b *Book) Begin(prefill, decode worker.ID) Pair {
	return Pair{b.lives[prefill], b.lives[decode]}
}

// current reports whether both workers of the pair are still in that life.
func (b *Book) current(p Pair) bool {
	return p.prefill != nil && p.decode != nil && b.lives[p.prefill.id] == p.prefill && b.lives[p.decode.id] == p.decode
}

// Due reports whether decode's tokenizer is to be asked about a prompt that prefill computes: while
// few counts of one of the two are compared, and rarely after. The caller then calls Answered, however
// the question ends, or Unasked. A worker is asked one question at a time.
func (b *Book) Due(p Pair, now time.Time) bool {
	if !b.current(p) || p.decode.asking {
		return false
	}
	few := p.prefill.compared < firstCompared || p.decode.compared < firstCompared
	if now.Before(p.decode.next) && (p.decode.mute || !few) {
		return false
	}
	p.decode.asking = true
	return true
}

// Answered tells that a question to decode's tokenizer is over, and whether it was answered.
func (b *Book) Answered(p Pair, told bool, now time.Time) {
	d := p.decode
	d.asking, d.mute, d.next = false, !told, now.Add(askAgain)
}

// Unasked tells that a question that was due could not be put: another request may put it.
func (b *Book) Unasked(p Pair) { p.decode.asking = false }

// Heard compares what both workers of a pair have counted of one prompt. It returns the difference if
// it is the first of this pair.
func (b *Book) Heard(p Pair, c Counts) (d Difference, first bool) {
	if !b.current(p) || c.Prefill <= 0 || c.Decode <= 0 {
		return d, false
	}
	backed := [...]bool{p.prefill.backed, p.decode.backed}
	p.prefill.compared++
	p.decode.compared++
	alike := c.Prefill == c.Decode
	p.prefill.backed = p.prefill.backed || alike || c.Prefill == c.Ours
	p.decode.backed = p.decode.backed || alike || c.Decode == c.Ours
	if !alike && len(b.found) < mostPairs && !slices.ContainsFunc(b.found, func(f found) bool { return f.Pair == p }) {
		b.found = append(b.found, found{p, c})
		first = true
	}
	if first || len(b.found) > 0 && backed != [...]bool{p.prefill.backed, p.decode.backed} {
		b.publish()
	}
	if first {
		d = b.found[len(b.found)-1].difference()
	}
	return d, first
}

func (f *found) difference() Difference {
	d := Difference{Prefill: f.prefill.id, Decode: f.decode.id, Counts: f.counts}
	switch {
	case f.prefill.backed && !f.decode.backed:
		d.Alone = d.Decode
	case f.decode.backed && !f.prefill.backed:
		d.Alone = d.Prefill
	}
	return d
}

// publish makes the next Apart.
func (b *Book) publish() {
	b.found = slices.DeleteFunc(b.found, func(f found) bool { return !b.current(f.Pair) })
	b.apart = nil
	if len(b.found) == 0 {
		return
	}
	a := &Apart{pairs: make(map[[2]worker.ID]bool, len(b.found)), alone: map[worker.ID]bool{}, backed: make(map[worker.ID]bool, len(b.lives))}
	for i := range b.found {
		d := b.found[i].difference()
		a.Differences = append(a.Differences, d)
		a.pairs[[2]worker.ID{d.Prefill, d.Decode}] = true
		if d.Alone != 0 {
			a.alone[d.Alone] = true
		}
	}
	for id, l := range b.lives {
		a.backed[id] = l.backed
	}
	slices.SortFunc(a.Differences, func(x, y Difference) int {
		return cmp.Or(cmp.Compare(x.Prefill, y.Prefill), cmp.Compare(x.Decode, y.Decode))
	})
	b.apart = a
}

// Apart returns which workers are no pair now; nil: all may be.
func (b *Book) Apart() *Apart { return b.apart }

// Apart says which workers are no pair since they count the tokens of a prompt differently. It is
// immutable. Nil keeps nobody apart.
type Apart struct {
	Differences []Difference // by the workers' ids

	pairs         map[[2]worker.ID]bool
	alone, backed map[worker.ID]bool
}

// Keeps reports whether the two workers must not be a pair.
func (a *Apart) Keeps(prefill, decode worker.ID) bool {
	return a != nil && (a.pairs[[2]worker.ID{prefill, decode}] || a.alone[decode] && a.backed[prefill] || a.alone[prefill] && a.backed[decode])
}

// Among returns the ranks whose workers are kept apart from the worker of this id, which has the role.
func (a *Apart) Among(ranks []worker.Rank, role worker.Role, id worker.ID) (out []worker.Rank) {
	if a == nil {
		return nil
	}
	for _, r := range ranks {
		if role == worker.Prefill && a.Keeps(id, r.ID) || role != worker.Prefill && a.Keeps(r.ID, id) {
			out = append(out, r)
		}
	}
	return out
}
