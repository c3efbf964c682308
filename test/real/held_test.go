//go:build real

package real

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// heldBounds are the bounds of baton_prefill_wait_seconds that are shown.
var heldBounds = []string{"0.005", "0.025", "0.05", "0.1", "0.25"}

// held is what baton_prefill_wait_seconds says: how often decode's first token waited for
// prefill's answer, for how long in all, and how often at most each of heldBounds.
func (s *scene) held() (n, seconds float64, within []float64) {
	const name = "baton_prefill_wait_seconds"
	for _, le := range heldBounds {
		within = append(within, s.metric(name+"_bucket", fmt.Sprintf("le=%q", le)))
	}
	return s.metric(name + "_count"), s.metric(name + "_sum"), within
}

// TestSGLangHoldsDecodesFirstToken shows how long decode's first token waits for prefill's
// answer, by how many clients keep prefill busy (docs/decisions/0024-the-path-of-two-legs.md).
// It asserts only that all are served.
func TestSGLangHoldsDecodesFirstToken(t *testing.T) {
	const requests = 48
	s := newScene(t, compared, "sglang-p1", "sglang-d1")
	for _, clients := range []int{1, 2, 4, 8} {
		n, seconds, within := s.held()
		began := time.Now()
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				for i := range requests / clients {
					a := s.ask("/v1/completions", fields{"model": "tiny", "prompt": words(uint64(clients*1000+c*100+i), 300), "max_tokens": 8, "stream": true})
					if a.status != http.StatusOK {
						t.Error(a.status, a.body)
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		n2, seconds2, within2 := s.held()
		for i := range within2 {
			within2[i] -= within[i]
		}
		t.Logf("%d clients, %d requests in %v: %v first tokens waited, %.0f ms in the mean; at most %v s: %v",
			clients, requests, took.Round(time.Millisecond), n2-n, 1000*(seconds2-seconds)/max(n2-n, 1), heldBounds, within2)
	}
}
