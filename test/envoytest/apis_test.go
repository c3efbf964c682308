//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

const (
	toResponses = "/v1/responses"
	toMessages  = "/v1/messages"
)

// otherAPI makes a question of /v1/responses or /v1/messages: a chat of one message. SGLang's limit of a
// response is two tokens more than it then makes.
func otherAPI(e worker.Engine, path, prompt string, tokens int, stream bool) question {
	body := map[string]any{"model": "m", "stream": stream}
	if path == toResponses {
		body["input"], body["max_output_tokens"] = prompt, tokens+map[worker.Engine]int{worker.SGLang: 2}[e]
	} else {
		body["messages"], body["max_tokens"] = []map[string]string{{"role": "user", "content": prompt}}, tokens
	}
	b, _ := json.Marshal(body)
	ids := enginesim.ChatTokens([]enginesim.Message{{Role: "user", Content: prompt}}, true)
	return question{path, string(b), enginesim.Answer(ids, tokens), stream}
}

// said returns the text of a reply of these APIs, and the type of a stream's last event.
func said(t *testing.T, r *reply) (text, last string) {
	t.Helper()
	type parts []struct{ Text string }
	var whole struct {
		Output  []struct{ Content parts }
		Content parts
	}
	if !strings.HasPrefix(r.body, "event: ") {
		require.NoError(t, json.Unmarshal([]byte(r.body), &whole), r.body)
		for _, item := range whole.Output {
			whole.Content = append(whole.Content, item.Content...)
		}
		for _, p := range whole.Content {
			text += p.Text
		}
		return text, ""
	}
	for line := range strings.SplitSeq(r.body, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type  string
			Delta json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(data), &e), line)
		var delta struct{ Text string }
		last = e.Type
		switch e.Type {
		case "response.output_text.delta":
			require.NoError(t, json.Unmarshal(e.Delta, &delta.Text))
		case "content_block_delta":
			require.NoError(t, json.Unmarshal(e.Delta, &delta))
		}
		text += delta.Text
	}
	return text, last
}

// requireOther checks that r is the whole, right answer.
func (q question) requireOther(t *testing.T, r *reply) {
	t.Helper()
	require.NoError(t, r.err)
	require.Equal(t, http.StatusOK, r.status, r.body)
	text, last := said(t, r)
	require.Equal(t, q.answer, text, r.body)
	require.Equal(t, q.stream, strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream"))
	if q.stream {
		require.Contains(t, []string{"response.completed", "response.incomplete", "message_stop"}, last)
	}
}

// eachAPI runs a test with each engine and API that goes apart there, in both body modes.
func eachAPI(t *testing.T, l layout, test func(t *testing.T, f *fleet, e worker.Engine, path string)) {
	t.Helper()
	for e, paths := range map[worker.Engine][]string{
		worker.SGLang: {toResponses}, worker.VLLM: {toResponses, toMessages}, worker.VLLMMooncake: {toResponses},
	} {
		for _, path := range paths {
			t.Run(string(e)+strings.ReplaceAll(path, "/", "_"), func(t *testing.T) {
				t.Parallel()
				both(t, layoutOf(l, e), func(t *testing.T, f *fleet) { test(t, f, e, path) })
			})
		}
	}
}

// TestOtherAPIsAreServedApart: prefill and decode both have the request, and decode has its KV from
// prefill. What the client gets is what its engine sends.
func TestOtherAPIsAreServedApart(t *testing.T) {
	t.Parallel()
	eachAPI(t, layout{prefill: 2, decode: 2}, func(t *testing.T, f *fleet, e worker.Engine, path string) {
		for i, stream := range []bool{false, true} {
			f.forget()
			q := otherAPI(e, path, fmt.Sprintf("is it apart, %d", i), 6, stream)
			r := f.send(t.Context(), q.path, q.body)
			q.requireOther(t, r)
			prefill, decode := f.legs()
			require.Equal(t, "prefill decode", prefill.Leg+" "+decode.Leg)
			require.Equal(t, []int{1, 6}, []int{prefill.OutputTokens, decode.OutputTokens})
			require.Contains(t, prefill.Body, `"stream":false`)
			require.Contains(t, decode.Body, fmt.Sprintf(`"stream":%t`, stream))
			require.NotContains(t, r.body, `"do_remote_prefill"`, "the hand-off is not the client's")
			if path == toResponses {
				d := f.decisions()[0]
				_, id, _ := strings.Cut(decode.Body, `"request_id":"`)
				id, _, _ = strings.Cut(id, `"`)
				keeper, ok := openai.KeeperOf(id)
				require.True(t, ok, decode.Body)
				require.Equal(t, d.Decode.WorkerID, fmt.Sprint(keeper))
				require.Contains(t, r.body, `"id":"`+id+`"`, "the client is told the id")
				require.NotContains(t, prefill.Body, `"store":true`)
			}
		}
		if e != worker.SGLang {
			require.Zero(t, f.ledger().Held)
		}
	})
}

// TestAFailedLegOfAnotherAPIIsInvisible: until the first token is there, another pair serves it. An
// engine begins a streamed answer before it knows whether it can serve it.
func TestAFailedLegOfAnotherAPIIsInvisible(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 2, config: spareErrors, prefillArgs: shortLease}
	eachAPI(t, l, func(t *testing.T, f *fleet, e worker.Engine, path string) {
		for i, c := range []struct {
			of     []*stack.Worker
			fault  enginesim.Fault
			stream bool
		}{
			{f.prefill, enginesim.Fault{Mode: enginesim.FaultError, Count: 1}, false},
			{f.prefill, enginesim.Fault{Mode: enginesim.FaultError, Count: 1}, true},
			{f.prefill, enginesim.Fault{Mode: enginesim.FaultFinishAbort, When: enginesim.Mid, Count: 1}, true},
			{f.decode, enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.After, Count: 1}, false},
			{f.decode, enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.Begun, Count: 1}, true},
			{f.decode, enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Begun, Count: 1}, true},
		} {
			f.awaitHealthy()
			f.awaitNoSuspect()
			fresh := f.metric("baton_fresh_picks_total")
			f.fault(c.of[0], c.fault)
			for j := range 2 { // in turn: the faulty worker is met
				q := otherAPI(e, path, fmt.Sprintf("a leg fails, %d %d", i, j), 5, c.stream)
				q.requireOther(t, f.send(t.Context(), q.path, q.body))
			}
			require.Equal(t, fresh+1, f.metric("baton_fresh_picks_total"), "%d: %+v", i, c.fault)
		}
		require.Zero(t, f.outcomes("failed"))
	})
}

// requireErrorOf is requireError in the form of the path's API.
func requireErrorOf(t *testing.T, path string, r *reply, status int, code, typ string) {
	t.Helper()
	requireError(t, r, status, code)
	var e struct {
		Type  string
		Error struct{ Type string }
	}
	require.NoError(t, json.Unmarshal([]byte(r.body), &e))
	require.Equal(t, typ, e.Error.Type)
	if path == toMessages {
		require.Equal(t, "error", e.Type, r.body)
	}
}

// TestErrorsAreInTheFormOfTheirAPI, the plugin's and Envoy's own.
func TestErrorsAreInTheFormOfTheirAPI(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, config: spareErrors + "request: {max_body_bytes: 100000}\n", prefillArgs: shortLease, noCheck: true}
	both(t, layoutOf(l, worker.VLLM), func(t *testing.T, f *fleet) {
		paths := []string{toResponses, toMessages}
		for _, path := range paths {
			anthropic := path == toMessages
			kind := func(openai, own string) string { return map[bool]string{true: own, false: openai}[anthropic] }
			q := otherAPI(worker.VLLM, path, "nobody can", 5, true)
			f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError})
			r := f.send(t.Context(), path, q.body)
			requireErrorOf(t, path, r, 503, "prefill_failed", kind("service_unavailable_error", "overloaded_error"))
			f.fault(f.prefill[0], enginesim.Fault{})
			f.awaitHealthy()
			r = f.send(t.Context(), path, strings.Replace(q.body, `"m"`, `"x"`, 1))
			requireErrorOf(t, path, r, 404, "model_not_found", "not_found_error")
			r = f.send(t.Context(), path, `{"model":"m"}`)
			requireErrorOf(t, path, r, 400, "missing_field", "invalid_request_error")
			f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultHang, Count: 1})
			r = f.send(t.Context(), path, q.body, "x-request-timeout-ms", "300")
			requireErrorOf(t, path, r, 504, "deadline_exceeded", "timeout_error")
			r = f.send(t.Context(), path, otherAPI(worker.VLLM, path, strings.Repeat("word ", 60_000), 5, true).body)
			requireErrorOf(t, path, r, 413, "body_too_large", kind("invalid_request_error", "request_too_large"))
		}
		require.NoError(t, f.plugin.Kill())
		for _, path := range paths {
			r := f.send(t.Context(), path, otherAPI(worker.VLLM, path, "nobody is there", 5, false).body)
			requireErrorOf(t, path, r, 503, "router_unavailable", "service_unavailable_error")
		}
	})
	t.Run("Envoy's own limit", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, layout{prefill: 1, decode: 1, envoy: envoy.Params{MaxBodyBytes: 100_000}})
		r := f.send(t.Context(), toMessages, otherAPI(worker.VLLM, toMessages, strings.Repeat("word ", 60_000), 5, true).body)
		requireErrorOf(t, toMessages, r, 413, "body_too_large", "invalid_request_error")
	})
}

// TestAStreamOfAnotherAPIThatIsCutEndsWithItsError where the plugin stands in the answer. Where it
// does not, the answer breaks off.
func TestAStreamOfAnotherAPIThatIsCutEndsWithItsError(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		toResponses: `event: error` + "\n" + `data: {"type":"error","code":"deadline_exceeded","message":"The request did not finish before its deadline.","param":null}`,
		toMessages: `event: error` + "\n" + `data: {"type":"error","error":{"message":"The request did not finish before its deadline.",` +
			`"type":"timeout_error","param":null,"code":"deadline_exceeded"}}`,
	} {
		t.Run(strings.TrimPrefix(path, "/v1/"), func(t *testing.T) {
			t.Parallel()
			l := layout{prefill: 1, decode: 1, twoLegs: true, decodeArgs: []string{"--decode-us-per-token", "100000"}, fullDuplex: true, gateway: new(envoy.GatewayParams)}
			f := newFleet(t, layoutOf(l, worker.VLLM))
			r := f.send(t.Context(), path, otherAPI(worker.VLLM, path, "too long for its deadline", 200, true).body, "x-request-timeout-ms", "1500")
			require.NoError(t, r.err, "it ends in order")
			text, last := said(t, r)
			require.NotEmpty(t, text)
			require.Equal(t, "error", last)
			require.True(t, strings.HasSuffix(strings.TrimSpace(r.body), "\n\n"+want), r.body[max(0, len(r.body)-300):])
			f.awaitOutcomes(1, "cut", `code="deadline_exceeded"`)
		})
	}
	t.Run("breaks off", func(t *testing.T) {
		t.Parallel()
		eachAPI(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet, e worker.Engine, path string) {
			f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid, DelayMS: 500}) // its first half has gone by then
			require.Error(t, f.send(t.Context(), path, otherAPI(e, path, "hi", 30, true).body).err)
			f.awaitOutcomes(1, "cut")
		})
	})
}

// TestSGLangsMessagesAreNotServedApart: its workers drop the members of the hand-off. They are counted
// by a decode worker, and served by one that needs no prefill.
func TestSGLangsMessagesAreNotServedApart(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		q := otherAPI(worker.VLLM, toMessages, "not here", 5, false)
		requireErrorOf(t, toMessages, f.send(t.Context(), toMessages, q.body), 501, "needs_aggregated_worker", "api_error")
		require.Empty(t, f.gotAll(f.workers))
		f.counts(q)
	})
	both(t, layout{prefill: 1, decode: 1, aggregated: 1}, func(t *testing.T, f *fleet) {
		for _, stream := range []bool{false, true} {
			q := otherAPI(worker.VLLM, toMessages, "by one worker", 5, stream)
			q.requireOther(t, f.send(t.Context(), toMessages, q.body))
		}
		require.Empty(t, f.gotAll(f.prefill))
		require.Empty(t, f.gotAll(f.decode))
	})
}

// counts checks that the tokens of a message are counted.
func (f *fleet) counts(q question) {
	f.t.Helper()
	r := f.send(f.t.Context(), toMessages+"/count_tokens", q.body)
	require.Equal(f.t, http.StatusOK, r.status, r.body)
	require.Contains(f.t, r.body, fmt.Sprintf(`"input_tokens":%d`, len(enginesim.ChatTokens([]enginesim.Message{{Role: "user", Content: "not here"}}, true))))
}

// TestTokensOfAMessageAreCountedByAFleetApart of vLLM, too.
func TestTokensOfAMessageAreCountedByAFleetApart(t *testing.T) {
	t.Parallel()
	both(t, layoutOf(layout{prefill: 1, decode: 1}, worker.VLLM), func(t *testing.T, f *fleet) {
		f.counts(otherAPI(worker.VLLM, toMessages, "not here", 5, false))
	})
}

// TestAResponseIsContinuedByTheWorkerThatKeepsIt, also when another is idle, and not once it has left.
func TestAResponseIsContinuedByTheWorkerThatKeepsIt(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 2, config: everyTurn, decodeArgs: []string{"--accepts-aggregated", "--response-store"}}
	both(t, layoutOf(l, worker.VLLM), func(t *testing.T, f *fleet) {
		keeps := func(id string) int {
			for i, w := range f.decode {
				if keeper, ok := openai.KeeperOf(id); ok && worker.ID(keeper) == w.Info.ID {
					return i
				}
			}
			t.Fatalf("%s names no decode worker", id)
			return 0
		}
		ask := func(input, previous string) (*reply, string) {
			body := fmt.Sprintf(`{"model":"m","input":%q,"max_output_tokens":3`, input)
			if previous != "" {
				body += fmt.Sprintf(`,"previous_response_id":%q`, previous)
			}
			r := f.send(t.Context(), toResponses, body+"}")
			var a struct{ ID string }
			require.NoError(t, json.Unmarshal([]byte(r.body), &a), r.body)
			return r, a.ID
		}
		r, first := ask("one", "")
		require.Equal(t, http.StatusOK, r.status, r.body)
		one, _ := said(t, r)
		home := keeps(first)
		var last string
		for i := range 4 { // any other would be next by turns
			f.forget()
			if r, last = ask("two", first); r.status != http.StatusOK {
				t.Fatal(r.body)
			}
			two, _ := said(t, r)
			conversation := []enginesim.Message{{Role: "user", Content: "one"}, {Role: "assistant", Content: one}, {Role: "user", Content: "two"}}
			require.Equal(t, enginesim.Answer(enginesim.ChatTokens(conversation, true), 3), two)
			require.Len(t, f.got(f.decode[home]), 1, "%d", i)
			require.Empty(t, f.got(f.decode[1-home]))
			require.Equal(t, home, keeps(last))
		}
		get := f.do(http.MethodGet, toResponses+"/"+last, nil, nil)
		require.Equal(t, http.StatusOK, get.status, get.body)
		require.Contains(t, get.body, last)
		cancel := f.do(http.MethodPost, toResponses+"/"+last+"/cancel", strings.NewReader("{}"), nil)
		require.Equal(t, http.StatusBadRequest, cancel.status, cancel.body)
		require.Contains(t, cancel.body, "Cannot cancel")

		f.publishAndWait(f.prefill[0], f.decode[1-home])
		r, _ = ask("two", first)
		requireError(t, r, http.StatusNotFound, "response_not_found")
		requireError(t, f.do(http.MethodGet, toResponses+"/"+last, nil, nil), http.StatusNotFound, "response_not_found")
		f.publishAndWait(f.workers...)
	})
}

// TestOneTokenOfAnotherAPIIsServedByPrefill: the whole request, as it came.
func TestOneTokenOfAnotherAPIIsServedByPrefill(t *testing.T) {
	t.Parallel()
	both(t, layoutOf(layout{prefill: 1, decode: 1, decodeArgs: []string{"--accepts-aggregated"}}, worker.VLLM), func(t *testing.T, f *fleet) {
		for _, path := range []string{toResponses, toMessages} {
			for _, stream := range []bool{false, true} {
				f.forget()
				q := otherAPI(worker.VLLM, path, "one is enough", 1, stream)
				q.requireOther(t, f.send(t.Context(), q.path, q.body))
				require.Empty(t, f.gotAll(f.decode))
				got := f.ended(f.prefill)
				require.Len(t, got, 1)
				require.Empty(t, got[0].Leg, "nothing is handed over")
				if path == toMessages { // a response has its id added
					require.Equal(t, q.body, got[0].Body)
				}
			}
		}
		require.Zero(t, f.ledger().Given)
	})
}

// TestTokenIdsInAndOutGoApart: /inference/v1/generate of vLLM.
func TestTokenIdsInAndOutGoApart(t *testing.T) {
	t.Parallel()
	both(t, layoutOf(layout{prefill: 1, decode: 1}, worker.VLLM), func(t *testing.T, f *fleet) {
		for _, stream := range []bool{false, true} {
			f.forget()
			body := fmt.Sprintf(`{"model":"m","token_ids":[5,6,7,8,9,10],"sampling_params":{"max_tokens":4,"min_tokens":2},"stream":%t}`, stream)
			r := f.send(t.Context(), "/inference/v1/generate", body)
			require.NoError(t, r.err)
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Contains(t, r.body, `"finish_reason":"length"`)
			prefill, decode := f.legs()
			require.Equal(t, "prefill decode", prefill.Leg+" "+decode.Leg)
			require.Equal(t, prefill.Handoff, decode.Handoff)
			require.Contains(t, prefill.Body, `"min_tokens":1`)
			require.Equal(t, 6, f.decisions()[0].ISLTokens)
		}
	})
}
