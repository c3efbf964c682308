package extproc

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const extTokens = `{"model":"m","prompt":[1,2,3,4,5,6,7,8],"nvext":{%}}`

func withExt(ext string) string { return strings.Replace(extTokens, "%", ext, 1) }

// ask sends a request. It returns the status and the body of the plugin's answer, or 0 if the
// request went to workers.
func (r *replica) ask(body string) (int, string) {
	r.t.Helper()
	p := r.open(filterMain)
	defer p.cancel()
	p.requestHeaders()
	p.recv()
	p.requestBody(body)
	im := p.recv().GetImmediateResponse()
	return int(im.GetStatus().GetCode()), string(im.GetBody())
}

func TestDecodeStaysInTheDomainThatItsPrefillWorkerRequires(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(routetest.Zoned(worker.Required, 0)), nil)
	seen := map[worker.ID]int{}
	for range 20 {
		rec := r.explain(withExt(""))
		require.Equal(t, rec.Prefill.Rank.ID+2, rec.Decode.Rank.ID, "1 with 3, 2 with 4")
		require.Contains(t, rec.Decode.Rows()[1].Note, "lacks the taint dynamo.topology/zone=")
		seen[rec.Prefill.Rank.ID]++
	}
	require.Len(t, seen, 2)
}

// The request is refused with the taint of the domain, and the booking of prefill is given
// back.
func TestADomainWithoutDecodeFailsClosed(t *testing.T) {
	ws := routetest.Zoned(worker.Required, 0)
	for _, w := range ws[2:] {
		w.TopologyDomains = map[string]string{"zone": "c"}
	}
	for _, fallback := range []bool{false, true} {
		r := newReplicaOf(t, "a", fixed(ws), func(c *Config) {
			c.Prefill.Mode = picker.RoundRobin
			c.FallbackAggregated = fallback // no worker can serve without prefill, so this does not help
		})
		for range 2 {
			status, body := r.ask(withExt(""))
			require.Equal(t, 503, status)
			require.Contains(t, body, `"code":"no_worker_with_taint"`)
			require.Contains(t, body, `"required_taint":"dynamo.topology/zone=a"`, "the cursor has not moved for it")
			require.Contains(t, body, "No decode worker that can take the request")
		}
		require.Zero(t, r.book.Totals().Held)
		require.Equal(t, "no_worker_with_taint", r.explain(withExt("")).Detail)
		r.requireIdle()
	}
}

// If one domain has no decode worker, prefill is picked in another that has one.
func TestPrefillIsPickedInADomainThatHasDecode(t *testing.T) {
	const stays = "no decode worker may be picked in its transfer domain"
	for name, row := range map[string]struct {
		set    func(zoneA *worker.Worker)
		config func(*Config)
		act    func(r *replica) *load.Reservation
		ext    string
		filter []string
	}{
		"nobody is there":         {set: func(w *worker.Worker) { w.TopologyDomains = nil }},
		"it drains":               {set: func(w *worker.Worker) { w.Draining = true }},
		"it is of another engine": {set: func(w *worker.Worker) { w.Engine = worker.VLLM }},
		"it is aside": {act: func(r *replica) *load.Reservation {
			r.srv.cfg.Health.Report(worker.Rank{ID: 3}, health.Report{Outcome: health.ConnectFailed}, time.Now())
			return nil
		}},
		"it is overloaded": {
			config: func(c *Config) { c.Decode.DecodeBlocksThreshold = 0.5 },
			set:    func(w *worker.Worker) { w.CapacityBlocks = 10 },
			act:    func(r *replica) *load.Reservation { return r.load(3, worker.Decode, 400) },
		},
		"it lacks what the request requires": {
			set: func(w *worker.Worker) { w.Taints = nil },
			ext: `"routing_constraints":{"required_taints":["gpu=h"]}`,
		},
		"the request names the other": {filter: []string{routingKey, "prerouted"}},
	} {
		t.Run(name, func(t *testing.T) {
			ws := routetest.Zoned(worker.Required, 0)
			for _, w := range ws {
				w.Taints = []string{"gpu=h"}
			}
			if row.set != nil {
				row.set(ws[2])
			}
			r := newReplicaOf(t, "a", fixed(ws), func(c *Config) {
				c.Prefill.Mode, c.StartTimeout = picker.RoundRobin, time.Minute
				if row.config != nil {
					row.config(c)
				}
			})
			var held *load.Reservation
			if row.act != nil {
				held = row.act(r)
			}
			for range 4 {
				var headers []string
				if row.filter != nil {
					headers = []string{"x-worker-instance-id", "4"}
				}
				p := r.through(row.filter...)
				m := p.ask(withExt(row.ext), headers...)
				set, _ := routed(t, m)
				require.Equal(t, "2 > 4", set["x-prefill-instance-id"]+" > "+set["x-worker-instance-id"])
				rec := r.srv.cfg.Journal.Recent(nil, 1)[0]
				if rows := rec.Prefill.Rows(); rows[len(rows)-1].Out { // otherwise it was the worker's turn
					why := stays
					if row.filter != nil {
						why = "the request's own choice leaves it out"
					}
					require.Equal(t, why, rows[len(rows)-1].Note)
				}
				r.accessLog()
				p.cancel()
			}
			held.ReleaseIfHeld(time.Now())
			r.forgetLegs()
			r.requireIdle()
		})
	}
}

// load books isl tokens on the first rank of a worker.
func (r *replica) load(id worker.ID, role worker.Role, isl int) *load.Reservation {
	params := r.srv.cfg.Decode
	params.BlockSize = 4
	req, held := &load.Request{Params: &params}, new(load.Reservation)
	req.Pick.Role, req.Pick.ISLTokens = role, isl
	require.NoError(r.t, r.book.Reserve(req, worker.Rank{ID: id}, 0, held))
	return held
}

func TestAPreferredDomainIsLeftWhereItIsTooBusy(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(routetest.Zoned(worker.Preferred, 1)), func(c *Config) { c.Prefill.Mode = picker.RoundRobin })
	require.Equal(t, worker.ID(3), r.explain(withExt("")).Decode.Rank.ID, "prefill is 1, in zone a")
	params := r.srv.cfg.Decode
	params.BlockSize = 4
	req := &load.Request{Params: &params}
	req.Pick.Role, req.Pick.ISLTokens = worker.Decode, 400
	var busy load.Reservation
	require.NoError(t, r.book.Reserve(req, worker.Rank{ID: 3}, 0, &busy))
	require.Equal(t, worker.ID(4), r.explain(withExt("")).Decode.Rank.ID)
	busy.Release(time.Now())
}

func TestARequestMayBindItsOwnPicks(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(routetest.Zoned(worker.Preferred, 0.5)), nil)
	for range 10 {
		rec := r.explain(withExt(`"routing_constraints":{"required_taints":["dynamo.topology/zone=b"]}`))
		require.Equal(t, worker.ID(2), rec.Prefill.Rank.ID)
		require.Equal(t, worker.ID(4), rec.Decode.Rank.ID)
		rec = r.explain(withExt(`"routing_constraints":{"preferred_taints":{"dynamo.topology/zone=a":2}}`))
		require.Equal(t, worker.ID(1), rec.Prefill.Rank.ID)
		require.Equal(t, worker.ID(3), rec.Decode.Rank.ID, "what both ask for adds up")
		rec = r.explain(withExt(`"routing_constraints":{"preferred_taints":{"dynamo.topology/zone=a":1,"dynamo.topology/zone=b":-1}},"router_config_override":{"prefill_load_scale":2}`))
		require.Equal(t, worker.ID(1), rec.Prefill.Rank.ID)
	}
	status, body := r.ask(withExt(`"routing_constraints":{"required_taints":["gpu=none"]}`))
	require.Equal(t, 503, status)
	require.Contains(t, body, `"required_taint":"gpu=none"`)
	require.Contains(t, body, "No prefill worker that can take")
	for _, bad := range []string{`1`, `{"required_taints":"a"}`, `{"preferred_taints":{"a":1000}}`} {
		status, body = r.ask(withExt(`"routing_constraints":` + bad))
		require.Equal(t, 400, status)
		require.Contains(t, body, `"wrong_type"`)
		require.Contains(t, body, `"nvext.routing_constraints"`)
	}
	r.requireIdle()
}

func TestWhereRequestsMayNotBindTheirPicksOneThatDoesIsRefused(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.Overrides = false })
	status, body := r.ask(withExt(`"routing_constraints":{"required_taints":["a"]}`))
	require.Equal(t, 400, status)
	require.Contains(t, body, `"forbidden_field"`)
	status, _ = r.ask(withExt(`"routing_constraints":{"required_taints":[]}`))
	require.Zero(t, status, "it asks for nothing")
	r.forgetLegs()
	r.requireIdle()
}

// holds makes a rank hold the first blocks of the prompt.
func (r *replica) holds(rank worker.Rank, body string, blocks int) {
	p := r.promptOf(body)
	r.srv.cfg.Index.Attach(rank)
	var e kvindex.Stored
	for i, h := range p.Hashes[:blocks] {
		e.Blocks = append(e.Blocks, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: h})
	}
	require.NoError(r.t, r.srv.cfg.Index.Store(rank, e))
}

const sixteenTokens = `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`

// inSeconds has one worker serve where that costs less.
func inSeconds(c *Config) {
	c.Conditional = Conditional{Enabled: true}
	c.Prefill, c.Aggregated = picker.DefaultParamsFor(worker.Prefill), picker.DefaultParamsFor(worker.Aggregated)
}

// docs/behaviour.md#conditional: by what the request costs alone, and apart.
func TestARequestIsServedByOneWorkerWhereThatCostsLess(t *testing.T) {
	for _, row := range []struct {
		name             string
		held             int // of four blocks with four tokens each
		queued           int // prompt tokens at the worker that could serve alone
		busy             int // at both that prefill
		enforced, banned bool
		alone            bool
	}{
		{name: "nothing is held, and no hand-off is needed", alone: true},
		{name: "another prompt is computed there", queued: 100},
		{name: "… and it is worth to wait for what it holds", held: 3, queued: 1, busy: 500, alone: true},
		{name: "prefill is busy", queued: 10, busy: 100, alone: true},
		{name: "both are, alone more", queued: 200, busy: 100},
		{name: "disaggregation is enforced", held: 3, enforced: true},
		{name: "nobody can do without a prefill", held: 3, banned: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			ws := routetest.AbleAlone()
			ws[2].AcceptsAggregated = !row.banned
			r := newReplicaOf(t, "a", fixed(ws), func(c *Config) {
				c.EnforceDisagg = row.enforced
				inSeconds(c)
			})
			r.holds(worker.Rank{ID: 3}, sixteenTokens, row.held)
			params := r.srv.cfg.Prefill
			params.BlockSize = 4
			booked := 0
			for id, b := range map[worker.ID]load.Request{
				1: {Pick: picker.Request{Role: worker.Prefill, ISLTokens: row.busy}}, 2: {Pick: picker.Request{Role: worker.Prefill, ISLTokens: row.busy}},
				3: {Pick: picker.Request{Role: worker.Aggregated, ISLTokens: row.queued}},
			} {
				if b.Pick.ISLTokens == 0 {
					continue
				}
				res := new(load.Reservation)
				b.Params = &params
				require.NoError(t, r.book.Reserve(&b, worker.Rank{ID: id}, 0, res))
				defer res.Release(time.Now())
				booked++
			}
			rec := r.explain(sixteenTokens)
			require.Equal(t, !row.alone, rec.Prefill.Made(), rec.Split)
			p := r.open(filterMain)
			defer p.cancel()
			p.requestHeaders()
			p.recv()
			p.requestBody(sixteenTokens)
			require.Nil(t, p.recv().GetImmediateResponse())
			if row.alone {
				require.Equal(t, worker.ID(3), rec.Decode.Rank.ID)
				require.Contains(t, rec.Split, "one worker: it costs less than 0.")
				require.Equal(t, booked+1, r.book.Totals().Held)
				return
			}
			require.NotContains(t, rec.Split, "one worker")
			require.Equal(t, !row.enforced && !row.banned, rec.Split != "", rec.Split)
			require.Equal(t, booked+2, r.book.Totals().Held, "prefill's and decode's, none of the worker that was looked at")
		})
	}
}

// One worker serves alone only if that is configured (docs/behaviour.md#nobody-eligible).
func TestOnlyAFallbackServesByOneWorkerWhatCannotBeSplit(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(ws []*worker.Worker, c *Config){
		"no_prefill_worker": func(ws []*worker.Worker, _ *Config) { ws[0].Draining, ws[1].Draining = true, true },
		"no_decode_worker":  func(ws []*worker.Worker, _ *Config) { ws[2].Role, ws[3].Draining = worker.Aggregated, true },
		"no_worker_with_taint": func(ws []*worker.Worker, _ *Config) {
			for _, w := range ws[:2] {
				w.TopologyDomains = map[string]string{"zone": "x"}
				w.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: worker.Required}
			}
		},
	} {
		for _, fallback := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				ws := routetest.AbleAlone()
				r := newReplicaOf(t, "a", fixed(ws), func(c *Config) {
					change(ws, c)
					c.FallbackAggregated = fallback
				})
				status, body := r.ask(withExt(""))
				if !fallback {
					require.Equal(t, 503, status)
					require.Contains(t, body, `"code":"`+name+`"`)
					r.requireIdle()
					return
				}
				require.Zero(t, status, body)
				rec := r.explain(withExt(""))
				require.Equal(t, "one worker: fallback for "+name, rec.Split)
				require.False(t, rec.Prefill.Made())
				require.Equal(t, worker.ID(3), rec.Decode.Rank.ID)
				r.requireIdle()
			})
		}
	}
}

// A full queue does not lead to one worker alone (docs/behaviour.md#full-queue).
func TestAFallbackIsNoWayAroundBackPressure(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(routetest.AbleAlone()), func(c *Config) { c.FallbackAggregated, c.MaxQueuedISLTokens = true, 1 })
	params := r.srv.cfg.Prefill
	req := &load.Request{Params: &params}
	req.Pick.Role, req.Pick.ISLTokens = worker.Prefill, 6
	var held load.Reservation
	require.NoError(t, r.book.Reserve(req, worker.Rank{ID: 1}, 0, &held))
	status, _ := r.ask(withExt(""))
	require.Equal(t, 429, status)
	held.Release(time.Now())
	r.requireIdle()
}

// A pick moves the cursor of its pool once, when a request is sent to the picked worker.
func TestTheCursorMovesOnceForEachRequestThatLeaves(t *testing.T) {
	t.Parallel()
	ws := routetest.Workers()
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) {
		c.Prefill.Mode, c.Decode.Mode, c.Overrides = picker.RoundRobin, picker.RoundRobin, true
	})
	next := func() worker.ID { return r.explain(withExt("")).Prefill.Rank.ID }
	first := next()
	require.Equal(t, first, next(), "looking ahead moves nothing")
	status, _ := r.ask(withExt(`"routing_constraints":{"required_taints":["none"]}`))
	require.Equal(t, 503, status)
	require.Equal(t, first, next(), "a pick that fails moves nothing")
	for range 3 {
		before := next()
		status, body := r.ask(withExt(""))
		require.Zero(t, status, body)
		require.NotEqual(t, before, next(), "one that leaves moves it by one")
	}
	r.forgetLegs()
	r.requireIdle()
}
