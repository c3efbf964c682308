package route

import (
	"errors"
	"slices"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file applies the subset of endpoints that a data plane allows, and lists the
// further endpoints that a data plane may try.

// errOutside means that the data plane allows no rank of the role.
var errOutside = errors.New("route: no endpoint of the subset has the role")

// within returns which of the ranks a data plane allows; nil for all. It returns false if
// the data plane allows none of them.
func within(snap *worker.Snapshot, set *subset.Set, ranks []worker.Rank) (picker.Bits, bool) {
	if set == nil {
		return nil, true
	}
	bits, some := picker.NewBits(len(ranks)), false
	for i, r := range ranks {
		if w := snap.Worker(r.ID); w != nil && set.Allows(w.EndpointOf(r.DPRank).AddrPort()) {
			bits.Set(i)
			some = true
		}
	}
	return bits, some
}

// allowed reports whether a data plane allows some rank of w.
func allowed(set *subset.Set, w *worker.Worker) bool {
	for at := range w.Addresses() {
		if set.Allows(at) {
			return true
		}
	}
	return false
}

// otherTries bounds the picks for that list: a pick may add no new rank.
const otherTries = 16

// others picks the ranks that are to be tried after the decode worker that was picked,
// best first. Nothing is booked on them: the answer tells which worker has served.
func (d *decider) others(c *choice, r load.Request) {
	q := d.q
	r.Explain = nil
	first := q.world.Worker(c.decision.Rank.ID)
	last := c.decision.Rank
	for tries := 0; len(c.others) < q.req.Endpoints-1 && tries < otherTries; tries++ {
		r.Exclude = append(slices.Clip(r.Exclude), samePort(q.world.Worker(last.ID), last)...)
		next, err := d.cfg.Book.Preview(&r)
		if err != nil {
			return
		}
		last = next.Rank
		// The request has one header that names the rank: it must be right at each
		// destination.
		if w := q.world.Worker(last.ID); w.RanksPerPort() == first.RanksPerPort() {
			c.then(w, last)
		}
	}
}

// then adds a rank of w to those that are to be tried after the picked one. Where the ranks of a worker
// share a port, the header names the picked one's number, and that rank of w serves.
func (c *choice) then(w *worker.Worker, r worker.Rank) {
	if w.RanksPerPort() > 1 {
		r.DPRank = c.decision.Rank.DPRank
	}
	c.others = append(c.others, Destination{w.EndpointOf(r.DPRank).String(), r})
}

// samePort lists the ranks of w that have the same endpoint as r.
func samePort(w *worker.Worker, r worker.Rank) []worker.Rank {
	if w.RanksPerPort() == 1 {
		return []worker.Rank{r}
	}
	return appendRanks(nil, w)
}

// appendRanks appends every rank of w.
func appendRanks(dst []worker.Rank, w *worker.Worker) []worker.Rank {
	for dp := range w.DPSize {
		dst = append(dst, worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)})
	}
	return dst
}

// destinations returns the addresses where the request may go, with the picked one first.
func destinations(world *activation.World, c *choice) string {
	rank := c.decision.Rank
	list := world.Worker(rank.ID).EndpointOf(rank.DPRank).String()
	for i := range c.others {
		list += "," + c.others[i].Address
	}
	return list
}
