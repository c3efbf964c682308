package engine

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	SGLang       = worker.SGLang
	VLLM         = worker.VLLM
	VLLMMooncake = worker.VLLMMooncake
	TensorRTLLM  = worker.TensorRTLLM
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pages is an engine by path; what is not listed is 404, what begins with a
// number is that status.
type pages map[string]string

func (p pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, ok := p[r.URL.RequestURI()]
	if !ok {
		text, ok = p[r.URL.Path]
	}
	var status int
	switch n, _ := fmt.Sscanf(text, "%d!", &status); {
	case !ok:
		http.NotFound(w, r)
	case n == 1:
		w.WriteHeader(status)
	default:
		_, _ = w.Write([]byte(text))
	}
}

func client(t *testing.T, h http.Handler, c Config) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c.URL, c.HealthTimeout = srv.URL, cmp.Or(c.HealthTimeout, 25*time.Second)
	cl, err := New(c)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// As 0.5.23 answers, with what routing does not need left out.
const sglang0523 = `{"model_path":"/models/m","served_model_name":"m","host":"0.0.0.0","port":30000,"disaggregation_mode":"prefill",
"disaggregation_bootstrap_port":8998,"dp_size":2,"page_size":64,"max_total_num_tokens":64007,"random_seed":848011292,"version":"0.5.23","revision":"8f2c","kv_cache_dtype":"fp8_e5m2",
"load_balance_method":"follow_bootstrap_room","kv_events_config":"{}","internal_states":[{"max_total_num_tokens":64007}],
"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2,
"replay_endpoint_port_base":6557,"load_endpoint_port_base":5561,"load_topic":"load"}}`

// As 0.5.5 answers: under the older name, without kv_events.
const sglang055 = `{"model_path":"meta/m","served_model_name":null,"host":"10.1.2.3","disaggregation_mode":"decode",
"disaggregation_bootstrap_port":8998,"dp_size":1,"page_size":1,"max_total_num_tokens":5000,"random_seed":1,"version":"0.5.5","revision":null,"kv_cache_dtype":"auto","kv_events_config":null}`

const vllmMetrics = `# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="2468",note="a \"b\", c={d}"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="2468"} 1.0
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="x"} 9.0
process_start_time_seconds 1.76000000012e+09
`

const models = `{"object":"list","data":[{"id":"m"},{"id":"lora"},{"id":"m"}]}`

// pair has what the workers of a pair must share.
func pair(version, weights, dtype string) worker.PairFacts {
	return worker.PairFacts{worker.EngineVersion: version, worker.Weights: weights, worker.KVDType: dtype}
}

func TestWhatEachEngineTells(t *testing.T) {
	for _, c := range []struct {
		name string
		engine
		want Facts
	}{
		{
			name:   "SGLang 0.5.23 as a prefill worker",
			engine: engine{"/server_info": sglang0523, "/v1/models": models, "/metrics": "process_start_time_seconds 12.5\n"},
			want: Facts{
				Engine: worker.SGLang, Version: "0.5.23", Role: worker.Prefill, Models: []string{"m", "lora"}, DPSize: 2, BlockSize: 64,
				CapacityBlocks: 1000, Pair: pair("0.5.23", "/models/m@8f2c", "fp8_e5m2"), BootstrapPort: 8998, Mark: Mark{Start: "12.5", Seed: "848011292"},
				KV: KVEvents{KVEvents: worker.KVEvents{Port: 5557, ReplayPort: 6557, Topic: "kv"}, BlockSize: 64},
			},
		},
		{
			name:   "SGLang 0.5.5 under the older path, with metrics off",
			engine: engine{"/get_server_info": sglang055, "/metrics": "404!"},
			want: Facts{
				Engine: worker.SGLang, Version: "0.5.5", Role: worker.Decode, Models: []string{"meta/m"}, DPSize: 1, BlockSize: 1,
				CapacityBlocks: 5000, Pair: pair("0.5.5", "meta/m", "auto"), BootstrapPort: 8998, Host: "10.1.2.3", Mark: Mark{Seed: "1"},
			},
		},
		{
			name:   "SGLang that tells hardly anything",
			engine: engine{"/server_info": `{"model_path":"m","disaggregation_mode":null,"dp_size":null,"page_size":null,"kv_events":null}`},
			want:   Facts{Engine: worker.SGLang, Role: worker.Aggregated, Models: []string{"m"}, Pair: pair("", "m", "")},
		},
		{
			name:   "SGLang that publishes, of a version that does not say where",
			engine: engine{"/server_info": `{"model_path":"m","kv_events_config":"{\"publisher\":\"zmq\"}"}`},
			want:   Facts{Engine: worker.SGLang, Role: worker.Aggregated, Models: []string{"m"}, Pair: pair("", "m", ""), KV: KVEvents{Untold: true}},
		},
		{
			name:   "vLLM with two engines and an adapter",
			engine: engine{"/version": `{"version":"0.33.0"}`, "/v1/models": models, "/metrics": vllmMetrics},
			want: Facts{
				Engine: worker.VLLM, Version: "0.33.0", Models: []string{"m", "lora"}, DPSize: 2, BlockSize: 16, CapacityBlocks: 1234, Pair: pair("0.33.0", "", "auto"),
				Mark: Mark{Start: "1.76000000012e+09"}, KV: KVEvents{Untold: true},
			},
		},
		{
			name: "vLLM in its development mode has a /server_info of its own",
			engine: engine{
				"/server_info": `{"vllm_config":"…"}`, "/version": `{"version":"0.33.0"}`, "/v1/models": models,
				"/metrics": `vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1`,
			},
			want: Facts{Engine: worker.VLLM, Version: "0.33.0", Models: []string{"m", "lora"}, DPSize: 1, BlockSize: 16, Pair: pair("0.33.0", "", ""), KV: KVEvents{Untold: true}},
		},
		{
			name: "vLLM 0.32 tells where its KV events are",
			engine: engine{
				"/version": `{"version":"0.32.0"}`, "/v1/models": models, "/kv_event_sources": `{
					"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557","buffer_steps":10000,"topic":"kv"},
					"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":"tcp://*:6558","buffer_steps":10000,"topic":"kv"}}`,
			},
			want: Facts{
				Engine: worker.VLLM, Version: "0.32.0", Models: []string{"m", "lora"}, DPSize: 2, Pair: pair("0.32.0", "", ""),
				KV: KVEvents{KVEvents: worker.KVEvents{Port: 5557, ReplayPort: 6557, Topic: "kv"}, Exact: true},
			},
		},
		{
			name: "vLLM with a LoRA adapter, which has a parent",
			engine: engine{"/version": `{"version":"0.32.0"}`, "/v1/models": `{"object":"list","data":[
				{"id":"m","root":"/models/m","parent":null},{"id":"a","root":"/adapters/a","parent":"m"}]}`},
			want: Facts{Engine: worker.VLLM, Version: "0.32.0", Models: []string{"m", "a"}, Adapters: []string{"a"}, Pair: pair("0.32.0", "/models/m", ""), KV: KVEvents{Untold: true}},
		},
		{
			name:   "vLLM whose KV events no other machine can read",
			engine: engine{"/version": `{"version":"0.32.0"}`, "/v1/models": models, "/kv_event_sources": `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///tmp/kv"}}`},
			want: Facts{Engine: worker.VLLM, Version: "0.32.0", Models: []string{"m", "lora"}, DPSize: 1, Pair: pair("0.32.0", "", ""), KV: KVEvents{
				Exact: true, Fault: `rank 0 publishes its KV events at "ipc:///tmp/kv", where no other machine can read them: expected "endpoint":"tcp://*:PORT" in the engine's --kv-events-config`,
			}},
		},
		{
			name: "SGLang with DP attention, which dials its broker",
			engine: engine{"/server_info": `{"model_path":"m","dp_size":1,"attn_dp_size":4,"enable_dp_attention":true,"page_size":16,"nnodes":1,
				"kv_events_config":"{\"publisher\":\"zmq\",\"endpoint\":\"tcp://broker:5557\"}",
				"kv_events":{"publisher":"zmq","endpoint_host":"broker","endpoint_port_base":5557,"topic":"","block_size":16,"dp_size":4}}`},
			want: Facts{Engine: worker.SGLang, Role: worker.Aggregated, Models: []string{"m"}, DPSize: 4, BlockSize: 16, Pair: pair("", "m", ""),
				KV: KVEvents{KVEvents: worker.KVEvents{Host: "broker", Port: 5557}, BlockSize: 16}},
		},
		{
			name: "SGLang that binds a host of its own",
			engine: engine{"/server_info": `{"model_path":"m","dp_size":2,"attn_dp_size":1,"page_size":16,
				"kv_events_config":"{\"publisher\":\"zmq\",\"endpoint\":\"tcp://10.0.0.9:5557\",\"bind\":true}",
				"kv_events":{"publisher":"zmq","endpoint_host":"10.0.0.9","endpoint_port_base":5557,"block_size":16}}`},
			want: Facts{Engine: worker.SGLang, Role: worker.Aggregated, Models: []string{"m"}, DPSize: 2, BlockSize: 16, Pair: pair("", "m", ""),
				KV: KVEvents{KVEvents: worker.KVEvents{Host: "10.0.0.9", Port: 5557}, BlockSize: 16, Listens: true}},
		},
		{
			name: "SGLang of several nodes with DP attention",
			engine: engine{"/server_info": `{"model_path":"m","dp_size":1,"attn_dp_size":4,"page_size":16,"nnodes":2,
				"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"block_size":16}}`},
			want: Facts{Engine: worker.SGLang, Role: worker.Aggregated, Models: []string{"m"}, DPSize: 4, BlockSize: 16, Pair: pair("", "m", ""), KV: KVEvents{
				KVEvents: worker.KVEvents{Port: 5557}, BlockSize: 16, Nodes: 2,
				Fault: "its 4 ranks are on 2 nodes (--nnodes), each publishes its KV events on its own node, and no page names these",
			}},
		},
		{
			name:   "vLLM that dials 0.0.0.0, and listens nowhere",
			engine: engine{"/version": `{"version":"0.32.0"}`, "/v1/models": models, "/kv_event_sources": `{"3":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://0.0.0.0:5560"}}`},
			want: Facts{Engine: worker.VLLM, Version: "0.32.0", Models: []string{"m", "lora"}, DPSize: 1, FirstRank: 3, Pair: pair("0.32.0", "", ""), KV: KVEvents{
				Exact: true, Fault: `rank 3 publishes its KV events at "tcp://0.0.0.0:5560", where no other machine can read them: expected "endpoint":"tcp://*:PORT" in the engine's --kv-events-config`,
			}},
		},
		{
			name:   "vLLM without KV events",
			engine: engine{"/version": `{"version":"0.32.0"}`, "/v1/models": models, "/kv_event_sources": `{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}`},
			want:   Facts{Engine: worker.VLLM, Version: "0.32.0", Models: []string{"m", "lora"}, DPSize: 1, Pair: pair("0.32.0", "", ""), KV: KVEvents{Exact: true}},
		},
		{
			name:   "vLLM without metrics",
			engine: engine{"/version": `{"version":"0.33.0"}`, "/v1/models": models},
			want:   Facts{Engine: worker.VLLM, Version: "0.33.0", Models: []string{"m", "lora"}, Pair: pair("0.33.0", "", ""), KV: KVEvents{Untold: true}},
		},
		{
			name:   "vLLM whose path is longer than a fact may be",
			engine: engine{"/version": `{"version":"0.33.0"}`, "/v1/models": `{"data":[{"id":"m","root":"` + strings.Repeat("/m", 200) + `","parent":null}]}`},
			want:   Facts{Engine: worker.VLLM, Version: "0.33.0", Models: []string{"m"}, Pair: pair("0.33.0", "", ""), KV: KVEvents{Untold: true}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range []Kind{Auto, c.want.Engine} {
				cl := client(t, pages(c.engine), Config{Kind: kind})
				for range 2 { // found, and then known
					got, err := cl.Facts(t.Context())
					require.NoError(t, err)
					require.Equal(t, c.want, got)
				}
			}
		})
	}
}

type engine = map[string]string

func TestWhatCannotBeReadIsNamed(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		engine
		want []string
	}{
		{"nobody we know", Auto, engine{}, []string{"tried SGLang (/get_server_info: status 404), TensorRT-LLM (/server_info: status 404) and vLLM (/version: status 404)", "--node-rank above 0"}},
		{"SGLang was asked for", SGLang, engine{"/version": `{"version":"1"}`}, []string{"/get_server_info: status 404"}},
		{"it is still loading", SGLang, engine{"/server_info": "503!"}, []string{"/server_info: status 503"}},
		{"no JSON", SGLang, engine{"/server_info": "<html>"}, []string{"/server_info: expected a JSON object"}},
		{"a field of another type", SGLang, engine{"/server_info": `{"model_path":"m","dp_size":"2"}`}, []string{"dp_size is a string: expected a uint32"}},
		{"a port that is none", SGLang, engine{"/server_info": `{"model_path":"m","disaggregation_bootstrap_port":70000}`}, []string{"disaggregation_bootstrap_port is a number 70000"}},
		{"a field of an inner one", SGLang, engine{"/server_info": `{"model_path":"m","kv_events":{"endpoint_port_base":"x"}}`}, []string{"kv_events.endpoint_port_base is a string"}},
		{"a mode that is none", SGLang, engine{"/server_info": `{"model_path":"m","disaggregation_mode":"both"}`}, []string{`disaggregation_mode "both": expected null, prefill or decode`}},
		{"a mode that only we have", SGLang, engine{"/server_info": `{"model_path":"m","disaggregation_mode":"aggregated"}`}, []string{`disaggregation_mode "aggregated"`}},
		{"no version", VLLM, engine{"/version": `{}`}, []string{`/version: expected a JSON object with "version"`}},
		{"no models", VLLM, engine{"/version": `{"version":"1"}`}, []string{"/v1/models: status 404"}},
		{"odd models", VLLM, engine{"/version": `{"version":"1"}`, "/v1/models": `[]`}, []string{"/v1/models: expected a JSON list"}},
		{"too much", SGLang, engine{"/server_info": strings.Repeat(" ", maxBody+1)}, []string{"/server_info: expected at most"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := client(t, pages(c.engine), Config{Kind: c.kind}).Facts(t.Context())
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestAnotherEngineMayBeStartedAtTheAddress(t *testing.T) {
	p := pages{"/server_info": sglang055}
	cl := client(t, p, Config{})
	f, err := cl.Facts(t.Context())
	require.NoError(t, err)
	require.Equal(t, worker.SGLang, f.Engine)
	delete(p, "/server_info")
	p["/version"], p["/v1/models"] = `{"version":"1"}`, models
	_, err = cl.Facts(t.Context())
	require.Error(t, err, "it was SGLang")
	f, err = cl.Facts(t.Context())
	require.NoError(t, err)
	require.Equal(t, worker.VLLM, f.Engine)
}

func TestRequestsInFlight(t *testing.T) {
	const sglangMetrics = `# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0"} 1
sglang:num_running_reqs{dp_rank="1"} 2
sglang:num_queue_reqs{dp_rank="0"} 4
sglang:num_prefill_bootstrap_queue_reqs 8
sglang:num_prefill_inflight_queue_reqs 16.0
sglang:num_decode_prealloc_queue_reqs 32
sglang:num_decode_transfer_queue_reqs 64
sglang:num_used_tokens 1000
`
	for _, c := range []struct {
		name string
		kind Kind
		engine
		want int
		err  string
	}{
		{"SGLang's scheduler is asked first", SGLang, engine{
			"/v1/loads?include=core,disagg": `{"loads":[{"num_running_reqs":1,"num_waiting_reqs":2,"disaggregation":{"mode":"decode","decode_prealloc_queue_reqs":4,"decode_transfer_queue_reqs":8,"decode_retracted_queue_reqs":16,"prefill_prealloc_queue_reqs":32,"prefill_inflight_queue_reqs":64}},{"num_running_reqs":128}]}`,
			"/metrics":                      sglangMetrics,
		}, 255, ""},
		{"SGLang 0.5.23 names the queue before the hand-over so", SGLang, engine{
			"/v1/loads?include=core,disagg": `{"loads":[{"num_running_reqs":0,"num_waiting_reqs":0,"disaggregation":{"mode":"prefill","prefill_bootstrap_queue_reqs":2}}]}`,
		}, 2, ""},
		{"an older SGLang has metrics", SGLang, engine{"/metrics": sglangMetrics}, 127, ""},
		{"loads of another shape are no loads", SGLang, engine{"/v1/loads": `{"loads":[{"load":3}]}`, "/metrics": sglangMetrics}, 127, ""},
		{"SGLang with metrics off", SGLang, engine{}, 0, ErrNotCounted.Error()},
		{"metrics without the gauges", SGLang, engine{"/metrics": "up 1\n"}, 0, ErrNotCounted.Error()},
		{"vLLM", VLLM, engine{"/metrics": vllmMetrics}, 3, ""},
		{"an engine that was not found yet", Auto, engine{"/metrics": sglangMetrics}, 127, ""},
		{"no number", VLLM, engine{"/metrics": "vllm:num_requests_running NaN\n"}, 0, "expected a count"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := client(t, pages(c.engine), Config{Kind: c.kind}).InFlight(t.Context())
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, n)
		})
	}
}

func TestHealth(t *testing.T) {
	p := pages{"/health": "", "/ready": "503!"}
	cl := client(t, p, Config{})
	h, err := cl.Health(t.Context())
	require.NoError(t, err)
	require.Equal(t, Healthy, h)

	cl = client(t, p, Config{HealthPath: "/ready"})
	h, err = cl.Health(t.Context())
	require.EqualError(t, err, "/ready: status 503")
	require.Equal(t, Unhealthy, h)

	hang := make(chan struct{})
	cl = client(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}), Config{HealthTimeout: 10 * time.Millisecond})
	h, err = cl.Health(t.Context())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, Silent, h)
	close(hang)

	// SGLang's page computes a token, and gives up after 20 s: so 503 of it says no more than
	// silence. It does of an engine whose page only looks whether its core lives.
	for _, c := range []struct {
		page string
		kind Kind
		want Health
	}{{"/server_info", SGLang, Silent}, {"/metrics", VLLM, Unhealthy}} {
		cl = client(t, pages{"/health": "503!", c.page: sglang0523, "/v1/models": `{"data":[{"id":"m"}]}`}, Config{Kind: c.kind})
		_, _ = cl.Facts(t.Context())
		h, err = cl.Health(t.Context())
		require.EqualError(t, err, "/health: status 503")
		require.Equal(t, c.want, h, "%s", c.kind)
	}

	srv := httptest.NewServer(p)
	srv.Close()
	cl, err = New(Config{URL: srv.URL, HealthTimeout: 25 * time.Second})
	require.NoError(t, err)
	h, err = cl.Health(t.Context())
	require.ErrorContains(t, err, "connection refused")
	require.Equal(t, Refused, h)
	_, err = cl.Facts(t.Context())
	require.ErrorContains(t, err, "connection refused")
	require.NotContains(t, err.Error(), "tried", "nobody was there to try the other way with")
}

func TestAConnectionThatBreaksUnderTheQuestionIsTriedOnceMore(t *testing.T) {
	var asked, breaks atomic.Int64
	breaks.Store(1)
	cl := client(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if asked.Add(1) <= breaks.Load() {
			panic(http.ErrAbortHandler)
		}
	}), Config{})
	h, err := cl.Health(t.Context())
	require.NoError(t, err)
	require.Equal(t, Healthy, h)

	asked.Store(0)
	breaks.Store(1000)
	cl.Close() // the next connection is new: the transport tries again by itself on an old one
	h, err = cl.Health(t.Context())
	require.Error(t, err)
	require.Equal(t, Unhealthy, h)
	require.Equal(t, int64(2), asked.Load())
}

func TestALostConnectionTells(t *testing.T) {
	var closing atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if closing.Load() {
			w.Header().Set("Connection", "close")
			_, _ = w.Write([]byte("ok"))
		}
	}))
	defer srv.Close()
	cl, err := New(Config{URL: srv.URL, HealthTimeout: 25 * time.Second})
	require.NoError(t, err)
	defer cl.Close()
	ask := func() {
		h, err := cl.Health(t.Context())
		require.NoError(t, err)
		require.Equal(t, Healthy, h)
	}
	ask()
	ask()
	require.Empty(t, cl.Lost())
	srv.CloseClientConnections()
	select {
	case <-cl.Lost():
	case <-time.After(10 * time.Second):
		require.Fail(t, "nobody was told")
	}
	// Whoever says that it closes after each answer says nothing by closing.
	closing.Store(true)
	for range 200 {
		ask()
	}
	require.Empty(t, cl.Lost())
}

func TestMarks(t *testing.T) {
	for _, c := range []struct {
		a, b        Mark
		same, known bool
	}{
		{Mark{Start: "1"}, Mark{Start: "1"}, true, true},
		{Mark{Start: "1", Seed: "1"}, Mark{Start: "1", Seed: "2"}, true, true},
		{Mark{Start: "1", Seed: "1"}, Mark{Start: "2", Seed: "1"}, false, true},
		{Mark{Seed: "1"}, Mark{Seed: "2"}, false, true},
		{Mark{Seed: "1"}, Mark{Seed: "1"}, false, false},
		{Mark{Start: "1"}, Mark{Seed: "1"}, false, false},
		{Mark{}, Mark{}, false, false},
	} {
		same, known := c.a.Same(c.b)
		require.Equal(t, [2]bool{c.same, c.known}, [2]bool{same, known}, "%v %v", c.a, c.b)
	}
}
