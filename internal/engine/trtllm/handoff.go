package trtllm

import (
	"strconv"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// HandOff is TensorRT-LLM's, context first (serve/openai_disagg_service.py _get_ctx_request,
// _verify_ctx_response, _get_gen_request). The hand-off is in the only choice of the answer.
// Beside the choices are the prompt's token ids, so that decode need not tokenize the prompt,
// and prefill's usage.
//
// The engine's own service leaves max_tokens of prefill's body as the client set it, since
// context_only ends after one token anyway. Baton asks for one token: the answer is the same,
// and a worker that does not know context_only does not generate the whole answer.
var HandOff = &handoff.Protocol{
	Name:  "context_first",
	First: &handoff.First{Hold: hold, Added: []string{member, promptIDs, promptB64}, Read: read, OnlyToDecode: true, Append: appendHeld, IDs: idsIn},
	Takes: Takes,
}

// Members of prefill's answer.
const (
	member    = "disaggregated_params"
	promptIDs = "prompt_token_ids"
	promptB64 = "prompt_token_ids_b64"
)

// hold makes the prefill worker hold its KV under the id. schedule_style is left out, since its
// default is context first.
func hold(dst []byte, id uint64) []byte {
	dst = append(dst, `,"disaggregated_params":{"request_type":"context_only","disagg_request_id":`...)
	dst = strconv.AppendUint(dst, id, 10)
	return append(dst, '}')
}

// read reads the hand-off in the only choice, the prompt's ids and the usage.
// Without ids decode tokenizes the prompt itself. A value that is no list of ids is
// refused: decode would generate for another prompt.
func read(answer []byte, top handoff.Members) (res handoff.Parts, err error) {
	var choice, params handoff.Slot
	openai.EachElement(answer, top.Choices.Val, choice.Put)
	openai.EachMember(answer, choice.Val, func(key, val openai.Span) bool {
		if openai.IsKey(answer, key, member) {
			params.Put(val)
		}
		return true
	})
	if top.Choices.Twice || top.Added[1].Twice || top.Usage.Twice {
		return res, handoff.RepeatedMember
	}
	h, err := handoff.Check(answer, params)
	if err != nil || !holds(answer, h) {
		return res, err
	}
	if ids := top.Added[1].Val; top.Added[1].Given(answer) {
		if _, ok := openai.CountTokenIDs(answer, ids); !ok {
			return res, handoff.NotTokenIDs
		}
		res.PromptIDs = ids
	}
	if top.Usage.Given(answer) && answer[top.Usage.Val.Start] == '{' {
		res.Usage = top.Usage.Val
	}
	res.HandOff = h
	return res, nil
}

// holds reports whether KV is held under the hand-off. If a request was over before
// its KV was set up for a transfer, the object is present but has no ids.
func holds(answer []byte, h openai.Span) bool {
	var ctx, global bool
	openai.EachMember(answer, h, func(key, val openai.Span) bool {
		switch {
		case openai.IsKey(answer, key, "ctx_request_id"):
			ctx = answer[val.Start] != 'n'
		case openai.IsKey(answer, key, "disagg_request_id"):
			global = answer[val.Start] != 'n'
		}
		return true
	})
	return ctx && global
}

// idsIn puts the prompt's ids into decode's body: in place of a completion's prompt, or beside
// the messages of a chat.
func idsIn(p openai.Path) (takes, replaced openai.Field) {
	if p == openai.Completions {
		return openai.PromptText, openai.NoField
	}
	return openai.PromptTokenIDs, openai.PromptTokenIDsB64
}

// appendHeld appends the hand-off to decode's body, with another request_type and with
// prefill's usage as ctx_usage.
func appendHeld(dst, answer []byte, res handoff.Parts) []byte {
	const generation = `"generation_only"`
	dst = append(dst, `,"disaggregated_params":`...)
	pos := res.HandOff.Start
	var typed, used bool
	openai.EachMember(answer, res.HandOff, func(key, val openai.Span) bool {
		switch {
		case openai.IsKey(answer, key, "request_type"):
			dst = append(append(dst, answer[pos:val.Start]...), generation...)
			typed, pos = true, val.End
		case res.Usage.End > 0 && openai.IsKey(answer, key, "ctx_usage"):
			dst = append(append(dst, answer[pos:val.Start]...), res.Usage.Of(answer)...)
			used, pos = true, val.End
		}
		return true
	})
	dst = append(dst, answer[pos:res.HandOff.End-1]...)
	if !typed {
		dst = append(append(dst, `,"request_type":`...), generation...)
	}
	if !used && res.Usage.End > 0 {
		dst = append(append(dst, `,"ctx_usage":`...), res.Usage.Of(answer)...)
	}
	return append(dst, '}')
}
