package openai

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScanAnswer(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		want       Answer
	}{
		{"a chat answer", `{"id":"x","choices":[{"index":0,"message":{"content":"hi","finish_reason":"error"},"finish_reason":"length"}],"usage":{}}`, Answer{FinishReason: FinishLength, Choices: 1}},
		{"a context that was handed over", `{"choices":[{"finish_reason":"not_finished"}]}`, Answer{Choices: 1}},
		{"the most telling of several choices", `{"choices":[{"finish_reason":"stop"},{"finish_reason":"abort"},{"finish_reason":null}]}`, Answer{FinishReason: FinishAbort, Choices: 3}},
		{"a reason with an escaped key", `{"choices":[{"finish\u005freason":"stop"}]}`, Answer{FinishReason: FinishStop, Choices: 1}},
		{"a reason of its own", `{"choices":[{"finish_reason":"repetition"}]}`, Answer{FinishReason: FinishOther, Choices: 1}},
		{"generate", `{"text":"a","meta_info":{"id":"x","finish_reason":{"type":"length","length":1}}}`, Answer{FinishReason: FinishLength, Choices: 1}},
		{"generate with a plain reason", `{"meta_info":{"finish_reason":"stop"}}`, Answer{FinishReason: FinishStop, Choices: 1}},
		{"a batch with an abort", ` [{"meta_info":{"finish_reason":{"type":"length"}}},{"meta_info":{"finish_reason":{"type":"abort","status_code":500}}}] `, Answer{FinishReason: FinishAbort, Choices: 2}},
		{"an OpenAI error", `{"error":{"message":"x"}}`, Answer{HasError: true}},
		{"an SGLang error", `{"object":"error","message":"x"}`, Answer{HasError: true}},
		{"error null is none", `{"error":null,"choices":[{"finish_reason":"tool_calls"}]}`, Answer{FinishReason: FinishToolCall, Choices: 1}},
		{"a usage", `{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":0}}`,
			Answer{FinishReason: FinishLength, Choices: 1, Usage: Usage{Prompt: 7, HasOutput: true}, HasUsage: true}},
		{"a usage that does not tell what was made", `{"choices":[{}],"usage":{"prompt_tokens":7,"completion_tokens":null}}`, Answer{Choices: 1, Usage: Usage{Prompt: 7}, HasUsage: true}},
		{"the usages of a batch", `[{"meta_info":{"prompt_tokens":7,"completion_tokens":1,"cached_tokens":4}},{"meta_info":{"prompt_tokens":9,"completion_tokens":2,"cached_tokens":0}}]`,
			Answer{Choices: 2, Usage: Usage{Prompt: 16, Output: 3, HasOutput: true, Cached: 4, HasCached: true}, HasUsage: true}},
		{"a batch of which one tells none", `[{"meta_info":{"prompt_tokens":7,"completion_tokens":1}},{"meta_info":{}}]`, Answer{Choices: 2}},
		{"odd types are passed over", `{"choices":{},"meta_info":[],"object":1}`, Answer{Choices: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ScanAnswer([]byte(tt.body))
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
	for _, body := range []string{``, `null`, `"a"`, `{"choices":[{"finish_reason":"length"}]`, `{"choices":[{"finish_reason":"length}]}`, `{}{}`, `data: {}`} {
		_, err := ScanAnswer([]byte(body))
		var e *Error
		require.ErrorAs(t, err, &e, body)
		require.Equal(t, NotJSON, e.Kind)
	}
	require.True(t, FinishError.Failed())
	require.False(t, FinishLength.Failed())
}

func TestErrorBodies(t *testing.T) {
	require.Equal(t, `{"error":{"message":"no \"x\"","type":"invalid_request_error","param":"model","code":"missing_field"}}`,
		string(AppendError(nil, 400, "", "missing_field", `no "x"`, "model")))
	require.Equal(t, `{"error":{"message":"m","type":"overloaded","param":null,"code":null}}`,
		string(AppendError(nil, 503, "overloaded", "", "m", "")))
	require.Equal(t, `{"error":{"message":"m","type":"t","param":null,"code":"c","reason":"full","queued":7}}`,
		string(AppendError(nil, 429, "t", "c", "m", "", `"reason":"full"`, `"queued":7`)))
	event := string(AppendSSEErrorAt(nil, "", 502, "", "c", "a\nb\u2028\x01\xff", ""))
	require.Equal(t, "data: {\"error\":{\"message\":\"a\\nb\\u2028\\u0001\ufffd\",\"type\":\"server_error\",\"param\":null,\"code\":\"c\"}}\n\n", event)
	for status, want := range map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
		404: "not_found_error", 413: "invalid_request_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"} {
		var got struct{ Error struct{ Type string } }
		require.NoError(t, json.Unmarshal(AppendError(nil, status, "", "", "", ""), &got))
		require.Equal(t, want, got.Error.Type)
	}
}

func TestTheLastFinishReasonOfAPartIsFound(t *testing.T) {
	for text, want := range map[string]FinishReason{
		``:                      FinishNone,
		`{"finish_reason"`:      FinishNone,
		`"finish_reason" : `:    FinishNone,
		`"finish_reason":"ab`:   FinishNone,
		`"finish_reason":null}`: FinishNone,
		`data: {"choices":[{"text":"a","finish_reason":"abort"}]}` + "\n\n":                                  FinishAbort,
		`{"choices":[{"finish_reason":"stop","text":"\"finish_reason\":\"abort\""}]}`:                        FinishStop,
		`{"meta_info":{"finish_reason" : {"message":"it is gone", "type":"abort"},"prompt_tokens":3}}`:       FinishAbort,
		`data: {"choices":[{"finish_reason":null}]}` + "\n\n" + `data: {"choices":[{"finish_reason":"error"`: FinishError,
		`{"finish_reason":{"type":"len`: FinishNone,
	} {
		require.Equal(t, want, FindFinish([]byte(text)), text)
	}
}
