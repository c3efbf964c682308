package extproc

import (
	"encoding/json"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// queue books prompts on the prefill workers 1 and 2.
func (r *replica) queue(tokens ...int) []*load.Reservation {
	r.t.Helper()
	params := r.srv.cfg.Prefill
	var held []*load.Reservation
	for i, n := range tokens {
		req := &load.Request{Params: &params}
		req.Pick.Role, req.Pick.ISLTokens = worker.Prefill, n
		held = append(held, new(load.Reservation))
		require.NoError(r.t, r.book.Reserve(req, worker.Rank{ID: worker.ID(i + 1)}, 0, held[i]))
	}
	return held
}

// ask sends a whole request and returns the answer to its body.
func (p *proxy) ask(body string, headers ...string) *extprocv3.ProcessingResponse {
	p.t.Helper()
	p.asks(body, headers...)
	return p.recv()
}

// asks is ask for a request whose answer comes later.
func (p *proxy) asks(body string, headers ...string) {
	p.t.Helper()
	p.requestHeaders(headers...)
	require.NotNil(p.t, p.recv().GetRequestHeaders())
	p.requestBody(body)
}

// askAt is ask with another path, for which the answer may come at the headers.
func (p *proxy) askAt(path, body string, headers ...string) *extprocv3.ProcessingResponse {
	p.t.Helper()
	p.requestHeaders(append([]string{":path", path}, headers...)...)
	if m := p.recv(); m.GetRequestHeaders() == nil {
		return m
	}
	p.requestBody(body)
	return p.recv()
}

const eightTokens = `{"model":"m","prompt":[1,2,3,4,5,6,7,8]}`

// docs/behaviour.md#full-queue.
func TestANewRequestIsRefusedWhileThePrefillQueueIsFull(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.MaxQueuedISLTokens = 10 })
	world := r.srv.cfg.Board.Load()
	held := r.queue(6, 4)
	p := r.open(filterMain)
	im := p.ask(eightTokens).GetImmediateResponse()
	p.cancel()
	require.EqualValues(t, 429, im.GetStatus().GetCode())
	set := setHeaders(im.GetHeaders())
	require.Equal(t, "1", set["retry-after"])
	require.NotContains(t, set, prefill.HeaderRetry, "Envoy must not try again by itself")
	var body struct{ Error map[string]any }
	require.NoError(t, json.Unmarshal(im.GetBody(), &body))
	require.Equal(t, map[string]any{
		"message": leg.FailSaturated.Message, "type": "rate_limit_error", "param": nil, "code": "prefill_saturated",
		"reason": "prefill_queue_full", "queued_isl_tokens": 10.0, "max_queued_isl_tokens": 10.0,
	}, body.Error)
	queued, limit := r.srv.Backlog(world, worker.Key{Model: "m"})
	require.Equal(t, []int64{10, 10}, []int64{queued, limit})
	queued, _ = r.srv.Backlog(world, worker.Key{Model: "other"})
	require.Zero(t, queued)

	rec := r.explain(eightTokens)
	require.Equal(t, "prefill_saturated", rec.Detail)
	require.Equal(t, 429, rec.Status)
	require.Equal(t, "nobody was picked: its workers have 10 prompt tokens queued, the limit is 10", rec.Prefill.Why(rec.PromptBlocks))
	require.False(t, rec.Decode.Made())

	held[1].Release(time.Now())
	p = r.open(filterMain)
	require.NotNil(t, p.ask(eightTokens).GetRequestBody(), "six are queued: the one that crosses the limit is taken")
	p.cancel()
	held[0].Release(time.Now())
	r.forgetLegs()
	r.requireIdle()
}

// A request that was admitted is not refused for back-pressure after a worker's failure.
func TestARequestThatWasAdmittedIsNotRefusedOnItsFreshPick(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.MaxQueuedISLTokens = 10 })
	first := r.open(filterMain)
	set := setHeaders(first.ask(eightTokens).GetRequestBody().GetResponse().GetHeaderMutation())
	held := r.queue(12, 12) // at each, since the worker that has failed is avoided
	leg := r.open(filterPrefill)
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	leg.recv()
	leg.cancel() // the prefill worker has died
	im := first.recv().GetImmediateResponse()
	require.Equal(t, "1", setHeaders(im.GetHeaders())[prefill.HeaderRetry])
	first.cancel()

	second, fresh := r.open(filterMain), r.open(filterMain)
	require.NotNil(t, second.ask(eightTokens, "x-envoy-attempt-count", "2").GetRequestBody())
	require.EqualValues(t, 429, fresh.ask(eightTokens, "x-envoy-attempt-count", "1").GetImmediateResponse().GetStatus().GetCode())
	fresh.cancel()
	second.cancel()
	for _, h := range held {
		h.Release(time.Now())
	}
	r.forgetLegs()
	r.requireIdle()
}

// Tokens queued at a worker that is set aside do not count, since no request would wait for
// them.
func TestAWorkerThatIsAsideHasNoQueue(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.MaxQueuedISLTokens = 10 })
	held := r.queue(4, 6)
	require.Equal(t, "prefill_saturated", r.explain(eightTokens).Detail)
	for range 2 {
		r.srv.cfg.Health.Report(worker.Rank{ID: 2}, health.Report{Outcome: health.Overdue}, time.Now())
	}
	require.Equal(t, worker.Rank{ID: 1}, r.explain(eightTokens).Prefill.Rank)
	queued, _ := r.srv.Backlog(r.srv.cfg.Board.Load(), worker.Key{Model: "m"})
	require.EqualValues(t, 4, queued)
	for _, h := range held {
		h.Release(time.Now())
	}
	r.requireIdle()
}

func TestARequestForOneWorkerAloneKnowsNoPrefillQueue(t *testing.T) {
	t.Parallel()
	r := newReplica(t, "a", func(c *Config) { c.MaxQueuedISLTokens, c.Board = 1, aggregatedBoard(t) })
	var streams []*proxy
	for range 3 {
		p := r.open(filterMain)
		streams = append(streams, p)
		require.NotNil(t, p.ask(eightTokens).GetRequestBody())
	}
	require.Greater(t, r.book.Totals().PrefillTokens, int64(8), "far over the limit")
	for _, p := range streams {
		p.cancel()
	}
	r.requireIdle()
}
