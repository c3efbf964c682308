package extproc_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// lieRow is a way in which a rank comes to hold less than its KV events say, and how that ends.
type lieRow struct {
	name        string
	begin, ends enginesim.Lie
	capacity    int
}

func lieRows() []lieRow {
	return []lieRow{
		{name: "its events are cut in silence", begin: enginesim.Lie{Mute: true}, capacity: 10*lossPrompt + 1},
		{name: "its block size has changed", begin: enginesim.Lie{Page: 64}, ends: enginesim.Lie{Page: lossPage}},
		{name: "its cache was reset while it was idle", begin: enginesim.Lie{Forget: true}},
	}
}

// TestARankThatHoldsLessThanItsEventsSayIsFoundDiscountedAndHealed, by what its prompts were predicted to
// have in the cache and what it delivered, within twenty prompts of it.
func TestARankThatHoldsLessThanItsEventsSayIsFoundDiscountedAndHealed(t *testing.T) {
	for _, row := range lieRows() {
		t.Run(row.name, func(t *testing.T) {
			resynced := 0
			f := newLossFleet(t, 1, true, worker.VLLM, func(c *enginesim.Config) { c.CapacityBlocks = row.capacity }, func(c *extproc.Config) {
				next := c.Resync
				c.Resync = func(r worker.Rank, empty bool) {
					if empty {
						resynced++
					}
					next(r, empty)
				}
			})
			liar := worker.Rank{ID: 1}
			seed := uint64(0)
			for range 10 {
				seed++
				f.warm(idsPrompt(seed, lossPrompt, ""), true)
				f.ask(idsPrompt(seed, lossPrompt, ""))
			}
			require.Empty(t, f.doubted(), "it is true so far")
			held, _ := f.parts.Index.Stats(liar)
			require.GreaterOrEqual(t, held.Blocks, 9*lossPrompt)

			require.NoError(t, f.sims[0].Lie(row.begin))
			if row.begin.Mute {
				seed += 100 // others displace what it told of
				for i := range 10 {
					f.post(1, idsPrompt(seed+uint64(i), lossPrompt, ""))
				}
				seed -= 100
			}
			was := seed
			n := 0
			for ; n < 20 && len(f.doubted()) == 0; n++ {
				seed = was - uint64(n)%10 // the prompts that its events have told of
				f.ask(idsPrompt(seed, lossPrompt, ""))
			}
			d := f.doubted()
			require.Len(t, d, 1, "found within twenty prompts")
			t.Logf("found after %d prompts: %+v", n, d[0])
			require.Equal(t, liar, d[0].Rank)
			require.Less(t, 2*d[0].Delivered, d[0].Told)
			require.Equal(t, 1, resynced)
			f.await("its blocks to be learned anew", func() bool {
				s, _ := f.parts.Index.Stats(liar)
				return s.Blocks < held.Blocks/2
			})

			if row.ends != (enginesim.Lie{}) || row.begin.Mute {
				require.NoError(t, f.sims[0].Lie(row.ends))
			}
			f.inStep()
			seed = 1000
			discounted := false
			for range 100 {
				seed++
				body := idsPrompt(seed, lossPrompt, "")
				f.warm(body, true)
				f.parts.Index.Expire(time.Now().Add(time.Hour)) // what was routed, so that only events tell
				r := f.ask(body)
				require.Empty(t, lostOf(t, r)["stale_index"], "it delivers what it tells now")
				if len(f.doubted()) == 0 {
					break
				}
				discounted = discounted || r.Decode.OverlapBlocks < lossPrompt/2
			}
			require.True(t, discounted, "what its events say has counted for less")
			require.Empty(t, f.doubted(), "healed")
			seed++
			f.warm(idsPrompt(seed, lossPrompt, ""), true)
			f.parts.Index.Expire(time.Now().Add(time.Hour))
			require.EqualValues(t, lossPrompt, f.ask(idsPrompt(seed, lossPrompt, "")).Decode.OverlapBlocks, "and counts in full again")
			for seed := was - 9; seed <= was; seed++ {
				require.Empty(t, lostOf(t, f.ask(idsPrompt(seed, lossPrompt, "")))["stale_index"], "what it told before is not believed again: a replay would tell the same")
			}
		})
	}
}

// TestEnginesThatEvictAreNotCalledLiars in 2,000 prompts of each engine, several at a time, whose working set is three
// times what the caches hold.
func TestEnginesThatEvictAreNotCalledLiars(t *testing.T) {
	t.Parallel()
	rounds := 500
	if testing.Short() {
		rounds = 50
	}
	for _, engine := range []worker.Engine{worker.VLLM, worker.SGLang} {
		f := newLossFleet(t, 2, true, engine, func(c *enginesim.Config) { c.CapacityBlocks = 10 * lossPrompt }, nil)
		var clients sync.WaitGroup
		found := make(chan string, 8)
		for i := range uint64(4) {
			clients.Go(func() {
				rng := rand.New(rand.NewPCG(i, 5))
				for range rounds {
					f.ask(idsPrompt(rng.Uint64N(60), lossPrompt, ""))
					if d := f.doubted(); len(d) > 0 {
						found <- fmt.Sprint(d)
						return
					}
				}
			})
		}
		clients.Wait()
		require.Empty(t, found)
		evicted := uint64(0)
		for _, w := range f.workers {
			s, _ := f.parts.Index.Stats(worker.Rank{ID: w.ID})
			evicted += s.Removed
		}
		require.Greater(t, evicted, uint64(2*rounds), "there were evictions")
	}
}

// TestAnEngineThatStartsAnewAtItsAddressLiesOnce at most where it cannot replay: its first event shows that
// it is another one.
func TestAnEngineThatStartsAnewAtItsAddressLiesOnce(t *testing.T) {
	for _, replays := range []bool{true, false} {
		var conf enginesim.Config
		f := newLossFleet(t, 1, true, worker.VLLM, func(c *enginesim.Config) {
			if !replays {
				c.ReplayPort = enginesim.Off
			}
			conf = *c
		}, nil)
		for seed := range uint64(10) {
			f.warm(idsPrompt(seed, lossPrompt, ""), true)
		}
		w := f.workers[0]
		conf.Listen, conf.KVEventsPort = f.sims[0].Addr(), int(w.KVEvents.Port)
		if replays {
			conf.ReplayPort = int(w.KVEvents.ReplayPort)
		}
		was := time.Now()
		f.stops[0]()
		f.sims[0] = f.start(conf)
		f.await("its stream to be connected anew", func() bool {
			s := f.events.Status()[0]
			return s.State == kvevents.StateConnected && s.Since.After(was) && (s.Resets > 0 || !replays)
		})
		lost := 0
		for seed := range uint64(10) {
			got := lostOf(t, f.ask(idsPrompt(seed, lossPrompt, "")))
			lost += got["stale_index"] + got["evicted"] // if that event comes before the answer
			if seed == 0 {
				f.await("its first event", func() bool { return f.events.Status()[0].Resets > 0 })
			}
		}
		require.Equal(t, map[bool]int{true: 0, false: deliverable}[replays], lost)
		require.Empty(t, f.doubted())
	}
}

// TestNoClientCanHaveATrueRankCalledALiar by prompts that have to be computed anew, though they are cached.
func TestNoClientCanHaveATrueRankCalledALiar(t *testing.T) {
	for name, more := range map[string]string{
		"logprobs of the prompt":                    `,"prompt_logprobs":1`,
		"a member of which nobody knows what it is": `,"of_later":{"computes":"all"}`,
	} {
		f := newLossFleet(t, 1, true, worker.VLLM, nil, nil)
		f.warm(idsPrompt(1, lossPrompt, ""), true)
		for range 30 {
			require.NoError(t, f.sims[0].Lie(enginesim.Lie{Forget: true})) // the simulator would use its cache
			require.Equal(t, map[string]int{"constraint": deliverable}, lostOf(t, f.ask(idsPrompt(1, lossPrompt, more))), name)
		}
		require.Empty(t, f.doubted(), name)
	}
}

// TestARankWhoseEventsAreCutIsFoundInAnyTraffic, within twenty prompts that it gets, of which most are in no cache.
func TestARankWhoseEventsAreCutIsFoundInAnyTraffic(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		engine := []worker.Engine{worker.VLLM, worker.SGLang}[seed%2]
		f := newLossFleet(t, 1, true, engine, func(c *enginesim.Config) { c.CapacityBlocks = 12*lossPrompt + 1 }, nil)
		rng := rand.New(rand.NewPCG(seed, 1))
		ask := func() { f.ask(idsPrompt(rng.Uint64N(40), lossPrompt, "")) }
		for range 60 {
			ask()
		}
		require.Empty(t, f.doubted())
		require.NoError(t, f.sims[0].Lie(enginesim.Lie{Mute: true}))
		n := 0
		for ; n < 20 && len(f.doubted()) == 0; n++ {
			ask()
		}
		require.Len(t, f.doubted(), 1, "seed %d", seed)
		t.Logf("seed %d: found after %d prompts: %+v", seed, n, f.doubted()[0])
		require.NoError(t, f.sims[0].Lie(enginesim.Lie{}))
		f.await("its events to come again, and to be believed", func() bool { ask(); return len(f.doubted()) == 0 })
	}
}
