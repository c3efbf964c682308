package enginesim

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
)

// trtllmJob is a planned request.
type trtllmJob struct {
	e        *trtllm
	c        *call
	id       int64     // of a context request
	transfer *transfer // the hand-off that a generation request brought; nil: none
}

func (j *trtllmJob) abandon() { j.e.channel.drop(j.transfer) }

func (*trtllmJob) release() {}

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

// minDisaggID is the lowest disagg_request_id that all versions accept whose source was
// read (docs/engines.md#trt-id).
const minDisaggID = 1 << 42

// readParams reads disaggregated_params and sets the call's leg.
func (j *trtllmJob) readParams() error {
	e, c := j.e, j.c
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
		return c.broken("wrong_role", http.StatusInternalServerError, "%s is asked of a %s worker", kind, e.cfg.Role)
	}
	switch kind {
	case "context_only":
		if !e.cfg.prefills() {
			return wrongRole()
		}
		c.leg = legPrefill
		return j.readContext(f)
	case "generation_only":
		if !e.cfg.decodes() {
			return wrongRole()
		}
		c.leg = legDecode
		return j.readGeneration(f)
	case "context_and_generation":
		return nil
	default:
		return c.broken("bad_handoff", http.StatusBadRequest, "request_type %.40q: expected context_only or generation_only", kind)
	}
}

func (j *trtllmJob) readContext(f handoffFields) error {
	c := j.c
	var err error
	if j.id, err = f.number("disagg_request_id", minDisaggID, math.MaxInt64); err != nil {
		return err
	}
	if c.q.stream {
		return c.broken("prefill_stream", http.StatusBadRequest, "a context request is not streamed")
	}
	return nil
}

// readGeneration reads where the KV is, and the prompt. The prompt is the ids that the
// context phase answered, so it is not tokenised anew.
func (j *trtllmJob) readGeneration(f handoffFields) error {
	c := j.c
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
	j.transfer = &transfer{addr: state.Addr, engine: state.Engine, id: strconv.FormatInt(id, 10), by: c.name(), fields: string(f.raw)}
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

func (j *trtllmJob) prepare(ctx context.Context, it *item) error {
	c := j.c
	switch c.leg {
	case legPrefill:
		if err := c.admit(ctx, it, 0); err != nil {
			return err
		}
		return c.computeNow(ctx, it, true)
	case legDecode:
		return j.e.channel.receive(ctx, c, it, j.transfer, func(err error) error {
			return &apiError{status: http.StatusInternalServerError, reason: "kv_load", msg: "KV cache transfer failed: " + err.Error()}
		})
	default:
		return c.prepareWhole(ctx, it)
	}
}

// output is one token in the context phase, whatever the request asks for. It ends with
// "not_finished", or with "length" if only one token was asked for.
func (j *trtllmJob) output() (int, string) {
	c := j.c
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
func (j *trtllmJob) handOver(reason string) {
	c := j.c
	params, ids := "null", "null"
	if c.leg == legPrefill && reason != "abort" && c.fault.Mode != FaultNoHandoff {
		it := c.items[0]
		ids = tokenList(it.prompt)
		params = j.params(it)
		if reason == "length" || reason == "not_finished" {
			j.e.channel.keep(c, it, strconv.FormatInt(j.id, 10), params, disaggChanged...)
		}
	}
	c.choiceTail = append([]byte(`,"stop_reason":null,`), spoil(c.fault, "disaggregated_params", params)...)
	c.bodyTail = []byte(`,"prompt_token_ids":` + ids)
}

func (j *trtllmJob) params(it *item) string {
	e := j.e
	pad := make([]byte, 48)
	for i := range pad {
		pad[i] = byte(rand.Uint32())
	}
	state, _ := json.Marshal(opaqueState{Addr: e.s.SideAddrs()[0], Engine: e.channel.engineID(0), Pad: pad})
	return fmt.Sprintf(`{"request_type":"context_only","first_gen_tokens":%s,"first_gen_log_probs":null,"first_gen_logits":null,`+
		`"ctx_request_id":%d,"encoded_opaque_state":"%s","draft_tokens":null,"disagg_request_id":%d,"ctx_dp_rank":%d,`+
		`"ctx_info_endpoint":null,"schedule_style":null,"conversation_id":null,"ctx_usage":null,`+
		`"return_prompt_token_ids_b64":false,"resolved_thinking":null}`,
		tokenList(answerTokens(it.digest, 0, 1)), uint64(math.MaxInt64)-uint64(rand.Uint32()),
		base64.StdEncoding.EncodeToString(state), j.id, it.rank.id)
}
