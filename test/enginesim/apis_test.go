package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sglang"
)

// apiEvents are the events of a stream: their types, and the data of each.
func apiEvents(t *testing.T, body string) (kinds []string, data []map[string]any) {
	t.Helper()
	for e := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		kind, rest, ok := strings.Cut(strings.TrimPrefix(e, "event: "), "\ndata: ")
		require.True(t, ok, e)
		var d map[string]any
		require.NoError(t, json.Unmarshal([]byte(rest), &d), rest)
		require.Equal(t, kind, d["type"])
		if n, numbered := d["sequence_number"]; numbered {
			require.EqualValues(t, len(data), n)
		}
		kinds, data = append(kinds, kind), append(data, d)
	}
	return kinds, data
}

var sayHi = ChatTokens([]Message{{Role: "system", Content: "be short"}, {Role: "user", Content: "say hi"}}, true)

// TestResponsesAndMessages: plain and streamed, as vLLM and SGLang send them.
func TestResponsesAndMessages(t *testing.T) {
	for _, engine := range []worker.Engine{worker.VLLM, worker.SGLang} {
		t.Run(string(engine), func(t *testing.T) {
			s := start(t, Config{Role: worker.Aggregated, Engine: engine, PageSize: 4})
			const response = `{"model":"sim","instructions":"be short","input":"say hi"`
			limit := map[worker.Engine]int{worker.VLLM: 3, worker.SGLang: 5}[engine]
			r := post(t.Context(), s.URL()+"/v1/responses", response+fmt.Sprintf(`,"max_output_tokens":%d,"request_id":"resp_1"}`, limit))
			require.Equal(t, 200, r.status, r.body)
			var whole struct {
				ID, Object, Status string
				Output             []struct{ Content []struct{ Text string } }
				Usage              struct {
					In  int `json:"input_tokens"`
					Out int `json:"output_tokens"`
				}
			}
			require.NoError(t, json.Unmarshal([]byte(r.body), &whole), r.body)
			require.Equal(t, "resp_1 response incomplete", whole.ID+" "+whole.Object+" "+whole.Status)
			require.Equal(t, Answer(sayHi, 3), whole.Output[0].Content[0].Text)
			require.Equal(t, []int{len(sayHi), 3}, []int{whole.Usage.In, whole.Usage.Out})

			r = post(t.Context(), s.URL()+"/v1/responses", response+`,"stream":true}`)
			kinds, data := apiEvents(t, r.body)
			require.Equal(t, "response.created response.in_progress response.output_item.added response.content_part.added", strings.Join(kinds[:4], " "))
			require.Equal(t, "response.output_text.done response.content_part.done response.output_item.done response.completed", strings.Join(kinds[len(kinds)-4:], " "))
			require.Len(t, kinds, 8+core.DefaultOutput)
			require.Equal(t, Answer(sayHi, core.DefaultOutput), data[len(data)-4]["text"])

			message := `{"model":"sim","system":"be short","messages":[{"role":"user","content":[{"type":"text","text":"say hi"}]}]`
			r = post(t.Context(), s.URL()+"/v1/messages", message+`,"max_tokens":3}`)
			require.Equal(t, 200, r.status, r.body)
			require.Contains(t, r.body, fmt.Sprintf(`"content":[{"type":"text","text":%q}]`, Answer(sayHi, 3)))
			require.Contains(t, r.body, `"stop_reason":"max_tokens"`)
			require.Contains(t, r.body, `"cache_read_input_tokens":`)
			require.NotContains(t, r.body, "kv_transfer_params")
			r = post(t.Context(), s.URL()+"/v1/messages", message+`,"max_tokens":2,"stream":true}`)
			kinds, data = apiEvents(t, r.body)
			require.Equal(t, "message_start content_block_start content_block_delta content_block_delta content_block_stop message_delta message_stop", strings.Join(kinds, " "))
			require.Equal(t, "max_tokens", data[5]["delta"].(map[string]any)["stop_reason"])

			r = post(t.Context(), s.URL()+"/v1/messages/count_tokens", message+`}`)
			require.Contains(t, r.body, fmt.Sprintf(`"input_tokens":%d`, len(sayHi)))
			requireClean(t, s)
		})
	}
}

// TestOtherAPIsRefuseAsTheirEngines: in each API's own form.
func TestOtherAPIsRefuseAsTheirEngines(t *testing.T) {
	v := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM})
	g := start(t, Config{Role: worker.Aggregated})
	apart := start(t, Config{Role: worker.Decode})
	for _, c := range []struct {
		s                *Sim
		path, body, says string
		status           int
	}{
		{v, "/v1/messages", `{"model":"sim","messages":[{"role":"user","content":"a"}]}`, `"type":"error"`, 400},
		{v, "/v1/responses", `{"model":"sim"}`, `{"error":{`, 400},
		{g, "/v1/responses", `{"model":"sim"}`, `{"error":{`, 400},
		{v, "/v1/responses", `{"model":"sim","input":"a","previous_response_id":"resp_1"}`, "not found", 404},
		{g, "/v1/responses", `{"model":"sim","input":"a","previous_response_id":"resp_1"}`, "store is disabled", 400},
		{g, "/v1/responses", `{"model":"sim","input":"a","max_output_tokens":1}`, "got -1", 400},
		{v, "/v1/responses", `{"model":"sim","input":"a","background":true}`, "background", 400},
		{v, "/inference/v1/generate", `{"token_ids":[5]}`, "sampling_params", 400},
		{v, "/inference/v1/generate", `{"token_ids":[],"sampling_params":{}}`, "prompt", 400},
		{g, "/inference/v1/generate", `{"token_ids":[5],"sampling_params":{}}`, "Not Found", 404},
		{apart, "/v1/messages", `{"model":"sim","max_tokens":3,"messages":[{"role":"user","content":"a"}],"bootstrap_room":5,"bootstrap_host":"127.0.0.1"}`, sglang.NoRoom, 400},
	} {
		r := post(t.Context(), c.s.URL()+c.path, c.body)
		require.Equal(t, c.status, r.status, r.body)
		require.Contains(t, r.body, c.says)
		require.Equal(t, strings.HasPrefix(c.path, "/v1/messages"), strings.Contains(r.body, `"type":"error"`), r.body)
	}
	requireClean(t, v, g, apart)
}

// TestAStreamOfAnotherAPIFailsAsItsEngines: vLLM's response breaks off, since its error is no event.
func TestAStreamOfAnotherAPIFailsAsItsEngines(t *testing.T) {
	for _, engine := range []worker.Engine{worker.VLLM, worker.SGLang} {
		s := start(t, Config{Role: worker.Aggregated, Engine: engine})
		require.NoError(t, s.SetFault(Fault{Mode: FaultError, When: Begun}))
		r := post(t.Context(), s.URL()+"/v1/responses", `{"model":"sim","input":"a","stream":true}`)
		require.Equal(t, engine == worker.VLLM, r.err != nil)
		require.Equal(t, engine == worker.SGLang, strings.Contains(r.body, "event: response.failed\n"), r.body)
		r = post(t.Context(), s.URL()+"/v1/messages", `{"model":"sim","max_tokens":3,"messages":[{"role":"user","content":"a"}],"stream":true}`)
		require.NoError(t, r.err)
		kinds, _ := apiEvents(t, r.body)
		require.Equal(t, "message_start error", strings.Join(kinds, " "))
	}
}

// TestTokensIn: token ids in and out, by one worker and apart.
func TestTokensIn(t *testing.T) {
	p, d := pair(t, Config{Engine: worker.VLLM})
	const path, body = "/inference/v1/generate", `{"model":"sim","token_ids":[5,6,7,8,9],"sampling_params":{"max_tokens":%d}%s}`
	r := post(t.Context(), p.URL()+path, fmt.Sprintf(body, 1, `,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}`))
	require.Equal(t, 200, r.status, r.body)
	var held struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.body), &held))
	r = post(t.Context(), d.URL()+path, fmt.Sprintf(body, 3, `,"stream":true,"kv_transfer_params":`+string(held.Params)))
	ids, _ := json.Marshal(Tokenize(Answer([]uint32{5, 6, 7, 8, 9}, 1)))
	require.Contains(t, r.body, `"token_ids":`+string(ids))
	require.Contains(t, r.body, `"finish_reason":"length"`)
	require.True(t, strings.HasSuffix(r.body, "data: [DONE]\n\n"))
	require.EqualValues(t, 1, p.State(false).Handoff.Taken)
	requireClean(t, p, d)
}

// TestAKeptResponseIsContinued: its tokens are those of the conversation. One that is not to be kept is not.
func TestAKeptResponseIsContinued(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, ResponseStore: true})
	ask := func(more string) reply {
		return post(t.Context(), s.URL()+"/v1/responses", `{"model":"sim","max_output_tokens":2`+more+`}`)
	}
	require.Equal(t, 200, ask(`,"input":"one","request_id":"resp_1"`).status)
	said := Answer(ChatTokens([]Message{{Role: "user", Content: "one"}}, true), 2)
	r := ask(`,"input":[{"role":"user","content":"two"}],"previous_response_id":"resp_1","store":false,"request_id":"resp_2","stream":true`)
	require.Contains(t, r.body, Answer(ChatTokens([]Message{{Role: "user", Content: "one"}, {Role: "assistant", Content: said}, {Role: "user", Content: "two"}}, true), 2))
	require.Contains(t, getBody(t, s.URL()+"/v1/responses/resp_1"), said)
	require.Equal(t, http.StatusNotFound, ask(`,"input":"three","previous_response_id":"resp_2"`).status)
	require.Equal(t, http.StatusBadRequest, post(t.Context(), s.URL()+"/v1/responses/resp_1/cancel", "{}").status)
	_, err := New(Config{Role: worker.Aggregated, ResponseStore: true})
	require.ErrorContains(t, err, "response-store")
	requireClean(t, s)
}
