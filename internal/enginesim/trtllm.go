package enginesim

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// minDisaggID is the lowest disagg_request_id that all versions accept whose source was
// read (docs/engines.md#trt-id).
const minDisaggID = 1 << 42

// trtllm is the protocol of TensorRT-LLM, context first (docs/engines.md#trt-context).
type trtllm struct {
	s    *Sim
	seen *idSet // of disagg_request_ids
}

func newTRTLLM(s *Sim) protocol { return trtllm{s: s, seen: &idSet{ids: make(map[int64]struct{})}} }

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
	if s.order = append(s.order, id); len(s.order) > goneKept {
		delete(s.ids, s.order[0])
		s.order = s.order[1:]
	}
	return true
}

// opaqueState is the content of encoded_opaque_state. Routers cannot read it.
type opaqueState struct {
	Addr   string `json:"addr"`
	Engine string `json:"engine"`
	Pad    []byte `json:"pad"`
}

// disaggFields are the fields that disaggregated_params may have. The engine forbids
// others ("extra": "forbid"), as it does in the whole body.
var disaggFields = []string{
	"request_type", "first_gen_tokens", "first_gen_log_probs", "first_gen_logits", "ctx_request_id", "encoded_opaque_state",
	"draft_tokens", "disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint", "schedule_style", "conversation_id", "ctx_usage",
	"return_prompt_token_ids_b64", "resolved_thinking",
}

// disaggChanged are the fields that a router sets anew for the generation phase.
var disaggChanged = []string{"request_type", "schedule_style", "conversation_id", "ctx_usage"}

func (e trtllm) plan(c *call, h http.Header) ([]*item, error) {
	q := c.q
	for _, f := range q.twice {
		e.s.violate(Violation{Kind: "repeated_field", Seq: c.rec.req.Seq, Detail: f + " is in the body more than once"})
	}
	c.q.rid = externalID(q, h)
	foreign := q.foreign
	if q.api == apiCompletion && q.promptIDs != nil {
		foreign = append(foreign, "prompt_token_ids")
	}
	if len(foreign) > 0 {
		return nil, c.broken("foreign_field", http.StatusBadRequest, "%s: Extra inputs are not permitted", foreign[0])
	}
	if q.streamOptions && !q.stream {
		return nil, badRequest("Stream options can only be defined when stream is true.")
	}
	if err := e.readParams(c); err != nil {
		return nil, err
	}
	items, err := e.s.newItems(q)
	if err != nil {
		return nil, err
	}
	if c.leg != legWhole && len(items) != 1 {
		return nil, c.broken("parallel_handoff", http.StatusBadRequest, "one hand-off for %d parallel prompts", len(items))
	}
	for _, it := range items {
		e.s.placeItem(it, route{rank: c.asked})
	}
	if c.leg == legPrefill && !e.seen.add(c.disaggID) {
		return nil, c.broken("id_reused", http.StatusInternalServerError, "disagg_request_id %d has been used before", c.disaggID)
	}
	if c.leg == legWhole && e.s.decodes() {
		e.s.pulls.local.Add(1)
	}
	return items, nil
}

// readParams reads disaggregated_params and sets the call's leg.
func (e trtllm) readParams(c *call) error {
	if isNull(c.q.disagg) {
		return nil
	}
	f, err := readHandoff(c, "disaggregated_params", c.q.disagg)
	if err != nil {
		return err
	}
	for key := range f.fields {
		if !slices.Contains(disaggFields, key) {
			return c.broken("bad_handoff", http.StatusBadRequest, "disaggregated_params.%s: Extra inputs are not permitted", key)
		}
	}
	kind, err := f.text("request_type")
	if err != nil {
		return err
	}
	wrongRole := func() error {
		return c.broken("wrong_role", http.StatusInternalServerError, "%s is asked of a %s worker", kind, e.s.cfg.Role)
	}
	switch kind {
	case "context_only":
		if !e.s.prefills() {
			return wrongRole()
		}
		c.leg = legPrefill
		return e.readContext(c, f)
	case "generation_only":
		if !e.s.decodes() {
			return wrongRole()
		}
		c.leg = legDecode
		return e.readGeneration(c, f)
	case "context_and_generation":
		return nil
	default:
		return c.broken("bad_handoff", http.StatusBadRequest, "request_type %.40q: expected context_only or generation_only", kind)
	}
}

func (e trtllm) readContext(c *call, f handoffFields) error {
	var err error
	if c.disaggID, err = f.number("disagg_request_id", minDisaggID, math.MaxInt64); err != nil {
		return err
	}
	if c.q.stream {
		return c.broken("prefill_stream", http.StatusBadRequest, "a context request is not streamed")
	}
	return nil
}

// readGeneration reads where the KV is, and the prompt. The prompt is the ids that the
// context phase answered, so it is not tokenised anew.
func (e trtllm) readGeneration(c *call, f handoffFields) error {
	id, err := f.number("disagg_request_id", minDisaggID, math.MaxInt64)
	if err != nil {
		return err
	}
	if _, err = f.number("ctx_request_id", 0, math.MaxInt64); err != nil {
		return err
	}
	tokens, err := f.value("first_gen_tokens", "[")
	if err != nil {
		return err
	}
	if ids, err := tokenIDs(tokens); err != nil || len(ids) == 0 {
		return c.broken("bad_handoff", http.StatusBadRequest, "first_gen_tokens %.40s: expected token ids", tokens)
	}
	text, err := f.text("encoded_opaque_state")
	if err != nil {
		return err
	}
	var state opaqueState
	b, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(b, &state)
	}
	if err != nil {
		return c.broken("bad_handoff", http.StatusInternalServerError, "encoded_opaque_state: %v", err)
	}
	c.transfer = &transfer{addr: state.Addr, engine: state.Engine, id: strconv.FormatInt(id, 10), by: c.name(), fields: string(f.raw)}
	if c.q.api != apiChat {
		if !c.q.tokenPrompt {
			return c.broken("no_prompt_ids", http.StatusBadRequest, "prompt: expected the context phase's prompt_token_ids")
		}
		return nil
	}
	ids, err := tokenIDs(c.q.promptIDs)
	if isNull(c.q.promptIDs) || err != nil || len(ids) == 0 {
		return c.broken("no_prompt_ids", http.StatusBadRequest, "prompt_token_ids: expected those of the context phase")
	}
	c.q.prompts = [][]uint32{ids}
	return nil
}

func (e trtllm) prepare(ctx context.Context, c *call, it *item) error {
	switch c.leg {
	case legPrefill:
		if err := c.admit(ctx, it, 0); err != nil {
			return err
		}
		return c.computeNow(ctx, it, true)
	case legDecode:
		return e.s.receive(ctx, c, it, func(err error) error {
			return &apiError{status: http.StatusInternalServerError, reason: "kv_load", msg: "KV cache transfer failed: " + err.Error()}
		})
	default:
		return e.s.prepareAggregated(ctx, c, it)
	}
}

// output is one token in the context phase, whatever the request asks for. It ends with
// "not_finished", or with "length" if only one token was asked for.
func (e trtllm) output(c *call) (int, string) {
	if c.leg != legPrefill {
		return c.limit()
	}
	if c.q.maxTokens == 1 {
		return 1, "length"
	}
	return 1, "not_finished"
}

// handOver holds the KV of a context phase with more to generate. If it ended by itself,
// the answer has the same fields, and nothing is held.
func (e trtllm) handOver(c *call, reason string) {
	params, ids := "null", "null"
	if c.leg == legPrefill && reason != "abort" && c.fault.Mode != FaultNoHandoff {
		it := c.items[0]
		ids = tokenList(it.prompt)
		params = e.params(c, it)
		if reason == "length" || reason == "not_finished" {
			e.s.keep(c, it, strconv.FormatInt(c.disaggID, 10), params, disaggChanged...)
		}
	}
	c.choiceTail = append([]byte(`,"stop_reason":null,`), c.fault.spoil("disaggregated_params", params)...)
	c.bodyTail = []byte(`,"prompt_token_ids":` + ids)
}

func (e trtllm) params(c *call, it *item) string {
	pad := make([]byte, 48)
	for i := range pad {
		pad[i] = byte(rand.Uint32())
	}
	state, _ := json.Marshal(opaqueState{Addr: e.s.sideAddrs[0], Engine: e.s.engineID(0), Pad: pad})
	return fmt.Sprintf(`{"request_type":"context_only","first_gen_tokens":%s,"first_gen_log_probs":null,"first_gen_logits":null,`+
		`"ctx_request_id":%d,"encoded_opaque_state":"%s","draft_tokens":null,"disagg_request_id":%d,"ctx_dp_rank":%d,`+
		`"ctx_info_endpoint":null,"schedule_style":null,"conversation_id":null,"ctx_usage":null,`+
		`"return_prompt_token_ids_b64":false,"resolved_thinking":null}`,
		tokenList(answerTokens(it.digest, 0, 1)), uint64(math.MaxInt64)-uint64(rand.Uint32()),
		base64.StdEncoding.EncodeToString(state), c.disaggID, it.rank.id)
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

// errorBody is TensorRT-LLM's ErrorResponse, which has the same members as SGLang's.
func (e trtllm) errorBody(err *apiError, stream bool) any { return sglang{e.s}.errorBody(err, stream) }

func (trtllm) appendEvents(dst []byte, _ float64, _ []event, _ uint32) []byte { return dst }

func (e trtllm) pages(mux *http.ServeMux) {
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": "1.2.0"})
	})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		params := map[string]any{}
		if e.s.prefills() {
			params = map[string]any{"ctx_dp_size": e.s.cfg.DPSize, "ctx_info_endpoint": []string{"tcp://" + e.s.sideAddrs[0]}}
		}
		writeJSON(w, http.StatusOK, map[string]any{"disaggregated_params": params})
	})
	mux.HandleFunc("GET /metrics", e.metrics)
}

// metrics answers the last of the engine's iteration statistics.
func (e trtllm) metrics(w http.ResponseWriter, _ *http.Request) {
	st := e.s.State(false)
	running, used, free := 0, 0, 0
	var hit, prompt uint64
	for _, r := range st.Ranks {
		running += r.Running
		used += r.UsedBlocks
		free += e.s.cfg.CapacityBlocks - r.UsedBlocks
		hit, prompt = hit+r.CachedTokens, prompt+r.PromptTokens
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `[{"iter":%d,"numActiveRequests":%d,"numQueuedRequests":%d,"numCompletedRequests":%d,"maxNumActiveRequests":%d,`+
		`"kvCacheStats":{"maxNumBlocks":%d,"freeNumBlocks":%d,"usedNumBlocks":%d,"tokensPerBlock":%d,"cacheHitRate":%g}}]`,
		st.Requests, running, st.Queued, st.OK, e.s.cfg.MaxRunning*len(st.Ranks),
		used+free, free, used, e.s.cfg.PageSize, float64(hit)/float64(max(prompt, 1)))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b.Bytes())
}

func (trtllm) shape() *shape { return &trtllmShape }
