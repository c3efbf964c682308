package admin

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkPage builds the page anew each time: a server does that once a second at most.
func BenchmarkPage(b *testing.B) {
	for _, n := range []int{4, 40, 2000} {
		st := fleetState(now(), n, "llama-3.1-70b")
		s, err := New(Config{Address: "127.0.0.1:0", Ready: ready, ReadyKey: readyKey, State: func() State { return st }, Journal: fullJournal(b, now()), Hour: busyHour(now()).Spans})
		require.NoError(b, err)
		defer s.Close()
		for name, target := range map[string]string{"built": "/", "found": "/?q=10.8.1&sort=-legs"} {
			b.Run(fmt.Sprintf("workers=%d/%s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				size := 0
				for b.Loop() {
					s.built.until = time.Time{}
					size = get(s, target).Body.Len()
				}
				b.ReportMetric(float64(size), "B/page")
			})
		}
		b.Run(fmt.Sprintf("workers=%d/again", n), func(b *testing.B) {
			for b.Loop() {
				s.built.until = time.Now().Add(time.Minute)
				_ = get(s, "/").Body.Len()
			}
		})
	}
}
