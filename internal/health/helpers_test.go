package health

import (
	"math/rand/v2"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func newRand(s rand.Source) *rand.Rand { return rand.New(s) }

// haveAsked leaves out the questions that are due at an arrival.
func haveAsked(tr *Tracker) {
	for x := tr.arrivals.First(); x != nil; x = tr.arrivals.First() {
		x.strike()
	}
}

// rankOf is a worker whose ranks share an address.
func rankOf(id worker.ID) worker.Rank { return worker.Rank{ID: id} }
