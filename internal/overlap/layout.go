package overlap

import (
	"sync"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// layouts holds the layouts of one worker set under one numbering of slots.
type layouts struct {
	snap       *worker.Snapshot
	generation uint64
	byFirst    sync.Map // *worker.Rank → *layout
}

// layout says where in the index's answer the overlaps of a list of ranks are.
type layout struct {
	n         int
	told      []run // ranks with events: what these told of the device
	host      []run // ranks with events of host memory
	disk      []run // ranks with events of disk
	external  []run // ranks with events of the cache outside of the workers
	predicted []run // ranks with events: what was routed to them
	guessed   []run // ranks without events: what was routed to them
	routed    []run // all ranks: what was routed to them
	guess     picker.Bits
	guesses   int // the number of ranks in guess
	outside   []outsider
}

// outsider is a rank that is not in the list, though its worker serves the key in the role.
type outsider struct {
	slot   kvindex.Slot
	drains bool
}

// run is a sequence of neighbouring ranks whose slots are neighbours, too.
type run struct{ at, slot, n int }

// appendRun adds one rank to the last run, or begins a new run.
func appendRun(runs []run, at, slot int) []run {
	if k := len(runs) - 1; k >= 0 && runs[k].at+runs[k].n == at && runs[k].slot+runs[k].n == slot {
		runs[k].n++
		return runs
	}
	return append(runs, run{at, slot, 1})
}

func newLayout(snap *worker.Snapshot, ranks []worker.Rank, p *Prompt, cfg *Config) *layout {
	slots := cfg.Slots
	l := &layout{n: len(ranks), guess: picker.NewBits(len(ranks)), outside: outsidersOf(snap, ranks, p, slots)}
	var w *worker.Worker
	for i, r := range ranks {
		if w == nil || w.ID != r.ID {
			w = snap.Worker(r.ID)
		}
		guess := w == nil || !cfg.Told(w, r)
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

// outsidersOf finds the ranks that are not in the list though their workers serve the
// prompt's key in its role.
func outsidersOf(snap *worker.Snapshot, ranks []worker.Rank, p *Prompt, slots *kvindex.Slots) (out []outsider) {
	if p.Role == 0 {
		return nil
	}
	in := make(map[worker.ID]bool, len(ranks))
	for _, r := range ranks {
		in[r.ID] = true
	}
	for _, w := range snap.Workers() {
		serves := w.Role == p.Role || p.Role == worker.Aggregated && w.Role == worker.Decode && w.AcceptsAggregated
		if in[w.ID] || !serves || w.Namespace != p.Key.Namespace || !w.Answers(p.Key.Model) {
			continue
		}
		for dp := range w.DPSize {
			if slot, ok := slots.Slot(worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)}); ok {
				out = append(out, outsider{slot, w.Draining})
			}
		}
	}
	return out
}

// whole returns the part of the answer that covers all n ranks, if the runs are a single
// one; else nil.
func whole(runs []run, n int, blocks []uint32) []uint32 {
	if len(runs) != 1 || runs[0].n != n || runs[0].slot+n > len(blocks) {
		return nil
	}
	from := runs[0].slot
	return blocks[from : from+n : from+n]
}

// gather copies the runs of an answer to their places in dst, each count times factor. A
// slot beyond the answer's end counts as 0.
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

// beyond writes to dst by how much the runs of a wider view exceed what was counted so
// far, or 0. It returns false if none exceeds it. In most chunks none does, since the
// view has the same counts, or none: two quick comparisons find these chunks.
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
