package extproc

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/extproctest"
	"github.com/seed-60ae5743/baton/internal/hitloss"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Tests with engines are in test/extproc.

// TestOfWorkersThatHaveLeftNobodyIsCalledALiar.
func TestOfWorkersThatHaveLeftNobodyIsCalledALiar(t *testing.T) {
	ws := routetest.Aggregated(routetest.Workers()[:2])
	lists := make(extproctest.Lists, 1)
	lists <- ws
	r := newReplicaOf(t, "a", lists, nil)
	r.srv.view.Subscribe(func(old, _ *worker.Snapshot, c discovery.Change) { r.srv.OnChange(old, c) })
	liar := worker.Rank{ID: 2}
	lie := func() {
		for range 9 {
			r.srv.liars.judge(r.srv, liar, func(j *hitloss.Judge) hitloss.Verdict { return j.Add(liar, 640, 0, time.Now()) })
		}
	}
	lie()
	require.Len(t, Doubted(r.srv, time.Now()), 1)
	lists <- ws[:1]
	require.Eventually(t, func() bool { return len(Doubted(r.srv, time.Now())) == 0 }, 20*time.Second, time.Millisecond, "it is forgotten")
	lie()
	require.Empty(t, Doubted(r.srv, time.Now()), "a prompt that ends later changes nothing")
}

// TestTheBlocksThatAreKeptOfAPromptAreBounded, and what is beyond them is not blamed on its rank.
func TestTheBlocksThatAreKeptOfAPromptAreBounded(t *testing.T) {
	const page, blocks = 16, mostKept + 100
	w := routetest.Aggregated(routetest.Workers()[:1])[0]
	w.BlockSize = page
	r := newReplicaOf(t, "a", fixed{w}, func(c *Config) {
		var err error
		c.Slots = kvindex.NewSlots()
		c.Index, err = kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 16 << 20, NoHugePages: true}, c.Slots)
		require.NoError(t, err)
		c.Routes = overlap.NewRoutes(c.Index)
	})
	var ids strings.Builder
	for i := range blocks * page {
		fmt.Fprintf(&ids, "%d,", 10+i)
	}
	body := `{"model":"m","max_tokens":1,"prompt":[` + ids.String() + `1]}`
	r.holds(worker.Rank{ID: w.ID}, body, blocks)
	p := r.open(filterMain)
	defer p.cancel()
	set, _ := routed(t, p.ask(body))
	nonce, err := strconv.ParseUint(set[prefill.HeaderAttempt], 10, 64)
	require.NoError(t, err)
	s := r.srv.attempts.find(nonce)
	require.Len(t, s.decided.belief.chain, mostKept)

	p.responseHeaders("200", "content-type", "application/json")
	p.recv()
	s.post(&notice{ // the engine has emptied its cache, and no event has told of it
		Event: leg.Event{Kind: leg.EventLogged, Seen: blame.Served, Reached: true},
		usage: openai.Usage{Prompt: blocks*page + 1, Output: 1, HasCached: true},
	})
	p.cancel()
	r.requireIdle()
	records := r.srv.cfg.Journal.Recent(nil, 2)
	require.Len(t, records, 1)
	require.Equal(t, fmt.Sprintf("lost %d of %d tokens: stale_index %d, evicted %d", blocks*page, blocks*page+1, mostKept*page, 100*page), records[0].Loss)
}
