package enginesim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// birth is by which a process is told from the one before it at the same
// address.
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

// seconds is the time of birth as Prometheus' process collectors give it.
func (b birth) seconds() string {
	return strconv.FormatFloat(float64(b.at.UnixMicro())/1e6, 'f', 6, 64)
}

func (e sglang) pages(mux *http.ServeMux) {
	s := e.s
	mux.HandleFunc("POST /generate", s.generate(apiGenerate))
	mux.HandleFunc("GET /health_generate", s.health)
	mux.HandleFunc("GET /metrics", s.metrics)
	for _, p := range []string{"GET /server_info", "GET /get_server_info"} {
		mux.HandleFunc(p, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.serverInfo()) })
	}
	for _, p := range []string{"POST /tokenize", "POST /v1/tokenize"} {
		mux.HandleFunc(p, s.tokenize)
	}
}

// metrics answers GET /metrics with SGLang's names (engines.md §6) in the
// Prometheus text format.
func (s *Sim) metrics(w http.ResponseWriter, _ *http.Request) {
	st := s.State(false)
	var b []byte
	family := func(name, kind string, value func(RankState) float64) {
		b = fmt.Appendf(b, "# TYPE sglang:%s %s\n", name, kind)
		for _, r := range st.Ranks {
			b = fmt.Appendf(b, "sglang:%s{model_name=%q,dp_rank=\"%d\"} %v\n", name, s.cfg.Models[0], r.Rank, value(r))
		}
	}
	page := float64(s.cfg.PageSize)
	capacity := float64(s.cfg.CapacityBlocks)
	family("num_running_reqs", "gauge", func(r RankState) float64 { return float64(r.Running) })
	family("num_queue_reqs", "gauge", func(r RankState) float64 { return float64(r.Queued) })
	family("token_usage", "gauge", func(r RankState) float64 { return float64(r.HeldBlocks) / capacity })
	family("num_used_tokens", "gauge", func(r RankState) float64 { return float64(r.HeldBlocks) * page })
	family("max_total_num_tokens", "gauge", func(RankState) float64 { return capacity * page })
	family("page_size", "gauge", func(RankState) float64 { return page })
	family("cache_hit_rate", "gauge", func(r RankState) float64 {
		return float64(r.CachedTokens) / float64(max(r.PromptTokens, 1))
	})
	family("prompt_tokens_total", "counter", func(r RankState) float64 { return float64(r.PromptTokens) })
	family("cached_tokens_total", "counter", func(r RankState) float64 { return float64(r.CachedTokens) })
	family("generation_tokens_total", "counter", func(r RankState) float64 { return float64(r.OutputTokens) })
	worker := func(name, kind string, v float64) {
		b = fmt.Appendf(b, "# TYPE sglang:%s %s\nsglang:%s{model_name=%q} %v\n", name, kind, name, s.cfg.Models[0], v)
	}
	if s.prefills() {
		worker("num_prefill_bootstrap_queue_reqs", "gauge", float64(st.PrefillAlone))
		worker("num_prefill_inflight_queue_reqs", "gauge", float64(st.PrefillMet))
		worker("num_bootstrap_failed_reqs_total", "counter", float64(st.Failed["bootstrap_timeout"]+st.Failed["pairing"]))
	}
	if s.decodes() {
		worker("num_decode_prealloc_queue_reqs", "gauge", float64(st.Queued))
		worker("num_decode_transfer_queue_reqs", "gauge", float64(st.DecodeWaiting))
		worker("num_bootstrap_failed_reqs_total", "counter", float64(st.Failed["waiting_timeout"]+st.Failed["pairing"]))
		worker("num_transfer_failed_reqs_total", "counter", float64(st.Failed["prefill_lost"]))
	}
	b = fmt.Appendf(b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %s\n", s.birth.seconds())
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(b)
}

// serverInfo is the part of SGLang's /server_info that tells of routing.
type serverInfo struct {
	ModelPath         string           `json:"model_path"`
	ServedModelName   string           `json:"served_model_name"`
	Mode              string           `json:"disaggregation_mode"`
	BootstrapPort     int              `json:"disaggregation_bootstrap_port"`
	TransferBackend   string           `json:"disaggregation_transfer_backend"`
	DPSize            int              `json:"dp_size"`
	TPSize            int              `json:"tp_size"`
	PageSize          int              `json:"page_size"`
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
		BootstrapPort: s.bootstrapPort(), TransferBackend: "enginesim", DPSize: s.cfg.DPSize, TPSize: 1,
		PageSize: s.cfg.PageSize, LoadBalanceMethod: "round_robin", MaxRunning: s.cfg.MaxRunning,
		MaxTotalTokens: s.cfg.CapacityBlocks * s.cfg.PageSize,
		RandomSeed:     s.birth.seed,
		InternalStates: []map[string]int{}, Version: "0.5.23",
	}
	if s.disaggregated() {
		info.Mode = s.cfg.Role.String()
	}
	if s.prefills() {
		info.LoadBalanceMethod = "follow_bootstrap_room"
	}
	if ev := s.Identity().KVEvents; ev != nil {
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
