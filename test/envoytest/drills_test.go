//go:build e2e && long

package envoytest

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The drills here are a minute each: other requests come at their own rate while
// something goes wrong, and none of them is lost.

// TestAMinuteOfClientsInAHurry: two a second bring a deadline that passes while prefill
// runs; four a second do not, on one pair.
func TestAMinuteOfClientsInAHurry(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, prefillArgs: []string{"--prefill-base-us", "100000"}}, func(t *testing.T, f *fleet) {
		var hurried atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() {
			f.steady(60, 500*time.Millisecond, func(i int) {
				r := f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("in a hurry %d", i), 4, i%2 == 0), "x-request-timeout-ms", "50")
				if r.status == http.StatusGatewayTimeout {
					hurried.Add(1)
				}
			})
		})
		f.steady(120, 250*time.Millisecond, func(i int) {
			prompt := fmt.Sprintf("has time, %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
		})
		wg.Wait()
		require.EqualValues(t, 60, hurried.Load(), "each of those met its deadline")
		require.Zero(t, f.setAside())
	})
}

// TestAMinuteOfAStoppedDecode: one of two, at two requests a second.
func TestAMinuteOfAStoppedDecode(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2}, func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("all is well", 4, false)), "all is well", 4)
		bad := f.decode[0]
		require.NoError(t, bad.Signal(syscall.SIGSTOP))
		defer func() { require.NoError(t, bad.Signal(syscall.SIGCONT)) }()
		f.steady(120, 500*time.Millisecond, func(i int) {
			prompt := fmt.Sprintf("a decode is stopped, %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
		})
		f.requireLeft(bad)
	})
}
