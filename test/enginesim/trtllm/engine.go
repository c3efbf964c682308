package trtllm

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sidechannel"
)

// Kind returns the engine, context first (docs/engines.md#trt-context).
func Kind() core.Kind {
	return core.Kind{Defaults: defaults, Check: check, Make: func(s *core.Sim, cfg core.Config) *core.Engine { return newEngine(s, cfg).table() }}
}

func defaults(c *core.Config) {
	if c.Prefills() {
		core.OrDefault(&c.SideChannelListen, "127.0.0.1:0")
	}
	c.KVEventsPort = core.Off
	core.OrDefault(&c.KVLease, 60*time.Second)
}

func check(c core.Config, bad func(format string, a ...any)) {
	if c.SideChannelListen != "" && !c.Prefills() {
		bad("side-channel-listen: only a prefill worker of vllm or trtllm has a side channel")
	}
	if c.BootstrapListen != "" || c.HandshakeFirst || c.HeaderOverrides {
		bad("bootstrap-listen, handshake-first, header-overrides: only sglang has them, and vllm-mooncake the first")
	}
	if c.ScaleOut || c.TrustMMKwargs || c.ResponseStore {
		bad("scale-out, trust-request-mm-kwargs, response-store: only vllm has them")
	}
	if c.KVLoadFailure == core.LoadRecompute || c.KVLoadFailure == core.LoadUnseen {
		bad("kv-load-failure: only vllm can recompute, or read what is not held any more")
	}
	if c.NullOnStop {
		bad("null-on-stop: only vllm hands over when a prefill has stopped by itself")
	}
	if c.APIKey != "" {
		bad("api-key: trtllm asks for none")
	}
	if c.KVEventsPort > 0 {
		bad("kv-events-port: no events of trtllm are simulated")
	}
	if len(c.Adapters) > 0 {
		bad("adapters: none of trtllm are simulated")
	}
}

// engine is one worker.
type engine struct {
	s       *core.Sim
	cfg     core.Config
	channel *sidechannel.Channel
	seen    *idSet // of disagg_request_ids
}

func newEngine(s *core.Sim, cfg core.Config) *engine {
	return &engine{s: s, cfg: cfg, channel: sidechannel.NewChannel(s, cfg, sidechannel.Manner{}), seen: &idSet{ids: make(map[int64]struct{})}}
}

// table is what the core is given.
func (e *engine) table() *core.Engine {
	return &core.Engine{
		Shape: &shape, Members: append(foreignFields(), "disaggregated_params", "prompt_token_ids", "max_tokens", "max_completion_tokens"), Owner: "tensorrt_llm", AnyBody: true, // what it does with bodies of other types is not known
		Pages: e.pages, Bind: e.channel.Bind, Close: e.channel.Close, Plan: e.plan, ErrorBody: errorBody,
		State: e.channel.State, Reset: e.channel.Reset,
	}
}

// idsKept is how many ids are remembered.
const idsKept = 20_000

// foreignFields are the routing fields of other engines. The engine forbids fields that it
// does not know.
func foreignFields() []string {
	return []string{
		"bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank",
		"data_parallel_rank", "kv_transfer_params", "input_ids",
	}
}

// idSet remembers the last ids. Safe for concurrent use.
type idSet struct {
	mu    sync.Mutex // guards the fields below
	ids   map[int64]struct{}
	order []int64
}

// add adds an id. False means that it was there already.
func (s *idSet) add(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.ids[id]; ok {
		return false
	}
	s.ids[id] = struct{}{}
	s.order = append(s.order, id)
	if len(s.order) > idsKept {
		delete(s.ids, s.order[0])
		s.order = s.order[1:]
	}
	return true
}

func (e *engine) plan(c *core.Call, h http.Header) ([]*core.Item, core.Job, error) {
	q := c.Q
	for _, f := range q.Repeated("kv_transfer_params", "disaggregated_params", "prompt_token_ids") {
		e.s.Violate(core.Violation{Kind: "repeated_field", Seq: c.Seq, Detail: f + " is in the body more than once"})
	}
	c.Q.Rid = core.ExternalID(q, h)
	foreign := q.First(foreignFields()...)
	if foreign == "" && q.API == core.APICompletion {
		foreign = q.First("prompt_token_ids", "max_completion_tokens")
	}
	if foreign == "" && q.First("max_tokens") != "" { // in a chat the name of the same member
		foreign = q.First("max_completion_tokens")
	}
	if foreign != "" {
		return nil, nil, c.Broken("foreign_field", http.StatusBadRequest, "%s: Extra inputs are not permitted", foreign)
	}
	if q.StreamOptions && !q.Stream {
		return nil, nil, core.BadRequest("Stream options can only be defined when stream is true.")
	}
	j := &job{e: e, c: c}
	if err := j.readParams(); err != nil {
		return nil, nil, err
	}
	items, err := c.NewItems()
	if err != nil {
		return nil, nil, err
	}
	if c.Leg != core.LegWhole && len(items) != 1 {
		return nil, nil, c.Broken("parallel_handoff", http.StatusBadRequest, "one hand-off for %d parallel prompts", len(items))
	}
	for _, it := range items {
		c.Place(it, c.Asked)
	}
	if c.Leg == core.LegPrefill && !e.seen.add(j.id) {
		return nil, nil, c.Broken("id_reused", http.StatusInternalServerError, "disagg_request_id %d has been used before", j.id)
	}
	if j.transfer != nil {
		c.Handoff = j.transfer.ID
	}
	if c.Leg == core.LegWhole && e.cfg.Decodes() {
		e.channel.Local()
	}
	return items, j, nil
}

func tokenList(ids []uint32) string {
	b := []byte{'['}
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return string(append(b, ']'))
}

// errorBody is the engine's ErrorResponse.
func errorBody(_ core.API, e *core.APIError, stream bool) any {
	if stream {
		return map[string]core.ErrorBody{"error": e.Body()}
	}
	return e.Body()
}

func (e *engine) pages(mux *http.ServeMux) {
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		core.WriteJSON(w, http.StatusOK, map[string]string{"version": "1.2.0"})
	})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		params := map[string]any{}
		if e.cfg.Prefills() {
			params = map[string]any{"ctx_dp_size": e.cfg.DPSize, "ctx_info_endpoint": []string{"tcp://" + e.s.SideAddrs()[0]}}
		}
		core.WriteJSON(w, http.StatusOK, map[string]any{"disaggregated_params": params})
	})
	mux.HandleFunc("GET /metrics", e.metrics)
}

// metrics answers the last of the engine's iteration statistics.
func (e *engine) metrics(w http.ResponseWriter, _ *http.Request) {
	st := e.s.State(false)
	running, used, free := 0, 0, 0
	var hit, prompt uint64
	for _, r := range st.Ranks {
		running += r.Running
		used += r.UsedBlocks
		free += e.cfg.CapacityBlocks - r.UsedBlocks
		hit, prompt = hit+r.CachedTokens, prompt+r.PromptTokens
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `[{"iter":%d,"numActiveRequests":%d,"numQueuedRequests":%d,"numCompletedRequests":%d,"maxNumActiveRequests":%d,`+
		`"kvCacheStats":{"maxNumBlocks":%d,"freeNumBlocks":%d,"usedNumBlocks":%d,"tokensPerBlock":%d,"cacheHitRate":%g}}]`,
		st.Requests, running, st.Queued, st.OK, e.cfg.MaxRunning*len(st.Ranks),
		used+free, free, used, e.cfg.PageSize, float64(hit)/float64(max(prompt, 1)))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b.Bytes())
}

// shape is taken from the engine's source, not from a capture.
var shape = core.Shape{
	Chunk:      [2]string{`,"usage":null`, `,"usage":null`},
	LastChunk:  [2]string{`,"usage":null`, `,"usage":null`},
	Ends:       [2]bool{true, true},
	ChatIDs:    true,
	RolesFirst: true,
}
