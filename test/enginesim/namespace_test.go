package enginesim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Each engine's cache separates the prompts that the engine separates, and no others.
func TestPromptsShareNoBlocksAcrossNamespaces(t *testing.T) {
	for _, tc := range []struct {
		engine worker.Engine
		spaces []string // members that each make a namespace of their own
		same   [][2]string
	}{
		{
			worker.VLLM,
			[]string{`"model":"m"`, `"model":"a"`, `"model":"b"`, `"model":"m","cache_salt":"x"`, `"model":"a","cache_salt":"x"`, `"model":"m","cache_salt":"a"`},
			[][2]string{{`"model":"m"`, `"model":"m","lora_path":"a","extra_key":"x"`}},
		},
		{
			worker.SGLang,
			[]string{`"model":"m"`, `"model":"m:a"`, `"model":"m:b"`, `"model":"m","cache_salt":"x"`, `"model":"m:a","cache_salt":"x"`, `"model":"m","extra_key":"x"`, `"model":"m","cache_salt":"x","extra_key":"x"`},
			[][2]string{
				{`"model":"m:a"`, `"model":"m","lora_path":"a"`}, {`"model":"m:a"`, `"model":"m: a","lora_path":"b"`},
				{`"model":"m"`, `"model":"a"`}, {`"model":"m"`, `"model":"m","cache_salt":""`},
			},
		},
	} {
		t.Run(string(tc.engine), func(t *testing.T) {
			s := start(t, Config{Role: worker.Aggregated, Engine: tc.engine, Models: []string{"m"}, Adapters: []string{"a", "b"}, PageSize: 2})
			cached := func(members string) int {
				r := post(t.Context(), s.URL()+completions, `{"prompt":"one two three four five","max_tokens":1,`+members+`}`)
				require.Equal(t, 200, r.status, r.body)
				var a struct {
					Usage struct {
						Details struct {
							Cached int `json:"cached_tokens"`
						} `json:"prompt_tokens_details"`
					}
				}
				require.NoError(t, json.Unmarshal([]byte(r.body), &a))
				return a.Usage.Details.Cached
			}
			for _, m := range tc.spaces {
				require.Zero(t, cached(m), m)
			}
			for _, m := range tc.spaces {
				require.Equal(t, 4, cached(m), m)
			}
			for _, pair := range tc.same {
				require.Equal(t, 4, cached(pair[1]), pair)
			}
			require.Len(t, s.State(true).Ranks[0].Blocks, 2*len(tc.spaces))
			requireClean(t, s)
		})
	}
}

// stored posts a prompt for each of members and returns the stores, one for each prompt.
func stored(t *testing.T, engine worker.Engine, members ...string) (out []map[string]any) {
	t.Helper()
	s := start(t, Config{Role: worker.Aggregated, Engine: engine, Models: []string{"m"}, Adapters: []string{"a", "b"}, PageSize: 2})
	for i, m := range members {
		r := post(t.Context(), s.URL()+completions, fmt.Sprintf(`{"prompt":"one two three four five %d","max_tokens":1,%s}`, i, m))
		require.Equal(t, 200, r.status, r.body)
	}
	for _, m := range replay(t, s, 0, 0) {
		var batch []any
		require.NoError(t, msgpack.Unmarshal(m[3], &batch))
		for _, e := range batch[1].([]any) {
			if e := e.(map[string]any); e["type"] == "BlockStored" {
				out = append(out, e)
			}
		}
	}
	require.Len(t, out, len(members))
	return out
}

// See to_event_extra_keys of vLLM 0.32 and KVCacheEventRecorder of SGLang 0.5.23.
func TestEventsTellAdaptersAndSaltsAsTheEnginesDo(t *testing.T) {
	t.Run("vLLM", func(t *testing.T) {
		long := strings.Repeat("s", 100)
		es := stored(t, worker.VLLM, `"model":"m"`, `"model":"b"`, `"model":"m","cache_salt":"x"`, `"model":"b","cache_salt":"`+long+`"`)
		want := []struct {
			id, name any
			keys     []any
		}{
			{nil, nil, []any{nil, nil, nil}},
			{int8(2), "b", []any{[]any{"b"}, []any{"b"}, []any{"b"}}},
			{nil, nil, []any{[]any{"x"}, nil, nil}},
			{int8(2), "b", []any{[]any{"b", long}, []any{"b"}, []any{"b"}}},
		}
		for i, w := range want {
			require.Len(t, es[i], 11)
			require.Equal(t, w.id, es[i]["lora_id"], i)
			require.Equal(t, w.name, es[i]["lora_name"], i)
			require.Equal(t, w.keys, es[i]["extra_keys"], i)
		}
	})
	t.Run("SGLang", func(t *testing.T) {
		es := stored(t, worker.SGLang, `"model":"m"`, `"model":"m:b"`, `"model":"m","cache_salt":"x"`, `"model":"m:b","cache_salt":"x"`, `"model":"m","extra_key":"k"`)
		for i, w := range []map[string]any{
			{}, {"lora_name": "b"}, {"cache_salt": "x"}, {"lora_name": "b", "cache_salt": "x"}, {},
		} {
			require.Len(t, es[i], 7+len(w))
			require.Nil(t, es[i]["lora_id"])
			for _, k := range []string{"lora_name", "cache_salt"} {
				require.Equal(t, w[k], es[i][k], i)
			}
		}
	})
}

// The engine refuses adapters that it has not loaded.
func TestAdaptersThatAWorkerHasNot(t *testing.T) {
	ask := func(s *Sim, members string) reply {
		return post(t.Context(), s.URL()+completions, `{"prompt":["one","two"],"max_tokens":1,`+members+`}`)
	}
	s := start(t, Config{Role: worker.Aggregated, Models: []string{"m"}, Adapters: []string{"a"}})
	require.Contains(t, ask(s, `"model":"m","lora_path":"b"`).body, "has never been loaded: b")
	require.Equal(t, 400, ask(s, `"model":"m","lora_path":["a"]`).status)
	require.Equal(t, 400, ask(s, `"model":"m","cache_salt":["a"]`).status)
	require.Equal(t, 400, ask(s, `"model":"m","cache_salt":7`).status)
	require.Equal(t, 200, ask(s, `"model":"m","cache_salt":["a","b"],"lora_path":[null,"a"]`).status)
	require.Empty(t, s.State(false).Violations)
	require.Contains(t, ask(start(t, Config{Role: worker.Aggregated, Models: []string{"m"}}), `"model":"m:a"`).body, "LoRA is not enabled")

	v := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, Models: []string{"m"}, Adapters: []string{"a"}})
	require.Equal(t, 404, ask(v, `"model":"b"`).status)
	require.Equal(t, 404, ask(v, `"model":"m:a"`).status)
	require.Equal(t, 400, ask(v, `"model":"m","cache_salt":""`).status)
	require.Contains(t, getBody(t, v.URL()+"/v1/models"), `"parent":"m"`)

	for _, bad := range []Config{{Adapters: []string{""}}, {Adapters: []string{"a", "a"}}, {Models: []string{"a"}, Adapters: []string{"a"}}, {Engine: worker.TensorRTLLM, Adapters: []string{"a"}}} {
		bad.Role = worker.Aggregated
		_, err := New(bad)
		require.ErrorContains(t, err, "adapters")
	}
}
