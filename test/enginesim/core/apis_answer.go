package core

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// This file is the answers of apis.go.

// errorAs is the body of an error in the form of the API.
func (p *Pages) errorAs(kind API, e *APIError, stream bool) any {
	if kind == APIMessage {
		return map[string]any{"type": "error", "error": map[string]string{"type": e.Body().Type, "message": e.Msg}}
	}
	return p.s.engine.ErrorBody(kind, e, stream)
}

// failStream ends a stream that has begun.
func (c *Call) failStream(e *APIError) {
	a := c.newAnswer(0, "")
	switch {
	case c.kind == APIResponse && a.shape.BreaksOff:
		panic(http.ErrAbortHandler)
	case c.kind == APIResponse:
		a.event("response.failed", `"response":%s`, a.response("failed", "", fmt.Sprintf(`{"code":"server_error","message":%q}`, e.Msg)))
	case c.kind == APIMessage:
		a.event("error", `"error":{"type":"api_error","message":%q}`, e.Msg)
	default:
		b, _ := json.Marshal(c.s.engine.ErrorBody(c.kind, e, true))
		a.buf = append(append(append(a.buf, "data: "...), b...), "\n\ndata: [DONE]\n\n"...)
	}
	_, _ = c.w.Write(a.buf)
}

// event appends an event of a kind, with these members.
func (a *answer) event(kind, format string, args ...any) {
	a.buf = fmt.Appendf(a.buf, "event: %s\ndata: {\"type\":%q", kind, kind)
	if a.c.kind == APIResponse {
		a.buf = fmt.Appendf(a.buf, `,"sequence_number":%d`, a.c.events)
		a.c.events++
	}
	if format != "" {
		a.buf = fmt.Appendf(append(a.buf, ','), format, args...)
	}
	a.buf = append(a.buf, "}\n\n"...)
}

// open appends what comes before the first token.
func (a *answer) open() {
	a.c.begun = true
	switch a.c.kind {
	case APIResponse:
		now := a.response("in_progress", "", "null")
		a.event("response.created", `"response":%s`, now)
		a.event("response.in_progress", `"response":%s`, now)
	case APIMessage:
		n := 0
		if len(a.c.Items) > 0 {
			n = a.c.told(len(a.c.Items[0].Prompt))
		}
		a.event("message_start", `"message":{"id":%s,"type":"message","role":"assistant","content":[],"model":%s,"stop_reason":null,"stop_sequence":null,`+
			`"usage":{"input_tokens":%d,"output_tokens":0}}`, a.id, a.model, n)
	}
}

// deltas appends the events of the tokens from..upto of item i, which are text.
func (a *answer) deltas(i, from, upto int, text []byte) {
	if !a.c.begun {
		a.open()
	}
	switch a.c.kind {
	case APIResponse:
		if from == 0 {
			a.event("response.output_item.added", `"output_index":0,"item":{"id":"%s","type":"message","role":"assistant","content":[],"status":"in_progress"}`, a.itemID())
			a.event("response.content_part.added", `"item_id":"%s","output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}`, a.itemID())
		}
		a.event("response.output_text.delta", `"item_id":"%s","output_index":0,"content_index":0,"delta":"%s","logprobs":[]`, a.itemID(), text)
	case APIMessage:
		if from == 0 {
			a.event("content_block_start", `"index":0,"content_block":{"type":"text","text":""}`)
		}
		a.event("content_block_delta", `"index":0,"delta":{"type":"text_delta","text":"%s"}`, text)
	default:
		reason := "null"
		if upto == a.out {
			reason = `"` + a.reason + `"`
		}
		a.buf = fmt.Appendf(a.buf, "data: {\"request_id\":%s,\"usage\":null,\"output_mode\":\"tokens\",\"choices\":[%s]}\n\n", a.id, a.tokens(i, from, upto, reason))
	}
}

// tokens is a choice of /inference/v1/generate.
func (a *answer) tokens(i, from, upto int, reason string) []byte {
	ids, _ := json.Marshal(AnswerTokens(a.c.Items[i].Digest, from, upto))
	return fmt.Appendf(nil, `{"index":%d,"finish_reason":%s,"stop_reason":null,"token_ids":%s,"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}`, i, reason, ids)
}

// close appends what comes after the last token.
func (a *answer) close() {
	if !a.c.begun {
		a.open()
	}
	switch text := a.text[0]; a.c.kind {
	case APIResponse:
		part := fmt.Sprintf(`{"type":"output_text","text":"%s","annotations":[],"logprobs":null}`, text)
		if a.out > 0 {
			a.event("response.output_text.done", `"item_id":"%s","output_index":0,"content_index":0,"text":"%s","logprobs":[]`, a.itemID(), text)
			a.event("response.content_part.done", `"item_id":"%s","output_index":0,"content_index":0,"part":%s`, a.itemID(), part)
			a.event("response.output_item.done", `"output_index":0,"item":%s`, a.item())
		}
		status, whole := a.status(), a.response(a.status(), a.item(), "null")
		if a.shape.Completes {
			status = "completed"
		}
		a.event("response."+status, `"response":%s`, whole)
		a.c.s.Pages.Responses.put(a.c.Q, []byte(whole), text)
	case APIMessage:
		if a.out > 0 {
			a.event("content_block_stop", `"index":0`)
		}
		a.event("message_delta", `"delta":{"stop_reason":%s,"stop_sequence":null},"usage":%s`, stopReason(a.reason), a.messageUsage())
		a.event("message_stop", "")
	default:
		if a.c.Q.includeUsage {
			a.buf = append(a.appendUsage(fmt.Appendf(a.buf, `data: {"request_id":%s,"output_mode":"tokens","choices":[],"usage":`, a.id), true), "}\n\n"...)
		}
		a.buf = append(a.buf, "data: [DONE]\n\n"...)
	}
}

// appendOwn appends the body of an answer that is not streamed.
func (a *answer) appendOwn(b []byte) []byte {
	tail := bytes.TrimSuffix(a.c.BodyTail, []byte("null"))
	switch a.c.kind {
	case APIResponse:
		start := len(b)
		b = append(b, a.response(a.status(), a.item(), "null")...)
		a.c.s.Pages.Responses.put(a.c.Q, b[start:], a.text[0])
		return append(append(b[:len(b)-1], a.c.BodyTail...), '}')
	case APIMessage:
		b = fmt.Appendf(b, `{"id":%s,"type":"message","role":"assistant","content":[{"type":"text","text":"%s"}],"model":%s,"stop_reason":%s,"usage":%s`,
			a.id, a.text[0], a.model, stopReason(a.reason), a.messageUsage())
		if len(tail) == len(a.c.BodyTail) { // null is left out
			b = append(b, tail...)
		}
		return append(b, '}')
	}
	b = append(a.appendUsage(fmt.Appendf(b, `{"request_id":%s,"model":%s,"created":%d,"usage":`, a.id, a.model, a.created), false), `,"prompt_logprobs":null,"prompt_token_ids":null,"output_mode":"tokens","choices":[`...)
	for i := range a.c.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, a.tokens(i, 0, a.out, `"`+a.reason+`"`)...)
	}
	return append(append(append(b, ']'), a.c.BodyTail...), '}')
}

// itemID is the id of the only item of a response.
func (a *answer) itemID() string { return "msg_" + a.c.Q.Rid }

func (a *answer) item() string {
	return fmt.Sprintf(`{"id":"%s","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"%s","annotations":[],"logprobs":null}]}`, a.itemID(), a.text[0])
}

func (a *answer) status() string {
	return map[string]string{"length": "incomplete", "abort": "failed"}[a.reason] + map[string]string{"stop": "completed"}[a.reason]
}

func stopReason(reason string) string {
	if reason == "length" {
		return `"max_tokens"`
	}
	return `"end_turn"`
}

// response is the whole object, with these items. One that has not ended has no usage.
func (a *answer) response(status, items, err string) string {
	usage, details := "null", "null"
	if status == "incomplete" {
		details = `{"reason":"max_output_tokens"}`
	}
	if len(a.text) > 0 {
		prompt := a.promptTokens()
		usage = fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}`,
			prompt, a.c.cachedTokens(), a.out, prompt+a.out)
	}
	return fmt.Sprintf(`{"id":%s,"object":"response","created_at":%d,"model":%s,"status":%q,"output":[%s],"usage":%s,"error":%s,"incomplete_details":%s,`+
		`"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"temperature":1.0,"top_p":1.0,"background":false,"truncation":"disabled","instructions":null,"metadata":null}`,
		a.id, a.created, a.model, status, items, usage, err, details)
}

// messageUsage counts as Anthropic does: input_tokens are those that were neither read from the cache
// nor, if the engine tells these, added to it.
func (a *answer) messageUsage() string {
	cached, prompt := a.c.cachedTokens(), a.promptTokens()
	if a.shape.Created {
		made := a.createdTokens()
		return fmt.Sprintf(`{"input_tokens":%d,"output_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d}`, prompt-cached-made, a.out, made, cached)
	}
	return fmt.Sprintf(`{"input_tokens":%d,"output_tokens":%d,"cache_read_input_tokens":%d}`, prompt-cached, a.out, cached)
}
