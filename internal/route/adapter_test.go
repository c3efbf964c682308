package route

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// loaded is an aggregated worker of a model that has adapters loaded.
func loaded(t *testing.T, id worker.ID, e worker.Engine, model string, adapters ...string) *worker.Worker {
	t.Helper()
	at, err := worker.ParseEndpoint(fmt.Sprintf("127.0.0.1:%d", 1000+id))
	require.NoError(t, err)
	return &worker.Worker{
		ID: id, Role: worker.Aggregated, Engine: e, Models: append([]string{model}, adapters...), Adapters: adapters,
		Endpoint: at, DPSize: 1, BlockSize: 16, AcceptsAggregated: true,
	}
}

// TestAnAdapterIsFoundAsItsEngineFindsIt: who serves a request, and what separates its
// blocks, for each way in which an adapter and a namespace are named.
func TestAnAdapterIsFoundAsItsEngineFindsIt(t *testing.T) {
	board := routetest.Board(time.Now(), []*worker.Worker{
		loaded(t, 1, worker.VLLM, "v", "va"), loaded(t, 2, worker.VLLM, "v"),
		loaded(t, 3, worker.SGLang, "s", "sa"), loaded(t, 4, worker.SGLang, "s"),
		loaded(t, 5, worker.SGLang, "s3://x"),
	})
	for _, row := range []struct {
		name, body string // the members behind the prompt
		path       openai.Path
		want       string // pool, adapter, salt; or the failure
	}{
		{"vLLM: the base", `"model":"v"`, 0, `v "" ""`},
		{"vLLM: the adapter is the model", `"model":"va"`, 0, `va "va" ""`},
		{"vLLM: with a salt", `"model":"va","cache_salt":"x"`, 0, `va "va" "x"`},
		{"vLLM reads no lora_path and no extra_key", `"model":"v","lora_path":"va","extra_key":"k","cache_salt":"x"`, 0, `v "" "x"`},
		{"vLLM has no names of two parts", `"model":"v:va"`, 0, "model_not_found"},

		{"SGLang: the base", `"model":"s"`, 0, `s "" ""`},
		{"SGLang: the base answers to the adapter's name alone", `"model":"sa"`, 0, `sa "" ""`},
		{"SGLang: behind the base's name, at who has loaded it", `"model":"s:sa"`, 0, `sa "sa" ""`},
		{"SGLang: blanks around either", `"model":" s : sa "`, 0, `sa "sa" ""`},
		{"SGLang: in lora_path, at who has loaded it", `"model":"s","lora_path":"sa"`, 0, `sa "sa" ""`},
		{"SGLang: one that nobody has loaded yet", `"model":"s:sb","cache_salt":"x"`, 0, `s "sb" "x"`},
		{"SGLang: a name that is another model's", `"model":"s","lora_path":"v"`, 0, `s "v" ""`},
		{"SGLang: the model beats lora_path", `"model":"s:sa","lora_path":"sb"`, 0, `sa "sa" ""`},
		{"SGLang: nothing behind the colon", `"model":"s:","lora_path":"sb"`, 0, `s "sb" ""`},
		{"SGLang: a list has one for each prompt", `"model":"s","lora_path":["s\u0061",null],"cache_salt":["x","y"]`, 0, `sa "sa" "x"`},
		{"SGLang: a list whose first has none", `"model":"s","lora_path":[null,"sa"]`, 0, `s "" ""`},
		{"SGLang: null", `"model":"s","lora_path":null,"cache_salt":null,"extra_key":null`, 0, `s "" ""`},
		{"SGLang: extra_key is its own, since no event tells it", `"model":"s","cache_salt":"x","extra_key":"k"`, 0, `s "" "x\x00extra_key\x00k"`},
		{"SGLang: a model's name with colons", `"model":"s3://x"`, 0, `s3://x "" ""`},
		{"SGLang: and an adapter behind it", `"model":"s3://x:sa"`, 0, `s3://x "sa" ""`},
		{"SGLang's native path: lora_path alone", `"model":"s","lora_path":"sa"`, openai.Generate, `sa "sa" ""`},
		{"SGLang's native path reads no model", `"model":"s:sa"`, openai.Generate, "model_not_found"},
		{"SGLang: an adapter with colons", `"model":"s` + strings.Repeat(":", 16) + `"`, 0, `s "` + strings.Repeat(":", 15) + `" ""`},
		{"SGLang: with more than are looked at", `"model":"s` + strings.Repeat(":", 17) + `"`, 0, "model_not_found"},

		{"nobody's", `"model":"t:sa"`, 0, "model_not_found"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path, prompt := openai.Completions, "prompt"
			if row.path != 0 {
				path, prompt = row.path, "text"
			}
			body := []byte(`{"` + prompt + `":"hi",` + row.body + `}`)
			q, f := asked(t, board, path, string(body))
			if f != nil {
				require.Equal(t, row.want, string(f.Reason))
				return
			}
			require.Equal(t, row.want, fmt.Sprintf("%s %q %q", q.pool.Key.Model, q.query.Salt.LoRA, q.query.Salt.CacheSalt))
			require.Equal(t, q.pool.Key, q.query.Key)
		})
	}
}

// TestAdaptersAreNoFurtherModels: /generate names no model, which is right where there is
// one, with however many adapters.
func TestAdaptersAreNoFurtherModels(t *testing.T) {
	board := routetest.Board(time.Now(), []*worker.Worker{loaded(t, 1, worker.SGLang, "s", "a", "b")})
	q, f := asked(t, board, openai.Generate, `{"text":"hi","lora_path":"b"}`)
	require.Nil(t, f)
	require.Equal(t, "b", q.query.Salt.LoRA)
}

// TestAnAdapterOfAModelThatIsAwayIsNotUnknown as its base is not.
func TestAnAdapterOfAModelThatIsAwayIsNotUnknown(t *testing.T) {
	board := routetest.Board(time.Now(), []*worker.Worker{loaded(t, 1, worker.SGLang, "s")}, nil)
	_, f := asked(t, board, openai.Completions, `{"model":"s:a","prompt":"hi"}`)
	require.Equal(t, &Refusal{Reason: NoWorker}, f)
}
