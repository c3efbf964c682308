package engine

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// As a newer trtllm-serve answers, and an older one.
const (
	trtInfo    = `{"disaggregated_params":{},"max_batch_size":64,"kv_cache_hash_algo":"v1","tokens_per_block":32}`
	trtInfoOld = `{"disaggregated_params":null}`
	trtModels  = `{"object":"list","data":[{"id":"m","object":"model","created":1763000000,"owned_by":"tensorrt_llm"}]}`
	trtVersion = `{"version":"1.2.0"}`
)

func TestWhatTensorRTLLMTells(t *testing.T) {
	for _, c := range []struct {
		name string
		kind []Kind
		info string
		want uint32
	}{
		{"a newer one tells its block size", []Kind{Auto, TensorRTLLM}, trtInfo, 32},
		{"an older one does not", []Kind{Auto, TensorRTLLM}, trtInfoOld, 0},
		{"the oldest has no such page, and is believed when it is named", []Kind{TensorRTLLM}, "404!", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range c.kind {
				cl := client(t, pages{"/server_info": c.info, "/version": trtVersion, "/v1/models": trtModels}, Config{Kind: kind})
				for range 2 { // found, and then known
					got, err := cl.Facts(t.Context())
					require.NoError(t, err)
					require.Equal(t, Facts{Engine: worker.TensorRTLLM, Version: "1.2.0", Models: []string{"m"}, BlockSize: c.want, Pair: pair("1.2.0", "", "")}, got)
				}
			}
		})
	}
}

func TestWhatCannotBeReadOfTensorRTLLM(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		engine
		want string
	}{
		{"nobody named one that has no page of its own", Auto, engine{"/version": trtVersion, "/v1/models": trtModels},
			"vLLM (/v1/models: owned_by tensorrt_llm: not of vLLM, expected --engine trtllm)"},
		{"vLLM was named", VLLM, engine{"/version": trtVersion, "/v1/models": trtModels}, "expected --engine trtllm"},
		{"it is vLLM in its development mode", TensorRTLLM, engine{"/server_info": `{"vllm_config":"…"}`, "/version": trtVersion, "/v1/models": models},
			"/server_info: no disaggregated_params: not of TensorRT-LLM"},
		{"it is SGLang", TensorRTLLM, engine{"/server_info": sglang0523}, "/server_info: no disaggregated_params"},
		{"no JSON", TensorRTLLM, engine{"/server_info": "<html>"}, "/server_info: expected a JSON object"},
		{"a field of another type", TensorRTLLM, engine{"/server_info": `{"disaggregated_params":{},"tokens_per_block":"32"}`},
			"/server_info: tokens_per_block is a string: expected a uint32"},
		// What the page tells is not known then, which is not the same as not told.
		{"the page fails", TensorRTLLM, engine{"/server_info": "503!", "/version": trtVersion, "/v1/models": trtModels}, "/server_info: status 503"},
		{"no version", TensorRTLLM, engine{"/server_info": trtInfo, "/version": `{}`}, `/version: expected a JSON object with "version"`},
		{"no models", TensorRTLLM, engine{"/server_info": trtInfo, "/version": trtVersion}, "/v1/models: status 404"},
		{"odd models", TensorRTLLM, engine{"/server_info": trtInfo, "/version": trtVersion, "/v1/models": `[]`}, "/v1/models: expected a JSON list"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := client(t, pages(c.engine), Config{Kind: c.kind}).Facts(t.Context())
			require.ErrorContains(t, err, c.want)
		})
	}
}

// What it says of iterations that are over is no count; and its /metrics is for
// whoever collects it, since what one has read no other gets.
func TestRequestsOfTensorRTLLMAreNotCounted(t *testing.T) {
	var asked atomic.Int64
	p := pages{
		"/server_info": trtInfo, "/version": trtVersion, "/v1/models": trtModels,
		"/metrics": `[{"numActiveRequests":0,"numQueuedRequests":0}]`, "/prometheus/metrics": "trtllm_num_requests_running 0\n",
	}
	cl := client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			asked.Add(1)
		}
		p.ServeHTTP(w, r)
	}), Config{})
	_, err := cl.Facts(t.Context())
	require.NoError(t, err)
	// A count of zero would end a drain.
	n, err := cl.InFlight(t.Context())
	require.ErrorIs(t, err, ErrNotCounted, "%d", n)
	require.ErrorContains(t, err, "TensorRT-LLM")
	require.Zero(t, asked.Load())
}
