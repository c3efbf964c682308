package route

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Of three engines those are picked that have somebody for decode.
func TestOfThreeEnginesThoseArePickedThatHaveDecode(t *testing.T) {
	ws := routetest.Workers()
	for i, w := range ws {
		w.Engine = []worker.Engine{worker.SGLang, worker.VLLM}[i%2]
		if w.Engine == worker.VLLM {
			w.Bootstrap = worker.Bootstrap{}
		}
	}
	e, err := worker.ParseEndpoint("127.0.0.1:40005")
	require.NoError(t, err)
	third := *ws[0]
	third.ID, third.Endpoint, third.Engine, third.KVEvents = 5, e, worker.TensorRTLLM, worker.KVEvents{}
	r := newRig(t, append(ws, &third), func(c *Config) { c.Policy.Rules.Listener = true })
	q := r.asking(eightTokens)
	require.Len(t, q.pool.Prefill, 3)
	require.Equal(t, []worker.Rank{{ID: 1}, {ID: 2}}, (&decider{Router: r.Router, q: q}).ranks(worker.Prefill))
}

// vLLM may cut a prompt to what fits beside the answer, and prefill is asked for an answer
// of one token. So one worker serves such a request, unless its prompt is surely not cut.
func TestAPromptThatMayBeCutToFitIsNotSplit(t *testing.T) {
	cut := func(limit int) string {
		return fmt.Sprintf(`{"model":"m","prompt":[1,2,3,4,5,6,7,8],"truncate_prompt_tokens":-1,"max_tokens":%d}`, limit)
	}
	named := strings.Replace(cut(20), "-1", "4", 1)
	for name, c := range map[string]struct {
		engine  worker.Engine
		accepts bool // decode takes requests without a prefill
		enforce bool
		body    string
		split   string // in the record
		apart   bool
		refused Reason
	}{
		"one worker can":                     {engine: worker.VLLM, accepts: true, body: cut(20), split: "one worker: the prompt may be cut to what fits, which prefill and decode do differently"},
		"one worker of MooncakeConnector":    {engine: worker.VLLMMooncake, accepts: true, body: cut(20), split: "one worker: the prompt may be cut to what fits, which prefill and decode do differently"},
		"none can":                           {engine: worker.VLLM, body: cut(20), refused: NoHandoff},
		"none may":                           {engine: worker.VLLM, accepts: true, enforce: true, body: cut(20), refused: NoHandoff},
		"the prompt is short enough":         {engine: worker.VLLM, accepts: true, body: cut(18), apart: true},
		"a number says where":                {engine: worker.VLLM, accepts: true, body: named, apart: true},
		"prefill's answer is the whole":      {engine: worker.VLLM, accepts: true, body: strings.Replace(cut(1), "8]", "8,9,10,11]", 1), split: "one worker: prefill makes the only token that is asked for"},
		"an engine that cuts no prompt":      {engine: worker.SGLang, accepts: true, body: cut(20), apart: true},
		"an engine that cuts no prompt, too": {engine: worker.TensorRTLLM, accepts: true, body: cut(20), apart: true},
	} {
		t.Run(name, func(t *testing.T) {
			ws := engineOf(routetest.Workers(), c.engine)
			for i, w := range ws {
				w.KVEvents = worker.KVEvents{}
				w.MaxModelLen = []uint32{64, 64, 26, 64}[i]
				w.AcceptsAggregated = c.accepts && w.Role == worker.Decode
				if c.engine == worker.VLLMMooncake && w.Role == worker.Prefill {
					w.Bootstrap.EngineIDs = []string{"e"}
				}
			}
			r := newRig(t, ws, func(cfg *Config) {
				cfg.Policy.Rules.Listener, cfg.Policy.Rules.Enforced = true, c.enforce
			})
			q := r.asking(c.body)
			p, sc := r.tokens(q)
			d, f := r.Decide(q, p, sc, time.Now())
			require.Equal(t, string(c.refused), reasonIn(f))
			if f != nil {
				require.Equal(t, CutToFit, f.Obstacle.Member)
				require.Zero(t, r.cfg.Book.Totals().Held)
				return
			}
			require.Equal(t, c.apart, d.Apart)
			require.Equal(t, c.split, d.Record.Split)
			if !c.apart {
				require.Equal(t, strings.Contains(c.split, "only token"), d.Alone == FirstToken)
				require.NotEmpty(t, d.Alone)
			}
			d.Cancel(time.Now())
		})
	}
}

// TestAMemberThatNobodyKnowsIsNotSplit: one worker serves the request, or it is refused and the
// member is named; the same with an engine that knows it, or where it is named in the
// configuration, is split.
func TestAMemberThatNobodyKnowsIsNotSplit(t *testing.T) {
	ask := func(engine worker.Engine, member string, accepts bool, handedOver ...string) (bool, *Refusal) {
		ws := engineOf(routetest.Workers(), engine)
		for _, w := range ws {
			w.KVEvents, w.AcceptsAggregated = worker.KVEvents{}, accepts && w.Role == worker.Decode
		}
		r := newRig(t, ws, func(c *Config) {
			c.Policy.Rules.Listener = true
			c.HandedOver = func(member string) bool { return slices.Contains(handedOver, member) }
		})
		q, f := r.ask(`{"model":"m","prompt":[1,2,3,4,5,6,7,8],"`+member+`":1}`, nil)
		if f != nil {
			return false, f
		}
		p, sc := r.tokens(q)
		d, f := r.Decide(q, p, sc, time.Now())
		if f == nil {
			d.Cancel(time.Now())
		}
		return d.Apart, f
	}
	for _, engine := range []worker.Engine{worker.VLLM, worker.SGLang, worker.TensorRTLLM} {
		_, f := ask(engine, "of_later", false)
		require.NotNil(t, f, engine)
		require.Equal(t, NoHandoff, f.Reason)
		require.Equal(t, handoff.Obstacle{Member: "of_later", Unknown: true}, f.Obstacle)
		apart, f := ask(engine, "of_later", true)
		require.Nil(t, f)
		require.False(t, apart)
		for _, known := range []string{"of_later", "temperature"} {
			apart, f = ask(engine, known, false, "of_later")
			require.Nil(t, f)
			require.True(t, apart, "%s: %s", engine, known)
		}
	}
}

// Where only one of two engines cuts prompts, the other one serves with prefill and decode
// apart.
func TestOfTwoEnginesTheOneThatCutsNoPromptIsPicked(t *testing.T) {
	ws := routetest.Workers()
	for i, w := range ws {
		w.Engine, w.KVEvents = []worker.Engine{worker.VLLM, worker.SGLang}[i%2], worker.KVEvents{}
	}
	r := newRig(t, ws, func(c *Config) { c.Policy.Rules.Listener = true })
	d := r.preview(`{"model":"m","prompt":[1,2,3,4],"truncate_prompt_tokens":-1}`)
	require.True(t, d.Apart)
	require.Equal(t, []worker.ID{2, 4}, []worker.ID{d.Prefill.Rank.ID, d.Decode.Rank.ID})
}

// KV goes from prefill to decode block by block: workers of other blocks are no pair.
func TestWorkersOfOtherBlocksAreNoPair(t *testing.T) {
	blocks := func(sizes ...uint32) []*worker.Worker {
		ws := routetest.Workers()
		for i, w := range ws {
			w.BlockSize = sizes[i]
		}
		return ws
	}
	pairs := func(r *rig) (out []string) {
		for range 8 {
			d := r.preview(eightTokens)
			out = append(out, fmt.Sprint(d.Prefill.Rank.ID, ">", d.Decode.Rank.ID, " in blocks of ", d.BlockSize))
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	r := newRig(t, blocks(128, 128, 64, 64), nil)
	_, f := r.ask(eightTokens, nil)
	require.Equal(t, &Refusal{Reason: NoCommon, Workers: "prefill workers are sglang with blocks of 128 tokens, its decode workers sglang with blocks of 64 tokens"}, f)

	r = newRig(t, blocks(128, 64, 64, 32), nil)
	require.Equal(t, []string{"2>3 in blocks of 64"}, pairs(r), "those that fit go on, and the prompt is cut as they cut it")

	r = newRig(t, blocks(128, 64, 64, 128), nil)
	got := pairs(r)
	require.NotEmpty(t, got)
	require.Subset(t, []string{"1>4 in blocks of 128", "2>3 in blocks of 128"}, got)
	r.cfg.Health.Report(worker.Rank{ID: 4}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.Equal(t, []string{"2>3 in blocks of 128"}, pairs(r), "nobody is left who fits worker 1")
}

// While workers are replaced by those of another group, each pair is of one group. Workers of
// whom no group is known go with all.
func TestNoPairIsOfTwoGroups(t *testing.T) {
	grouped := func(groups ...string) []*worker.Worker {
		ws := routetest.Workers()
		for i, w := range ws {
			w.Pair[worker.KVGroup] = groups[i]
		}
		return ws
	}
	pairs := func(r *rig) (out []string) {
		for range 32 {
			d := r.preview(eightTokens)
			out = append(out, fmt.Sprint(d.Prefill.Rank.ID, ">", d.Decode.Rank.ID))
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	require.Equal(t, []string{"1>3", "2>4"}, pairs(newRig(t, grouped("a", "b", "a", "b"), nil)))
	require.Equal(t, []string{"2>3", "2>4"}, pairs(newRig(t, grouped("a", "b", "b", "b"), nil)), "nobody is left who fits worker 1")
	require.Equal(t, []string{"1>3", "1>4", "2>4"}, pairs(newRig(t, grouped("", "b", "a", "b"), nil)))

	r := newRig(t, grouped("a", "b", "a", "b"), nil)
	r.cfg.Health.Report(worker.Rank{ID: 3}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.Equal(t, []string{"2>4"}, pairs(r))

	// The decode worker leaves while prefill runs, or holds KV that is to be collected.
	ws := grouped("a", "a", "a", "b")
	for _, w := range ws {
		w.Engine = worker.VLLM
	}
	r = newRig(t, ws, func(c *Config) { c.Policy.Rules.Listener = true })
	q := r.asking(eightTokens)
	p, sc := r.tokens(q)
	d, f := r.Decide(q, p, sc, time.Now())
	require.Nil(t, f)
	require.Equal(t, worker.ID(3), d.Decode.Rank.ID)
	r.cfg.Health.Report(worker.Rank{ID: 3}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	next, why := r.DecodeAgain(d.Again, d.Prefill.Rank, d.Decode.Rank, time.Now())
	require.Equal(t, "was set aside", why)
	require.Nil(t, next.Worker)
	collector, _ := r.Collector(d.Again, r.cfg.Board.Load().Snapshot, nil)
	require.Nil(t, collector)

}

// One that an earlier attempt has left to be tried with another partner is not, with one that
// it does not fit: the best of those that do is picked.
func TestAKeptWorkerThatDoesNotFitIsLeft(t *testing.T) {
	ws := routetest.Many(3)
	for _, w := range ws {
		w.Pair[worker.KVGroup] = "a"
	}
	ws[5].Pair[worker.KVGroup] = "b"
	r := newRig(t, ws, nil)
	r.booked(worker.Rank{ID: 4}, worker.Decode, 4000)
	decode := func(keep worker.ID) worker.ID {
		q, f := r.ask(eightTokens, func(req *Request) { req.Keep = worker.Rank{ID: keep} })
		require.Nil(t, f)
		p, sc := r.tokens(q)
		d, f := r.Decide(q, p, sc, time.Now())
		require.Nil(t, f)
		defer d.Cancel(time.Now())
		return d.Decode.Rank.ID
	}
	require.Equal(t, worker.ID(5), decode(6))
	require.Equal(t, worker.ID(4), decode(4), "one that fits is kept")
}

// If all workers of one role are new before any of the other is, requests wait for a pair,
// since there was one; they do not where there never was one.
func TestAPairThatWasThereIsWaitedFor(t *testing.T) {
	grouped := func(prefill, decode string) []*worker.Worker {
		ws := routetest.Workers()
		for _, w := range ws {
			w.Pair[worker.KVGroup] = map[worker.Role]string{worker.Prefill: prefill, worker.Decode: decode}[w.Role]
		}
		return ws
	}
	for _, c := range []struct {
		sets    [][]*worker.Worker
		returns bool
	}{
		{[][]*worker.Worker{grouped("b", "a")}, false},
		{[][]*worker.Worker{grouped("a", "a"), grouped("b", "a")}, true},
	} {
		r := newRig(t, c.sets[0], func(cfg *Config) { cfg.Board = routetest.Board(time.Now(), c.sets...) })
		_, f := r.ask(eightTokens, nil)
		require.Equal(t, &Refusal{
			Reason: NoCommon, Returning: c.returns,
			Workers: "prefill workers are sglang with blocks of 4 tokens, kv_group b, its decode workers sglang with blocks of 4 tokens, kv_group a",
		}, f)
		_, f = r.ask(eightTokens, func(req *Request) { req.Subset = setOf("127.0.0.1:40000,127.0.0.1:40003") })
		require.False(t, f.Returning, "a worker that comes is not in the subset")
		_, f = r.ask(withExt(`"annotations":["query_instance_id:"]`), func(req *Request) { req.Trust = pin.Prerouted })
		require.Equal(t, NoCommon, f.Reason)
		require.False(t, f.Returning, "a question does not wait")
	}
}
