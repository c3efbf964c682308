package enginesim

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"
)

// birth distinguishes a process from the one before it at the same address.
type birth struct {
	at   time.Time
	seed int64
}

func newBirth() birth { return birth{at: time.Now(), seed: rand.Int64N(1 << 30)} }

// newProcessID returns a random id in the form of a UUID.
func newProcessID() string {
	a, b := rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// seconds is the time of birth in the format of Prometheus' process collectors.
func (b birth) seconds() string {
	return strconv.FormatFloat(float64(b.at.UnixMicro())/1e6, 'f', 6, 64)
}

func (e sglang) pages(mux *http.ServeMux) {
	s := e.s
	mux.HandleFunc("POST /generate", s.generate(apiGenerate))
	mux.HandleFunc("GET /health_generate", s.health)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /v1/loads", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.sglangLoads()) })
	for _, p := range []string{"GET /server_info", "GET /get_server_info"} {
		mux.HandleFunc(p, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.serverInfo()) })
	}
	for _, p := range []string{"POST /tokenize", "POST /v1/tokenize"} {
		mux.HandleFunc(p, s.tokenize)
	}
}

// metrics answers GET /metrics with SGLang's names (docs/engines.md#sglang-tells) in the
// Prometheus text format.
func (s *Sim) metrics(w http.ResponseWriter, _ *http.Request) {
	st := s.State(false)
	page, capacity := float64(s.cfg.PageSize), float64(s.cfg.CapacityBlocks)
	m := sglangMetrics{s: s, st: st}
	m.gauge("num_running_reqs", func(r RankState) float64 { return float64(r.Running) })
	m.gauge("num_queue_reqs", func(r RankState) float64 { return float64(r.Queued) })
	m.gauge("token_usage", func(r RankState) float64 { return float64(r.UsedBlocks) / capacity })
	m.gauge("num_used_tokens", func(r RankState) float64 { return float64(r.UsedBlocks) * page })
	m.gauge("max_total_num_tokens", func(RankState) float64 { return capacity * page })
	m.gauge("page_size", func(RankState) float64 { return page })
	m.gauge("cache_hit_rate", func(r RankState) float64 {
		return float64(r.CachedTokens) / float64(max(r.PromptTokens, 1))
	})
	if s.prefills() {
		m.worker("num_prefill_bootstrap_queue_reqs", float64(st.PrefillAlone))
		m.worker("num_prefill_inflight_queue_reqs", float64(st.PrefillMet))
	}
	if s.decodes() {
		m.worker("num_decode_prealloc_queue_reqs", float64(st.Queued))
		m.worker("num_decode_transfer_queue_reqs", float64(st.DecodeWaiting))
	}
	m.counter("prompt_tokens_total", `is_streaming="False"`, func(r RankState) uint64 { return r.PromptTokens })
	m.counter("cached_tokens_total", `cache_source="total"`, func(r RankState) uint64 { return r.CachedTokens })
	m.counter("generation_tokens_total", `is_streaming="False"`, func(r RankState) uint64 { return r.OutputTokens })
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.page)
}

// sglangMetrics is a page of SGLang's metrics that is being written. The page has no
// start time of the process, since SGLang puts it together from several processes.
type sglangMetrics struct {
	s    *Sim
	st   State
	page []byte
}

func (m *sglangMetrics) labels() string {
	mode := "unified"
	if m.s.disaggregated() {
		mode = m.s.cfg.Role.String()
	}
	return fmt.Sprintf("engine_type=%q,model_name=%q", mode, m.s.cfg.Models[0])
}

// gauge appends a family with a sample for each rank. If there is only one rank, the
// sample has no rank label.
func (m *sglangMetrics) gauge(name string, value func(RankState) float64) {
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
func (m *sglangMetrics) worker(name string, v float64) {
	m.page = fmt.Appendf(m.page, "# TYPE sglang:%s gauge\nsglang:%s{%s,moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} %v\n", name, name, m.labels(), v)
}

// counter appends the sum of a counter over all ranks.
func (m *sglangMetrics) counter(name, label string, value func(RankState) uint64) {
	var n uint64
	for _, r := range m.st.Ranks {
		n += value(r)
	}
	m.page = fmt.Appendf(m.page, "# TYPE sglang:%s counter\nsglang:%s{%s,%s} %d\n", name, name, m.labels(), label, n)
}

// sglangLoads is the answer of /v1/loads.
func (s *Sim) sglangLoads() map[string]any {
	st := s.State(false)
	var loads []map[string]any
	for _, r := range st.Ranks {
		// The queues of the hand-over are not split by rank here: rank 0 has all.
		queues := map[string]any{"mode": "null", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0,
			"decode_prealloc_queue_reqs": 0, "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0}
		if s.disaggregated() {
			queues["mode"] = s.cfg.Role.String()
		}
		if r.Rank == 0 {
			queues["prefill_bootstrap_queue_reqs"], queues["prefill_inflight_queue_reqs"] = st.PrefillAlone, st.PrefillMet
			queues["decode_transfer_queue_reqs"] = st.DecodeWaiting
		}
		loads = append(loads, map[string]any{
			"dp_rank": r.Rank, "num_running_reqs": r.Running, "num_waiting_reqs": r.Queued,
			"num_used_tokens": r.UsedBlocks * s.cfg.PageSize, "max_total_num_tokens": s.cfg.CapacityBlocks * s.cfg.PageSize,
			"max_running_requests": s.cfg.MaxRunning, "disaggregation": queues,
		})
	}
	return map[string]any{"version": sglangVersion, "timestamp": time.Now().UTC().Format(time.RFC3339Nano), "loads": loads}
}

const sglangVersion = "0.5.23"

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

func (s *Sim) serverInfo() serverInfo {
	info := serverInfo{
		ModelPath: s.cfg.Models[0], ServedModelName: s.cfg.Models[0], Mode: "null",
		BootstrapPort: s.bootstrapPort(), TransferBackend: "enginesim", DPSize: s.cfg.DPSize, TPSize: 1, Nodes: max(len(s.cfg.EventHosts), 1), DCPSize: s.cfg.ContextParallel,
		PageSize: s.cfg.PageSize / s.cfg.ContextParallel, KVCacheDType: "auto", LoadBalanceMethod: "round_robin", MaxRunning: s.cfg.MaxRunning,
		MaxTotalTokens: s.cfg.CapacityBlocks * s.cfg.PageSize,
		RandomSeed:     s.birth.seed,
		InternalStates: []map[string]int{}, Version: sglangVersion,
	}
	host, port, _ := net.SplitHostPort(s.Addr())
	info.Host = host
	info.Port, _ = strconv.Atoi(port)
	if s.disaggregated() {
		info.Mode = s.cfg.Role.String()
	}
	if s.prefills() {
		info.LoadBalanceMethod = "follow_bootstrap_room"
	}
	if s.cfg.Speculative != "" {
		info.Speculative = &s.cfg.Speculative
	}
	switch ev := s.Identity().KVEvents; {
	case ev == nil:
	case s.cfg.SystemPorts: // no page names a port that the system gave (parse_advertisable_tcp)
		conf := `{"publisher":"zmq","endpoint":"tcp://*:0"}`
		info.KVEventsConfig = &conf
	default:
		conf := fmt.Sprintf(`{"publisher":"zmq","endpoint":"tcp://*:%d","topic":%q}`, ev.Port, ev.Topic)
		info.KVEventsConfig = &conf
		info.KVEvents = &kvEventsInfo{
			Publisher: "zmq", Host: "*", Port: ev.Port, Topic: ev.Topic, BlockSize: s.cfg.PageSize, DPSize: s.cfg.DPSize,
		}
		if ev.ReplayPort != 0 {
			info.KVEvents.ReplayPort = &ev.ReplayPort
		}
	}
	return info
}
