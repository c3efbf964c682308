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
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// countsOtherwise reports whether a trouble names the decode worker as one that nobody counts alike.
func (f *fleet) countsOtherwise(id worker.ID, alone string) bool {
	for _, text := range f.trouble() {
		if strings.HasPrefix(text, "PAIR: ") && strings.Contains(text, " "+id.String()+" (decode ") && strings.Contains(text, alone) {
			return true
		}
	}
	return false
}

// TestADecodeThatCountsOtherwiseIsNotUsed is docs/behaviour.md#sides: one decode of three has another chat template, or cuts long
// prompts. It is found within ten requests, named on the page, and gets no request afterwards; no request
// fails. Answers that are not streamed pass the plugin by: there decode's tokenizer tells. The usage of
// streamed ones comes with Envoy's access log.
func TestADecodeThatCountsOtherwiseIsNotUsed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a long prompt of many words ", 20)
	alone := func(id worker.ID) string { return "no other worker counts as " + id.String() }
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		for _, c := range []struct {
			name, prompt string
			fault        enginesim.Mode
			stream       bool
			prefill      int
			alone        func(worker.ID) string
		}{
			{"template", "a short chat", enginesim.FaultTemplate, false, 2, alone},
			{"template, streamed", "a short chat", enginesim.FaultTemplate, true, 2, alone},
			{"cuts, streamed", long, enginesim.FaultCuts, true, 1, func(worker.ID) string { return "" }}, // its tokenizer counts as the others'
		} {
			t.Run(string(engine)+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, layoutOf(layout{prefill: c.prefill, decode: 3, config: "routing: {decode: {mode: round-robin}}\n"}, engine))
				odd := f.decode[1]
				f.fault(odd, enginesim.Fault{Mode: c.fault})
				id := odd.Info.ID
				asked := 0
				ask := func(times int) {
					for range times {
						asked++
						body := map[string]any{"model": "m", "messages": []map[string]string{{"role": "user", "content": fmt.Sprint(c.prompt, asked)}}, "max_tokens": 3}
						if c.stream {
							body["stream"], body["stream_options"] = true, map[string]bool{"include_usage": true}
						}
						b, err := json.Marshal(body)
						require.NoError(t, err)
						r := f.send(t.Context(), "/v1/chat/completions", string(b))
						require.NoError(t, r.err)
						require.Equal(t, http.StatusOK, r.status, r.body)
					}
				}
				ask(10)
				require.NotZero(t, f.received(odd), "it had its part of the requests")
				f.await("the worker to be named", func() bool { return f.countsOtherwise(id, c.alone(id)) })
				require.GreaterOrEqual(t, f.metric("baton_pair_counts_total", `reason="differ"`), 1.0)
				before := f.received(odd)
				ask(12)
				require.Equal(t, before, f.received(odd), "no request goes there any more")
				require.Empty(t, f.whoWentAside())
			})
		}
	}
}

// TestAnAnswerThatEndsInAnAbortIsItsWorkersFault: where answers pass the plugin, as in a gateway in full
// duplex, their finish reason is read, and an error event behind the first token.
func TestAnAnswerThatEndsInAnAbortIsItsWorkersFault(t *testing.T) {
	t.Parallel()
	for leg, l := range map[string]layout{
		"decode": {prefill: 1, decode: 1, twoLegs: true},
		"alone":  {aggregated: 1, config: pickerConfig},
	} {
		t.Run(leg, func(t *testing.T) {
			t.Parallel()
			l.gateway, l.fullDuplex = &envoy.GatewayParams{}, true
			f := newFleet(t, l)
			of := f.workers[len(f.workers)-1]
			f.fault(of, enginesim.Fault{Mode: enginesim.FaultFinishAbort, When: enginesim.After, Count: 1})
			r := f.send(t.Context(), "/v1/completions", completion("the engine ends it", 4, false))
			require.NoError(t, r.err)
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Contains(t, r.body, "abort")
			f.awaitOutcomes(1, "cut", `code="answer_cut"`)
			f.await("it to be judged", func() bool {
				return f.metric("baton_blame_total", fmt.Sprintf("leg=%q", leg), `seen="finish_reason"`) == 1
			})
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("and serves the next", 4, false)), "and serves the next", 4)
			f.awaitOutcomes(1, "ok")

			f.fault(of, enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.Mid, Count: 1})
			r = f.send(t.Context(), "/v1/completions", completion("the engine fails amid it", 4, true))
			require.NoError(t, r.err)
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Contains(t, r.body, "injected error")
			f.awaitOutcomes(2, "cut", `code="answer_cut"`)
			f.await("it to be judged, too", func() bool {
				return f.metric("baton_blame_total", fmt.Sprintf("leg=%q", leg), `seen="finish_reason"`) == 2
			})
		})
	}
}
