package handoff_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/trtllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllmmooncake"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var fuzzAnswers = []string{
	string(vllmAnswer(2)), string(trtAnswer(2)),
	`{"choices":[{"finish_reason":"length"}],"kv_transfer_params":null}`,
	`{"choices":[{"finish_reason":"length"}],"kv_transfer_p\u0061rams":{"a":18446744073709551616,"b":{"c":[1e400]}}}`,
	"{\"choices\":\n[{\"text\":\"\",\"message\":{\"tool_calls\":[{}]},\"finish_reason\":\"stop\"}],\"usage\":{}}",
	`{"error":null,"choices":[{"finish_reason":"not_finished","disaggregated_params":{"ctx_request_id":1,"disagg_request_id":"x","ctx_usage":1}}],"usage":{},"prompt_token_ids":[[1,2]]}`,
	`{"choices":[{"disaggregated_params":{"ctx_request_id":1,"disagg_request_id":2}}],"prompt_token_ids":[]}`,
	`{"choices":[{"disaggregated_params":{"request_type":{},"request_typ\u0065":1,"ctx_request_id":1,"disagg_request_id":2}}]}`,
	`{"choices":[1],"meta_info":{}}`, `[]`, `{`,
}

var fuzzBodies = []string{
	`{"model":"m","messages":[{"role":"user","content":"}"}],"stream":true,"stream_options":{"include_usage":true}}`,
	`{"min_tokens":1,"model":"m","prompt":[1,2],"max_tokens":3,"x":1e400}`, ` {"model" : "m" , "messages":[], "prompt":"a" } `,
	`{"min_tokens":0,"model":"m","prompt":"a","min_completion_tokens":-1.5}`, `{"min_tokens":null,"min_completion_tokens":[7],"model":"m","prompt":"a"}`,
	`{"prompt_token_ids_b64":"","model":"m","messages":[],"prompt":["a"],"prompt_token_ids":[1],"max_completion_tokens":5}`,
}

// FuzzReadAnswer compares what ReadAnswer reads with what encoding/json reads.
func FuzzReadAnswer(f *testing.F) {
	for _, a := range fuzzAnswers {
		f.Add([]byte(a), false, false)
		f.Add([]byte(a), true, true)
	}
	f.Fuzz(func(t *testing.T, answer []byte, trt, alone bool) {
		k := vllm.HandOff
		if trt {
			k = trtllm.HandOff
		}
		res, err := handoff.ReadAnswer(k, answer, alone)
		if err != nil {
			var why handoff.Malformed
			require.ErrorAs(t, err, &why)
			require.Zero(t, res)
			return
		}
		require.NotZero(t, res.Verdict)
		require.True(t, res.Held() || res.Verdict != handoff.HandOff)
		require.True(t, !alone || !res.Held() && (res.Verdict == handoff.Finished || res.Verdict == handoff.Failed))
		top := decodeObject(t, answer)
		if !res.Held() {
			return
		}
		want := top["kv_transfer_params"]
		if trt {
			var choices []object
			require.NoError(t, json.Unmarshal(top["choices"], &choices))
			require.Len(t, choices, 1)
			want = choices[0]["disaggregated_params"]
			require.Contains(t, []string{"", string(top["prompt_token_ids"])}, string(res.PromptIDs.Of(answer)))
			require.Contains(t, []string{"", string(top["usage"])}, string(res.Usage.Of(answer)))
		}
		require.Equal(t, string(want), string(res.HandOff.Of(answer)))
		require.NotEmpty(t, decodeObject(t, want))
	})
}

// FuzzAppendDecode compares the bodies of all legs with the same edits made on a map:
// what is injected must be there, and the client's members must be unchanged.
func FuzzAppendDecode(f *testing.F) {
	for _, b := range fuzzBodies {
		for _, a := range fuzzAnswers {
			for i := range 4 {
				f.Add([]byte(b), []byte(a), i&1 > 0, i&2 > 0)
			}
		}
	}
	f.Fuzz(func(t *testing.T, body, answer []byte, trt, chat bool) {
		k, path := vllm.HandOff, openai.Completions
		if trt {
			k = trtllm.HandOff
		}
		if chat {
			path = openai.ChatCompletions
		}
		var r openai.Request
		if openai.Scan(path, body, &r) != nil {
			return
		}
		res, err := handoff.ReadAnswer(k, answer, false)
		if err != nil {
			return
		}
		want := decodeObject(t, body)
		injectWanted(t, want, answer, res, trt, chat)
		out := handoff.AppendDecode([]byte("x"), body, &r, k, answer, res)[1:]
		require.Equal(t, want, legObject(t, path, out))
		if !trt && res.Held() {
			require.Equal(t, string(body[:r.End()])+`,"kv_transfer_params":`+string(res.HandOff.Of(answer))+string(body[r.End():]), string(out))
		}
		if !res.Held() {
			require.Equal(t, string(body), string(out))
		}
		oneTokenWanted(want, &r)
		require.Equal(t, want, legObject(t, path, handoff.AppendCollect(nil, body, &r, k, answer, res)))

		prefill := legObject(t, path, handoff.AppendPrefill(nil, body, &r, k, testID, false))
		want = decodeObject(t, body)
		oneTokenWanted(want, &r)
		for _, added := range []string{"kv_transfer_params", "disaggregated_params"} {
			require.Equal(t, trt == (added == "disaggregated_params"), prefill[added] != nil)
			delete(prefill, added)
		}
		require.Equal(t, want, prefill)
	})
}

// legObject decodes a leg's body, which the plugin itself must accept.
func legObject(t *testing.T, path openai.Path, out []byte) object {
	t.Helper()
	var again openai.Request
	require.NoError(t, openai.ScanInjected(path, out, &again), "%q", out)
	return decodeObject(t, out)
}

// injectWanted makes on a map the changes that decode's body gets.
func injectWanted(t *testing.T, want object, answer []byte, res handoff.Result, trt, chat bool) {
	t.Helper()
	switch {
	case !res.Held():
	case !trt:
		want["kv_transfer_params"] = res.HandOff.Of(answer)
	default:
		params := decodeObject(t, res.HandOff.Of(answer))
		params["request_type"] = json.RawMessage(`"generation_only"`)
		if res.Usage.End > 0 {
			params["ctx_usage"] = res.Usage.Of(answer)
		}
		// The object keeps the engine's order and white space: compare its members, and
		// then put in the real bytes.
		var r openai.Request
		plain := []byte(`{"model":"m","prompt":"a"}`)
		require.NoError(t, openai.Scan(openai.Completions, plain, &r))
		got := decodeObject(t, handoff.AppendDecode(nil, plain, &r, trtllm.HandOff, answer, res))["disaggregated_params"]
		require.Equal(t, params, decodeObject(t, got))
		want["disaggregated_params"] = got
		if res.PromptIDs.End > 0 && chat {
			want["prompt_token_ids"] = res.PromptIDs.Of(answer)
			delete(want, "prompt_token_ids_b64")
		} else if res.PromptIDs.End > 0 {
			want["prompt"] = res.PromptIDs.Of(answer)
		}
	}
}

func oneTokenWanted(want object, r *openai.Request) {
	delete(want, "stream_options")
	for _, floor := range []string{"min_tokens", "min_completion_tokens"} {
		switch v := string(want[floor]); {
		case v == "", v == "null", v == "0", v[0] == '-':
			delete(want, floor)
		default:
			want[floor] = json.RawMessage(`1`)
		}
	}
	want["stream"] = json.RawMessage(`false`)
	one := r.Has(openai.MaxCompletionTokens)
	if one {
		want["max_completion_tokens"] = json.RawMessage(`1`)
	}
	if !one || r.Path != openai.ChatCompletions || want["max_tokens"] != nil {
		want["max_tokens"] = json.RawMessage(`1`)
	}
}

func choicesOf(t *testing.T, o object) []object {
	t.Helper()
	var choices []object
	require.NoError(t, json.Unmarshal(o["choices"], &choices))
	return choices
}

// FuzzAppendFinal: whatever the answer, the client gets JSON or well-formed events
// without anything of the hand-off.
func FuzzAppendFinal(f *testing.F) {
	for _, b := range fuzzBodies {
		for _, a := range fuzzAnswers {
			f.Add([]byte(b), []byte(a), false)
			f.Add([]byte(b), []byte(a), true)
		}
	}
	f.Fuzz(func(t *testing.T, body, answer []byte, trt bool) {
		k, added := vllm.HandOff, []string{"kv_transfer_params"}
		if trt {
			k, added = trtllm.HandOff, []string{"disaggregated_params", "prompt_token_ids", "prompt_token_ids_b64"}
		}
		for _, path := range []openai.Path{openai.ChatCompletions, openai.Completions} {
			var r openai.Request
			if openai.Scan(path, body, &r) != nil {
				continue
			}
			out, contentType, err := handoff.AppendFinal(nil, answer, &r, body, k)
			if err != nil {
				require.Empty(t, out)
				continue
			}
			if !r.Stream {
				require.Equal(t, "application/json", contentType)
				want, got := decodeObject(t, answer), decodeObject(t, out)
				wantChoices, gotChoices := choicesOf(t, want), choicesOf(t, got)
				for _, o := range append(wantChoices, want) {
					for _, name := range added {
						delete(o, name)
					}
				}
				require.Equal(t, wantChoices, gotChoices)
				delete(want, "choices")
				delete(got, "choices")
				require.Equal(t, want, got)
				continue
			}
			for _, e := range events(t, out) {
				for _, o := range append(choicesOf(t, e), e) {
					for _, name := range added {
						require.NotContains(t, o, name)
					}
				}
			}
		}
	})
}

// FuzzTheBodyStaysOneObject: whatever was written to discovery about a worker, a leg's
// body stays one JSON object with the client's members, the router's, and no others.
func FuzzTheBodyStaysOneObject(f *testing.F) {
	f.Add("10.0.0.5", "e1", uint16(8998))
	f.Add(`fe80::1%","max_tokens":1,"x":"`, "a\"},\"b\":{\"c", uint16(1))
	f.Add("a\\", "\xff\u2028\x00", uint16(0))
	f.Fuzz(func(t *testing.T, host, id string, port uint16) {
		const body = `{"model":"m","prompt":"a"}`
		meeting := handoff.Meeting{Bootstrap: worker.Bootstrap{Host: host, Port: port, EngineIDs: []string{id}}, Room: 7}
		for members, want := range map[string][]string{
			string(sglang.HandOff.Together.Members(nil, &meeting)): {
				"model", "prompt", "bootstrap_host", "bootstrap_port", "bootstrap_room",
			},
			string(vllmmooncake.HandOff.Together.Members(nil, &meeting)): {
				"model", "prompt", "kv_transfer_params",
			},
		} {
			var r openai.Request
			require.NoError(t, openai.Scan(openai.Completions, []byte(body), &r))
			var got map[string]any
			require.NoError(t, json.Unmarshal(openai.InjectInPlace([]byte(body), &r, []byte(members)), &got))
			require.ElementsMatch(t, want, slices.Collect(maps.Keys(got)))
			if params, is := got["kv_transfer_params"].(map[string]any); is {
				require.Len(t, params, 5)
			}
		}
	})
}
