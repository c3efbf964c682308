package vllm

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func (v *engine) pages(mux *http.ServeMux) {
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		core.WriteJSON(w, http.StatusOK, map[string]string{"version": "0.32.0"})
	})
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		core.WriteJSON(w, http.StatusOK, map[string]int{"server_load": v.s.State(false).Running})
	})
	if !v.cfg.OlderPages {
		mux.HandleFunc("GET /kv_event_sources", func(w http.ResponseWriter, _ *http.Request) {
			core.WriteJSON(w, http.StatusOK, v.eventSources())
		})
	}
	mux.HandleFunc("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		core.WriteJSON(w, http.StatusOK, map[string]bool{"success": core.ClearAll(v.s.Ranks) < 0})
	})
	mux.HandleFunc("POST /sleep", v.sleep)
	mux.HandleFunc("POST /wake_up", func(http.ResponseWriter, *http.Request) { v.asleep.Store(0) })
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		core.WriteJSON(w, http.StatusOK, map[string]bool{"is_sleeping": v.asleep.Load() != 0})
	})
	mux.HandleFunc("POST /tokenize", v.s.Pages.Tokenize(core.Tokenizing{More: `,"token_strs":null`}))
	mux.HandleFunc("POST /inference/v1/generate", v.s.Pages.Generate(core.APITokens))
	v.s.Pages.OtherAPIs(mux)
	for path, kind := range map[string]core.API{"/v1/chat/completions": core.APIChat, "/v1/responses": core.APIResponse, "/v1/messages": core.APIMessage} {
		mux.HandleFunc("POST "+path+"/render", func(w http.ResponseWriter, r *http.Request) { v.render(kind, w, r) })
	}
	mux.HandleFunc("GET /metrics", v.metrics)
}

// model adds the permissions at /v1/models.
func (v *engine) model(said map[string]any) {
	said["permission"] = []map[string]any{{
		"id": "modelperm-" + core.NewProcessID(), "object": "model_permission", "created": v.s.Birth.At.Unix(), "organization": "*", "group": nil,
		"allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false,
		"allow_view": true, "allow_fine_tuning": false, "is_blocking": false,
	}}
}

// sleep answers POST /sleep?level=N of vLLM's development mode, as in its documentation:
// level 1 keeps the weights in host memory, level 2 keeps nothing, and both discard the
// KV cache. Captures do not show when the engine publishes that: they are of a CPU, which
// cannot sleep. The simulator publishes it only with the next events, which is the worst
// case.
func (v *engine) sleep(w http.ResponseWriter, r *http.Request) {
	level := int32(1)
	if r.URL.Query().Get("level") == "2" {
		level = 2
	}
	for _, r := range v.s.Ranks {
		if !r.Sleep() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
	}
	v.asleep.Store(level)
}

// eventSource describes where one rank publishes its KV events.
type eventSource struct {
	Enabled      bool    `json:"enable_kv_cache_events"`
	Publisher    string  `json:"publisher"`
	Endpoint     string  `json:"endpoint"`
	Replay       *string `json:"replay_endpoint"`
	BufferSteps  int     `json:"buffer_steps"`
	HWM          int     `json:"hwm"`
	MaxQueueSize int     `json:"max_queue_size"`
	Topic        string  `json:"topic"`
}

// eventSources is the answer of /kv_event_sources, with an entry for each rank.
func (v *engine) eventSources() map[string]eventSource {
	out := map[string]eventSource{}
	ev := v.s.Identity().KVEvents
	if ev == nil {
		return out
	}
	for r := range v.s.Ranks {
		at, _ := v.s.EventsAddr(r)
		endpoint := fmt.Sprintf("tcp://*:%d", core.PortOf(at))
		if v.cfg.SystemPorts { // the engine names what it has got (ZmqEventPublisher._bind)
			endpoint = "tcp://" + at
		}
		src := eventSource{
			Enabled: true, Publisher: "zmq", Endpoint: endpoint,
			BufferSteps: v.cfg.ReplayBuffer, HWM: 100_000, MaxQueueSize: 100_000, Topic: ev.Topic,
		}
		if ev.ReplayPort != 0 {
			replay := fmt.Sprintf("tcp://*:%d", ev.ReplayPort+r)
			src.Replay = &replay
		}
		out[strconv.Itoa(v.cfg.FirstRank+r)] = src
	}
	return out
}

// vllmError is vLLM's ErrorResponse. In a stream it is the same.
type vllmError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	} `json:"error"`
}

func errorBody(_ core.API, e *core.APIError, _ bool) any {
	var b vllmError
	inner := e.Body()
	b.Error.Message, b.Error.Type, b.Error.Code = inner.Message, inner.Type, inner.Code
	return b
}

// metrics answers GET /metrics with vLLM's names (docs/engines.md#vllm-tells). vLLM calls
// a rank an engine there.
func (v *engine) metrics(w http.ResponseWriter, _ *http.Request) {
	cfg := v.cfg
	v.reads.Add(1)
	st := v.s.State(false)
	for i := range st.Ranks {
		st.Ranks[i].Rank += cfg.FirstRank
	}
	effective := fmt.Sprintf("effective_attention_block_size=\"%d\",", cfg.PageSize)
	if cfg.OlderPages {
		effective = ""
	}
	var b []byte
	family := func(name, kind string, value func(core.RankState) float64) {
		b = fmt.Appendf(b, "# TYPE vllm:%s %s\n", name, kind)
		for _, r := range st.Ranks {
			b = fmt.Appendf(b, "vllm:%s{engine=\"%d\",model_name=%q} %v\n", name, r.Rank, cfg.Models[0], value(r))
		}
	}
	family("num_requests_running", "gauge", func(r core.RankState) float64 { return float64(r.Running) })
	family("num_requests_waiting", "gauge", func(r core.RankState) float64 { return float64(r.Queued) })
	family("kv_cache_usage_perc", "gauge", func(r core.RankState) float64 {
		return float64(r.UsedBlocks) / float64(cfg.CapacityBlocks)
	})
	family("prompt_tokens_total", "counter", func(r core.RankState) float64 { return float64(r.PromptTokens) })
	family("generation_tokens_total", "counter", func(r core.RankState) float64 { return float64(r.OutputTokens) })
	family("prefix_cache_queries_total", "counter", func(r core.RankState) float64 { return float64(r.PromptTokens) })
	family("prefix_cache_hits_total", "counter", func(r core.RankState) float64 { return float64(r.CachedTokens) })
	b = v.appendSleep(append(b, "# TYPE vllm:engine_sleep_state gauge\n"...))
	b = append(b, "# TYPE vllm:cache_config_info gauge\n"...)
	for _, r := range st.Ranks {
		b = fmt.Appendf(b, "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\",%sengine=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n",
			cfg.PageSize/cfg.ContextParallel, effective, r.Rank, cfg.CapacityBlocks*len(st.Ranks)) // the sum of all, in each
	}
	type count struct {
		name string
		v    uint64
	}
	var connector []count // not split by rank here
	if cfg.Disaggregated() {
		connector = []count{
			{"nixl_num_kv_expired_reqs", st.Handoff.Expired}, {"nixl_num_notifications_after_expiry", st.Handoff.Late},
			{"nixl_num_failed_transfers", st.Handoff.PullsFailed},
		}
	}
	for _, m := range connector {
		b = fmt.Appendf(b, "# TYPE vllm:%s_total counter\nvllm:%s_total{engine=\"0\",model_name=%q} %d\n", m.name, m.name, cfg.Models[0], m.v)
	}
	b = fmt.Appendf(b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %s\n", v.s.Birth.Seconds())
	w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	_, _ = w.Write(b)
}

func (v *engine) appendSleep(b []byte) []byte {
	level := v.asleep.Load()
	for _, r := range v.s.Ranks {
		for i, state := range []string{"awake", "weights_offloaded", "discard_all"} {
			on := map[bool]float64{true: 1}[level == int32(i)]
			b = fmt.Appendf(b, "vllm:engine_sleep_state{engine=\"%d\",model_name=%q,sleep_state=%q} %.1f\n", r.ID+v.cfg.FirstRank, v.cfg.Models[0], state, on)
		}
	}
	return b
}
