//go:build real

package real

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var long = flag.Bool("long", false, "patterns 1 and 2 ten and five times")

// TestPatterns: all workers of one side are killed while the other lives, and come back.
// Until then requests are refused at once, and none is ever served by decode alone.
func TestPatterns(t *testing.T) {
	for engine, names := range map[string][2]string{vllm: {"vllm-p1", "vllm-d1"}, sglang: {"sglang-p1", "sglang-d1"}} {
		for pattern, side := range map[string]int{"Pattern 1: decode": 1, "Pattern 2: prefill": 0} {
			t.Run(engine+" "+pattern, func(t *testing.T) {
				rounds := 2
				if *long {
					rounds = map[int]int{1: 10, 0: 5}[side]
				}
				s := newScene(t, "enforce_disagg: true\n", names[0], names[1])
				n := 0
				ask := func() *answer {
					n++
					return s.ask("/v1/completions", fields{"model": "tiny", "prompt": fmt.Sprint(pattern, n, words(uint64(n), 100)), "max_tokens": 4})
				}
				require.Equal(t, http.StatusOK, ask().status)
				var slowest time.Duration
				for range rounds {
					e := s.engines[side]
					require.NoError(t, e.Kill())
					s.await("the plugin to know that it is gone", func() bool {
						began := time.Now()
						a := ask()
						if took := time.Since(began); a.status == http.StatusServiceUnavailable {
							slowest = max(slowest, took)
						}
						return a.status == http.StatusServiceUnavailable && !strings.Contains(a.body, "_failed") && !strings.Contains(a.body, "unreachable")
					})
					require.NoError(t, e.Restart(context.Background()))
					s.await("a pair to serve again", func() bool { return ask().status == http.StatusOK })
					require.NotNil(t, s.last().Prefill, "apart")
				}
				require.Zero(t, s.metric("baton_served_alone_total"))
				if engine == vllm {
					s.idle() // KV that the killed side's mate held is free again
				} else {
					s.quiet(s.engines...)
				}
				tellf(t, engine, pattern+" is killed and back", "%d rounds: refused meanwhile (the slowest took %s), then served apart; none by one worker alone",
					rounds, slowest.Round(10*time.Millisecond))
			})
		}
	}
}
