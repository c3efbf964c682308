package handoff_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/trtllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllmmooncake"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// TestWhatPreventsAHandOff: a request that asks for what only the computation of its prompt
// shows, or for several generations, is not handed over, and the member that asks for it is
// named. The same member with a value that asks for nothing prevents nothing, and neither
// does one that the engine drops. One of which that is not known prevents a hand-off.
func TestWhatPreventsAHandOff(t *testing.T) {
	nixl, moon, meets, trt := vllm.HandOff, vllmmooncake.HandOff, sglang.HandOff, trtllm.HandOff
	chat, completion, generate := `{"model":"m","messages":[]%}`, `{"model":"m","prompt":"a"%}`, `{"text":"a"%}`
	every := []handoff.Kind{nixl, moon, meets, trt, engines.Sidecar}
	rows := []struct {
		of       []handoff.Kind
		body     string
		members  string // separated by a bar; each alone prevents it
		not      string // the same; none does
		obstacle string
	}{
		{[]handoff.Kind{nixl, moon}, chat, `"prompt_logprobs":0|"prompt_logprobs":1|"prompt_logprobs":-1|"prompt_logprobs":false`, `"prompt_logprobs":null`, "prompt_logprobs"},
		{[]handoff.Kind{nixl, moon}, completion, `"prompt_logprobs":5|"stream":true,"prompt\u005flogprobs":0`, `"prompt_logprobs":null|"logprobs":5`, "prompt_logprobs"},
		{[]handoff.Kind{nixl, moon}, chat, `"echo":true|"echo":true,"logprobs":true`, `"echo":false|"echo":null|"logprobs":true,"top_logprobs":200`, "echo"},
		{[]handoff.Kind{nixl, moon}, completion, `"echo":true,"logprobs":0|"logprobs":1,"echo":true|"echo":1,"logprobs":2`, `"echo":true|"echo":true,"logprobs":null|"echo":false,"logprobs":1|"echo":0,"logprobs":1`, "echo"},
		{[]handoff.Kind{nixl, moon, trt}, chat, `"use_beam_search":true|"use_beam_search":"True"|"use_beam_search":1`, `"use_beam_search":false|"use_beam_search":null|"use_beam_search":"no"`, "use_beam_search"},
		{[]handoff.Kind{nixl, moon, trt}, completion, `"use_beam_search":true`, `"use_beam_search":0`, "use_beam_search"},
		{[]handoff.Kind{nixl, moon, trt}, completion, `"best_of":2|"best_of":3.0`, `"best_of":1|"best_of":null|"best_of":1.0`, "best_of"},
		{[]handoff.Kind{nixl, moon}, completion, `"prompt_embeds":"AAAA"|"prompt_embeds":["AAAA","BBBB"]`, `"prompt_embeds":null|"prompt_embeds":[]`, "prompt_embeds"},
		{[]handoff.Kind{trt}, completion, `"return_context_logits":true`, `"return_context_logits":false`, "return_context_logits"},
		{[]handoff.Kind{meets}, completion, `"echo":true,"logprobs":1`, `"echo":true,"logprobs":0|"echo":true|"logprobs":5|"logprobs":128|"best_of":2|"prompt_logprobs":1|"use_beam_search":true`, "echo"},
		{[]handoff.Kind{meets}, completion, `"logprobs":129`, `"logprobs":128`, "logprobs"},
		{[]handoff.Kind{meets}, chat, `"logprobs":true,"top_logprobs":129`, `"logprobs":true,"top_logprobs":20|"logprobs":false,"top_logprobs":500|"echo":true`, "top_logprobs"},
		{[]handoff.Kind{meets}, generate,
			`"return_logprob":true,"logprob_start_len":0|"logprob_start_len":7,"return_logprob":true|"return_logprob":[false,true],"logprob_start_len":[-1,0]|"return_logprob":"true","logprob_start_len":"0"`,
			`"return_logprob":true|"return_logprob":true,"logprob_start_len":-1|"return_logprob":true,"logprob_start_len":null|"logprob_start_len":0|"return_logprob":false,"logprob_start_len":0|"return_logprob":[false,null],"logprob_start_len":[0,0]|"return_logprob":[true,true],"logprob_start_len":[-1,null]`,
			"logprob_start_len"},
		{[]handoff.Kind{meets}, generate, `"return_logprob":true,"token_ids_logprob":[1]|"return_logprob":true,"token_ids_logprob":[[1,2],null]`,
			`"token_ids_logprob":[1]|"return_logprob":true,"token_ids_logprob":[]|"return_logprob":true,"token_ids_logprob":[null,null]`, "token_ids_logprob"},
		{[]handoff.Kind{meets}, generate, `"return_logprob":true,"top_logprobs_num":129|"return_logprob":true,"top_logprobs_num":[2,200]`,
			`"return_logprob":true,"top_logprobs_num":5|"top_logprobs_num":500`, "top_logprobs_num"},
		{[]handoff.Kind{meets}, generate, `"return_hidden_states":true|"return_hidden_states":"last"|"return_hidden_states":[false,true]`, `"return_hidden_states":false|"return_hidden_states":[false]`, "return_hidden_states"},
		{[]handoff.Kind{meets}, chat, `"return_hidden_states":true`, `"return_hidden_states":null`, "return_hidden_states"},
		{[]handoff.Kind{meets}, completion, `"return_routed_experts":true`, `"return_routed_experts":false`, "return_routed_experts"},
		{[]handoff.Kind{meets}, generate, `"return_routed_experts":true`, `"return_routed_experts":0`, "return_routed_experts"},
		{[]handoff.Kind{meets}, generate, `"return_indexer_topk":true`, `"return_indexer_topk":false`, "return_indexer_topk"},
		{[]handoff.Kind{meets}, generate, `"input_embeds":[[0.5,1]]`, `"input_embeds":null`, "input_embeds"},
		{[]handoff.Kind{meets}, generate, `"sampling_params":{"n":2}|"sampling_params":[{},{"n":2}]`, `"sampling_params":{"n":1}`, "sampling_params.n"},
		{[]handoff.Kind{meets}, generate, `"sampling_params":{"beam_width":4}|"sampling_params":[{"beam_width":1},{"beam_width":2}]`,
			`"sampling_params":{"beam_width":1}|"sampling_params":{"beam_width":null}|"sampling_params":null|"sampling_params":[{}]`, "sampling_params.beam_width"},
		{[]handoff.Kind{meets}, generate, `"sampling_params":{"of_later":4}|"sampling_params":[{},{"of_later":0}]`, `"sampling_params":{"of_later":null}`, "sampling_params.of_later"},
		{[]handoff.Kind{meets}, generate, `"n":2`, `"n":null`, "n"},
		{every, chat, `"of_later":1|"of\u005flater":{}|"messages ":[]|"of_later":false`, `"of_later":null|"of_later":null,"temperature":0`, ""},
		{every, completion, `"of_later":1`, `"of_later":null`, "of_later"},
		{every, chat, `"n":2`, `"n":1|"n":null`, "n"},
		{every, completion, `"n":2`, `"n":1`, "n"},
		{[]handoff.Kind{nixl, moon, trt, engines.Sidecar}, generate, ``, "", handoff.NoPath},
		{[]handoff.Kind{engines.Sidecar}, completion, `"prompt_logprobs":0|"echo":true,"logprobs":0`, `"logprobs":1`, ""},
	}
	ask := func(k handoff.Kind, template, members string) string {
		if members != "" {
			members = "," + members
		}
		body := []byte(strings.Replace(template, "%", members, 1))
		path := map[string]openai.Path{chat: openai.ChatCompletions, completion: openai.Completions, generate: openai.Generate}[template]
		var r openai.Request
		require.NoError(t, openai.Scan(path, body, &r), "%s", body)
		return handoff.Hindrance(k, body, &r, nil).Member
	}
	for _, row := range rows {
		for _, k := range row.of {
			for members := range strings.SplitSeq(row.members, "|") {
				got := ask(k, row.body, members)
				require.NotEmpty(t, got, "%v: %s", k, members)
				if row.obstacle != "" {
					require.Equal(t, row.obstacle, got, "%v: %s", k, members)
				}
			}
			if row.not == "" {
				continue
			}
			for members := range strings.SplitSeq(row.not, "|") {
				require.Empty(t, ask(k, row.body, members), "%v: %s", k, members)
			}
		}
	}
}
