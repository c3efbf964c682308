package loads

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// lossKept is how long a loss is told after the last one of its kind.
const lossKept = 10 * time.Minute

// Loss is what an engine's counters say of hand-offs that went wrong lately.
type Loss struct {
	Worker  worker.ID
	Address string
	Kind    ask.Loss
	N       uint64
	Last    time.Time // when the page that told of the last was read
}

// losses are the counters of one address, as they were last read, and how they have risen.
type losses map[ask.Loss]*loss

type loss struct {
	counted float64
	n       uint64 // without a pause of lossKept
	last    time.Time
}

// read takes the counters of a page. It returns how much each has risen since the page before: an
// engine that was started again counts from 0, and what a first page has may be old.
func (l *losses) read(page map[ask.Loss]float64, now time.Time) (risen map[ask.Loss]uint64) {
	first := *l == nil
	if first {
		*l = make(losses, len(page))
	}
	for kind, counted := range page {
		x := (*l)[kind]
		if x == nil {
			x = &loss{}
			(*l)[kind] = x
		}
		if first {
			x.counted = counted
		}
		by := counted - x.counted
		if by < 0 {
			by = counted
		}
		x.counted = counted
		if !(by >= 1 && by <= 1<<31) {
			continue // none, or no count
		}
		if now.Sub(x.last) > lossKept {
			x.n = 0
		}
		if risen == nil {
			risen = make(map[ask.Loss]uint64)
		}
		x.last, risen[kind] = now, uint64(by)
		x.n += uint64(by)
	}
	return risen
}

// Losses lists what went wrong lately, by address and kind.
func (p *Poller) Losses(now time.Time) (out []Loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.agenda.asked {
		for kind, l := range x.losses {
			if l.n > 0 && now.Sub(l.last) <= lossKept {
				out = append(out, Loss{x.id, x.address, kind, l.n, l.last})
			}
		}
	}
	slices.SortFunc(out, func(a, b Loss) int { return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Kind, b.Kind)) })
	return out
}
