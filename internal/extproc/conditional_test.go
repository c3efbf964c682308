package extproc

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// verdictOf is what would be decided of a request now; nothing is booked.
func (r *replica) verdictOf(body string) *verdict {
	r.t.Helper()
	var scan openai.Request
	require.NoError(r.t, openai.Scan(openai.Completions, []byte(body), &scan))
	q, f := r.srv.question(&scan, []byte(body))
	require.Nil(r.t, f)
	sc := newScratch()
	prompt, ok := r.srv.cfg.Tokens.Fast(q.query, &sc.tokens)
	require.True(r.t, ok)
	v := new(verdict)
	r.srv.judgeInTime(v, q, prompt, sc, nil, nil)
	return v
}

// stranded puts prefill into a domain in which nobody decodes.
func stranded(ws []*worker.Worker) {
	for _, w := range ws {
		if w.Role == worker.Prefill {
			w.TopologyDomains = map[string]string{"zone": "x"}
			w.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: worker.Required}
		}
	}
}

// A share is reached only by as many tokens as it comes to, counted up.
func TestAShareOfAPromptIsCountedUp(t *testing.T) {
	for _, row := range []struct {
		tokens int64
		ratio  float64
		isl    int
		want   int64
	}{{100, 0.3, 16, 5}, {100, 0.25, 16, 4}, {4, 0.3, 16, 4}, {100, 0.01, 1, 1}, {100, 1, 16, 16}} {
		c := Conditional{ByISL: true, ISLTokens: row.tokens, ISLRatio: row.ratio}
		require.Equal(t, row.want, c.uncachedLimit(row.isl), "%+v", row)
	}
	require.Zero(t, (&Conditional{ISLTokens: 9, ISLRatio: 1}).uncachedLimit(16), "by load alone")
}

// A worker that is given a prompt although others are there for prompts has room
// for it: it is never the least busy of those that are too busy.
func TestASpareWorkerHasRoom(t *testing.T) {
	c := Conditional{DecodeBusyBlocks: 0.5, PrefillBusyTokens: 100}
	got := c.spare(picker.Params{ServeOverloaded: true})
	require.Equal(t, picker.Params{DecodeBlocksThreshold: 0.5, PrefillTokensThreshold: 100}, got)
	stricter := picker.Params{DecodeBlocksThreshold: 0.25, PrefillTokensThreshold: 10}
	require.Equal(t, stricter, c.spare(stricter))

	r := newReplicaOf(t, "a", fixed(ableAlone(t)), func(c *Config) {
		c.Conditional = Conditional{ByISL: true, ISLTokens: 100, ISLRatio: 1, PrefillBusyTokens: 10}
		c.Aggregated.ServeOverloaded = true
	})
	r.holds(worker.Rank{ID: 3}, sixteenTokens, 3)
	require.Equal(t, splitShortPrompt, r.verdictOf(sixteenTokens).split.reason)
	busy := r.load(3, worker.Aggregated, 11)
	require.Empty(t, r.verdictOf(sixteenTokens).split.reason)
	busy.Release(time.Now())
}

// Who names a worker has decided how many serve, and who takes its part.
func TestARequestThatNamesAWorkerIsNotMovedToOne(t *testing.T) {
	for _, header := range []string{"x-worker-instance-id", "x-prefill-instance-id"} {
		id := map[string]string{"x-worker-instance-id": "3", "x-prefill-instance-id": "2"}[header]
		r := newReplicaOf(t, "a", fixed(ableAlone(t)), func(c *Config) {
			c.Conditional = Conditional{ByISL: true, ISLTokens: 100, ISLRatio: 1}
		})
		r.holds(worker.Rank{ID: 3}, sixteenTokens, 3)
		p := r.through(routingKey, "prerouted")
		set, _ := routed(t, p.ask(sixteenTokens, header, id))
		require.Equal(t, id, set[header])
		require.NotEmpty(t, set["x-prefill-instance-id"], header)
		p.cancel()
		r.forgetLegs()
		r.requireIdle()
	}
	ws := ableAlone(t)
	stranded(ws)
	r := newReplicaOf(t, "b", fixed(ws), func(c *Config) { c.FallbackAggregated = true })
	p := r.through(routingKey, "prerouted")
	status, code, _ := codeOf(t, p.ask(sixteenTokens, "x-worker-instance-id", "3"))
	require.Equal(t, "503 no_worker_with_taint", fmt.Sprint(status, " ", code))
	p.cancel()
	r.requireIdle()
}

// A full queue is a 429 (docs/behaviour.md#full-queue), and by load nobody gets around
// it; a fresh pick is never refused so.
func TestByLoadIsNoWayAroundBackPressure(t *testing.T) {
	for limit, want := range map[int64]int{0: 0, 25: 0, 24: 429, 12: 429} {
		for attempt, want := range map[string]int{"1": want, "2": 0} {
			r := newReplicaOf(t, "a", fixed(ableAlone(t)), func(c *Config) {
				c.MaxQueuedISLTokens = limit
				c.Conditional = Conditional{ByLoad: true, PrefillBusyTokens: 8}
			})
			held := r.queue(12, 12)
			p := r.open(filterMain)
			m := p.ask(eightTokens, wire.HeaderAttemptCount, attempt)
			require.EqualValues(t, want, m.GetImmediateResponse().GetStatus().GetCode(), "limit %d, attempt %s: %v", limit, attempt, m)
			if want == 0 {
				set, _ := routed(t, m)
				require.Equal(t, "3", set["x-worker-instance-id"])
				require.NotContains(t, set, "x-prefill-instance-id", "it is busy")
			}
			p.cancel()
			for _, h := range held {
				h.Release(time.Now())
			}
			r.requireIdle()
		}
	}
}

// What a request asks of its picks holds for the pick of one worker, too.
func TestOneWorkerIsPickedAsTheRequestAsks(t *testing.T) {
	body := withExt(`"router_config_override":{"prefill_load_scale":7.5}`)
	for name, change := range map[splitReason]func(ws []*worker.Worker, c *Config){
		splitFallback: func(ws []*worker.Worker, c *Config) {
			stranded(ws)
			c.FallbackAggregated = true
		},
		splitShortPrompt: func(_ []*worker.Worker, c *Config) {
			c.Conditional = Conditional{ByISL: true, ISLTokens: 100, ISLRatio: 1}
		},
	} {
		ws := ableAlone(t)
		r := newReplicaOf(t, "a", fixed(ws), func(c *Config) {
			change(ws, c)
			c.Overrides = true
		})
		r.holds(worker.Rank{ID: 3}, body, 1)
		v := r.verdictOf(body)
		require.Nil(t, v.fail)
		require.Equal(t, name, v.split.reason)
		require.InDelta(t, 7.5, v.decode.params.PrefillLoadScale, 0)
		require.NotEqual(t, picker.DefaultParams().PrefillLoadScale, v.decode.params.PrefillLoadScale)
	}
}

// The taints of the request bind its pick of decode beside the domain of prefill's
// KV: neither takes the other's place.
func TestARequestsOwnTaintsHoldWhereADomainBinds(t *testing.T) {
	for enforcement, zone := range map[worker.Enforcement]string{worker.Required: "a", worker.Preferred: "b"} {
		ws := zoned(t, enforcement, map[worker.Enforcement]float64{worker.Preferred: 0.5}[enforcement])
		ws[1].TopologyDomains = map[string]string{"zone": "a"} // prefill is in a, decode in a and b
		for _, w := range ws {
			w.Taints = []string{"gpu=h"}
		}
		ws[2].Taints = nil
		r := newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.Overrides = true })
		status, body := r.ask(withExt(`"routing_constraints":{"required_taints":["gpu=h"]}`))
		if zone == "a" {
			require.Equal(t, 503, status, "3 lacks the taint, 4 the domain")
			require.Contains(t, body, `"no_worker_with_taint"`)
			continue
		}
		require.Zero(t, status, body)
		rec := r.explain(withExt(`"routing_constraints":{"required_taints":["gpu=h"]}`))
		require.Equal(t, worker.ID(4), rec.Decode.Rank.ID)
		r.forgetLegs()
		r.requireIdle()
	}
}
