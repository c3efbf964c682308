package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const asked = `{"model":"m","prompt":[1,2,3],"max_tokens":10,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}`

func ev(text, ids, more string) string {
	return fmt.Sprintf("data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":%q,\"logprobs\":null,\"finish_reason\":null,\"prompt_token_ids\":null,\"token_ids\":%s%s}]}\n\n", text, ids, more)
}

func begun() string {
	return strings.Replace(ev(" a", "[7]", ""), `"prompt_token_ids":null`, `"prompt_token_ids":[1,2,3]`, 1)
}

func TestTheNextRequestBeginsWithWhatWasDelivered(t *testing.T) {
	t.Parallel()
	p, err := For("/v1/completions", []byte(asked+"}"), []byte(begun()+ev(" b", "[8,9]", "")))
	require.NoError(t, err)
	var next map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(p.Ask, &next))
	require.JSONEq(t, "[1,2,3,7,8,9]", string(next["prompt"]))
	require.Equal(t, "7", string(next["max_tokens"]))
	require.Equal(t, Plan{Ask: p.Ask, ID: "cmpl-1", Created: "5", Delivered: 3}, p)
}

// A token that ends within a character has no text yet: it is made again.
func TestTokensWhoseTextHasNotComeAreMadeAgain(t *testing.T) {
	t.Parallel()
	p, err := For("/v1/completions", []byte(asked+"}"), []byte(begun()+ev("", "[8]", "")+ev("", "[9]", "")))
	require.NoError(t, err)
	require.Contains(t, string(p.Ask), `"prompt":[1,2,3,7]`)
	require.Equal(t, 1, p.Delivered)
	require.Equal(t, 2, p.Replaced)
}

func TestWhatIsMissingAtTheEndIsSaid(t *testing.T) {
	t.Parallel()
	last := strings.Replace(ev(" b", "[8]", ""), `"finish_reason":null`, `"finish_reason":"stop"`, 1)
	usage := "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\",\"choices\":[],\"usage\":{\"completion_tokens\":2,\"prompt_tokens\":3,\"total_tokens\":5}}\n\n"
	p, err := For("/v1/completions", []byte(asked+"}"), []byte(begun()+last))
	require.NoError(t, err)
	require.Nil(t, p.Ask)
	require.Equal(t, usage+"data: [DONE]\n\n", string(p.End))
	p, err = For("/v1/completions", []byte(asked+"}"), []byte(begun()+last+usage))
	require.NoError(t, err)
	require.Equal(t, "data: [DONE]\n\n", string(p.End))
}

func TestAChatGoesOnFromItsText(t *testing.T) {
	t.Parallel()
	first := "data: {\"id\":\"chatcmpl-1\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"prompt_token_ids\":[1,2]}\n\n"
	second := "data: {\"id\":\"chatcmpl-1\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Yes\"},\"finish_reason\":null,\"token_ids\":[4,5]}]}\n\n"
	p, err := For("/v1/chat/completions", []byte(`{"messages":[{"role":"user","content":"?"}],"max_completion_tokens":9}`), []byte(first+second))
	require.NoError(t, err)
	require.JSONEq(t, `{"messages":[{"role":"user","content":"?"},{"role":"assistant","content":"Yes"}],"max_completion_tokens":7,
		"add_generation_prompt":false,"continue_final_message":true}`, string(p.Ask))
}

func TestWhatCannotGoOnIsRefused(t *testing.T) {
	t.Parallel()
	for more, why := range map[string]string{
		`,"n":2}`:                 "n",
		`,"logprobs":1}`:          "logprobs",
		`,"logprobs":0}`:          "logprobs",
		`,"logprobs":null,"n":1}`: "",
		`,"echo":true}`:           "echo",
		`,"stop":["x"]}`:          "stop",
		`,"response_format":{"type":"json_object"}}`: "response_format",
		`,"structured_outputs":{"regex":"a"}}`:       "structured_outputs",
		`,"tools":[{}]}`:                             "tools",
		`,"min_tokens":3}`:                           "min_tokens",
		`,"presence_penalty":0.5}`:                   "presence_penalty",
		`,"temperature":1,"seed":3}`:                 "",
	} {
		_, err := For("/v1/completions", []byte(asked+more), []byte(begun()))
		if why == "" {
			require.NoError(t, err, more)
			continue
		}
		var r Refused
		require.True(t, errors.As(err, &r), more)
		require.Equal(t, why, r.Why)
	}
	for name, c := range map[string]struct{ request, delivered, why string }{
		"no room":        {strings.Replace(asked, "10", "1", 1) + "}", begun(), "no room under max_tokens"},
		"no limit":       {`{"prompt":"x"}`, begun(), "no max_tokens"},
		"no ids":         {asked + "}", ev(" a", "null", ""), "text without token ids"},
		"no prompt ids":  {asked + "}", ev(" a", "[7]", ""), "the prompt's token ids are not known"},
		"nothing came":   {asked + "}", "", "no event was delivered"},
		"two choices":    {asked + "}", strings.Replace(begun(), `"index":0`, `"index":1`, 1), "several choices"},
		"an error event": {asked + "}", begun() + "data: {\"error\":{\"message\":\"x\"}}\n\n", "the answer has an error"},
		"reasoning":      {asked + "}", strings.Replace(begun(), `"text":" a"`, `"delta":{"reasoning":"hm"}`, 1), "tool calls or reasoning in the answer"},
		"a tool call":    {asked + "}", strings.Replace(begun(), `"text":" a"`, `"delta":{"tool_calls":[{}]}`, 1), "tool calls or reasoning in the answer"},
	} {
		_, err := For("/v1/completions", []byte(c.request), []byte(c.delivered))
		require.Equal(t, Refused{c.why}, err, name)
	}
}
