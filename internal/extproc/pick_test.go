package extproc

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func (r *replica) explain(body string) *decision.Record {
	r.t.Helper()
	got, err := r.srv.Explain(r.t.Context(), "/v1/completions", []byte(body))
	require.NoError(r.t, err)
	return got.(*decision.Record)
}

// The query of a path may contain secrets, and is not shown.
func TestAnExplanationShowsNoQuery(t *testing.T) {
	r := newReplica(t, "a", nil)
	got, err := r.srv.Explain(t.Context(), "/v1/completions?key=secret", []byte(eightTokens))
	require.NoError(t, err)
	require.Equal(t, "/v1/completions", got.(*decision.Record).Path)
}

// promptOf returns the prompt of a body, as decisions see it.
func (r *replica) promptOf(body string) tokens.Prompt {
	r.t.Helper()
	req := route.Request{Now: time.Now(), Scan: new(openai.Request), Body: []byte(body)}
	require.NoError(r.t, openai.Scan(openai.Completions, req.Body, req.Scan))
	q, f := r.srv.router.Ask(req)
	require.Nil(r.t, f)
	p, ok := r.srv.cfg.Tokens.Fast(q.Query(), new(tokens.Scratch))
	require.True(r.t, ok)
	return p
}

const withOverride = `{"model":"m","prompt":[1,2,3,4,5,6,7,8],"nvext":{"router_config_override":%}}`

// The temperature that a request sets holds for both picks. Weights about the prompt do not
// hold for the pick of decode (docs/behaviour.md#decode-pick).
func TestARequestMayWeighItsOwnPicks(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		r := newReplica(t, "a", func(c *Config) { c.Overrides = allowed })
		require.Equal(t, "tie", r.explain(strings.Replace(withOverride, "%", `null`, 1)).Decode.Reason)
		if !allowed {
			require.Equal(t, "tie", r.explain(strings.Replace(withOverride, "%", `{"router_temperature":0.7}`, 1)).Decode.Reason)
			continue
		}
		require.Equal(t, "sampled", r.explain(strings.Replace(withOverride, "%", `{"router_temperature":0.7,"track_prefill_tokens":true}`, 1)).Decode.Reason)
		require.Equal(t, "tie", r.explain(strings.Replace(withOverride, "%", `{}`, 1)).Decode.Reason)

		rec := r.explain(strings.Replace(withOverride, "%", `{"overlap_score_credit":3,"track_prefill_tokens":true,"prefill_load_scale":5}`, 1))
		require.InDelta(t, 5*2, rec.Prefill.Rows()[0].PrefillCost, 0, "two blocks, scaled")
		require.Zero(t, rec.Decode.Rows()[0].PrefillCost)
		require.Zero(t, rec.Decode.Rows()[0].CreditBlocks)
	}
}

// If requests may not set weights, the log says once that a request has tried to, without the
// weights.
func TestWhoMayNotWeighIsToldOfOnce(t *testing.T) {
	var said strings.Builder
	r := newReplica(t, "a", func(c *Config) { c.Overrides, c.Logger = false, slog.New(slog.NewTextHandler(&said, nil)) })
	r.explain(`{"model":"m","prompt":[1,2,3,4,5,6,7,8],"nvext":{"agent_hints":{}}}`)
	require.Empty(t, said.String())
	for _, override := range []string{`{"router_temperature":0.7}`, `"of the wrong type"`, `{}`} {
		require.Equal(t, decision.Answered, r.explain(strings.Replace(withOverride, "%", override, 1)).Outcome)
	}
	require.Equal(t, 1, strings.Count(said.String(), "\n"), said.String())
	require.Contains(t, said.String(), "nvext.router_config_override is not read while routing.request_overrides is off")
	require.NotContains(t, said.String(), "wrong type")
}

func TestAnOverrideOfTheWrongTypeIsRefused(t *testing.T) {
	r := newReplica(t, "a", nil)
	for _, bad := range []string{`1`, `{"router_temperature":"hot"}`, `{"overlap_score_credit":-1}`, `{"assume_kv_reuse":true}`} {
		field := "nvext.router_config_override"
		if strings.Contains(bad, "assume") {
			field += ".assume_kv_reuse"
		}
		p := r.open(filterMain)
		p.requestHeaders()
		p.recv()
		p.requestBody(strings.Replace(withOverride, "%", bad, 1))
		im := p.recv().GetImmediateResponse()
		require.EqualValues(t, 400, im.GetStatus().GetCode(), bad)
		var body struct{ Error struct{ Code, Param string } }
		require.NoError(t, json.Unmarshal(im.GetBody(), &body))
		require.Equal(t, "wrong_type", body.Error.Code)
		require.Equal(t, field, body.Error.Param)
		p.cancel()
	}
	r.requireIdle()
}

// Every prefill worker is over its threshold (docs/behaviour.md#nobody-eligible).
func TestWhenAllAreOverloadedTheClientIsToldSo(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.Prefill.PrefillTokensThreshold = 5 })
	params := r.srv.cfg.Prefill
	var held [2]load.Reservation
	for i := range held {
		req := &load.Request{Params: &params}
		req.Pick.Role, req.Pick.ISLTokens = worker.Prefill, 6
		require.NoError(t, r.book.Reserve(req, worker.Rank{ID: worker.ID(i + 1)}, 0, &held[i]))
	}
	body := strings.Replace(withOverride, "%", `{}`, 1)
	rec := r.explain(body)
	require.Equal(t, "no_prefill_worker", rec.Detail)
	require.Equal(t, "nobody was picked: overloaded: prompt tokens (2)", rec.Prefill.Why(rec.PromptBlocks))
	require.False(t, rec.Decode.Made())

	p := r.open(filterMain)
	p.requestHeaders()
	p.recv()
	p.requestBody(body)
	im := p.recv().GetImmediateResponse()
	require.EqualValues(t, 503, im.GetStatus().GetCode())
	require.Contains(t, string(im.GetBody()), "No prefill worker can take the request: all of them are overloaded; try again.")
	require.Contains(t, string(im.GetBody()), `"no_prefill_worker"`)
	p.cancel()

	held[1].Release(time.Now())
	rec = r.explain(body)
	require.Equal(t, worker.Rank{ID: 2}, rec.Prefill.Rank)
	rows := rec.Prefill.Rows()
	require.True(t, rows[1].Out)
	require.Equal(t, "overloaded: prompt tokens", rows[1].Note)
	held[0].Release(time.Now())
	r.requireIdle()
}

// The cost table of a large pool has only the picked rank and the cheapest ones, and says how
// many there were.
func TestTheDebugHeaderSaysHowManyItLeavesOut(t *testing.T) {
	ws := routetest.Workers()
	for i := range 40 {
		w, err := *ws[1], error(nil)
		w.ID = worker.ID(100 + i)
		w.Endpoint, err = worker.ParseEndpoint(fmt.Sprintf("127.0.0.1:%d", 41000+i))
		require.NoError(t, err)
		ws = append(ws, &w)
	}
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.DebugHeader = true })
	p := r.through(routingKey, "prerouted")
	defer p.cancel()
	im := p.ask(`{"model":"m","prompt":[1,2,3,4],"nvext":{"annotations":["query_instance_id:"]}}`, prefill.HeaderDebug, "1").GetImmediateResponse()
	prefillLeg, decodeLeg, found := strings.Cut(setHeaders(im.GetHeaders())[prefill.HeaderDecision], "; decode=")
	require.True(t, found)
	require.Equal(t, 16, strings.Count(prefillLeg, "(overlap="))
	require.True(t, strings.HasSuffix(prefillLeg, "0) +26"), prefillLeg)
	require.Equal(t, 2, strings.Count(decodeLeg, "(overlap="))
	require.NotContains(t, decodeLeg, "+")
}

// In one pick, blocks that KV events tell of count as known, and blocks that were routed to a
// worker without events count as guesses.
func TestInAMixedPoolOnlyGuessesAreMarked(t *testing.T) {
	r := newReplica(t, "a", nil)
	body := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`
	p := r.promptOf(body)
	require.False(t, p.Estimated)
	tells, quiet := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	r.srv.cfg.Index.Attach(tells)
	var e kvindex.Stored
	for i, h := range p.Hashes {
		e.Blocks = append(e.Blocks, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: h})
	}
	e.Blocks = e.Blocks[:1]
	require.NoError(t, r.srv.cfg.Index.Store(tells, e))
	r.srv.cfg.Index.Route(quiet, p.Hashes, kvindex.Estimated, time.Now())
	seen := map[worker.Rank]decision.Row{}
	rec := r.explain(body)
	for _, row := range rec.Prefill.Rows() {
		seen[row.Rank] = row
	}
	require.EqualValues(t, 1, seen[tells].OverlapBlocks)
	require.False(t, seen[tells].Estimated)
	require.EqualValues(t, 2, seen[quiet].OverlapBlocks)
	require.True(t, seen[quiet].Estimated)
	require.EqualValues(t, 4, seen[quiet].CachedTokens, "two blocks at half their worth")
}

// Blocks in a worker's host memory count, but less than blocks on its device. The explanation
// of the decision shows them.
func TestBlocksInHostMemoryWinOverNone(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.Tells = func(worker.Rank) bool { return true } })
	body := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`
	p := r.promptOf(body)
	var blocks []kvindex.Block
	for i, h := range p.Hashes {
		blocks = append(blocks, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: h})
	}
	store := func(id worker.ID, tier kvindex.Tier) {
		r.srv.cfg.Index.Attach(worker.Rank{ID: id})
		require.NoError(t, r.srv.cfg.Index.Store(worker.Rank{ID: id}, kvindex.Stored{Blocks: blocks, Tier: tier}))
	}
	store(2, kvindex.Host)
	rec := r.explain(body)
	require.Equal(t, worker.Rank{ID: 2}, rec.Prefill.Rank)
	row := rec.Prefill.Rows()[0]
	require.Zero(t, row.OverlapBlocks)
	require.EqualValues(t, 2, row.HostBlocks)
	require.EqualValues(t, 6, row.CachedTokens, "two blocks at three quarters of their worth")

	store(1, kvindex.Disk)
	require.Equal(t, worker.Rank{ID: 2}, r.explain(body).Prefill.Rank, "host memory before disk")
	store(1, kvindex.Device)
	rec = r.explain(body)
	require.Equal(t, worker.Rank{ID: 1}, rec.Prefill.Rank, "the device before host memory")
	require.Zero(t, rec.Prefill.Rows()[0].DiskBlocks, "what is on the device is not counted twice")
}

// Blocks that a worker has written to an external cache count for all workers, in addition to
// the blocks that each holds.
func TestWhatIsInTheCacheOutsideCountsForEveryWorker(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.Tells = func(worker.Rank) bool { return true } })
	body := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`
	p := r.promptOf(body)
	var blocks []kvindex.Block
	for i, h := range p.Hashes {
		blocks = append(blocks, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: h})
	}
	for id, e := range map[worker.ID]kvindex.Stored{1: {Blocks: blocks, Tier: kvindex.External}, 2: {Blocks: blocks[:1]}} {
		r.srv.cfg.Index.Attach(worker.Rank{ID: id})
		require.NoError(t, r.srv.cfg.Index.Store(worker.Rank{ID: id}, e))
	}
	rows := r.explain(body).Prefill.Rows()
	require.Equal(t, []any{worker.Rank{ID: 2}, int64(1), int64(1), 1.5}, []any{rows[0].Rank, rows[0].OverlapBlocks, rows[0].SharedBlocks, rows[0].CreditBlocks})
	require.Equal(t, []any{worker.Rank{ID: 1}, int64(0), int64(2), 1.0}, []any{rows[1].Rank, rows[1].OverlapBlocks, rows[1].SharedBlocks, rows[1].CreditBlocks})
	require.EqualValues(t, 9, rows[1].UncachedTokens, "whether it was fetched, only the worker knows")
}

// A prompt that was routed to a worker counts as held there until the worker's events come, so
// that the next prompt with the same beginning goes there, too.
func TestAPromptThatWasRoutedIsPredictedUntilEventsTellOfIt(t *testing.T) {
	body := `{"model":"m","prompt":[1` + strings.Repeat(",7", 300) + `],"max_tokens":4}`
	for name, predicts := range map[string]bool{"predicted": true, "told only": false} {
		t.Run(name, func(t *testing.T) {
			r := newReplica(t, "a", func(c *Config) {
				c.Tells, c.Predicts = func(worker.Rank) bool { return true }, predicts
			})
			p := r.open(filterMain)
			p.route(body)
			var to worker.Rank
			for id := worker.ID(1); id <= 2; id++ {
				if st, ok := r.srv.cfg.Index.Stats(worker.Rank{ID: id}); ok && st.Routed > 0 {
					to = worker.Rank{ID: id}
				}
			}
			rec := r.explain(body)
			for _, row := range rec.Prefill.Rows() {
				require.Equal(t, int64(row.PredictedBlocks), row.OverlapBlocks)
				require.False(t, row.Estimated)
				if row.Rank == to {
					require.EqualValues(t, rec.PromptBlocks, row.PredictedBlocks)
				} else {
					require.Zero(t, row.PredictedBlocks)
				}
			}
			require.Equal(t, predicts, to != worker.Rank{}, "nothing is noted that would not count")
			p.cancel()
			r.forgetLegs()
			r.requireIdle()
		})
	}
}

// When the answer of an aggregated request begins, its prompt tokens are no longer booked.
// The blocks of the answer stay booked.
func TestAnAnswerThatBeginsTakesItsPromptOffTheBook(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.Board = aggregatedBoard(t) })
	p := r.open(filterMain)
	p.route(someBody)
	before := r.book.Totals()
	require.Positive(t, before.PrefillTokens)
	p.responseHeaders("200")
	require.NotNil(t, p.recv().GetResponseHeaders())
	after := r.book.Totals()
	require.Zero(t, after.PrefillTokens)
	require.Equal(t, before.DecodeBlocks, after.DecodeBlocks)
	require.Equal(t, 1, after.Held)
	p.cancel()
	r.accessLog()
	r.requireIdle()
}

// Blocks over token pairs match prompts only if the workers of the pool are known to hash so.
func TestAPromptIsHashedAsThePoolsWorkersHashTheirs(t *testing.T) {
	for _, eagle := range []bool{false, true} {
		ws := routetest.Workers()
		for _, w := range ws {
			w.Eagle = eagle
		}
		r := newReplicaOf(t, "a", fixed(ws), nil)
		rank, tokens := worker.Rank{ID: 1}, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
		r.srv.cfg.Index.Attach(rank)
		var e kvindex.Stored
		for i, h := range kvindex.AppendPairHashes(nil, tokens, 4, kvindex.Salt{}.Seed()) {
			e.Blocks = append(e.Blocks, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: h})
		}
		require.NoError(t, r.srv.cfg.Index.Store(rank, e))
		want := uint32(0)
		if eagle {
			want = 2
		}
		for _, row := range r.explain(`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`).Prefill.Rows() {
			if row.Rank == rank {
				require.EqualValues(t, want, row.OverlapBlocks)
			}
		}
	}
}
