//go:build e2e

package envoytest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// asksForUsage is a streamed question whose answer ends with its usage.
func asksForUsage(prompt string, tokens int) string {
	return fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}`, prompt, tokens)
}

// counted waits for the engine's own count of a prompt's tokens.
const counted = "tokens: {wait: 3s}\n"

func (f *fleet) measured(name string, labels ...string) (count, seconds float64) {
	return f.metric(name+"_count", labels...), f.metric(name+"_sum", labels...)
}

// requireMeasured asks a prompt of 40 blocks and a token three times and holds what is
// counted to what the engines did. begun: the first events of an answer come to somebody who
// reads them; read: so do all.
func requireMeasured(t *testing.T, f *fleet, role string, begun, read bool) {
	t.Helper()
	const tokens = 12
	prompt := words(7, 16*40)
	for i := range 3 {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", asksForUsage(prompt, tokens)), prompt, tokens)
		f.awaitOutcomes(i+1, "ok")
		f.await("the index to know the prompt", func() bool { return f.metric("baton_worker_index_blocks", `role="`+role+`"`) == 40 })
	}
	of := []string{`gen_ai_operation_name="text_completion"`, `gen_ai_request_model="m"`}
	n, whole := f.measured("gen_ai_server_request_duration_seconds", append(of, `error_type="none"`)...)
	require.EqualValues(t, 3, n)
	n, firstByte := f.measured("baton_time_to_first_byte_seconds", of...)
	require.EqualValues(t, 3, n)
	require.Positive(t, firstByte)
	require.LessOrEqual(t, firstByte, whole)
	n, firstToken := f.measured("gen_ai_server_time_to_first_token_seconds", of...)
	m, perToken := f.measured("gen_ai_server_time_per_output_token_seconds", of...)
	seen := map[bool]float64{true: 3}
	require.Equal(t, []float64{seen[begun], seen[read]}, []float64{n, m})
	if begun {
		require.LessOrEqual(t, firstByte, firstToken)
		require.LessOrEqual(t, firstToken, whole)
	}
	require.Equal(t, begun, strings.Contains(f.adminGet("/debug/decisions?n=1"), `"first_token_seconds"`), "the record has it, too")
	if read {
		require.InDelta(t, whole-firstToken, perToken*(tokens-1), 1e-6, "eleven tokens after the first")
	}

	kind := func(k string) float64 {
		return f.metric("baton_prompt_tokens_total", `model="m"`, `role="`+role+`"`, `kind="`+k+`"`)
	}
	require.EqualValues(t, 3*641, kind("asked"))
	require.EqualValues(t, 2*640, kind("available"), "the second and the third time")
	require.EqualValues(t, 2*640, kind("predicted"), "there is one worker")
	if read || role == "prefill" { // prefill's answer is whole, and always read
		require.EqualValues(t, 3*641, kind("told"))
		require.EqualValues(t, 2*640, kind("told_predicted"))
		require.EqualValues(t, 2*640, kind("delivered"), "as the engine counts")
	} else {
		require.Zero(t, kind("told")+kind("delivered"))
	}
}

// TestWhatCameOfARequestIsMeasured in both body modes, with both hand-offs and with one
// worker.
func TestWhatCameOfARequestIsMeasured(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.VLLMMooncake} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 1, decode: 1, config: counted}, engine)
			both(t, l, func(t *testing.T, f *fleet) { requireMeasured(t, f, "prefill", true, envoyMinor() >= 39) })
		})
	}
	t.Run("aggregated", func(t *testing.T) {
		t.Parallel()
		l := layout{aggregated: 1, config: counted}
		both(t, l, func(t *testing.T, f *fleet) { requireMeasured(t, f, "aggregated", true, envoyMinor() >= 39) })
	})
}

// TestAGatewaysRequestsAreMeasured with one leg, where no access log comes, and with
// two. Where it buffers bodies, nobody sees answers.
func TestAGatewaysRequestsAreMeasured(t *testing.T) {
	t.Parallel()
	eachGateway(t, layout{aggregated: 1, config: counted}, func(t *testing.T, f *fleet, _ bool) {
		requireMeasured(t, f, "aggregated", f.fullDuplex, f.fullDuplex)
	})
}

// TestAFailedRequestIsMeasuredByItsError.
func TestAFailedRequestIsMeasuredByItsError(t *testing.T) {
	t.Parallel()
	both(t, layout{aggregated: 1}, func(t *testing.T, f *fleet) {
		f.fault(f.workers[0], enginesim.Fault{Mode: enginesim.FaultError, Status: 404})
		require.Equal(t, 404, f.send(t.Context(), "/v1/chat/completions", chat("no", 4, true)).status)
		f.awaitOutcomes(1, "rejected")
		n, _ := f.measured("gen_ai_server_request_duration_seconds", `gen_ai_operation_name="chat"`, `error_type="decode_rejected"`)
		require.EqualValues(t, 1, n)
		n, _ = f.measured("gen_ai_server_time_to_first_token_seconds")
		require.Zero(t, n)
		require.Zero(t, f.metric("baton_prompt_tokens_total"), "nothing was served")
	})
}

// TestAnAnswerOfNothingIsNotServed, by a gateway's worker either: where nobody else tells
// how an answer has ended, an end without a byte is no answer, and no praise. Where a
// gateway with one leg buffers bodies, nobody sees answers.
func TestAnAnswerOfNothingIsNotServed(t *testing.T) {
	t.Parallel()
	eachGateway(t, layout{aggregated: 1}, func(t *testing.T, f *fleet, twoLegs bool) {
		f.fault(f.workers[0], enginesim.Fault{Mode: enginesim.FaultEmpty})
		for i := range 4 {
			r := f.send(t.Context(), "/v1/completions", completion("nothing comes", 4, i%2 == 0))
			require.NoError(t, r.err)
			require.Empty(t, r.text())
		}
		f.await("all to be counted", func() bool { return f.metric("baton_requests_total") == 4 })
		if f.fullDuplex || twoLegs {
			require.EqualValues(t, 4, f.outcomes("failed", `code="empty_answer"`))
		}
	})
}
