package aschat_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/aschat"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// chatOf returns the chat request of a body without the outermost braces and what all have.
func chatOf(t *testing.T, rules aschat.Rules, p openai.Path, body string) (string, bool) {
	t.Helper()
	var r openai.Request
	require.NoError(t, openai.Scan(p, []byte(body), &r), body)
	made, ok := rules.Message, false
	if p == openai.Responses {
		made = rules.Response
	}
	chat, ok := made([]byte(body), &r)
	if !ok {
		return "", false
	}
	require.True(t, json.Valid(chat), "%s", chat)
	require.NoError(t, openai.Scan(openai.ChatCompletions, chat, new(openai.Request)))
	got, begins := strings.CutPrefix(string(chat), `{"model":"m",`)
	require.True(t, begins)
	return strings.TrimSuffix(got, "}"), true
}

const aTool = `"name":"f","description":"d \"q\"","input_schema":{"type":"object","properties":{"a":{"type":"string"}}}`

// TestAMessageAsAChat: as vLLM 0.32 makes it (to_chat_completion_request).
func TestAMessageAsAChat(t *testing.T) {
	for body, want := range map[string]string{
		`"messages":[{"role":"user","content":"a\n\"b\""}]`:       `"messages":[{"role":"user","content":"a\n\"b\""}]`,
		`"system":"s","messages":[{"role":"user","content":"a"}]`: `"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]`,
		`"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"s","cache_control":{"type":"ephemeral"}},{"type":"text","text":"t"}],"messages":[{"role":"user","content":"a"}]`:                                                                        `"messages":[{"role":"system","content":"st"},{"role":"user","content":"a"}]`,
		`"system":"","messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"text":"b","type":"text"},{"type":"text","text":""},{"type":"text","text":"c"}]}]`:                                                                               `"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]`,
		`"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f","input":{"a": "b"}},{"type":"text","text":"x"},{"type":"tool_use","id":"j","name":"g","input":null}]}]`:                                                                                       `"messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{\"a\": \"b\"}"}},{"id":"j","type":"function","function":{"name":"g","arguments":"{}"}}]}]`,
		`"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"tool_result","tool_use_id":"i","content":"r"},{"type":"tool_result","tool_use_id":"j","content":[{"type":"text","text":"1"},{"type":"text","text":"2"}]},{"type":"tool_result","tool_use_id":"k"}]}]`: `"messages":[{"role":"tool","tool_call_id":"i","content":"r"},{"role":"tool","tool_call_id":"j","content":"1\n2"},{"role":"tool","tool_call_id":"k","content":""},{"role":"user","content":"x"}]`,
		`"messages":[{"role":"user","content":"a"}],"tools":[{` + aTool + `}],"tool_choice":{"type":"any"},"chat_template_kwargs":{"x":1},"thinking":{"type":"enabled","budget_tokens":2000}`:                                                                                            `"chat_template_kwargs":{"x":1},"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","description":"d \"q\"","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],"tool_choice":"required"`,
	} {
		got, ok := chatOf(t, aschat.Rules{}, openai.AnthropicMessages, `{`+body+`}`)
		require.True(t, ok, body)
		require.Equal(t, want, got)
	}
	for _, body := range []string{
		`"messages":[]`,
		`"messages":[{"role":"system","content":"a"}]`,
		`"messages":[{"role":"user"}]`,
		`"messages":["a"]`,
		`"messages":[{"role":"assistant","content":[]}]`,
		`"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"}]}]`,
		`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"u"}}]}]`,
		`"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[{"type":"image"}]}]}]`,
		`"messages":[{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"i","content":"r"}]}]`,
		`"messages":[{"role":"user","content":"a"}],"tools":[{"type":"web_search_20250305","name":"web_search"}]`,
		`"messages":[{"role":"user","content":"a"}],"tools":[{"name":"f","input_schema":{}}]`,
		`"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"tool","name":"f"}`,
		`"messages":[{"role":"user","content":"a"}],"thinking":{"type":"disabled"}`,
		`"messages":[{"role":"user","content":"a"}],"output_config":{"effort":"low"}`,
		`"system":5,"messages":[{"role":"user","content":"a"}]`,
	} {
		_, ok := chatOf(t, aschat.Rules{}, openai.AnthropicMessages, `{`+body+`}`)
		require.False(t, ok, body)
	}
}

// TestAResponseAsAChat: as vLLM 0.32 makes it (construct_input_messages), and SGLang 0.5.23.
func TestAResponseAsAChat(t *testing.T) {
	for body, want := range map[string]string{
		`"input":"a"`: `"messages":[{"role":"user","content":"a"}]`,
		`"instructions":"s","input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}]`:                                                                                                                                                         `"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`,
		`"input":[{"type":"message","role":"system","content":"s"},{"role":"user","content":"a"},{"id":"m","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"b","annotations":[]}]},{"role":"user","content":"c"}]`:                          `"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`,
		`"input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"type":"function_call","call_id":"i","name":"f","arguments":"{\"a\":1}"},{"type":"function_call","call_id":"j","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"i","output":"r"}]`: `"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"j","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"i","content":"r"}]`,
		`"input":"a","tools":[{"type":"function","name":"f","description":null,"parameters":{"type":"object"},"strict":true}],"tool_choice":"none"`:                                                                                                                                          `"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"},"strict":true}}],"tool_choice":"none"`,
		`"input":[{"type":"function_call","call_id":"i","name":"f","arguments":"{}"},{"role":"assistant","content":"b"}]`:                                                                                                                                                                    `"messages":[{"role":"assistant","content":"b","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{}"}}]}]`,
	} {
		got, ok := chatOf(t, aschat.Rules{}, openai.Responses, `{`+body+`}`)
		require.True(t, ok, body)
		require.Equal(t, want, got)
	}
	got, ok := chatOf(t, aschat.Rules{PartsOfAssistant: true}, openai.Responses, `{"input":[{"role":"assistant","content":[{"type":"output_text","text":"b"}]}]}`)
	require.True(t, ok)
	require.Equal(t, `"messages":[{"role":"assistant","content":[{"type":"text","text":"b"}]}]`, got)
	for _, body := range []string{
		`"input":[]`,
		`"input":[{"role":"developer","content":"a"}]`,
		`"input":[{"role":"user","content":"a"},{"role":"system","content":"s"}]`,
		`"input":[{"type":"reasoning","summary":[]}]`,
		`"input":[{"type":"item_reference","id":"x"}]`,
		`"input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]`,
		`"input":[{"role":"assistant","content":"a","status":"incomplete"}]`,
		`"input":[{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}]`,
		`"input":[{"role":"assistant","content":[{"type":"output_text","text":"a"},{"type":"output_text","text":"b"}]}]`,
		`"input":[{"type":"function_call_output","call_id":"i","output":[{"type":"input_text","text":"r"}]}]`,
		`"input":[{"type":"function_call","call_id":"i","namespace":"n","name":"f","arguments":"{}"}]`,
		`"input":"a","tools":[{"type":"web_search"}]`,
		`"input":"a","tool_choice":{"type":"function","name":"f"}`,
		`"input":"a","reasoning":{"effort":"low"}`,
		`"input":"a","previous_input_messages":[]`,
		`"input":"a","previous_response_id":"resp_1"`,
		`"input":"a","instructions":["a"]`,
	} {
		_, ok := chatOf(t, aschat.Rules{}, openai.Responses, `{`+body+`}`)
		require.False(t, ok, body)
	}
}
