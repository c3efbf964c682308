package overlap

import (
	"errors"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config is what a Lookup reads. Index and Slots are required.
type Config struct {
	Index kvindex.Index
	Slots *kvindex.Slots // the numbering of Index
	// Predicts says that a block counts that a rank is only predicted to hold.
	Predicts bool
	// Tells reports whether events tell what a rank holds. If nil, they do where the worker
	// names a stream of events. Forget must be called when the answer changes.
	Tells func(worker.Rank) bool
}

// Told reports whether events tell what a rank of w holds.
func (c *Config) Told(w *worker.Worker, r worker.Rank) bool {
	if c.Tells == nil {
		return !w.KVEvents.IsZero()
	}
	return c.Tells(r)
}

// Lookup finds overlaps. Safe for concurrent use.
type Lookup struct {
	cfg    Config // read-only
	known  atomic.Pointer[layouts]
	doubts atomic.Pointer[map[worker.Rank]float64]
}

// New returns a Lookup.
func New(cfg Config) (*Lookup, error) {
	if cfg.Index == nil || cfg.Slots == nil {
		return nil, errors.New("overlap: expected an index, and its slots")
	}
	l := &Lookup{cfg: cfg}
	l.known.Store(new(layouts))
	l.doubts.Store(new(map[worker.Rank]float64))
	return l, nil
}

// Doubt says which part counts of the blocks that events told of a rank, for ranks of which
// it is not all. The caller must not change the map after that.
func (l *Lookup) Doubt(parts map[worker.Rank]float64) { l.doubts.Store(&parts) }

// Forget makes the next question find out anew which ranks have events.
func (l *Lookup) Forget() { l.known.Store(new(layouts)) }

// Prompt holds the blocks of a prompt.
type Prompt struct {
	Hashes        []kvindex.LocalHash
	BlocksPerHash int  // KV blocks that each hash stands for; 0 counts as 1
	Estimated     bool // the hashes are of bytes, not of tokens

	// Key and Role say which workers' ranks Answer.Outside is about. Without a Role it is 0.
	Key  worker.Key
	Role worker.Role
}

// Answer says what the ranks hold. The caller owns it and uses it again. The zero value
// is ready. Not safe for concurrent use.
type Answer struct {
	// Cached runs parallel to the ranks, and is valid until the next question. Its columns
	// are nil if no rank holds any, those beside Overlap also if the prompt is estimated.
	// Overlap may be memory of the index's answer.
	//
	// Predicted is how many of Overlap come from no event: they were routed there lately,
	// or are guessed for a prompt that is known in part. Ranks in Estimated have none.
	//
	// Estimated marks the ranks whose count is what was routed to them, not what events
	// told. It is shared and must not be written to. For an estimated prompt every count is
	// a guess, and no rank is marked.
	picker.Cached
	// Shared is how many leading blocks of the prompt are in the cache outside of the
	// workers: the most that any of the ranks has written there. 0 for an estimated
	// prompt.
	Shared uint32
	// Outside is the most blocks that events told of a rank which is not in the list, though
	// its worker serves the prompt's key in its role: it drains, as Drains says, or it is none
	// of those to pick from. 0 for an estimated prompt.
	Outside uint32
	Drains  bool

	undoubted                   []undoubted
	held                        kvindex.Overlap
	copied                      []uint32
	predicted, host, disk, both []uint32
}

// maxReads bounds how often an answer is read again because the numbering has changed. A
// wrong overlap makes a pick less good, but not invalid.
const maxReads = 3

// Of writes to dst what each of ranks, a list of the snapshot's pools, holds of the
// prompt. Of its arguments it keeps only the snapshot.
func (l *Lookup) Of(snap *worker.Snapshot, ranks []worker.Rank, p Prompt, dst *Answer) {
	dst.Cached, dst.Shared = picker.Cached{}, 0
	if len(p.Hashes) == 0 || len(ranks) == 0 {
		dst.Outside, dst.Drains, dst.undoubted = 0, false, dst.undoubted[:0]
		return
	}
	for range maxReads {
		generation := l.cfg.Slots.Generation()
		at := l.layout(snap, ranks, generation, &p)
		l.cfg.Index.Overlap(p.Hashes, &dst.held)
		dst.read(at, &p)
		dst.Predicted, dst.Host, dst.Disk, dst.Shared = nil, nil, nil, 0
		dst.Outside, dst.Drains, dst.undoubted = 0, false, dst.undoubted[:0]
		if !p.Estimated {
			if l.cfg.Predicts {
				dst.readPredicted(at)
			}
			dst.readTiers(at)
			dst.Shared = most(at.external, dst.held.Blocks)
			dst.readOutside(at.outside)
			dst.discount(ranks, *l.doubts.Load())
		}
		if l.cfg.Slots.Generation() == generation {
			return
		}
	}
}

// read fills in Overlap: what events told, and, for ranks without events, what was routed
// to them.
func (a *Answer) read(at *layout, p *Prompt) {
	a.Estimated = nil
	guesses := at.guesses
	if p.Estimated {
		guesses = at.n
	}
	factor := uint32(max(p.BlocksPerHash, 1))
	all := a.held.Blocks
	switch {
	case guesses == 0:
		a.Overlap = whole(at.told, at.n, all)
	case guesses == at.n && factor == 1:
		a.Overlap = whole(at.routed, at.n, all)
	}
	if guesses > 0 && !p.Estimated {
		a.Estimated = at.guess
	}
	if a.Overlap != nil {
		return
	}
	a.copied = sized(a.copied, at.n)
	clear(a.copied)
	if guesses == at.n {
		gather(a.copied, at.routed, all, factor)
	} else {
		gather(a.copied, at.told, all, 1)
		gather(a.copied, at.guessed, all, factor)
	}
	a.Overlap = a.copied
}

// readPredicted adds what was lately routed to ranks with events, beyond what these told.
func (a *Answer) readPredicted(at *layout) {
	if len(at.predicted) == 0 {
		return
	}
	a.predicted = sized(a.predicted, at.n)
	if !beyond(a.predicted, a.Overlap, at.predicted, a.held.Blocks) {
		return
	}
	for i, n := range a.predicted {
		a.Overlap[i] += n
	}
	a.Predicted = a.predicted
}

// readTiers fills in the blocks in host memory and on disk.
func (a *Answer) readTiers(at *layout) {
	counted := a.Overlap
	if len(at.host) > 0 {
		a.host = sized(a.host, at.n)
		if beyond(a.host, counted, at.host, a.held.Blocks) {
			a.Host = a.host
		}
	}
	if len(at.disk) == 0 {
		return
	}
	if a.Host != nil {
		a.both = sized(a.both, at.n)
		for i, n := range a.Host {
			a.both[i] = counted[i] + n
		}
		counted = a.both
	}
	a.disk = sized(a.disk, at.n)
	if beyond(a.disk, counted, at.disk, a.held.Blocks) {
		a.Disk = a.disk
	}
}

// Beyond adds a guess for a prompt of which only the first blocks are known. The guess is
// the answer for the same ranks and the whole prompt, estimated. A rank gets it only if
// it holds all of the known blocks: without one of them it cannot use later ones. On a
// rank with events each guessed block counts as much as weight says. The argument most
// bounds the blocks of a rank.
func (a *Answer) Beyond(known int, guess *Answer, weight float64, most int) {
	if a.Overlap == nil && known > 0 || guess.Overlap == nil {
		return
	}
	if a.Overlap == nil {
		a.copied = sized(a.copied, len(guess.Overlap))
		clear(a.copied)
		a.Overlap = a.copied
	}
	if a.Predicted == nil {
		a.predicted = sized(a.predicted, len(a.Overlap))
		clear(a.predicted)
	}
	for i, held := range a.Overlap {
		g := min(guess.Overlap[i], uint32(max(most, 0))) //nolint:gosec // blocks of a prompt
		if int(held) < known || g <= held {
			continue
		}
		if a.Estimated.Has(i) {
			a.Overlap[i] = g
			continue
		}
		if more := uint32(weight * float64(g-held)); more > 0 {
			a.Overlap[i] += more
			a.predicted[i] += more
			a.Predicted = a.predicted
		}
	}
}

// most returns the greatest count in the runs of an answer.
func most(runs []run, blocks []uint32) (n uint32) {
	for _, r := range runs {
		for _, b := range blocks[min(r.slot, len(blocks)):min(r.slot+r.n, len(blocks))] {
			n = max(n, b)
		}
	}
	return n
}

// sized returns memory for n numbers, with any content.
func sized(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	return s[:n]
}

// layout returns the layout of a list of ranks.
func (l *Lookup) layout(snap *worker.Snapshot, ranks []worker.Rank, generation uint64, p *Prompt) *layout {
	set := l.known.Load()
	if set.snap != snap || set.generation != generation {
		set = &layouts{snap: snap, generation: generation}
		l.known.Store(set)
	}
	if v, ok := set.byFirst.Load(&ranks[0]); ok && v.(*layout).n == len(ranks) {
		return v.(*layout)
	}
	made := newLayout(snap, ranks, p, &l.cfg)
	set.byFirst.Store(&ranks[0], made)
	return made
}
