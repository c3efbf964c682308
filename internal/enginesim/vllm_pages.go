package enginesim

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"strconv"
)

func (v vllm) pages(mux *http.ServeMux) {
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": "0.32.0"})
	})
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]int{"server_load": v.s.State(false).Running})
	})
	if !v.s.cfg.OlderPages {
		mux.HandleFunc("GET /kv_event_sources", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, v.eventSources())
		})
	}
	mux.HandleFunc("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]bool{"success": v.s.clear() < 0})
	})
	mux.HandleFunc("POST /sleep", v.sleep)
	mux.HandleFunc("POST /wake_up", func(http.ResponseWriter, *http.Request) { v.s.asleep.Store(0) })
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]bool{"is_sleeping": v.s.asleep.Load() != 0})
	})
	mux.HandleFunc("POST /tokenize", v.s.tokenize)
	for path, kind := range map[string]api{"/v1/chat/completions": apiChat, "/v1/responses": apiResponse, "/v1/messages": apiMessage} {
		mux.HandleFunc("POST "+path+"/render", func(w http.ResponseWriter, r *http.Request) { v.render(kind, w, r) })
	}
	mux.HandleFunc("GET /metrics", v.metrics)
}

// sleep answers POST /sleep?level=N of vLLM's development mode, as in its documentation:
// level 1 keeps the weights in host memory, level 2 keeps nothing, and both discard the
// KV cache. Captures do not show when the engine publishes that: they are of a CPU, which
// cannot sleep. The simulator publishes it only with the next events, which is the worst
// case.
func (v vllm) sleep(w http.ResponseWriter, r *http.Request) {
	level := int32(1)
	if r.URL.Query().Get("level") == "2" {
		level = 2
	}
	for _, r := range v.s.ranks {
		if !r.sleep() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
	}
	v.s.asleep.Store(level)
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
func (v vllm) eventSources() map[string]eventSource {
	out := map[string]eventSource{}
	ev := v.s.Identity().KVEvents
	if ev == nil {
		return out
	}
	for r := range v.s.ranks {
		at := v.s.ranks[r].pub.pub.Addr().String()
		endpoint := fmt.Sprintf("tcp://*:%d", portOf(at))
		if v.s.cfg.SystemPorts { // the engine names what it has got (ZmqEventPublisher._bind)
			endpoint = "tcp://" + at
		}
		src := eventSource{
			Enabled: true, Publisher: "zmq", Endpoint: endpoint,
			BufferSteps: v.s.cfg.ReplayBuffer, HWM: 100_000, MaxQueueSize: 100_000, Topic: ev.Topic,
		}
		if ev.ReplayPort != 0 {
			replay := fmt.Sprintf("tcp://*:%d", ev.ReplayPort+r)
			src.Replay = &replay
		}
		out[strconv.Itoa(v.s.cfg.FirstRank+r)] = src
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

func (vllm) errorBody(e *apiError, _ bool) any {
	var b vllmError
	inner := e.body()
	b.Error.Message, b.Error.Type, b.Error.Code = inner.Message, inner.Type, inner.Code
	return b
}

// metrics answers GET /metrics with vLLM's names (docs/engines.md#vllm-tells). vLLM calls
// a rank an engine there.
func (v vllm) metrics(w http.ResponseWriter, _ *http.Request) {
	s := v.s
	s.reads.Add(1)
	st := s.State(false)
	for i := range st.Ranks {
		st.Ranks[i].Rank += s.cfg.FirstRank
	}
	effective := fmt.Sprintf("effective_attention_block_size=\"%d\",", s.cfg.PageSize)
	if s.cfg.OlderPages {
		effective = ""
	}
	var b []byte
	family := func(name, kind string, value func(RankState) float64) {
		b = fmt.Appendf(b, "# TYPE vllm:%s %s\n", name, kind)
		for _, r := range st.Ranks {
			b = fmt.Appendf(b, "vllm:%s{engine=\"%d\",model_name=%q} %v\n", name, r.Rank, s.cfg.Models[0], value(r))
		}
	}
	family("num_requests_running", "gauge", func(r RankState) float64 { return float64(r.Running) })
	family("num_requests_waiting", "gauge", func(r RankState) float64 { return float64(r.Queued) })
	family("kv_cache_usage_perc", "gauge", func(r RankState) float64 {
		return float64(r.UsedBlocks) / float64(s.cfg.CapacityBlocks)
	})
	family("prompt_tokens_total", "counter", func(r RankState) float64 { return float64(r.PromptTokens) })
	family("generation_tokens_total", "counter", func(r RankState) float64 { return float64(r.OutputTokens) })
	family("prefix_cache_queries_total", "counter", func(r RankState) float64 { return float64(r.PromptTokens) })
	family("prefix_cache_hits_total", "counter", func(r RankState) float64 { return float64(r.CachedTokens) })
	b = v.appendSleep(append(b, "# TYPE vllm:engine_sleep_state gauge\n"...))
	b = append(b, "# TYPE vllm:cache_config_info gauge\n"...)
	for _, r := range st.Ranks {
		b = fmt.Appendf(b, "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\",%sengine=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n",
			s.cfg.PageSize/s.cfg.ContextParallel, effective, r.Rank, s.cfg.CapacityBlocks*len(st.Ranks)) // the sum of all, in each
	}
	type count struct {
		name string
		v    uint64
	}
	var connector []count // not split by rank here
	if s.disaggregated() {
		connector = []count{
			{"nixl_num_kv_expired_reqs", st.Handoff.Expired}, {"nixl_num_notifications_after_expiry", st.Handoff.Late},
			{"nixl_num_failed_transfers", st.Handoff.PullsFailed},
		}
	}
	for _, m := range connector {
		b = fmt.Appendf(b, "# TYPE vllm:%s_total counter\nvllm:%s_total{engine=\"0\",model_name=%q} %d\n", m.name, m.name, s.cfg.Models[0], m.v)
	}
	b = fmt.Appendf(b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %s\n", s.birth.seconds())
	w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	_, _ = w.Write(b)
}

func (v vllm) appendSleep(b []byte) []byte {
	level := v.s.asleep.Load()
	for _, r := range v.s.ranks {
		for i, state := range []string{"awake", "weights_offloaded", "discard_all"} {
			on := map[bool]float64{true: 1}[level == int32(i)]
			b = fmt.Appendf(b, "vllm:engine_sleep_state{engine=\"%d\",model_name=%q,sleep_state=%q} %.1f\n", r.id+v.s.cfg.FirstRank, v.s.cfg.Models[0], state, on)
		}
	}
	return b
}

// appendEvents appends [ts, [events], data_parallel_rank], each event a map as vLLM >=
// 0.24 encodes it, with unsigned hashes. Blocks that were stored one after another in a
// chain are one event, as in the engine (docs/engines.md#event-many).
func (v vllm) appendEvents(dst []byte, ts float64, events []event, rank uint32) []byte {
	rows := runs(events, false)
	dst = append(dst, 0x93, 0xcb)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(ts))
	dst = appendArrayHeader(dst, len(rows))
	for _, run := range rows {
		dst = v.appendEvent(dst, run)
	}
	return appendUint(dst, uint64(rank))
}

func (v vllm) appendEvent(dst []byte, run []event) []byte {
	first := &run[0]
	switch first.kind {
	case blockStored:
		dst = appendString(appendString(append(dst, 0x8b), "type"), "BlockStored")
		dst = appendHashes(appendString(dst, "block_hashes"), run)
		dst = appendString(dst, "parent_block_hash")
		if first.hasParent {
			dst = appendUint(dst, uint64(first.parent)) //nolint:gosec // a bit pattern
		} else {
			dst = append(dst, 0xc0)
		}
		dst = appendTokenIDs(dst, run, false)
		dst = appendUint(appendString(dst, "block_size"), uint64(len(first.tokens)))
		adapter := first.space.adapter
		if dst = appendString(dst, "lora_id"); adapter == "" {
			dst = append(dst, 0xc0)
		} else {
			dst = appendUint(dst, uint64(v.s.loraID(adapter))) //nolint:gosec // an index
		}
		dst = appendString(appendString(dst, "medium"), "GPU")
		if dst = appendString(dst, "lora_name"); adapter == "" {
			dst = append(dst, 0xc0)
		} else {
			dst = appendString(dst, adapter)
		}
		dst = appendArrayHeader(appendString(dst, "extra_keys"), len(run))
		for i := range run {
			dst = appendExtraKeys(dst, &run[i])
		}
		dst = append(appendString(dst, "group_idx"), 0)
		return appendString(appendString(dst, "kv_cache_spec_kind"), "full_attention")
	case blockRemoved:
		dst = appendString(appendString(append(dst, 0x84), "type"), "BlockRemoved")
		dst = appendHashes(appendString(dst, "block_hashes"), run)
		dst = appendString(appendString(dst, "medium"), "GPU")
		return append(appendString(dst, "group_idx"), 0)
	default:
		return appendString(appendString(append(dst, 0x81), "type"), "AllBlocksCleared")
	}
}

// appendExtraKeys appends what a block's hash depends on besides its tokens: the
// adapter's name, the block's pictures with their places, and in the first block of a
// prompt the salt (to_event_extra_keys of 0.32).
func appendExtraKeys(dst []byte, e *event) []byte {
	pictures := e.space.seen.within(e.from, e.from+len(e.tokens))
	n := len(pictures)
	salted := e.space.salt != "" && !e.hasParent
	for _, is := range []bool{e.space.adapter != "", salted} {
		n += map[bool]int{true: 1}[is]
	}
	if n == 0 {
		return append(dst, 0xc0)
	}
	dst = appendArrayHeader(dst, n)
	if e.space.adapter != "" {
		dst = appendString(dst, e.space.adapter)
	}
	for _, p := range pictures {
		dst = appendString(appendArrayHeader(dst, 2), p.id)
		dst = appendInt(dst, int64(p.offset-e.from))
	}
	if salted {
		dst = appendString(dst, e.space.salt)
	}
	return dst
}

func appendHashes(dst []byte, run []event) []byte {
	dst = appendArrayHeader(dst, len(run))
	for i := range run {
		dst = appendUint(dst, uint64(run[i].hash)) //nolint:gosec // a bit pattern
	}
	return dst
}
