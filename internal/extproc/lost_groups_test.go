package extproc

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhoDoesNotTellAllThatDecidesIsNotCalledALiar: an engine with sliding windows delivers
// nothing of a prompt once the window's blocks at its end have gone, whatever else it holds.
func TestWhoDoesNotTellAllThatDecidesIsNotCalledALiar(t *testing.T) {
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprint("it tells all: ", all), func(t *testing.T) {
			w := routetest.Aggregated(routetest.Workers()[:1])[0]
			messages := uint64(0)
			r := newReplicaOf(t, "a", fixed{w}, func(c *Config) {
				c.Events = func(worker.Rank) (uint64, bool, bool) { messages++; return messages, true, all }
			})
			r.holds(worker.Rank{ID: w.ID}, sixteenTokens, 4)
			for range 9 {
				p := r.open(filterMain)
				set, _ := routed(t, p.ask(sixteenTokens))
				nonce, err := strconv.ParseUint(set[prefill.HeaderAttempt], 10, 64)
				require.NoError(t, err)
				s := r.srv.attempts.find(nonce)
				p.responseHeaders("200", "content-type", "application/json")
				p.recv()
				s.post(&notice{
					Event: leg.Event{Kind: leg.EventLogged, Seen: blame.Served, Reached: true},
					usage: openai.Usage{Prompt: 16, Output: 1, HasCached: true},
				})
				p.cancel()
				r.requireIdle()
			}
			require.Equal(t, all, len(Doubted(r.srv, time.Now())) == 1)
		})
	}
}
