package load

import (
	"fmt"
	"testing"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func BenchmarkPickAndReserve(b *testing.B) {
	for _, workers := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("workers=%dx8", workers), func(b *testing.B) {
			s := fleet(b, workers, 8)
			book := New(1)
			book.Update(s)
			req := prefillRequest(s, 1000, params())
			req.Explain, req.Filter = new(Explanation), new(denyList)
			rng := newRand(1)
			for range req.Ranks {
				req.Overlap = append(req.Overlap, uint32(rng.IntN(20)))
			}
			var r Reservation
			b.ReportAllocs()
			for b.Loop() {
				_, _ = book.PickAndReserve(req, &r)
				r.ReleaseIfHeld(later)
			}
		})
	}
}

// BenchmarkConstrainedPick is a decode pick among three zones: one zone required, one
// preferred, and without constraints for comparison.
func BenchmarkConstrainedPick(b *testing.B) {
	s := fleet(b, 1000, 8)
	for i, w := range s.Workers() {
		w.TopologyDomains = map[string]string{"zone": string("abc"[i%3])}
	}
	zone := worker.TaintOf("zone", "b")
	for name, c := range map[string]*picker.Constraints{
		"none": nil, "required": {Required: []string{zone}}, "preferred": {Preferred: []picker.Preference{{Taint: zone, Weight: 0.5}}},
	} {
		b.Run(name, func(b *testing.B) {
			book := New(1)
			book.Update(s)
			req := prefillRequest(s, 1000, params())
			req.Explain, req.Filter, req.Constraints = new(Explanation), new(denyList), c
			var r Reservation
			b.ReportAllocs()
			for b.Loop() {
				_, _ = book.PickAndReserve(req, &r)
				r.ReleaseIfHeld(later)
			}
		})
	}
}

// BenchmarkPickInAnOlderWorld is a pick among the ranks of the previous snapshot.
// Requests that are decided while workers change make such picks.
func BenchmarkPickInAnOlderWorld(b *testing.B) {
	old, now := fleet(b, 1250, 8), fleet(b, 1249, 8)
	book := New(1)
	book.Update(old)
	book.Update(now)
	req := prefillRequest(old, 1000, params())
	req.Filter = new(denyList)
	var r Reservation
	b.ReportAllocs()
	for b.Loop() {
		_, _ = book.PickAndReserve(req, &r)
		r.ReleaseIfHeld(later)
	}
}

// BenchmarkUpdate is the time that picks wait when one of 1,250 workers comes or goes.
func BenchmarkUpdate(b *testing.B) {
	worlds := []*worker.Snapshot{fleet(b, 1250, 8), fleet(b, 1249, 8)}
	book := New(1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		book.Update(worlds[i%2])
	}
}
