package sglang

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func (e *engine) pages(mux *http.ServeMux) {
	p := e.s.Pages
	mux.HandleFunc("POST /generate", p.Generate(core.APIGenerate))
	mux.HandleFunc("GET /health_generate", p.Health)
	mux.HandleFunc("GET /metrics", e.metrics)
	mux.HandleFunc("GET /v1/loads", func(w http.ResponseWriter, _ *http.Request) { core.WriteJSON(w, http.StatusOK, e.loads()) })
	for _, path := range []string{"GET /server_info", "GET /get_server_info"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { core.WriteJSON(w, http.StatusOK, e.serverInfo()) })
	}
	for _, path := range []string{"POST /tokenize", "POST /v1/tokenize"} {
		mux.HandleFunc(path, p.Tokenize(core.Tokenizing{Lists: true, Marks: true}))
	}
	p.OtherAPIs(mux)
}

// metrics answers GET /metrics with SGLang's names (docs/engines.md#sglang-tells) in the
// Prometheus text format.
func (e *engine) metrics(w http.ResponseWriter, _ *http.Request) {
	st := e.s.State(false)
	page, capacity := float64(e.cfg.PageSize), float64(e.cfg.CapacityBlocks)
	m := metricsPage{cfg: e.cfg, st: st}
	m.gauge("num_running_reqs", func(r core.RankState) float64 { return float64(r.Running) })
	m.gauge("num_queue_reqs", func(r core.RankState) float64 { return float64(r.Queued) })
	m.gauge("token_usage", func(r core.RankState) float64 { return float64(r.UsedBlocks) / capacity })
	m.gauge("num_used_tokens", func(r core.RankState) float64 { return float64(r.UsedBlocks) * page })
	m.gauge("max_total_num_tokens", func(core.RankState) float64 { return capacity * page })
	m.gauge("page_size", func(core.RankState) float64 { return page })
	m.gauge("cache_hit_rate", func(r core.RankState) float64 {
		return float64(r.CachedTokens) / float64(max(r.PromptTokens, 1))
	})
	if e.cfg.Prefills() {
		m.worker("num_prefill_bootstrap_queue_reqs", float64(st.PrefillAlone))
		m.worker("num_prefill_inflight_queue_reqs", float64(st.PrefillMet))
	}
	if e.cfg.Decodes() {
		m.worker("num_decode_prealloc_queue_reqs", float64(st.Queued))
		m.worker("num_decode_transfer_queue_reqs", float64(st.DecodeWaiting))
	}
	m.counter("prompt_tokens_total", `is_streaming="False"`, func(r core.RankState) uint64 { return r.PromptTokens })
	m.counter("cached_tokens_total", `cache_source="total"`, func(r core.RankState) uint64 { return r.CachedTokens })
	m.counter("generation_tokens_total", `is_streaming="False"`, func(r core.RankState) uint64 { return r.OutputTokens })
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.page)
}

// metricsPage is a page of SGLang's metrics that is being written. The page has no
// start time of the process, since SGLang puts it together from several processes.
type metricsPage struct {
	cfg  core.Config
	st   core.State
	page []byte
}

func (m *metricsPage) labels() string {
	mode := "unified"
	if m.cfg.Disaggregated() {
		mode = m.cfg.Role.String()
	}
	return fmt.Sprintf("engine_type=%q,model_name=%q", mode, m.cfg.Models[0])
}

// gauge appends a family with a sample for each rank. If there is only one rank, the
// sample has no rank label.
func (m *metricsPage) gauge(name string, value func(core.RankState) float64) {
	m.page = fmt.Appendf(m.page, "# TYPE sglang:%s gauge\n", name)
	for _, r := range m.st.Ranks {
		dp := ""
		if len(m.st.Ranks) > 1 {
			dp = fmt.Sprintf(`dp_rank="%d",`, r.Rank)
		}
		m.page = fmt.Appendf(m.page, "sglang:%s{%s%s,moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} %v\n", name, dp, m.labels(), value(r))
	}
}

// worker appends a gauge that is not split by rank here.
func (m *metricsPage) worker(name string, v float64) {
	m.page = fmt.Appendf(m.page, "# TYPE sglang:%s gauge\nsglang:%s{%s,moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} %v\n", name, name, m.labels(), v)
}

// counter appends the sum of a counter over all ranks.
func (m *metricsPage) counter(name, label string, value func(core.RankState) uint64) {
	var n uint64
	for _, r := range m.st.Ranks {
		n += value(r)
	}
	m.page = fmt.Appendf(m.page, "# TYPE sglang:%s counter\nsglang:%s{%s,%s} %d\n", name, name, m.labels(), label, n)
}

// loads is the answer of /v1/loads.
func (e *engine) loads() map[string]any {
	st := e.s.State(false)
	var loads []map[string]any
	for _, r := range st.Ranks {
		// The queues of the hand-over are not split by rank here: rank 0 has all.
		queues := map[string]any{"mode": "null", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0,
			"decode_prealloc_queue_reqs": 0, "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0}
		if e.cfg.Disaggregated() {
			queues["mode"] = e.cfg.Role.String()
		}
		if r.Rank == 0 {
			queues["prefill_bootstrap_queue_reqs"], queues["prefill_inflight_queue_reqs"] = st.PrefillAlone, st.PrefillMet
			queues["decode_transfer_queue_reqs"] = st.DecodeWaiting
		}
		loads = append(loads, map[string]any{
			"dp_rank": r.Rank, "num_running_reqs": r.Running, "num_waiting_reqs": r.Queued,
			"num_used_tokens": r.UsedBlocks * e.cfg.PageSize, "max_total_num_tokens": e.cfg.CapacityBlocks * e.cfg.PageSize,
			"max_running_requests": e.cfg.MaxRunning, "disaggregation": queues,
		})
	}
	return map[string]any{"version": version, "timestamp": time.Now().UTC().Format(time.RFC3339Nano), "loads": loads}
}

const version = "0.5.23"

// serverInfo is the part of SGLang's /server_info that matters to routing.
type serverInfo struct {
	ModelPath         string           `json:"model_path"`
	ServedModelName   string           `json:"served_model_name"`
	Host              string           `json:"host"`
	Port              int              `json:"port"`
	Speculative       *string          `json:"speculative_algorithm"`
	Mode              string           `json:"disaggregation_mode"`
	BootstrapPort     int              `json:"disaggregation_bootstrap_port"`
	TransferBackend   string           `json:"disaggregation_transfer_backend"`
	DPSize            int              `json:"dp_size"`
	TPSize            int              `json:"tp_size"`
	Nodes             int              `json:"nnodes"`
	DCPSize           int              `json:"dcp_size"`
	PageSize          int              `json:"page_size"`
	KVCacheDType      string           `json:"kv_cache_dtype"`
	Revision          *string          `json:"revision"`
	LoadBalanceMethod string           `json:"load_balance_method"`
	MaxRunning        int              `json:"max_running_requests"`
	MaxTotalTokens    int              `json:"max_total_num_tokens"`
	RandomSeed        int64            `json:"random_seed"`
	KVEventsConfig    *string          `json:"kv_events_config"`
	KVEvents          *kvEventsInfo    `json:"kv_events"`
	InternalStates    []map[string]int `json:"internal_states"`
	Version           string           `json:"version"`
}

type kvEventsInfo struct {
	Publisher  string `json:"publisher"`
	Host       string `json:"endpoint_host"`
	Port       int    `json:"endpoint_port_base"`
	Topic      string `json:"topic"`
	BlockSize  int    `json:"block_size"`
	DPSize     int    `json:"dp_size"`
	ReplayPort *int   `json:"replay_endpoint_port_base"`
}

func (e *engine) serverInfo() serverInfo {
	info := serverInfo{
		ModelPath: e.cfg.Models[0], ServedModelName: e.cfg.Models[0], Mode: "null",
		BootstrapPort: e.bootstrapPort(), TransferBackend: "enginesim", DPSize: e.cfg.DPSize, TPSize: 1, Nodes: max(len(e.cfg.EventHosts), 1), DCPSize: e.cfg.ContextParallel,
		PageSize: e.cfg.PageSize / e.cfg.ContextParallel, KVCacheDType: "auto", LoadBalanceMethod: "round_robin", MaxRunning: e.cfg.MaxRunning,
		MaxTotalTokens: e.cfg.CapacityBlocks * e.cfg.PageSize,
		RandomSeed:     e.s.Birth.Seed,
		InternalStates: []map[string]int{}, Version: version,
	}
	host, port, _ := net.SplitHostPort(e.s.Addr())
	info.Host = host
	info.Port, _ = strconv.Atoi(port)
	if e.cfg.Disaggregated() {
		info.Mode = e.cfg.Role.String()
	}
	if e.cfg.Prefills() {
		info.LoadBalanceMethod = "follow_bootstrap_room"
	}
	if e.cfg.Speculative != "" {
		info.Speculative = &e.cfg.Speculative
	}
	switch ev := e.s.Identity().KVEvents; {
	case ev == nil:
	case e.cfg.SystemPorts: // no page names a port that the system gave (parse_advertisable_tcp)
		conf := `{"publisher":"zmq","endpoint":"tcp://*:0"}`
		info.KVEventsConfig = &conf
	default:
		conf := fmt.Sprintf(`{"publisher":"zmq","endpoint":"tcp://*:%d","topic":%q}`, ev.Port, ev.Topic)
		info.KVEventsConfig = &conf
		info.KVEvents = &kvEventsInfo{
			Publisher: "zmq", Host: "*", Port: ev.Port, Topic: ev.Topic, BlockSize: e.cfg.PageSize, DPSize: e.cfg.DPSize,
		}
		if ev.ReplayPort != 0 {
			info.KVEvents.ReplayPort = &ev.ReplayPort
		}
	}
	return info
}
