package load

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// table has the columns of one list of ranks. It is kept in step with the book, so that a
// pick finds the columns ready. Guarded by Book.mu.
type table struct {
	cols    picker.Candidates
	unknown picker.Bits // ranks that the book does not know, or no longer knows
	zeros   []uint32    // used if no overlaps were given
	round   uint64      // the latest snapshot that has the list
	sum     uint64      // hash of the list

	// At a time t in seconds a rank is busy for the greater of busyFloor and busyTop - t; see
	// entry.busy. The column Wait has it as of the time fresh.
	busyTop, busyFloor []float64
	fresh              time.Duration

	held []held // the column Decode has the numbers as of the time told
	told time.Duration

	// What the filter said last; see heed.go.
	filter    Filter
	version   uint64
	standings []health.Standing
	free      int         // known ranks whose standing is health.Free
	barred    picker.Bits // unknown ranks, and ranks that are health.Barred
	closed    picker.Bits // barred ranks, and ranks that are health.Tried
	out       picker.Bits // working memory of one pick

	share   share       // of decode picks
	starved picker.Bits // working memory of one pick

	carriers map[string]picker.Bits // for each taint that was asked for: the ranks that have it
	weights  []float32              // the column Taint; working memory of one pick
	farther  []float64              // the column Farther; zeros but during one pick
}

// list is a list of ranks of a snapshot.
type list struct {
	ranks  []worker.Rank
	sum    uint64         // hash of the list
	firsts []*worker.Rank // first elements of this list and of all that are equal to it
}

// listsOf returns the different lists of a snapshot. Models that the same workers serve have equal
// ones. It reads all ranks of all models, so it is called without the lock.
func (b *Book) listsOf(s *worker.Snapshot) (out []*list) {
	same := make(map[uint64][]*list)
	for _, k := range s.Keys() {
		for _, ranks := range s.Pool(k).RankLists() {
			if len(ranks) == 0 {
				continue
			}
			sum := b.sum(ranks)
			i := slices.IndexFunc(same[sum], func(l *list) bool { return slices.Equal(l.ranks, ranks) })
			if i < 0 {
				i = len(same[sum])
				same[sum] = append(same[sum], &list{ranks: ranks, sum: sum})
				out = append(out, same[sum][i])
			}
			same[sum][i].firsts = append(same[sum][i].firsts, &ranks[0])
		}
	}
	return out
}

// layLocked makes the tables of a snapshot. Equal lists share one table, so that a booking is
// written once. A list that was in the previous snapshot keeps its table.
func (b *Book) layLocked(lists []*list) {
	b.before, b.tables = b.tables, make(map[*worker.Rank]*table)
	same := make(map[uint64][]*table)
	for _, t := range b.before {
		if t.unknown.Count() == 0 {
			same[t.sum] = append(same[t.sum], t)
		}
	}
	for _, l := range lists {
		var t *table
		if i := slices.IndexFunc(same[l.sum], func(t *table) bool { return slices.Equal(t.cols.Ranks, l.ranks) }); i >= 0 {
			t = same[l.sum][i]
		} else {
			t = b.newTableLocked(l.ranks, true)
		}
		t.sum, t.round = l.sum, b.round
		for _, first := range l.firsts {
			b.tables[first] = t
		}
	}
}

func (b *Book) sum(ranks []worker.Rank) uint64 {
	var h maphash.Hash
	h.SetSeed(b.seed)
	for _, r := range ranks {
		maphash.WriteComparable(&h, r)
	}
	return h.Sum64()
}

// tableLocked returns the table of a list. For a list of neither the present nor the
// previous snapshot it makes a new one, with a map lookup for each rank.
func (b *Book) tableLocked(ranks []worker.Rank) *table {
	for _, tables := range [...]map[*worker.Rank]*table{b.tables, b.before} {
		if t := tables[&ranks[0]]; t != nil && len(t.cols.Ranks) == len(ranks) {
			return t
		}
	}
	return b.newTableLocked(ranks, false)
}

func (b *Book) newTableLocked(ranks []worker.Rank, keep bool) *table {
	n := len(ranks)
	t := &table{
		cols: picker.Candidates{
			Ranks:   ranks,
			Prefill: make([]float64, n), Decode: make([]float64, n), Requests: make([]float64, n), Capacity: make([]float64, n),
			Wait: make([]float64, n), PerToken: make([]float64, n), PerRequest: make([]float64, n), Lately: make([]float64, n),
			PerStep: make([]float64, n), PerBlock: make([]float64, n), Growing: make([]float64, n),
			Degraded: picker.NewBits(n),
		},
		farther: make([]float64, n), busyTop: make([]float64, n), busyFloor: make([]float64, n),
		unknown: picker.NewBits(n), zeros: make([]uint32, n),
		held: make([]held, n), told: b.now,
		fresh: b.now, out: picker.NewBits(n), starved: picker.NewBits(n),
		standings: make([]health.Standing, n), barred: picker.NewBits(n), closed: picker.NewBits(n),
	}
	slot := int32(-1)
	for i, r := range ranks {
		slot = b.slotAfterLocked(slot, r)
		if slot < 0 {
			t.unknown.Set(i)
			continue
		}
		e := &b.entries[slot]
		t.cols.Capacity[i] = e.capacity
		t.setDegraded(i, e.degraded)
		t.write(i, e, b.now)
		if keep {
			e.places = append(e.places, place{t, int32(i)})
		}
	}
	return t
}

// forget marks a rank that has left as unknown.
func (t *table) forget(i int) {
	t.unknown.Set(i)
	t.filter = nil // so that the next pick asks for all standings again
}

func (t *table) setDegraded(i int, degraded bool) {
	if degraded {
		t.cols.Degraded.Set(i)
	} else {
		t.cols.Degraded.Unset(i)
	}
}

// write writes the entry's numbers to the columns of its rank.
func (t *table) write(i int, e *entry, now time.Duration) {
	l := &e.load
	t.held[i] = e.held()
	if d := e.foreign.doubt(now); l.DecodeRequests == 0 {
		t.held[i].doubt = d * d // a rank that is full makes nobody wait
	}
	t.cols.Decode[i] = t.held[i].whole(now)
	t.cols.Requests[i] = float64(l.PrefillRequests + l.DecodeRequests)
	t.cols.Prefill[i] = float64(l.PrefillTokens)
	t.cols.PerToken[i], t.cols.PerRequest[i], t.cols.Lately[i] = e.pace.PerToken, e.pace.PerRequest, e.lately
	t.cols.PerStep[i], t.cols.PerBlock[i] = e.writing.Base, e.writing.PerBlock
	t.cols.Growing[i] = max(0, e.answers.most-e.answers.at(now.Seconds()))
	t.busyTop[i], t.busyFloor[i] = e.busy()
	t.cols.Wait[i] = max(t.busyFloor[i], t.busyTop[i]-now.Seconds())
}

// refreshStep is how old the waits may be.
const refreshStep = time.Millisecond

// growStep is how old the blocks of answers may be. At 100 tokens a second an answer
// writes 10 tokens in that time, less than a block.
const growStep = 100 * time.Millisecond

// refresh lets waits shrink and answers grow up to now.
func (t *table) refresh(now time.Duration) {
	if now-t.told >= growStep {
		t.told = now
		t.grow(now)
	}
	if now-t.fresh < refreshStep {
		return
	}
	t.fresh = now
	at := now.Seconds()
	n := len(t.cols.Wait)
	busyTop, busyFloor := t.busyTop[:n], t.busyFloor[:n]
	for i := range t.cols.Wait {
		w := busyTop[i] - at
		if w < busyFloor[i] {
			w = busyFloor[i]
		}
		t.cols.Wait[i] = w
	}
}

func (t *table) grow(now time.Duration) {
	for i := range t.held {
		if h := &t.held[i]; h.changes() {
			t.cols.Decode[i] = h.whole(now)
			t.cols.Growing[i] = max(0, h.answers.most-h.answers.at(now.Seconds()))
		}
	}
}

// bar marks the ranks that may not be picked for a request.
func (t *table) bar(b *Book, req *Request, wide bool) {
	base := t.unknown
	if req.Filter != nil {
		t.heed(b, req.Filter)
		base = t.closed
		if wide || t.free == 0 {
			base = t.barred
		}
	}
	if len(req.Exclude) == 0 && req.Within == nil {
		t.cols.Out = base
		return
	}
	copy(t.out, base)
	for _, r := range req.Exclude {
		if i := t.find(b, r); i >= 0 {
			t.out.Set(i)
		}
	}
	for w, in := range req.Within {
		t.out[w] |= ^in
	}
	t.cols.Out = t.out
}

// find returns the position of a rank in the table, or -1.
func (t *table) find(b *Book, r worker.Rank) int {
	slot := b.slotLocked(r)
	if slot < 0 {
		return -1
	}
	for _, p := range b.entries[slot].places {
		if p.t == t {
			return int(p.at)
		}
	}
	return slices.Index(t.cols.Ranks, r) // this table is not in places, since its list is of no snapshot
}
