package enginesim

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// trtllmKind returns the engine, context first (docs/engines.md#trt-context).
func trtllmKind() kind {
	return kind{defaults: trtllmDefaults, check: trtllmCheck, make: func(s *Sim, cfg Config) *engine { return newTRTLLM(s, cfg).table() }}
}

func trtllmDefaults(c *Config) {
	if c.prefills() {
		orDefault(&c.SideChannelListen, "127.0.0.1:0")
	}
	c.KVEventsPort = Off
	orDefault(&c.KVLease, 60*time.Second)
}

func trtllmCheck(c Config, bad func(format string, a ...any)) {
	if c.SideChannelListen != "" && !c.prefills() {
		bad("side-channel-listen: only a prefill worker has a side channel")
	}
	if c.BootstrapListen != "" || c.HandshakeFirst || c.HeaderOverrides {
		bad("bootstrap-listen, handshake-first, header-overrides: trtllm has none of them")
	}
	if c.ScaleOut || c.TrustMMKwargs || c.ResponseStore {
		bad("scale-out, trust-request-mm-kwargs, response-store: trtllm has none of them")
	}
	if c.KVLoadFailure == LoadRecompute || c.KVLoadFailure == LoadUnseen || c.NullOnStop {
		bad("kv-load-failure, null-on-stop: trtllm has none of them")
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

// trtllm is one worker.
type trtllm struct {
	s       *Sim
	cfg     Config
	channel *channel
	seen    *idSet // of disagg_request_ids
}

func newTRTLLM(s *Sim, cfg Config) *trtllm {
	return &trtllm{s: s, cfg: cfg, channel: newChannel(s, cfg, manner{}), seen: &idSet{ids: make(map[int64]struct{})}}
}

// table is what the core is given.
func (e *trtllm) table() *engine {
	return &engine{
		shape: &trtllmShape, owner: "tensorrt_llm", anyBody: true, // what it does with bodies of other types is not known
		pages: e.pages, bind: e.channel.bind, close: e.channel.close, plan: e.plan, errorBody: trtllmError,
		state: e.channel.state, reset: e.channel.reset,
	}
}

// idsKept is how many ids are remembered.
const idsKept = 20_000

// idSet remembers the last ids. Safe for concurrent use.
type idSet struct {
	mu    sync.Mutex
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
	if s.order = append(s.order, id); len(s.order) > idsKept {
		delete(s.ids, s.order[0])
		s.order = s.order[1:]
	}
	return true
}

func (e *trtllm) plan(c *call, h http.Header) ([]*item, job, error) {
	q := c.q
	for _, f := range q.twice {
		e.s.violate(Violation{Kind: "repeated_field", Seq: c.seq, Detail: f + " is in the body more than once"})
	}
	c.q.rid = externalID(q, h)
	foreign := q.foreign
	if q.api == apiCompletion && q.promptIDs != nil {
		foreign = append(foreign, "prompt_token_ids")
	}
	if len(foreign) > 0 {
		return nil, nil, c.broken("foreign_field", http.StatusBadRequest, "%s: Extra inputs are not permitted", foreign[0])
	}
	if q.streamOptions && !q.stream {
		return nil, nil, badRequest("Stream options can only be defined when stream is true.")
	}
	j := &trtllmJob{e: e, c: c}
	if err := j.readParams(); err != nil {
		return nil, nil, err
	}
	items, err := c.newItems()
	if err != nil {
		return nil, nil, err
	}
	if c.leg != legWhole && len(items) != 1 {
		return nil, nil, c.broken("parallel_handoff", http.StatusBadRequest, "one hand-off for %d parallel prompts", len(items))
	}
	for _, it := range items {
		c.place(it, c.asked)
	}
	if c.leg == legPrefill && !e.seen.add(j.id) {
		return nil, nil, c.broken("id_reused", http.StatusInternalServerError, "disagg_request_id %d has been used before", j.id)
	}
	if j.transfer != nil {
		c.handoff = j.transfer.id
	}
	if c.leg == legWhole && e.cfg.decodes() {
		e.channel.local()
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

// trtllmError is the engine's ErrorResponse.
func trtllmError(_ api, e *apiError, stream bool) any {
	if stream {
		return map[string]errorBody{"error": e.body()}
	}
	return e.body()
}

func (e *trtllm) pages(mux *http.ServeMux) {
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": "1.2.0"})
	})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		params := map[string]any{}
		if e.cfg.prefills() {
			params = map[string]any{"ctx_dp_size": e.cfg.DPSize, "ctx_info_endpoint": []string{"tcp://" + e.s.SideAddrs()[0]}}
		}
		writeJSON(w, http.StatusOK, map[string]any{"disaggregated_params": params})
	})
	mux.HandleFunc("GET /metrics", e.metrics)
}

// metrics answers the last of the engine's iteration statistics.
func (e *trtllm) metrics(w http.ResponseWriter, _ *http.Request) {
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

// trtllmShape is taken from the engine's source, not from a capture.
var trtllmShape = shape{
	chunk:      [2]string{`,"usage":null`, `,"usage":null`},
	lastChunk:  [2]string{`,"usage":null`, `,"usage":null`},
	ends:       [2]bool{true, true},
	chatIDs:    true,
	rolesFirst: true,
}
