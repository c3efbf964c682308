//go:build real

package real

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine"
	sglangroom "github.com/seed-60ae5743/baton/internal/engine/sglang"
	vllmroom "github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// conversations are bodies of responses and messages that Baton converts itself.
var conversations = []struct{ path, body string }{
	{"/v1/responses", `{"model":"M","input":"Say a word."}`},
	{"/v1/responses", `{"model":"M","instructions":"Be \"short\".\nAnd kind — äöü 😀.","input":[{"role":"user","content":"Say a word."}]}`},
	{"/v1/responses", `{"model":"M","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Say"},{"type":"input_text","text":"a word."}]}]}`},
	{"/v1/responses", `{"model":"M","input":[{"role":"system","content":"Short."},{"role":"user","content":"Say a word."},{"role":"assistant","content":"Word."},{"role":"user","content":"Another."}]}`},
	{"/v1/responses", `{"model":"M","input":[{"role":"user","content":"a"},{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"b","annotations":[]}]},{"role":"user","content":"c"}]}`},
	{"/v1/responses", `{"model":"M","input":"Weather?","tools":[TOOL]}`},
	{"/v1/responses", `{"model":"M","input":"Weather?","tool_choice":"none","tools":[TOOL]}`},
	{"/v1/responses", `{"model":"M","tools":[TOOL],"input":[{"role":"user","content":"Weather?"},{"role":"assistant","content":"I look."},{"type":"function_call","call_id":"c1","name":"get_weather","arguments":"{\"city\": \"Köln\", \"days\": 2}"},{"type":"function_call","call_id":"c2","name":"get_weather","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"Sunny."},{"type":"function_call_output","call_id":"c2","output":"{\"a\":1}"},{"role":"user","content":"Thanks."}]}`},
	{"/v1/responses", `{"model":"M","input":"a","chat_template_kwargs":{"enable_thinking":false}}`},
	{"/v1/messages", `{"model":"M","max_tokens":9,"messages":[{"role":"user","content":"Say a word."}]}`},
	{"/v1/messages", `{"model":"M","max_tokens":9,"system":"Be \"short\".\nAnd kind — äöü 😀.","messages":[{"role":"user","content":[{"type":"text","text":"Say a word."}]}]}`},
	{"/v1/messages", `{"model":"M","max_tokens":9,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1;"},{"type":"text","text":"Be short."},{"type":"text","text":" And kind.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"Say"},{"type":"text","text":"a word."}]},{"role":"assistant","content":"Word."},{"role":"user","content":"Another."}]}`},
	{"/v1/messages", `{"model":"M","max_tokens":9,"tools":[MTOOL],"messages":[{"role":"user","content":"Weather?"}]}`},
	{"/v1/messages", `{"model":"M","max_tokens":9,"tools":[MTOOL],"tool_choice":{"type":"any"},"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"get_weather","input":{"city":"Köln","days":2,"at":1.50}},{"type":"tool_use","id":"t2","name":"get_weather","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"Sunny."},{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"Rain"},{"type":"text","text":"and wind."}]},{"type":"text","text":"And?"}]}]}`},
	{"/v1/messages", `{"model":"M","max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"get_weather","input":{"city":"Köln"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1"}]}]}`},
	{"/v1/messages", `{"model":"M","max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"a"}]}`},
}

const tool = `"name":"get_weather","description":"Says the \"weather\".",`

func written(body, model string) string {
	return strings.NewReplacer(`"M"`, `"`+model+`"`,
		"MTOOL", `{`+tool+`"input_schema":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}`,
		"TOOL", `{"type":"function",`+tool+`"parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}`,
	).Replace(body)
}

// posted is the answer of an engine to a question, which it must take.
func posted(t *testing.T, url string, body []byte, into any) {
	t.Helper()
	resp, err := http.Post(url, "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s: %s\n%s", url, body, b)
	require.NoError(t, json.Unmarshal(b, into))
}

// asChat returns the ids that the engine gives the chat request which Baton makes of the body.
func asChat(t *testing.T, e *engine.Engine, url, path, body string) []uint32 {
	t.Helper()
	p, _ := openai.ParsePath(path)
	var r openai.Request
	require.NoError(t, openai.Scan(p, []byte(body), &r))
	chat, ok := e.AsChat([]byte(body), &r)
	require.True(t, ok, body)
	chat = bytes.Replace(chat, []byte(`"model":"m"`), []byte(`"model":"`+string(r.Model)+`"`), 1)
	var got struct{ Tokens []uint32 }
	posted(t, url+"/tokenize", chat, &got)
	require.NotEmpty(t, got.Tokens)
	return got.Tokens
}

// TestVLLMMakesTheSameChat: of each conversation vLLM's own page gives the tokens of the chat that Baton
// makes of it.
func TestVLLMMakesTheSameChat(t *testing.T) {
	e := engines.use(t, "vllm-1")[0]
	for _, c := range conversations {
		body := written(c.body, "qwen3")
		var want struct {
			TokenIDs []uint32 `json:"token_ids"`
		}
		posted(t, e.URL+c.path+"/render", []byte(body), &want)
		require.Equal(t, want.TokenIDs, asChat(t, &vllmroom.Engine, e.URL, c.path, body), body)
	}
	tellf(t, vllm, "responses and messages: the chat that Baton makes of them", "%d conversations, with tools and their answers: the tokens are those of vLLM's own pages", len(conversations))
}

// TestSGLangMakesTheSameChat: of each response SGLang counts as many tokens as the chat has.
func TestSGLangMakesTheSameChat(t *testing.T) {
	e := engines.use(t, "sglang-1")[0]
	n := 0
	for _, c := range conversations {
		if c.path != "/v1/responses" {
			continue
		}
		n++
		body := written(c.body, "tiny")
		var got struct {
			Usage struct {
				InputTokens int `json:"input_tokens"`
			}
		}
		posted(t, e.URL+c.path, []byte(strings.Replace(body, "{", `{"max_output_tokens":2,`, 1)), &got)
		require.Len(t, asChat(t, &sglangroom.Engine, e.URL, c.path, body), got.Usage.InputTokens, body)
	}
	tellf(t, sglang, "responses: the chat that Baton makes of them", "%d conversations, with tools and their answers: as many tokens as SGLang counts", n)
}
