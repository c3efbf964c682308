package handoff_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/trtllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// object is a JSON object whose values are not decoded.
type object = map[string]json.RawMessage

func decodeObject(t *testing.T, b []byte) object {
	t.Helper()
	var o object
	require.NoError(t, json.Unmarshal(b, &o), "%q", b)
	return o
}

// vllmAnswer returns prefill's answer with a hand-off of the given number of blocks.
func vllmAnswer(blocks int) []byte {
	ids := make([]string, blocks)
	for i := range ids {
		ids[i] = fmt.Sprint(i * 7 % 60000)
	}
	return []byte(`{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":` +
		`{"role":"assistant","content":"He"},"finish_reason":"length"}],"usage":{"prompt_tokens":48},"kv_transfer_params":{` +
		`"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[` + strings.Join(ids, ",") + `]],"remote_engine_id":"e",` +
		`"remote_request_id":"chatcmpl-1","remote_host":"10.0.0.5","remote_port":5600,"tp_size":1,"remote_num_tokens":48}}`)
}

// trtAnswer returns prefill's answer for a prompt of the given number of tokens.
func trtAnswer(tokens int) []byte {
	return []byte(`{"id":"cmpl-1","choices":[{"index":0,"text":"b","message":{"content":"b"},"finish_reason":"length","disaggregated_params":` +
		`{"request_type":"context_only","first_gen_tokens":[7],"ctx_request_id":9007199254740993,"disagg_request_id":9223372036854775805,` +
		`"encoded_opaque_state":"` + strings.Repeat("AB+/", 512) + `"}}],"usage":{"prompt_tokens":3},"prompt_token_ids":[1` +
		strings.Repeat(",15043", tokens-1) + `]}`)
}

func answerOf(k handoff.Kind, size int) []byte {
	if k == vllm.HandOff {
		return vllmAnswer(size)
	}
	return trtAnswer(size)
}

func TestAHandOffBeyondTheBoundsIsMalformed(t *testing.T) {
	with := func(members string) []byte {
		return []byte(`{"choices":[{"finish_reason":"length"}],"kv_transfer_params":{` + members + `}}`)
	}
	text := func(bytes int) string { return `"a":"` + strings.Repeat("x", bytes-len(`{"a":""}`)) + `"` }
	keys := func(n int) string {
		s := make([]string, n)
		for i := range s {
			s[i] = fmt.Sprintf(`"k%d":0`, i)
		}
		return strings.Join(s, ",")
	}
	for _, members := range []string{text(handoff.MaxHandOffBytes), keys(handoff.MaxHandOffMembers)} {
		res, err := handoff.ReadAnswer(vllm.HandOff, with(members), false)
		require.NoError(t, err)
		require.Equal(t, handoff.HandOff, res.Verdict)
	}
	for _, members := range []string{text(handoff.MaxHandOffBytes + 1), keys(handoff.MaxHandOffMembers + 1)} {
		_, err := handoff.ReadAnswer(vllm.HandOff, with(members), false)
		require.Equal(t, handoff.TooLarge, err)
	}
}

func TestACutAnswerIsMalformedWhereverItIsCut(t *testing.T) {
	for _, k := range []handoff.Kind{vllm.HandOff, trtllm.HandOff} {
		whole := answerOf(k, 20)
		for i := range whole {
			_, err := handoff.ReadAnswer(k, whole[:i], false)
			require.Equal(t, handoff.NotJSON, err, "%s", whole[:i])
		}
	}
}

// TestABodyThatARouterHasWrittenGetsNoKeyTwice makes the second attempt of a request
// whose body was kept with the first attempt's hand-off in it.
func TestABodyThatARouterHasWrittenGetsNoKeyTwice(t *testing.T) {
	body := []byte(`{"kv_transfer_params":{"old":1},"model":"m","prompt":"a","disaggregated_params":{"old":1}}`)
	var r openai.Request
	require.NoError(t, openai.ScanInjected(openai.Completions, body, &r))
	for _, k := range []handoff.Kind{vllm.HandOff, trtllm.HandOff} {
		answer := answerOf(k, 2)
		res, err := handoff.ReadAnswer(k, answer, false)
		require.NoError(t, err)
		for _, out := range [][]byte{
			handoff.AppendPrefill(nil, body, &r, k, testID, false),
			handoff.AppendDecode(nil, body, &r, k, answer, res),
			handoff.AppendCollect(nil, body, &r, k, answer, res),
		} {
			var again openai.Request
			require.NoError(t, openai.ScanInjected(openai.Completions, out, &again), "%s", out)
			require.NotContains(t, string(out), "old")
			require.NotEqual(t, again.Has(openai.KVTransferParams), again.Has(openai.DisaggregatedParams))
		}
	}
}

func TestASGLangRequestHasNoHandOffInItsAnswer(t *testing.T) {
	body := []byte(`{"model":"m","messages":[]}`)
	var r openai.Request
	require.NoError(t, openai.Scan(openai.ChatCompletions, body, &r))
	require.Empty(t, handoff.Hindrance(sglang.HandOff, body, &r, nil))
	res, err := handoff.ReadAnswer(sglang.HandOff, vllmAnswer(2), false)
	require.NoError(t, err)
	require.False(t, res.Held())
	require.Equal(t, handoff.Missing, res.Verdict)
	require.Equal(t, string(body), string(handoff.AppendDecode(nil, body, &r, sglang.HandOff, vllmAnswer(2), res)))
}

func TestAnEngineHasOneKind(t *testing.T) {
	require.Equal(t, sglang.HandOff, engines.HandOff(worker.SGLang))
	require.Equal(t, vllm.HandOff, engines.HandOff(worker.VLLM))
	require.Zero(t, engines.HandOff("something else"))
	require.False(t, sglang.HandOff.PrefillFirst())
	require.False(t, handoff.Kind(nil).PrefillFirst())
	require.True(t, vllm.HandOff.PrefillFirst())
	require.True(t, trtllm.HandOff.PrefillFirst())
}

// edge is a source that always gives the same number.
type edge uint64

func (e edge) Uint64() uint64 { return uint64(e) }

// The engine takes ids below the range as local ones, and ids above it do not fit an
// int64.
func TestDrawnRequestIDsAreInTheEnginesRange(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[uint64]bool{}
	for range 10_000 {
		id := handoff.DrawRequestID(rng)
		require.True(t, id >= handoff.MinRequestID && id <= handoff.MaxRequestID && !seen[id], "%d", id)
		seen[id] = true
	}
	require.Equal(t, uint64(handoff.MaxRequestID), handoff.DrawRequestID(rand.New(edge(math.MaxUint64))))
}

// TestLabelsAreDistinct: these texts are label values and are in logs.
func TestLabelsAreDistinct(t *testing.T) {
	distinct := func(labels ...string) {
		t.Helper()
		seen := map[string]bool{}
		for _, l := range labels {
			require.False(t, seen[l] || l == "invalid", l)
			seen[l] = true
		}
	}
	distinct(sglang.HandOff.String(), vllm.HandOff.String(), trtllm.HandOff.String())
	distinct(handoff.HandOff.String(), handoff.Finished.String(), handoff.Missing.String(), handoff.Failed.String())
	var faults []string
	for m := handoff.NotJSON; m <= handoff.NotTokenIDs; m++ {
		faults = append(faults, m.String())
	}
	distinct(faults...)
	require.Equal(t, "invalid", (handoff.NotTokenIDs + 1).String())
	require.Equal(t, "invalid", handoff.Kind(nil).String())
	require.Equal(t, "invalid", handoff.Verdict(0).String())
}

// events returns the data of each event. It requires the last to be "[DONE]" and leaves
// it out.
func events(t *testing.T, stream []byte) []object {
	t.Helper()
	parts := strings.Split(string(stream), "\n\n")
	require.Equal(t, []string{"data: [DONE]", ""}, parts[len(parts)-2:])
	var all []object
	for _, p := range parts[:len(parts)-2] {
		data, ok := strings.CutPrefix(p, "data: ")
		require.True(t, ok, "%q", p)
		require.False(t, strings.ContainsAny(data, "\r\n"), "%q", p)
		all = append(all, decodeObject(t, []byte(data)))
	}
	return all
}

// TestAStreamingClientGathersTheSameMessage joins the deltas as a client does, and
// compares the result with the answer.
func TestAStreamingClientGathersTheSameMessage(t *testing.T) {
	body := []byte(`{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`)
	var r openai.Request
	require.NoError(t, openai.Scan(openai.ChatCompletions, body, &r))
	for _, message := range []string{
		`{"role":"assistant","content":"No.\n"}`,
		`{"content":null,"role":"assistant","tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}`,
		`{"role":"assistant","content":"","reasoning_content":"Well","refusal":"I cannot"}`,
	} {
		answer := []byte(`{"id":"c","object":"chat.completion","created":12345678901234567890,"model":"m","choices":[{"index":0,` +
			`"finish_reason":"stop","message":` + message + `}],"usage":{"prompt_tokens":1},"kv_transfer_params":{"a":1}}`)
		out, contentType, err := handoff.AppendFinal(nil, answer, &r, body, vllm.HandOff)
		require.NoError(t, err)
		require.Equal(t, "text/event-stream", contentType)
		gathered, reasons, usages := object{}, 0, 0
		for _, e := range events(t, out) {
			require.Equal(t, `"chat.completion.chunk"`, string(e["object"]))
			require.Equal(t, `12345678901234567890`, string(e["created"]))
			require.Equal(t, `"c"`, string(e["id"]))
			require.NotContains(t, e, "kv_transfer_params")
			var choices []object
			require.NoError(t, json.Unmarshal(e["choices"], &choices))
			if len(choices) == 0 {
				usages++
				require.Equal(t, `{"prompt_tokens":1}`, string(e["usage"]))
				continue
			}
			require.Zero(t, usages, "the usage comes last")
			maps.Copy(gathered, decodeObject(t, choices[0]["delta"]))
			if string(choices[0]["finish_reason"]) == `"stop"` {
				reasons++
			}
		}
		require.Equal(t, decodeObject(t, []byte(message)), gathered)
		require.Equal(t, 1, reasons)
		require.Equal(t, 1, usages)
	}
}

// TestALineBreakOfTheEnginesEndsNoEvent: values are copied unchanged, and an engine may
// break lines between their parts.
func TestALineBreakOfTheEnginesEndsNoEvent(t *testing.T) {
	body := []byte(`{"model":"m","prompt":"a","stream":true,"stream_options":{"include_usage":true}}`)
	var r openai.Request
	require.NoError(t, openai.Scan(openai.Completions, body, &r))
	for _, br := range []string{"\n", "\r", "\r\n", "\n\n"} {
		answer := []byte(`{"id":"c","choices":[{"text":"a\n","logprobs":{` + br + `"tokens":[]}}],"usage":{` + br + `"prompt_tokens":1}}`)
		out, _, err := handoff.AppendFinal(nil, answer, &r, body, vllm.HandOff)
		require.NoError(t, err)
		got := events(t, out)
		require.Len(t, got, 3)
		require.Equal(t, "a\n", decodeText(t, choicesOf(t, got[0])[0]["text"]))
		require.JSONEq(t, `{"prompt_tokens":1}`, string(got[2]["usage"]))
	}
}

func decodeText(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var s string
	require.NoError(t, json.Unmarshal(raw, &s))
	return s
}

// TestNothingIsAllocatedOnTheWayToDecode tests what every request of a prefill-first
// engine goes through.
func TestNothingIsAllocatedOnTheWayToDecode(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates by itself")
	}
	body := []byte(`{"model":"m","stream":true,"max_completion_tokens":9,"messages":[{"role":"user","content":"` + strings.Repeat("a", 4096) + `"}]}`)
	var r openai.Request
	require.NoError(t, openai.Scan(openai.ChatCompletions, body, &r))
	dst := make([]byte, 0, 64<<10)
	for _, k := range []handoff.Kind{vllm.HandOff, trtllm.HandOff} {
		answer := answerOf(k, 1000)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			_ = handoff.AppendPrefill(dst, body, &r, k, testID, false)
			_ = handoff.AppendPrefill(dst, body, &r, k, testID, true)
			res, err := handoff.ReadAnswer(k, answer, false)
			if err != nil || res.Verdict != handoff.HandOff {
				t.Fail()
			}
			_ = handoff.AppendDecode(dst, body, &r, k, answer, res)
			_ = handoff.AppendCollect(dst, body, &r, k, answer, res)
		}))
		require.Equal(t, 1.0, testing.AllocsPerRun(100, func() { // one allocation, of dst, which is large enough at once
			_ = handoff.AppendPrefill(nil, body, &r, k, testID, false)
		}))
		res, err := handoff.ReadAnswer(k, answer, false)
		require.NoError(t, err)
		require.Equal(t, 1.0, testing.AllocsPerRun(100, func() {
			_ = handoff.AppendDecode(nil, body, &r, k, answer, res)
		}))
		require.True(t, json.Valid(handoff.AppendDecode(nil, body, &r, k, answer, res)))
	}
}

func BenchmarkHandOff(b *testing.B) {
	body := []byte(`{"model":"m","stream":true,"max_tokens":256,"messages":[{"role":"user","content":"` +
		strings.Repeat("the quick brown fox jumps ", 220<<10/26) + `"}]}`)
	var r openai.Request
	require.NoError(b, openai.Scan(openai.ChatCompletions, body, &r))
	dst := make([]byte, 0, 1<<20)
	run := func(name string, size int, fn func()) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				fn()
			}
		})
	}
	run("copy", len(body), func() { dst = append(dst[:0], body...) })
	run("scan", len(body), func() { _ = openai.Scan(openai.ChatCompletions, body, &r) })
	for _, k := range []handoff.Kind{vllm.HandOff, trtllm.HandOff} {
		size := 60_000 // tokens of the prompt
		if k == vllm.HandOff {
			size /= 16
		}
		answer := bytes.Clone(answerOf(k, size))
		res, err := handoff.ReadAnswer(k, answer, false)
		require.NoError(b, err)
		run(k.String()+" prefill", len(body), func() { dst = handoff.AppendPrefill(dst[:0], body, &r, k, testID, false) })
		run(k.String()+" answer", len(answer), func() { _, _ = handoff.ReadAnswer(k, answer, false) })
		run(k.String()+" decode", len(body), func() { dst = handoff.AppendDecode(dst[:0], body, &r, k, answer, res) })
	}
}
