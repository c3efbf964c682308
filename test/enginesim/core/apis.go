package core

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
)

// This file is the requests of other APIs. Of /v1/responses and /v1/messages the engine makes a chat;
// /inference/v1/generate of vLLM has token ids in and out. The events, the members and the refusals
// are those that vLLM 0.32 (entrypoints/openai/responses, anthropic, scale_out) and SGLang 0.5.23
// (serving_responses.py, anthropic/serving.py) write for texts and calls of tools.

// OtherAPIs serves the pages of responses and messages, for engines that have them.
func (p *Pages) OtherAPIs(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/responses", p.Generate(APIResponse))
	mux.HandleFunc("POST /v1/messages", p.Generate(APIMessage))
	mux.HandleFunc("POST /v1/messages/count_tokens", p.countTokens)
	mux.HandleFunc("GET /v1/responses/{id}", func(w http.ResponseWriter, r *http.Request) { p.keptResponse(w, r, false) })
	mux.HandleFunc("POST /v1/responses/{id}/cancel", func(w http.ResponseWriter, r *http.Request) { p.keptResponse(w, r, true) })
}

// own reads a member that only these APIs have, or that means something else in the others. taken
// says that it was one.
func (p *requestParser) own(key string, v []byte) (taken bool) {
	q := p.q
	switch {
	case q.API < APIResponse:
		return false
	case key == "instructions" && q.API == APIResponse, key == "system" && q.API == APIMessage:
		p.system = v
	case key == "max_output_tokens" && q.API == APIResponse:
		p.limit = v
	case key == "max_tokens" || key == "max_completion_tokens" || key == "min_tokens" || key == "n":
		return q.API != APIMessage || key != "max_tokens" // no member of the API
	case key == "previous_response_id":
		q.previous, _ = Unquote(v)
	case key == "request_id" && q.API != APIMessage:
		q.Rid, _ = Unquote(v)
	case key == "store":
		q.unkept = string(v) == "false"
	case key == "background":
		q.background = string(v) == "true"
	case key == "ignore_eos":
		q.ignoresEnd = string(v) == "true"
	default:
		return false
	}
	return true
}

// required returns what is missing of a request of these APIs.
func (p *requestParser) required() error {
	switch q := p.q; {
	case q.API == APIMessage && IsNull(p.limit):
		return BadRequest("max_tokens: Field required")
	case q.API == APITokens && !p.sampled:
		return BadRequest("sampling_params: Field required")
	case q.API == APIResponse && q.Rid == "":
		q.Rid = "resp_" + drawnID()
	case q.API == APIMessage:
		q.Rid = "msg_" + drawnID()
	}
	return nil
}

func drawnID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// converted returns the messages and the tools of the chat that the engine makes of the request.
// before are the messages of the response that it continues.
func (p *requestParser) converted(before []json.RawMessage) (messages, tools []byte, err error) {
	all := []json.RawMessage{}
	add := func(v map[string]any) { b, _ := json.Marshal(v); all = append(all, b) }
	if !IsNull(p.system) {
		add(map[string]any{"role": "system", "content": json.RawMessage(p.system)})
	}
	all = append(all, before...)
	if text, ok := Unquote(p.prompt); ok && p.q.API == APIResponse {
		add(map[string]any{"role": "user", "content": text})
	} else {
		err = EachElem(p.prompt, func(e []byte) error {
			var item struct {
				Type, Role, Name, Arguments string
				CallID                      string `json:"call_id"`
				Content, Output             json.RawMessage
			}
			if err := json.Unmarshal(e, &item); err != nil {
				return err
			}
			switch item.Type {
			case "function_call":
				call := fmt.Appendf(nil, `[{"id":%q,"type":"function","function":{"name":%q,"arguments":`, item.CallID, item.Name)
				text, _ := json.Marshal(item.Arguments)
				add(map[string]any{"role": "assistant", "tool_calls": json.RawMessage(append(append(call, text...), "}}]"...))})
			case "function_call_output":
				add(map[string]any{"role": "tool", "content": item.Output})
			case "", "message":
				add(map[string]any{"role": item.Role, "content": item.Content})
			default:
				return fmt.Errorf("%.40q items are not simulated", item.Type)
			}
			return nil
		})
	}
	p.q.turns = all
	messages, _ = json.Marshal(all)
	if IsNull(p.tools) || err != nil {
		return messages, nil, err
	}
	err = EachElem(p.tools, func(e []byte) error {
		given := map[string][]byte{}
		_ = EachField(e, func(key string, v []byte) error {
			if key == "input_schema" {
				key = "parameters"
			}
			given[key] = v
			return nil
		})
		tool := []byte(`,{"type":"function","function":{"name":`)
		tool = append(tool, given["name"]...)
		for _, key := range []string{"description", "parameters", "strict"} {
			if v, ok := given[key]; ok && !IsNull(v) {
				tool = fmt.Appendf(tool, `,%q:%s`, key, v)
			}
		}
		tools = append(append(tools, tool...), "}}"...)
		return nil
	})
	return messages, append(append([]byte("["), bytes.TrimPrefix(tools, []byte(","))...), ']'), err
}

// countTokens answers POST /v1/messages/count_tokens.
func (p *Pages) countTokens(w http.ResponseWriter, r *http.Request) {
	body, err := ReadBody(r)
	if err == nil && json.Valid(body) && len(body) > 1 {
		body = append(bytes.TrimSuffix(bytes.TrimSpace(body), []byte("}")), `,"max_tokens":1}`...)
	}
	q, parseErr := p.Responses.Parse(APIMessage, body)
	err = errors.Join(err, parseErr)
	if err != nil {
		p.refuseAs(APIMessage, w, RefusalOf(err))
		return
	}
	n := len(q.Prompts[0])
	out := map[string]any{"input_tokens": n}
	if p.s.engine.CachedCounts {
		out["context_management"] = map[string]int{"original_input_tokens": n}
	}
	WriteJSON(w, http.StatusOK, out)
}

// responseStore keeps responses. Safe for concurrent use.
type responseStore struct {
	members     []string // of requests, see Engine.Members
	on, refuses bool     // refuses: a request that would need it; else none is known

	mu   sync.Mutex // guards kept
	kept map[string]*keptAnswer
}

type keptAnswer struct {
	body  json.RawMessage
	turns []json.RawMessage // the messages of its request, and its own
}

func (r *responseStore) get(id string) (*keptAnswer, error) {
	if r.refuses {
		return nil, BadRequest("Response store is disabled. Stateful Responses require --enable-response-store on a standalone server; response storage is unavailable in PD mode.")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.kept[id]; k != nil {
		return k, nil
	}
	return nil, &APIError{Status: http.StatusNotFound, Reason: "response", Msg: fmt.Sprintf("Response with id '%s' not found.", id)}
}

// put keeps the answer of a request that does not forbid it.
func (r *responseStore) put(q *GenRequest, body, text []byte) {
	if !r.on || q.unkept {
		return
	}
	turn := fmt.Appendf(nil, `{"role":"assistant","content":"%s"}`, text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[q.Rid] = &keptAnswer{bytes.Clone(body), append(slices.Clone(q.turns), turn)}
}

// continues returns the messages that the request continues.
func (r *responseStore) continues(q *GenRequest) ([]json.RawMessage, error) {
	switch {
	case q.background && !r.on:
		return nil, BadRequest("This engine does not support the background mode.")
	case q.previous == "":
		return nil, nil
	}
	k, err := r.get(q.previous)
	if err != nil {
		return nil, err
	}
	return k.turns, nil
}

// keptResponse answers with a response that is kept, or refuses to cancel it: it has ended.
func (p *Pages) keptResponse(w http.ResponseWriter, r *http.Request, cancel bool) {
	k, err := p.Responses.get(r.PathValue("id"))
	if err == nil && cancel {
		err = BadRequest("Cannot cancel a synchronous response.")
	}
	if err != nil {
		p.refuseAs(APIResponse, w, RefusalOf(err))
		return
	}
	WriteJSON(w, http.StatusOK, k.body)
}
