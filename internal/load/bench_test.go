package load

import (
	"fmt"
	"testing"
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
				req.Overlaps = append(req.Overlaps, uint32(rng.IntN(20)))
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
