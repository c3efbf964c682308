package trtllm

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

	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sidechannel"
)

// job is a planned request.
type job struct {
	e        *engine
	c        *core.Call
	id       int64                 // of a context request
	transfer *sidechannel.Transfer // the hand-off that a generation request brought; nil: none
}

func (j *job) Abandon() { j.e.channel.Drop(j.transfer) }

func (*job) Release() {}

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
func (j *job) readParams() error {
	e, c := j.e, j.c
	if core.IsNull(c.Q.Own("disaggregated_params")) {
		return nil
	}
	f, err := sidechannel.ReadHandoff(c, "disaggregated_params", c.Q.Own("disaggregated_params"))
	if err != nil {
		return err
	}
	for key := range f.Fields {
		if !slices.Contains(disaggFields, key) {
			return c.Broken("bad_handoff", http.StatusBadRequest, "disaggregated_params.%s: Extra inputs are not permitted", key)
		}
	}
	kind, err := f.Text("request_type")
	if err != nil {
		return err
	}
	wrongRole := func() error {
		return c.Broken("wrong_role", http.StatusInternalServerError, "%s is asked of a %s worker", kind, e.cfg.Role)
	}
	switch kind {
	case "context_only":
		if !e.cfg.Prefills() {
			return wrongRole()
		}
		c.Leg = core.LegPrefill
		return j.readContext(f)
	case "generation_only":
		if !e.cfg.Decodes() {
			return wrongRole()
		}
		c.Leg = core.LegDecode
		return j.readGeneration(f)
	case "context_and_generation":
		return nil
	default:
		return c.Broken("bad_handoff", http.StatusBadRequest, "request_type %.40q: expected context_only or generation_only", kind)
	}
}

func (j *job) readContext(f sidechannel.HandoffFields) error {
	c := j.c
	var err error
	j.id, err = f.Number("disagg_request_id", minDisaggID, math.MaxInt64)
	if err != nil {
		return err
	}
	if c.Q.Stream {
		return c.Broken("prefill_stream", http.StatusBadRequest, "a context request is not streamed")
	}
	return nil
}

// readGeneration reads where the KV is, and the prompt. The prompt is the ids that the
// context phase answered, so it is not tokenised anew.
func (j *job) readGeneration(f sidechannel.HandoffFields) error {
	c := j.c
	id, err := f.Number("disagg_request_id", minDisaggID, math.MaxInt64)
	if err != nil {
		return err
	}
	_, err = f.Number("ctx_request_id", 0, math.MaxInt64)
	if err != nil {
		return err
	}
	tokens, err := f.Value("first_gen_tokens", "[")
	if err != nil {
		return err
	}
	if ids, err := core.TokenIDs(tokens); err != nil || len(ids) == 0 {
		return c.Broken("bad_handoff", http.StatusBadRequest, "first_gen_tokens %.40s: expected token ids", tokens)
	}
	text, err := f.Text("encoded_opaque_state")
	if err != nil {
		return err
	}
	var state opaqueState
	b, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(b, &state)
	}
	if err != nil {
		return c.Broken("bad_handoff", http.StatusInternalServerError, "encoded_opaque_state: %v", err)
	}
	j.transfer = &sidechannel.Transfer{Addr: state.Addr, Engine: state.Engine, ID: strconv.FormatInt(id, 10), By: c.Name(), Fields: string(f.Raw)}
	if c.Q.API != core.APIChat {
		if !c.Q.TokenPrompt {
			return c.Broken("no_prompt_ids", http.StatusBadRequest, "prompt: expected the context phase's prompt_token_ids")
		}
		return nil
	}
	ids, err := core.TokenIDs(c.Q.Own("prompt_token_ids"))
	if core.IsNull(c.Q.Own("prompt_token_ids")) || err != nil || len(ids) == 0 {
		return c.Broken("no_prompt_ids", http.StatusBadRequest, "prompt_token_ids: expected those of the context phase")
	}
	c.Q.Prompts = [][]uint32{ids}
	return nil
}

func (j *job) Prepare(ctx context.Context, it *core.Item) error {
	c := j.c
	switch c.Leg {
	case core.LegPrefill:
		if err := c.Admit(ctx, it, 0); err != nil {
			return err
		}
		return c.ComputeNow(ctx, it, true)
	case core.LegDecode:
		return j.e.channel.Receive(ctx, c, it, j.transfer, func(err error) error {
			return &core.APIError{Status: http.StatusInternalServerError, Reason: "kv_load", Msg: "KV cache transfer failed: " + err.Error()}
		})
	default:
		return c.PrepareWhole(ctx, it)
	}
}

// Output is one token in the context phase, whatever the request asks for. It ends with
// "not_finished", or with "length" if only one token was asked for.
func (j *job) Output() (int, string) {
	c := j.c
	if c.Leg != core.LegPrefill {
		return c.Limit()
	}
	if c.Q.MaxTokens == 1 {
		return 1, "length"
	}
	return 1, "not_finished"
}

// HandOver holds the KV of a context phase with more to generate. If it ended by itself,
// the answer has the same fields, and nothing is held.
func (j *job) HandOver(reason string) {
	c := j.c
	params, ids := "null", "null"
	if c.Leg == core.LegPrefill && reason != "abort" && c.Fault.Mode != core.FaultNoHandoff {
		it := c.Items[0]
		ids = tokenList(it.Prompt)
		params = j.params(it)
		if reason == "length" || reason == "not_finished" {
			j.e.channel.Keep(c, it, strconv.FormatInt(j.id, 10), params, disaggChanged...)
		}
	}
	c.ChoiceTail = append([]byte(`,"stop_reason":null,`), sidechannel.Spoil(c.Fault, "disaggregated_params", params)...)
	c.BodyTail = []byte(`,"prompt_token_ids":` + ids)
}

func (j *job) params(it *core.Item) string {
	e := j.e
	pad := make([]byte, 48)
	for i := range pad {
		pad[i] = byte(rand.Uint32())
	}
	state, _ := json.Marshal(opaqueState{Addr: e.s.SideAddrs()[0], Engine: e.channel.EngineID(0), Pad: pad})
	return fmt.Sprintf(`{"request_type":"context_only","first_gen_tokens":%s,"first_gen_log_probs":null,"first_gen_logits":null,`+
		`"ctx_request_id":%d,"encoded_opaque_state":"%s","draft_tokens":null,"disagg_request_id":%d,"ctx_dp_rank":%d,`+
		`"ctx_info_endpoint":null,"schedule_style":null,"conversation_id":null,"ctx_usage":null,`+
		`"return_prompt_token_ids_b64":false,"resolved_thinking":null}`,
		tokenList(core.AnswerTokens(it.Digest, 0, 1)), uint64(math.MaxInt64)-uint64(rand.Uint32()),
		base64.StdEncoding.EncodeToString(state), j.id, it.Rank.ID)
}
