package overlap

import (
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// undoubted is what events told of a rank of whose blocks only a part counts.
type undoubted struct {
	at     int
	blocks uint32
}

// Told returns of how many leading blocks events told that the rank at a position holds them,
// whether or not all of them count. 0: the count is a guess, or the prompt is estimated.
func (a *Answer) Told(i int) uint32 {
	if i >= len(a.Overlap) || a.Estimated.Has(i) {
		return 0
	}
	for _, u := range a.undoubted {
		if u.at == i {
			return u.blocks
		}
	}
	if a.Predicted != nil {
		return a.Overlap[i] - a.Predicted[i]
	}
	return a.Overlap[i]
}

// discount lets only a part count of what events told of the ranks that are doubted.
func (a *Answer) discount(ranks []worker.Rank, parts map[worker.Rank]float64) {
	for r, part := range parts {
		i, found := slices.BinarySearchFunc(ranks, r, worker.Rank.Compare)
		if !found { // workers whose models are not known come last in a list
			i = slices.Index(ranks, r)
		}
		if i < 0 || a.Estimated.Has(i) {
			continue
		}
		told := a.Told(i)
		a.undoubted = append(a.undoubted, undoubted{i, told})
		a.Overlap[i] -= told - uint32(part*float64(told))
		for _, lower := range [...][]uint32{a.Host, a.Disk} {
			if lower != nil {
				lower[i] = uint32(part * float64(lower[i]))
			}
		}
	}
}

// readOutside fills in what ranks hold that are not in the list.
func (a *Answer) readOutside(outside []outsider) {
	for _, o := range outside {
		if n := a.held.At(o.slot); n > a.Outside {
			a.Outside, a.Drains = n, o.drains
		}
	}
}
