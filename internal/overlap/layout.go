package overlap

import (
	"sync"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// layouts are those of one set of workers under one numbering of slots.
type layouts struct {
	snap       *worker.Snapshot
	generation uint64
	byFirst    sync.Map // *worker.Rank → *layout
}

// layout says where the overlaps of a list of ranks are found.
type layout struct {
	n         int
	told      []run // of ranks whose workers publish events
	host      []run // of those of them that have been in host memory: the view's slots
	disk      []run // the same of disk
	external  []run // those that have written to the cache outside: the view's slots
	predicted []run // the same of what was routed to them
	guessed   []run // of what was routed to the others
	routed    []run // of what was routed to all
	guess     picker.Bits
	guesses   int // members of guess
}

// run is ranks next to each other whose slots are, too.
type run struct{ at, slot, n int }

// appendRun adds one rank to the last run, or begins a new one.
func appendRun(runs []run, at, slot int) []run {
	if k := len(runs) - 1; k >= 0 && runs[k].at+runs[k].n == at && runs[k].slot+runs[k].n == slot {
		runs[k].n++
		return runs
	}
	return append(runs, run{at, slot, 1})
}

func newLayout(snap *worker.Snapshot, ranks []worker.Rank, slots *kvindex.Slots, tells func(worker.Rank) bool) *layout {
	l := &layout{n: len(ranks), guess: picker.NewBits(len(ranks))}
	var w *worker.Worker
	for i, r := range ranks {
		if w == nil || w.ID != r.ID {
			w = snap.Worker(r.ID)
		}
		guess := w == nil || w.KVEvents.IsZero() && (tells == nil || !tells(r))
		if guess {
			l.guess.Set(i)
			l.guesses++
		}
		slot, ok := slots.Slot(r)
		if !ok {
			continue
		}
		if v, ok := slots.View(slot, kvindex.Routed); ok {
			l.routed = appendRun(l.routed, i, int(v))
			if guess {
				l.guessed = appendRun(l.guessed, i, int(v))
			} else {
				l.predicted = appendRun(l.predicted, i, int(v))
			}
		}
		if guess {
			continue
		}
		l.told = appendRun(l.told, i, int(slot))
		if v, ok := slots.View(slot, kvindex.ToHost); ok {
			l.host = appendRun(l.host, i, int(v))
		}
		if v, ok := slots.View(slot, kvindex.ToDisk); ok {
			l.disk = appendRun(l.disk, i, int(v))
		}
		if v, ok := slots.View(slot, kvindex.OnExternal); ok {
			l.external = appendRun(l.external, i, int(v))
		}
	}
	return l
}

// whole returns the answer itself where the runs are one that covers all.
func whole(runs []run, n int, blocks []uint32) []uint32 {
	if len(runs) != 1 || runs[0].n != n || runs[0].slot+n > len(blocks) {
		return nil
	}
	from := runs[0].slot
	return blocks[from : from+n : from+n]
}

// gather copies the runs of an answer to their places, each count times factor.
// Slots beyond the answer hold nothing.
func gather(dst []uint32, runs []run, blocks []uint32, factor uint32) {
	for _, r := range runs {
		if r.slot >= len(blocks) {
			continue
		}
		from := blocks[r.slot:min(r.slot+r.n, len(blocks))]
		to := dst[r.at : r.at+r.n]
		if factor == 1 {
			copy(to, from)
			continue
		}
		for i, b := range from {
			to[i] = b * factor
		}
	}
}

// beyond writes to dst by how much the runs of a wider view exceed what has been
// counted so far, at least nothing. It reports whether any does. In most chunks
// none does, since the view has as much, or nothing: those are told apart at
// once.
func beyond(dst, counted []uint32, runs []run, blocks []uint32) bool {
	clear(dst)
	gather(dst, runs, blocks, 1)
	var any uint32
	for len(dst) > 0 {
		n := min(chunk, len(dst))
		if n < chunk || !same(dst, zeros[:]) {
			if n == chunk && same(dst, counted) {
				clear(dst[:n])
			} else {
				nearer := counted[:n]
				for i, b := range dst[:n] {
					more := b - min(b, nearer[i])
					dst[i] = more
					any |= more
				}
			}
		}
		dst, counted = dst[n:], counted[n:]
	}
	return any != 0
}

const chunk = 64

var zeros [chunk]uint32

// same compares the first chunk of both.
func same(a, b []uint32) bool { return [chunk]uint32(a) == [chunk]uint32(b) }
