package enginesim

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sglang"
)

func TestBothHalvesMeet(t *testing.T) {
	for _, tc := range []struct {
		name         string
		prefillFirst bool
	}{
		{"decode comes first", false},
		{"prefill comes first", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, d := pair(t, Config{})
			body := pdBody(p, math.MaxInt64, "a b c d", `,"max_tokens":5`)
			first, second := d, p
			if tc.prefillFirst {
				first, second = p, d
			}
			one := later(t.Context(), first.URL()+completions, body)
			Eventually(t, func() bool {
				st := p.State(false)
				return st.DecodeAskers+st.PrefillAlone == 1
			}, "the first half waits")
			two := post(t.Context(), second.URL()+completions, body)
			answers := map[*Sim]oai{second: parseOAI(t, two), first: parseOAI(t, <-one)}
			require.Equal(t, Answer(Tokenize("a b c d"), 5), answers[d].Choices[0].Text)
			require.Equal(t, 5, answers[d].Usage.CompletionTokens)
			require.Equal(t, Answer(Tokenize("a b c d"), 1), answers[p].Choices[0].Text, "prefill makes one token")
			require.Equal(t, "length", answers[p].Choices[0].FinishReason)
			require.Equal(t, int64(math.MaxInt64), p.Requests(0)[0].Room)
			requireClean(t, p, d)
		})
	}
}

func TestDecodeReportsThePrefillsCachedTokens(t *testing.T) {
	p, d := pair(t, Config{PageSize: 2})
	both(t, p, d, 1, "a b c d e", "")
	_, dec := both(t, p, d, 2, "a b c d x", "")
	require.Equal(t, 4, parseOAI(t, dec).Usage.PromptTokensDetails.CachedTokens)
	requireClean(t, p, d)
}

func TestRequestsThatTheEngineRefuses(t *testing.T) {
	p, d := pair(t, Config{DPSize: 2})
	port := core.PortOf(p.BootstrapAddr())
	for _, tc := range []struct {
		name, body string
		header     []string
		status     int
		text       string
	}{
		{"no room", `{"prompt":"a"}`, nil, 400, sglang.NoRoom},
		{"a null room", `{"prompt":"a","bootstrap_room":null}`, nil, 400, sglang.NoRoom},
		{"a negative room", `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_room":-1}`, nil, 400, "bootstrap_room -1"},
		{"a room of 2^63", `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_room":9223372036854775808}`, nil, 400, "bootstrap_room"},
		{"a room as a float", `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_room":5.577e18}`, nil, 400, "bootstrap_room"},
		{"a room as a string", `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_room":"5"}`, nil, 400, "bootstrap_room"},
		{"a port out of range", `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_port":70000,"bootstrap_room":1}`, nil, 400, "bootstrap_port"},
		{"a port as a string", `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_port":"80","bootstrap_room":1}`, nil, 400, "bootstrap_port"},
		{"a rank out of range", `{"prompt":"a","routed_dp_rank":2,"bootstrap_host":"127.0.0.1","bootstrap_room":1}`, nil, 400, "routed_dp_rank"},
		{"a rank header that is no number", `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_room":1}`, []string{"X-Data-Parallel-Rank", "x"}, 400, "routed_dp_rank"},
		{"parallel prompts past 2^63-1", fmt.Sprintf(`{"prompt":"a","n":2,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d}`, port, math.MaxInt64), nil, 400, "2^63-1"},
		{"a room list of another length", `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_room":[1,2]}`, nil, 400, "list of 2 for 1"},
		{"no host", `{"prompt":"a","bootstrap_room":1}`, nil, 500, "no bootstrap host"},
		{"IPv6 without brackets", `{"prompt":"a","bootstrap_host":"::1","bootstrap_port":1,"bootstrap_room":1}`, nil, 500, "without brackets"},
		{"not JSON", `{"prompt":`, nil, 400, "not valid JSON"},
		{"no prompt", `{}`, nil, 400, "no prompt"},
		{"an empty prompt", `{"prompt":""}`, nil, 400, "prompt is empty"},
		{"too many choices", `{"prompt":"a","n":129}`, nil, 400, "n 129"},
	} {
		for _, s := range []*Sim{p, d} {
			t.Run(tc.name+" on "+s.Identity().Role, func(t *testing.T) {
				r := post(t.Context(), s.URL()+completions, tc.body, tc.header...)
				require.NoError(t, r.err)
				require.Equal(t, tc.status, r.status, r.body)
				require.Contains(t, r.body, tc.text)
			})
		}
	}
}

func TestWrongPairingsFailAndAreRecorded(t *testing.T) {
	ask := func(t *testing.T, s *Sim, body string) <-chan reply {
		return later(t.Context(), s.URL()+completions, body)
	}
	kinds := func(s *Sim) []string {
		var out []string
		for _, v := range s.State(false).Violations {
			out = append(out, v.Kind)
		}
		return out
	}
	t.Run("different prompts", func(t *testing.T) {
		p, d := pair(t, Config{})
		dec := ask(t, d, pdBody(p, 7, "mine", ""))
		pre := ask(t, p, pdBody(p, 7, "yours", ""))
		require.Equal(t, 500, (<-dec).status)
		require.Equal(t, 500, (<-pre).status)
		require.Equal(t, []string{"prompt_mismatch"}, kinds(p))
		require.Equal(t, []string{"refused_by_prefill"}, kinds(d))
	})
	t.Run("a room in use", func(t *testing.T) {
		p, d := pair(t, Config{})
		one := ask(t, p, pdBody(p, 7, "a", ""))
		Eventually(t, func() bool { return p.State(false).PrefillAlone == 1 }, "the first is in")
		require.Equal(t, 500, (<-ask(t, p, pdBody(p, 7, "a", ""))).status)
		require.Equal(t, []string{"room_reused"}, kinds(p))
		require.Equal(t, 200, (<-ask(t, d, pdBody(p, 7, "a", ""))).status, "the first one still meets its half")
		require.Equal(t, 200, (<-one).status)
	})
	t.Run("a bootstrap address that is another worker's", func(t *testing.T) {
		p, _ := pair(t, Config{})
		other := start(t, Config{Role: worker.Prefill})
		require.Equal(t, 500, (<-ask(t, p, pdBody(other, 7, "a", ""))).status)
		require.Equal(t, []string{"wrong_worker"}, kinds(p))
	})
	t.Run("a prefill rank that is not the room's", func(t *testing.T) {
		p, _ := pair(t, Config{DPSize: 2})
		require.Equal(t, 500, (<-ask(t, p, pdBody(p, 6, "a", `,"routed_dp_rank":1`))).status)
		require.Equal(t, []string{"rank_conflict"}, kinds(p))
	})
	t.Run("a pinned prefill rank that decode was not told", func(t *testing.T) {
		p, d := pair(t, Config{DPSize: 2})
		dec := ask(t, d, pdBody(p, 6, "a", ""))
		require.Equal(t, 500, (<-ask(t, p, pdBody(p, 6, "a", `,"routed_dp_rank":1,"disagg_prefill_dp_rank":1`))).status)
		require.Equal(t, 500, (<-dec).status)
		require.Equal(t, []string{"rank_mismatch"}, kinds(p))
	})
	t.Run("rooms repeated by n", func(t *testing.T) {
		p, _ := pair(t, Config{})
		body := fmt.Sprintf(`{"prompt":["a"],"n":2,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":[5]}`, core.PortOf(p.BootstrapAddr()))
		require.Equal(t, 500, (<-ask(t, p, body)).status)
		require.Equal(t, []string{"room_reused"}, kinds(p))
	})
	t.Run("a routing field twice in the body", func(t *testing.T) {
		p, d := pair(t, Config{})
		extra := `,"bootstrap_room":9`
		dec := ask(t, d, pdBody(p, 8, "a", extra))
		require.Equal(t, 200, (<-ask(t, p, pdBody(p, 9, "a", ""))).status, "the last one wins")
		require.Equal(t, 200, (<-dec).status)
		require.Equal(t, []string{"repeated_field"}, kinds(d))
	})
}

func TestRanks(t *testing.T) {
	p, d := pair(t, Config{DPSize: 4})
	t.Run("prefill follows the room, decode its header over its body", func(t *testing.T) {
		body := pdBody(p, 6, "a", `,"routed_dp_rank":1`)
		dec := later(t.Context(), d.URL()+completions, body, "X-Data-Parallel-Rank", "3")
		pre := post(t.Context(), p.URL()+completions, pdBody(p, 6, "a", ""))
		require.Equal(t, 200, pre.status, pre.body)
		require.Equal(t, 200, (<-dec).status)
		require.Equal(t, 2, p.Requests(0)[0].DPRank)
		require.Equal(t, 3, d.Requests(0)[0].DPRank)
	})
	t.Run("a pinned prefill rank that both know", func(t *testing.T) {
		dec := later(t.Context(), d.URL()+completions, pdBody(p, 6, "a", `,"disagg_prefill_dp_rank":1`))
		pre := post(t.Context(), p.URL()+completions, pdBody(p, 6, "a", `,"disagg_prefill_dp_rank":1,"routed_dp_rank":1`))
		require.Equal(t, 200, pre.status, pre.body)
		require.Equal(t, 200, (<-dec).status)
	})
	t.Run("the deprecated name of the field", func(t *testing.T) {
		a := start(t, Config{Role: worker.Aggregated, DPSize: 4})
		require.Equal(t, 200, post(t.Context(), a.URL()+completions, `{"prompt":"a","data_parallel_rank":3}`).status)
		require.Equal(t, 3, a.Requests(0)[0].DPRank)
	})
	requireClean(t, p, d)
}

func TestParallelPromptsTakeARoomEach(t *testing.T) {
	p, d := pair(t, Config{DPSize: 2})
	dec := later(t.Context(), d.URL()+completions,
		fmt.Sprintf(`{"prompt":["a b","c"],"n":2,"max_tokens":2,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":10}`, core.PortOf(p.BootstrapAddr())))
	Eventually(t, func() bool { return p.State(false).DecodeAskers == 4 }, "decode waits in four rooms")
	pre := post(t.Context(), p.URL()+completions,
		`{"prompt":["a b","c"],"n":2,"bootstrap_host":"127.0.0.1","bootstrap_room":10}`)
	require.Equal(t, 200, pre.status, pre.body)
	o := parseOAI(t, <-dec)
	require.Len(t, o.Choices, 4)
	require.Equal(t, 3, o.Usage.PromptTokens, "a prompt counts once however many choices it has")
	require.Equal(t, 8, o.Usage.CompletionTokens)
	require.Equal(t, []int64{10, 11, 12, 13}, p.Requests(0)[0].Rooms)
	requireClean(t, p, d)
}

func TestHeaderOverrides(t *testing.T) {
	const chat = "/v1/chat/completions"
	const body = `{"messages":[{"role":"user","content":"hi"}]}`
	headers := func(p *Sim, room string) []string {
		return []string{
			"x-override-bootstrap-host", "127.0.0.1",
			"x-override-bootstrap-port", fmt.Sprint(core.PortOf(p.BootstrapAddr())), "x-override-bootstrap-room", room,
		}
	}
	t.Run("they beat the body when switched on", func(t *testing.T) {
		p, d := pair(t, Config{HeaderOverrides: true})
		dec := later(t.Context(), d.URL()+chat, `{"bootstrap_room":3,"messages":[{"role":"user","content":"hi"}]}`, headers(p, "5")...)
		require.Equal(t, 200, post(t.Context(), p.URL()+chat, body, headers(p, "5")...).status)
		require.Equal(t, 200, (<-dec).status)
		require.Equal(t, int64(5), d.Requests(0)[0].Room)
		require.Equal(t, "5", d.Requests(0)[0].Headers.Get("X-Override-Bootstrap-Room"))
	})
	t.Run("a room that is no number", func(t *testing.T) {
		p, _ := pair(t, Config{HeaderOverrides: true})
		require.Equal(t, 400, post(t.Context(), p.URL()+chat, body, headers(p, "x")...).status)
	})
	t.Run("completions do not read them", func(t *testing.T) {
		p, _ := pair(t, Config{HeaderOverrides: true})
		require.Equal(t, 400, post(t.Context(), p.URL()+completions, `{"prompt":"a"}`, headers(p, "5")...).status)
	})
	t.Run("they are ignored when switched off", func(t *testing.T) {
		p, _ := pair(t, Config{})
		require.Equal(t, 400, post(t.Context(), p.URL()+chat, body, headers(p, "5")...).status)
	})
}

func TestOrphanedHalves(t *testing.T) {
	t.Run("decode without prefill fails after its waiting timeout", func(t *testing.T) {
		p, d := pair(t, Config{WaitingTimeout: 30 * time.Millisecond})
		r := post(t.Context(), d.URL()+completions, pdBody(p, 1, "a", ""))
		require.Equal(t, 500, r.status)
		require.Contains(t, r.body, "no KV for bootstrap room 1")
		require.Equal(t, map[string]uint64{"waiting_timeout": 1}, d.State(false).Failed)
		requireClean(t, p, d)
	})
	t.Run("prefill without decode fails after its bootstrap timeout and holds KV until then", func(t *testing.T) {
		p, _ := pair(t, Config{BootstrapTimeout: 200 * time.Millisecond})
		pre := later(t.Context(), p.URL()+completions, pdBody(p, 1, "a", ""))
		Eventually(t, func() bool { return p.State(false).KVHeldBlocks == 1 }, "KV is held")
		r := <-pre
		require.Equal(t, 500, r.status)
		require.Contains(t, r.body, "Prefill bootstrap failed")
		requireClean(t, p)
	})
	t.Run("a prefill whose client leaves frees its KV, and decode waits on for another", func(t *testing.T) {
		p, d := pair(t, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		body := pdBody(p, 1, "a", "")
		pre := later(ctx, p.URL()+completions, pdBody(p, 1, "a", ""))
		Eventually(t, func() bool { return p.State(false).KVHeldBlocks == 1 }, "KV is held")
		cancel()
		require.Error(t, (<-pre).err)
		requireClean(t, p)
		require.Equal(t, uint64(1), p.State(false).Canceled)
		dec := later(t.Context(), d.URL()+completions, body)
		Eventually(t, func() bool { return p.State(false).DecodeAskers == 1 }, "decode waits")
		require.Equal(t, 200, post(t.Context(), p.URL()+completions, body).status)
		require.Equal(t, 200, (<-dec).status)
		requireClean(t, p, d)
	})
	t.Run("a decode whose client leaves frees its KV, and prefill holds its own", func(t *testing.T) {
		p, d := pair(t, Config{PrefillPerToken: 20 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		dec := later(ctx, d.URL()+completions, pdBody(p, 1, "a b c d", ""))
		Eventually(t, func() bool { return p.State(false).DecodeAskers == 1 }, "decode waits")
		pctx, pcancel := context.WithCancel(t.Context())
		pre := later(pctx, p.URL()+completions, pdBody(p, 1, "a b c d", ""))
		Eventually(t, func() bool { return p.State(false).PrefillMet == 1 }, "they have met")
		cancel()
		require.Error(t, (<-dec).err)
		requireClean(t, d)
		Eventually(t, func() bool { return p.State(false).Ranks[0].Running == 0 }, "prefill has computed")
		st := p.State(false)
		require.Equal(t, 1, st.PrefillAlone)
		require.Equal(t, 1, st.KVHeldBlocks)
		pcancel()
		require.Error(t, (<-pre).err)
		requireClean(t, p)
	})
	t.Run("a dead prefill process fails its decodes after the heartbeats", func(t *testing.T) {
		p, d := pair(t, Config{HeartbeatInterval: 20 * time.Millisecond})
		dec := later(t.Context(), d.URL()+completions, pdBody(p, 1, "a", ""))
		Eventually(t, func() bool { return p.State(false).DecodeAskers == 1 }, "decode waits")
		p.Die()
		r := <-dec
		require.Equal(t, 500, r.status)
		require.Contains(t, r.body, "missed 2 heartbeats")
		requireClean(t, d)
	})
	t.Run("an address where nobody is", func(t *testing.T) {
		_, d := pair(t, Config{HeartbeatInterval: 20 * time.Millisecond})
		r := post(t.Context(), d.URL()+completions, `{"prompt":"a","bootstrap_host":"127.0.0.1","bootstrap_port":1,"bootstrap_room":1}`)
		require.Equal(t, 500, r.status)
		requireClean(t, d)
	})
}

func TestHandshakeFirstHoldsNothingBeforeTheDecodeComes(t *testing.T) {
	p, d := pair(t, Config{HandshakeFirst: true})
	body := pdBody(p, 1, "a", "")
	pre := later(t.Context(), p.URL()+completions, body)
	Eventually(t, func() bool { return p.State(false).PrefillAlone == 1 }, "prefill waits")
	require.Zero(t, p.State(false).KVHeldBlocks)
	require.Equal(t, 200, post(t.Context(), d.URL()+completions, body).status)
	require.Equal(t, 200, (<-pre).status)
	requireClean(t, p, d)
}

func TestDecodeThatAcceptsAggregatedRequests(t *testing.T) {
	d := start(t, Config{Role: worker.Decode, AcceptsAggregated: true})
	require.Equal(t, http.StatusOK, post(t.Context(), d.URL()+completions, `{"prompt":"a"}`).status)
	require.True(t, d.Identity().AcceptsAggregated)
}

func TestBootstrapServerAnswersWhoServesARoom(t *testing.T) {
	p, d := pair(t, Config{DPSize: 4})
	pre := later(t.Context(), p.URL()+completions, pdBody(p, 7, "a", ""))
	Eventually(t, func() bool { return p.State(false).PrefillAlone == 1 }, "prefill is in")
	r := post(t.Context(), "http://"+p.BootstrapAddr()+"/query_dp_ranks", `{"bootstrap_rooms":[7,8]}`)
	require.JSONEq(t, `{"7":3}`, r.body)
	require.Equal(t, 200, post(t.Context(), d.URL()+completions, pdBody(p, 7, "a", "")).status)
	require.Equal(t, 200, (<-pre).status)
}
