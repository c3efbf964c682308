//go:build e2e

package envoytest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// explains is for tests that read the header of a decision.
const explains = "routing: {debug_header: true}\n"

func modes(prefill, decode string) string {
	return fmt.Sprintf("routing: {debug_header: true, prefill: {mode: %s}, decode: {mode: %s}}\n", prefill, decode)
}

// picks sends n requests one after the other and returns who served them.
func (f *fleet) picks(n int) (prefill, decode []string) {
	f.t.Helper()
	for i := range n {
		prompt := fmt.Sprintf("request number %d", i)
		requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion(prompt, 1, false)), prompt, 1)
		d := f.decisions()[0]
		require.NotNil(f.t, d.Prefill)
		require.NotNil(f.t, d.Decode)
		prefill, decode = append(prefill, d.Prefill.WorkerID), append(decode, d.Decode.WorkerID)
	}
	return prefill, decode
}

// TestRoundRobinTakesEachRankInTurn is docs/behaviour.md#one-turn: a preview moves no
// cursor and each request moves it once.
func TestRoundRobinTakesEachRankInTurn(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 3, decode: 2, config: modes("round-robin", "round-robin")}, func(t *testing.T, f *fleet) {
		first := func(all []string, n int) []string { return all[:n] }
		prefill, decode := f.picks(12)
		for i := range prefill {
			require.Equal(t, prefill[i%3], prefill[i], "%v", prefill)
			require.Equal(t, decode[i%2], decode[i], "%v", decode)
		}
		require.ElementsMatch(t, []string{"100", "101", "102"}, first(prefill, 3))
		require.ElementsMatch(t, []string{"200", "201"}, first(decode, 2))

		body := strings.NewReader(completion("only asked", 1, false))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.plugin.Admin+"/debug/explain?path=/v1/completions", body)
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		require.Equal(t, http.StatusOK, roundTrip(client, req).status)
		next, _ := f.picks(1)
		require.Equal(t, prefill[12%3], next[0], "asking moved the cursor")
	})
}

// TestEachRoleHasItsOwnMode: the decision names the mode of each leg, and all
// modes serve.
func TestEachRoleHasItsOwnMode(t *testing.T) {
	t.Parallel()
	for _, m := range [][2]string{
		{"random", "least-loaded"}, {"least-loaded", "power-of-two"}, {"power-of-two", "random"}, {"kv", "round-robin"}, {"round-robin", "kv"},
	} {
		t.Run(m[0]+" "+m[1], func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, layout{prefill: 2, decode: 2, config: modes(m[0], m[1])})
			f.picks(6)
			for _, d := range f.decisions() {
				require.Equal(t, m[0], d.Prefill.Mode)
				require.Equal(t, m[1], d.Decode.Mode)
			}
			require.InDelta(t, 6, f.metric("baton_decisions_total", `role="prefill"`, fmt.Sprintf("mode=%q", m[0])), 0)
			require.InDelta(t, 6, f.metric("baton_decisions_total", `role="decode"`, fmt.Sprintf("mode=%q", m[1])), 0)
		})
	}
}

// TestTheLeastLoadedWorkerIsTheIdleOne: with one worker of each role busy, the
// other is taken.
func TestTheLeastLoadedWorkerIsTheIdleOne(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"least-loaded", "power-of-two"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, layout{prefill: 1, decode: 2, config: modes(mode, mode), simArgs: []string{"--decode-us-per-token", "5000"}})
			ctx, leave := context.WithCancel(t.Context())
			long := make(chan *reply, 1)
			go func() { long <- f.send(ctx, "/v1/completions", completion("long", 4000, true)) }()
			f.await("the long answer to be booked", func() bool { return f.metric("baton_worker_decode_requests") == 1 })
			busy := f.decisions()[0].Decode.WorkerID
			for range 5 {
				_, decode := f.picks(1)
				require.NotContains(t, decode, busy)
				f.await("the end of the answer to be told", func() bool { return f.metric("baton_worker_decode_requests") == 1 })
			}
			leave()
			require.Error(t, (<-long).err, "the long answer was over before the picks were made")
		})
	}
}

// turnSource makes the bodies of a conversation, each turn beginning with the
// whole of the one before.
type turnSource struct {
	name, path, source, config string
	body                       func(turn int) string
}

func words(from, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "w%d ", from+i)
	}
	return b.String()
}

func idsJSON(n int) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = strconv.Itoa(1000 + i)
	}
	return "[" + strings.Join(ids, ",") + "]"
}

func chatBody(turn int) string {
	messages := []map[string]string{{"role": "system", "content": words(0, 60)}}
	for i := range turn {
		messages = append(messages, map[string]string{"role": "user", "content": words(1000*(i+1), 40)},
			map[string]string{"role": "assistant", "content": words(500*(i+1), 20)})
	}
	messages = append(messages, map[string]string{"role": "user", "content": words(1000*(turn+1), 40)})
	b, _ := json.Marshal(map[string]any{"model": "m", "messages": messages, "max_tokens": 2})
	return string(b)
}

func turnSources() []turnSource {
	return []turnSource{
		{"ids", "/v1/completions", "request ids", "", func(n int) string {
			return fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":2}`, idsJSON(64*(n+1)))
		}},
		{"generate ids", "/generate", "request ids", "", func(n int) string {
			return fmt.Sprintf(`{"input_ids":%s,"sampling_params":{"max_new_tokens":2,"min_new_tokens":2}}`, idsJSON(64*(n+1)))
		}},
		{"tokenized", "/v1/completions", "engine tokenize", "tokens: {wait: 2s}\n", func(n int) string {
			return completion(words(0, 64*(n+1)), 2, false)
		}},
		{"chat", "/v1/chat/completions", "engine tokenize", "tokens: {wait: 2s}\n", chatBody},
		{"response", "/v1/responses", "engine tokenize", "tokens: {wait: 2s}\n", func(n int) string {
			return strings.Replace(strings.Replace(chatBody(n), `"messages"`, `"input"`, 1), `"max_tokens":2`, `"max_output_tokens":4`, 1)
		}},
		{"estimate", "/v1/completions", "byte estimate", "tokens: {mode: estimate}\n", func(n int) string {
			return completion(words(0, 128*(n+1)), 2, false)
		}},
	}
}

// TestALaterTurnGoesToThePrefillWorkerThatHoldsTheEarlierOnes: the main point
// of the kv mode, with each source of tokens, and the decision says which.
func TestALaterTurnGoesToThePrefillWorkerThatHoldsTheEarlierOnes(t *testing.T) {
	t.Parallel()
	for _, c := range turnSources() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, layout{prefill: 3, decode: 1, config: explains + c.config}, func(t *testing.T, f *fleet) {
				home := ""
				for turn := range 4 {
					r := f.send(t.Context(), c.path, c.body(turn), "x-debug-decision", "1")
					require.NoError(t, r.err)
					require.Equal(t, http.StatusOK, r.status, r.body)
					require.Contains(t, r.header.Get("X-Baton-Decision"), strconv.Quote(c.source))
					d := f.decisions()[0]
					require.Equal(t, c.source, d.TokenSource)
					require.Positive(t, d.Blocks)
					if turn == 0 {
						home = d.Prefill.WorkerID
						require.Zero(t, d.Prefill.Overlap)
						require.Contains(t, r.header.Get("X-Baton-Decision"), "prefill="+home+"/0 ")
					} else {
						require.Equal(t, home, d.Prefill.WorkerID, "turn %d left the worker that holds its blocks", turn)
						require.GreaterOrEqual(t, d.Prefill.Overlap, 3, "turn %d", turn)
						require.Equal(t, "lowest-cost", d.Prefill.Reason)
					}
					require.Zero(t, d.Decode.Overlap, "a disaggregated decode pick gives no credit for overlap")
					if c.source != "byte estimate" { // events must be in, or the next turn is a race
						f.await("the turn's blocks in the index", func() bool {
							n, _ := f.gauge("baton_worker_index_blocks", fmt.Sprintf(`worker_id="%s"`, home))
							return n >= float64(d.Blocks)
						})
					}
				}
				got := f.ended(f.prefill)
				require.Len(t, got, 4)
				require.Positive(t, got[3].CachedTokens, "the engine's own count of what it had cached")
			})
		})
	}
}

// TestARankOfAWorkerIsPickedAndTheRoomNamesIt is docs/behaviour.md#room with
// data-parallel ranks: a wrong rank would be a violation, for which every fleet is
// checked.
func TestARankOfAWorkerIsPickedAndTheRoomNamesIt(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 2, config: modes("round-robin", "round-robin"), simArgs: []string{"--dp-size", "2"}}
	both(t, l, func(t *testing.T, f *fleet) {
		ranks := make(map[string]int)
		for i := range 8 {
			f.forget()
			prompt := fmt.Sprintf("ranked %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 2, i%2 == 0)), prompt, 2)
			prefill, decode := f.legs()
			d := f.decisions()[0]
			require.EqualValues(t, d.Prefill.DPRank, prefill.Room%2, "room %d", prefill.Room)
			require.Equal(t, d.Prefill.DPRank, prefill.DPRank, "the rank that prefill ran on")
			require.Equal(t, d.Decode.DPRank, decode.DPRank, "the rank that decode ran on")
			require.Equal(t, strconv.Itoa(d.Decode.DPRank), decode.Headers.Get("X-Dp-Rank"))
			require.Equal(t, strconv.Itoa(d.Prefill.DPRank), decode.Headers.Get("X-Prefill-Dp-Rank"))
			ranks[fmt.Sprintf("p%s/%d", d.Prefill.WorkerID, d.Prefill.DPRank)]++
			ranks[fmt.Sprintf("d%s/%d", d.Decode.WorkerID, d.Decode.DPRank)]++
		}
		require.Len(t, ranks, 8, "%v", ranks)
		for r, n := range ranks {
			require.Equal(t, 2, n, r)
		}
	})
}

// TestParallelPromptsTakeRoomsInARow is docs/behaviour.md#room: several prompts and
// choices.
func TestParallelPromptsTakeRoomsInARow(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, simArgs: []string{"--dp-size", "2"}}, func(t *testing.T, f *fleet) {
		r := f.send(t.Context(), "/v1/completions", `{"model":"m","prompt":["one","two","three"],"n":1,"max_tokens":2}`)
		require.Equal(t, http.StatusOK, r.status, r.body)
		prefill, decode := f.legs()
		require.Len(t, decode.Rooms, 3)
		for i, room := range decode.Rooms {
			require.Equal(t, decode.Rooms[0]+int64(i), room)
		}
		require.Equal(t, prefill.Rooms, decode.Rooms)
	})
}

// TestTwoModelsAreServedByTheirOwnWorkers: and another namespace's are not seen.
func TestTwoModelsAreServedByTheirOwnWorkers(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, simArgs: []string{"--model", "m,other,third"}}, func(t *testing.T, f *fleet) {
		named := func(w *stack.Worker, models ...string) { w.Info.Models = models }
		named(f.prefill[0], "m")
		named(f.decode[0], "m")
		named(f.prefill[1], "other")
		named(f.decode[1], "other")
		f.publishAndWait(f.workers...)
		for i := range 6 {
			model := []string{"m", "other"}[i%2]
			r := f.send(t.Context(), "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"x y z","max_tokens":2}`, model))
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Len(t, f.got(f.prefill[i%2]), i/2+1)
			require.Len(t, f.got(f.decode[i%2]), i/2+1)
		}
		require.Equal(t, http.StatusNotFound, f.send(t.Context(), "/v1/completions", `{"model":"third","prompt":"x"}`).status)
		r := f.send(t.Context(), "/generate", `{"text":"which model","sampling_params":{"max_new_tokens":2}}`)
		requireError(t, r, http.StatusBadRequest, "missing_field")
		models := f.do(http.MethodGet, "/v1/models", nil, nil)
		require.Contains(t, models.body, `"m"`)
		require.Contains(t, models.body, `"other"`)
	})
}

// TestAnotherNamespacesWorkersAreNotSeen: the plugin serves one namespace.
func TestAnotherNamespacesWorkersAreNotSeen(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, config: "namespace: blue\n"}, func(t *testing.T, f *fleet) {
		for i, ns := range []string{"blue", "green"} {
			f.prefill[i].Info.Namespace, f.decode[i].Info.Namespace = ns, ns
		}
		f.publishAndWait(f.workers...)
		for range 6 {
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("in blue", 2, false)), "in blue", 2)
		}
		require.Len(t, f.got(f.prefill[0]), 6)
		require.Len(t, f.got(f.decode[0]), 6)
		require.Empty(t, f.got(f.prefill[1]))
		require.Empty(t, f.got(f.decode[1]))
	})
}

// TestWorkersThatTakeHeadersGetTheBodyUntouched: where both engines read the
// rendezvous from headers, decode's body is the client's.
func TestWorkersThatTakeHeadersGetTheBodyUntouched(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, simArgs: []string{"--header-overrides"}}, func(t *testing.T, f *fleet) {
		f.prefill[0].Info.HeaderOverrides, f.decode[0].Info.HeaderOverrides = true, true
		f.publishAndWait(f.workers...)
		body := `{ "messages":[{"role":"user","content":"headers only"}], "max_tokens": 3,"model":"m"}`
		r := f.send(t.Context(), "/v1/chat/completions", body)
		require.Equal(t, http.StatusOK, r.status, r.body)
		prefill, decode := f.legs()
		require.Equal(t, body, decode.Body)
		require.NotContains(t, prefill.Body, "bootstrap")
		require.Contains(t, prefill.Body, `"max_tokens": 1`)
		for leg, q := range map[string]enginesim.Request{"prefill": prefill, "decode": decode} {
			require.Equal(t, strconv.FormatInt(decode.Room, 10), q.Headers.Get("X-Override-Bootstrap-Room"), leg)
			require.Equal(t, strconv.Itoa(int(f.prefill[0].Info.Bootstrap.Port)), q.Headers.Get("X-Override-Bootstrap-Port"), leg)
			require.Equal(t, f.prefill[0].Info.Bootstrap.Host, q.Headers.Get("X-Override-Bootstrap-Host"), leg)
		}
		f.forget()
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("in the body", 2, false)), "in the body", 2)
		_, decode = f.legs()
		require.Contains(t, decode.Body, `"bootstrap_room"`, "SGLang reads no override headers on completions")
		require.Empty(t, decode.Headers.Get("X-Override-Bootstrap-Room"))
	})
}
