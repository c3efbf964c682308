//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// eachSync runs a test with every engine whose decode needs prefill's answer, in
// both body modes.
func eachSync(t *testing.T, l layout, test func(t *testing.T, f *fleet, e worker.Engine)) {
	t.Helper()
	for _, engine := range []worker.Engine{worker.VLLM, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := l
			l.simArgs = append([]string{"--engine", string(engine)}, l.simArgs...)
			both(t, l, func(t *testing.T, f *fleet) { test(t, f, engine) })
		})
	}
}

// ledger is the sum of what the prefill workers say of their hand-offs.
func (f *fleet) ledger() (sum enginesim.HandoffState) {
	f.t.Helper()
	for _, w := range f.prefill {
		if s, ok := f.state(w); ok {
			h := s.Handoff
			sum.Held, sum.Given, sum.Taken = sum.Held+h.Held, sum.Given+h.Given, sum.Taken+h.Taken
			sum.Released, sum.Expired = sum.Released+h.Released, sum.Expired+h.Expired
		}
	}
	return sum
}

// chat is a chat of one message.
func chat(prompt string, tokens int, stream bool) string {
	b, _ := json.Marshal(map[string]any{
		"model": "m", "messages": []map[string]string{{"role": "user", "content": prompt}}, "max_tokens": tokens, "stream": stream,
	})
	return string(b)
}

// question is a request with the answer that is right.
type question struct {
	path, body, answer string
	stream             bool
}

// ask makes the four requests of a prompt: chat or completion, streamed or not.
func ask(prompt string, tokens int) (qs []question) {
	of := func(ids []uint32) string { return strings.TrimSpace(enginesim.Answer(ids, tokens)) }
	for _, stream := range []bool{false, true} {
		qs = append(qs,
			question{"/v1/completions", completion(prompt, tokens, stream), of(enginesim.Tokenize(prompt)), stream},
			question{
				"/v1/chat/completions", chat(prompt, tokens, stream),
				of(enginesim.ChatTokens([]enginesim.Message{{Role: "user", Content: prompt}}, true)), stream,
			})
	}
	return qs
}

func (q question) require(t *testing.T, r *reply) {
	t.Helper()
	require.NoError(t, r.err)
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Equal(t, q.answer, strings.TrimSpace(r.text()), r.body)
	kind := "application/json"
	if q.stream {
		kind = "text/event-stream"
		require.True(t, strings.HasSuffix(strings.TrimSpace(r.body), "data: [DONE]"), r.body)
	}
	require.True(t, strings.HasPrefix(r.header.Get("Content-Type"), kind), r.header.Get("Content-Type"))
}

// TestEnginesThatPrefillFirstAreServed is docs/behaviour.md#prefill-first, #one-token
// and #injected: prefill is asked once, for one token; decode gets its hand-off in the
// client's own body; the ranks that were picked are those that ran; nothing is held at
// the end.
func TestEnginesThatPrefillFirstAreServed(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 2, config: modes("round-robin", "round-robin"), simArgs: []string{"--dp-size", "2"}}
	eachSync(t, l, func(t *testing.T, f *fleet, e worker.Engine) {
		for round := range 2 {
			for i, q := range ask(fmt.Sprintf("the sea is blue %d", round), 6) {
				f.forget()
				id := fmt.Sprintf("11111111-2222-4333-8444-%012d", 10*round+i)
				r := f.send(t.Context(), q.path, q.body, "X-Request-Id", id, "Authorization", "Bearer of tidings", "x-debug-decision", "1")
				q.require(t, r)
				require.NotEmpty(t, r.header.Get("x-baton-decision"))
				prefill, decode := f.legs()
				requireSyncLegs(t, e, q, prefill, decode)
				for leg, seen := range map[string]enginesim.Request{"prefill": prefill, "decode": decode} {
					require.Equal(t, r.header.Get("X-Request-Id"), seen.Headers.Get("X-Request-Id"), leg)
					require.Equal(t, "Bearer of tidings", seen.Headers.Get("Authorization"), leg)
					requireHonest(t, leg, seen, "-")
				}
				d := f.decisions()[0]
				require.Equal(t, d.Decode.DPRank, atoi(decode.Headers.Get("X-Data-Parallel-Rank")))
				require.Equal(t, d.Prefill.DPRank, atoi(prefill.Headers.Get("X-Data-Parallel-Rank")))
				if e == worker.VLLM { // TensorRT-LLM ranks requests itself
					require.Equal(t, d.Prefill.DPRank, prefill.DPRank, "the rank that prefill ran on")
					require.Equal(t, d.Decode.DPRank, decode.DPRank, "the rank that decode ran on")
				}
				h := f.ledger()
				require.Equal(t, [4]uint64{1, 1, 0, 0}, [4]uint64{h.Given, h.Taken, h.Released, h.Expired})
			}
		}
		require.Zero(t, f.metric("baton_fresh_picks_total"))
		require.Zero(t, f.metric("baton_prefill_legs_total", `outcome="collected"`))
	})
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

// requireSyncLegs holds both bodies against the client's.
func requireSyncLegs(t *testing.T, e worker.Engine, q question, prefill, decode enginesim.Request) {
	t.Helper()
	require.Equal(t, "prefill", prefill.Leg)
	require.Equal(t, "decode", decode.Leg)
	require.Equal(t, prefill.Handoff, decode.Handoff, "decode took what this very prefill holds")
	require.Equal(t, 1, prefill.OutputTokens)
	require.Contains(t, prefill.Body, `"max_tokens":1,`)
	require.Contains(t, prefill.Body, `"stream":false`)
	require.Equal(t, q.path, prefill.Path)
	require.Equal(t, q.path, decode.Path)
	if e == worker.VLLM { // TensorRT-LLM's gets the prompt's ids besides
		require.True(t, strings.HasPrefix(decode.Body, strings.TrimSuffix(q.body, "}")+`,"kv_transfer_params":{`), decode.Body)
	}
	require.Contains(t, decode.Body, `"max_tokens":6,`)
	require.Contains(t, decode.Body, fmt.Sprintf(`"stream":%t`, q.stream))
}

// TestAPrefillThatIsAllThereIsToSayIsTheAnswer is docs/behaviour.md#prefill-answers:
// prefill ends by itself, where decode does not draw the token again, or the client wants one
// token. It reads like decode's answer, no decode worker is asked to answer, and nothing stays held.
func TestAPrefillThatIsAllThereIsToSayIsTheAnswer(t *testing.T) {
	t.Parallel()
	eachSync(t, layout{prefill: 2, decode: 2}, func(t *testing.T, f *fleet, e worker.Engine) {
		for _, reason := range []string{"stop", "content_filter"} {
			if e == worker.VLLM {
				break // TestAnEndIsAsLikelyAsWithOneWorker
			}
			for _, q := range ask("it ends at once with "+reason, 6) {
				f.forget()
				f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultFinish, Reason: reason})
				q.answer = strings.Fields(q.answer)[0]
				r := f.send(t.Context(), q.path, q.body)
				q.requireFinal(t, r, reason)
				f.awaitCollected()
				for _, d := range f.ended(f.decode) {
					require.Equal(t, 1, d.OutputTokens, "a decode worker is asked to take the KV, no more")
				}
			}
		}
		f.faultAll(f.prefill, enginesim.Fault{})
		for _, q := range ask("one token is all", 1) {
			f.forget()
			had := f.metric("gen_ai_server_time_to_first_token_seconds_count")
			q.requireFinal(t, f.send(t.Context(), q.path, q.body), "length")
			if q.stream {
				f.await("its first token", func() bool { return f.metric("gen_ai_server_time_to_first_token_seconds_count") == had+1 })
			}
			require.Empty(t, f.gotAll(f.decode))
			require.Zero(t, f.ledger().Given)
			require.Equal(t, q.body, strings.Replace(f.gotAll(f.prefill)[0].Body, `"stream":false`, fmt.Sprintf(`"stream":%t`, q.stream), 1),
				"the client's own request but for the stream")
		}
		f.forget()
		var q question
		for _, q = range ask("one token is all", 1) {
			if q.path != "/v1/completions" { // chat has a name of its own for it
				q.body = strings.Replace(q.body, `"max_tokens":1`, `"max_completion_tokens":1`, 1)
				q.requireFinal(t, f.send(t.Context(), q.path, q.body), "length")
			}
		}
		require.Empty(t, f.gotAll(f.decode))
	})
}

// TestAnEndIsAsLikelyAsWithOneWorker: vLLM's decode draws the first token again. Were an end taken
// that prefill has drawn, three of ten answers that end at once would be five of ten.
func TestAnEndIsAsLikelyAsWithOneWorker(t *testing.T) {
	t.Parallel()
	const asked, share = 400, 0.3
	both(t, layoutOf(layout{prefill: 1, decode: 1, simArgs: []string{"--end-share", fmt.Sprint(share)}}, worker.VLLM), func(t *testing.T, f *fleet) {
		ended := 0
		for i := range asked {
			r := f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("some end at once, %d", i), 4, false))
			require.Equal(t, http.StatusOK, r.status, r.body)
			if strings.Contains(r.body, `"finish_reason":"stop"`) {
				ended++
			}
		}
		require.InDelta(t, asked*share, ended, 5*math.Sqrt(asked*share*(1-share)), "of %d", asked)
		require.Len(t, f.gotAll(f.decode), asked, "each goes on to decode")
		require.Zero(t, f.ledger().Held)
	})
}

// requireFinal checks an answer made of prefill's: what clients' libraries read.
func (q question) requireFinal(t *testing.T, r *reply, reason string) {
	t.Helper()
	q.require(t, r)
	for _, secret := range []string{"kv_transfer_params", "disaggregated_params", "remote_"} {
		require.NotContains(t, strings.ReplaceAll(r.body, `"kv_transfer_params":null`, ""), secret) // vLLM's own answer has the null
	}
	type choice struct {
		FinishReason *string `json:"finish_reason"`
	}
	type body struct {
		ID, Object, Model string
		Created           int64
		Choices           []choice
		Usage             *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
	}
	if !q.stream {
		var b body
		require.NoError(t, json.Unmarshal([]byte(r.body), &b))
		require.NotEmpty(t, b.ID)
		require.Equal(t, "m", b.Model)
		require.Len(t, b.Choices, 1)
		require.Equal(t, reason, *b.Choices[0].FinishReason)
		require.Equal(t, 1, b.Usage.Completion)
		return
	}
	ends := 0
	for line := range strings.SplitSeq(strings.TrimSpace(r.body), "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var b body
		require.NoError(t, json.Unmarshal([]byte(data), &b), data)
		require.True(t, strings.HasSuffix(b.Object, ".chunk") || b.Object == "text_completion", b.Object)
		for _, c := range b.Choices {
			if c.FinishReason != nil {
				require.Equal(t, reason, *c.FinishReason)
				ends++
			}
		}
	}
	require.Equal(t, 1, ends, r.body)
}

func (f *fleet) faultAll(ws []*stack.Worker, x enginesim.Fault) {
	f.t.Helper()
	for _, w := range ws {
		f.fault(w, x)
	}
}

// awaitCollected waits until nobody holds KV for a decode, none of it by the end
// of a lease.
func (f *fleet) awaitCollected() {
	f.t.Helper()
	f.await("what prefill holds to be taken", func() bool { h := f.ledger(); return h.Held == 0 && h.Given == h.Taken+h.Released })
}

// TestClientsCannotSetAHandOff is docs/behaviour.md#router-only for the engines that
// prefill first.
func TestClientsCannotSetAHandOff(t *testing.T) {
	t.Parallel()
	eachSync(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet, _ worker.Engine) {
		for _, field := range []string{
			`"kv_transfer_params":{"do_remote_decode":true}`, `"kv_transfer_params":null`, `"disaggregated_params":{"request_type":"generation_only"}`,
			`"kv_transfer\u005fparams":{}`, `"\u0064isaggregated_params":{}`,
		} {
			for _, q := range ask("mine", 2) {
				for _, body := range []string{"{" + field + "," + q.body[1:], q.body[:len(q.body)-1] + "," + field + "}"} {
					requireError(t, f.send(t.Context(), q.path, body), http.StatusBadRequest, "forbidden_field")
				}
			}
		}
		require.Empty(t, f.gotAll(f.workers), "a refused request reached a worker")
	})
}
