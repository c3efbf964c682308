package handoff

import (
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// TensorRT-LLM, context first (serve/openai_disagg_service.py _get_ctx_request,
// _verify_ctx_response, _get_gen_request). The hand-off is in the only choice of the
// answer. Beside the choices are the prompt's token ids, so that decode need not
// tokenize the prompt, and prefill's usage.
//
// The engine's own service leaves max_tokens of prefill's body as the client set it,
// since context_only ends after one token anyway. Baton asks for one token: the answer
// is the same, and a worker that does not know context_only does not generate the whole
// answer.
const (
	trtMember    = "disaggregated_params"
	trtPromptIDs = "prompt_token_ids"
	trtPromptB64 = "prompt_token_ids_b64"
)

// appendTRTHold appends what makes the prefill worker hold its KV under the id.
// schedule_style is left out, since its default is context first.
func appendTRTHold(dst []byte, id uint64) []byte {
	dst = append(dst, `,"disaggregated_params":{"request_type":"context_only","disagg_request_id":`...)
	dst = strconv.AppendUint(dst, id, 10)
	return append(dst, '}')
}

// readTRT reads the hand-off in the only choice, the prompt's ids and the usage.
// Without ids decode tokenizes the prompt itself. A value that is no list of ids is
// refused: decode would generate for another prompt.
func readTRT(answer []byte, top *members, res *Result) error {
	var choice, params slot
	openai.EachElement(answer, top.choices.val, choice.put)
	openai.EachMember(answer, choice.val, func(key, val openai.Span) bool {
		if openai.IsKey(answer, key, trtMember) {
			params.put(val)
		}
		return true
	})
	if top.choices.twice || top.promptIDs.twice || top.usage.twice {
		return RepeatedMember
	}
	h, err := checkHandOff(answer, params)
	if err != nil || !trtHolds(answer, h) {
		return err
	}
	if ids := top.promptIDs.val; top.promptIDs.given(answer) {
		if _, ok := openai.CountTokenIDs(answer, ids); !ok {
			return NotTokenIDs
		}
		res.PromptIDs = ids
	}
	if top.usage.given(answer) && answer[top.usage.val.Start] == '{' {
		res.Usage = top.usage.val
	}
	res.HandOff = h
	return nil
}

// trtHolds reports whether KV is held under the hand-off. If a request was over before
// its KV was set up for a transfer, the object is present but has no ids.
func trtHolds(answer []byte, h openai.Span) bool {
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

// trtEdits appends the edits that put the prompt's ids into decode's body: in place of
// a completion's prompt, or beside the messages of a chat.
func trtEdits(edits []openai.Edit, answer []byte, r *openai.Request, res Result) []openai.Edit {
	if res.PromptIDs.End == 0 {
		return edits
	}
	ids := res.PromptIDs.Of(answer)
	if r.Path == openai.Completions {
		return append(edits, openai.Edit{Field: openai.PromptText, Value: ids})
	}
	return append(edits, openai.Edit{Field: openai.PromptTokenIDs, Value: ids},
		openai.Edit{Field: openai.PromptTokenIDsB64})
}

// appendTRT appends the hand-off to decode's body, with another request_type and with
// prefill's usage as ctx_usage.
func appendTRT(dst, answer []byte, res Result) []byte {
	if !res.Held() {
		return dst
	}
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
