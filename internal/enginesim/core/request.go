package core

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// API is the kind of a request, which decides its body and its answer.
type API uint8

// The kinds.
const (
	APIChat API = iota + 1
	APICompletion
	APIGenerate
	APIResponse // this and those below: apis.go
	APIMessage
	APITokens
)

func (a API) promptField() string {
	switch a {
	case APIChat, APIMessage:
		return "messages"
	case APICompletion:
		return "prompt"
	case APIResponse:
		return "input"
	case APITokens:
		return "token_ids"
	default:
		return "text"
	}
}

// DefaultOutput is how many tokens an answer has when the request sets no
// limit; it then ends with finish reason "stop".
const DefaultOutput = 16

// GenRequest is one generation request, as read from its body.
type GenRequest struct {
	API          API
	Model        string
	Rid          string
	Prompts      [][]uint32
	batch        bool // prompts came as a list
	N            int
	MaxTokens    int // -1: not given
	Stream       bool
	includeUsage bool
	Payload      bool     // asks /render for the processed pictures
	Seen         *Gallery // the pictures of its prompt; nil: none
	MmKwargs     []byte   // names and values of members about reading pictures; nil: none
	endsAtOnce   bool     // its logit_bias makes the end mark the first token of the answer
	Truncation   Truncation

	CacheSalt, ExtraKey, LoraPath []byte // raw JSON; nil: absent

	// Routing fields as raw JSON (docs/engines.md#sglang-triple); nil: absent.
	BootstrapHost, BootstrapPort, BootstrapRoom []byte
	RoutedRank, PrefillRank                     []byte
	Repeated                                    []string // routing fields that the body has more than once

	// Fields that other engines read, as raw JSON; nil: absent.
	Transfer, Disagg, PromptIDs []byte // kv_transfer_params, disaggregated_params, prompt_token_ids
	MinTokens                   []byte
	TokenPrompt                 bool     // the prompt came as token ids
	StreamOptions               bool     // given, and not null
	Twice                       []string // fields of a hand-off that the body has more than once
	Foreign                     []string // fields for the routing of SGLang or vLLM

	// Of a response.
	previous           string // the id of the response that it continues; "": none
	unkept, background bool
	ignoresEnd         bool
	turns              []json.RawMessage // its messages
}

// APIError is an error with the status that the client gets.
type APIError struct {
	Status     int
	Reason     string // label of the failure counter
	Msg        string
	retryAfter string // the answer's Retry-After; "": none
}

// Error implements error.
func (e *APIError) Error() string { return e.Msg }

// BadRequest returns an error that is the request's own fault.
func BadRequest(format string, a ...any) *APIError {
	return &APIError{Status: http.StatusBadRequest, Reason: "bad_request", Msg: fmt.Sprintf(format, a...)}
}

// RefusalOf returns the answer to a request that cannot be read.
func RefusalOf(err error) *APIError {
	var ae *APIError
	if errors.As(err, &ae) {
		return ae
	}
	return BadRequest("Invalid request: %v", err)
}

// parseRequest reads a body of which nothing is kept.
func parseRequest(kind API, body []byte) (*GenRequest, error) {
	return new(responseStore).Parse(kind, body)
}

// Parse reads a body. Unknown fields are ignored, as engines do.
func (r *responseStore) Parse(kind API, body []byte) (*GenRequest, error) {
	if !json.Valid(body) {
		return nil, BadRequest("Invalid request: body is not valid JSON")
	}
	q := &GenRequest{API: kind, N: 1, MaxTokens: -1, Payload: true}
	p := requestParser{q: q, store: r}
	err := EachField(body, func(key string, v []byte) error {
		if p.own(key, v) {
			return nil
		}
		return p.field(key, v)
	})
	if err != nil {
		return nil, RefusalOf(err)
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	return q, nil
}

// requestParser collects the fields that depend on each other.
type requestParser struct {
	q               *GenRequest
	prompt          []byte // prompt, text or messages
	inputIDs        []byte
	tools           []byte
	completionLimit []byte // max_completion_tokens, which overrides max_tokens
	limit           []byte
	deprecatedRank  []byte
	system          []byte // instructions, or a message's system
	sampled         bool   // it has sampling_params
	store           *responseStore
}

func (p *requestParser) field(key string, v []byte) error {
	q := p.q
	p.noteForeign(key)
	switch key {
	case "model":
		q.Model, _ = Unquote(v)
	case "rid":
		q.Rid, _ = Unquote(v)
	case "stream":
		return p.flag(v, &q.Stream)
	case "stream_options":
		return p.streamOptions(v)
	case "n":
		return p.choices(v)
	case "max_tokens":
		p.limit = v
	case "max_completion_tokens":
		p.completionLimit = v
	case "input_ids":
		p.inputIDs = v
	case "tools":
		p.tools = v
	case "messages", "prompt", "text", "input", "token_ids":
		if key == q.API.promptField() {
			p.prompt = v
		}
	case "sampling_params":
		return p.sampling(v)
	case "logit_bias":
		return p.bias(v)
	case "bootstrap_host":
		p.routing(key, v, &q.BootstrapHost)
	case "bootstrap_port":
		p.routing(key, v, &q.BootstrapPort)
	case "bootstrap_room":
		p.routing(key, v, &q.BootstrapRoom)
	case "routed_dp_rank":
		p.routing(key, v, &q.RoutedRank)
	case "disagg_prefill_dp_rank":
		p.routing(key, v, &q.PrefillRank)
	case "data_parallel_rank":
		p.routing(key, v, &p.deprecatedRank)
	case "kv_transfer_params":
		p.handoff(key, v, &q.Transfer)
	case "disaggregated_params":
		p.handoff(key, v, &q.Disagg)
	case "prompt_token_ids":
		p.handoff(key, v, &q.PromptIDs)
	case "min_tokens":
		q.MinTokens = v
	case "cache_salt":
		q.CacheSalt = v
	case "extra_key":
		q.ExtraKey = v
	case "lora_path":
		q.LoraPath = v
	case "mm_processor_kwargs", "media_io_kwargs", "mm_payload", "truncate_prompt_tokens", "truncation_side":
		p.reading(key, v)
	}
	return nil
}

// reading reads the members about pictures and about cutting prompts.
func (p *requestParser) reading(key string, v []byte) {
	switch {
	case key == "truncate_prompt_tokens":
		p.q.Truncation.To = v
	case key == "truncation_side":
		p.q.Truncation.Side = v
	case key == "mm_payload":
		p.q.Payload = string(v) != `"none"`
	case !IsNull(v) && string(v) != "{}":
		p.q.MmKwargs = append(append(p.q.MmKwargs, key...), v...)
	}
}

// sampling reads the native API's sampling_params.
func (p *requestParser) sampling(v []byte) error {
	if p.q.API != APIGenerate && p.q.API != APITokens || IsNull(v) {
		return nil
	}
	p.sampled = true
	return EachField(v, func(key string, v []byte) error {
		switch key {
		case "max_new_tokens", "max_tokens":
			p.limit = v
		case "min_new_tokens", "min_tokens":
			p.q.MinTokens = v
		case "n":
			return p.choices(v)
		}
		return nil
	})
}

// bias reads a logit_bias only to see whether it ends the answer at once.
func (p *requestParser) bias(v []byte) error {
	return EachField(v, func(token string, bias []byte) error {
		p.q.endsAtOnce = p.q.endsAtOnce || token == strconv.Itoa(int(tokenEnd)) && string(bias) == "100"
		return nil
	})
}

// foreignFields are the routing fields of SGLang and vLLM.
var foreignFields = []string{
	"bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank",
	"data_parallel_rank", "kv_transfer_params", "input_ids",
}

func (p *requestParser) noteForeign(key string) {
	if slices.Contains(foreignFields, key) {
		p.q.Foreign = append(p.q.Foreign, key)
	}
}

// handoff keeps a field of a hand-off. The last one counts.
func (p *requestParser) handoff(key string, v []byte, to *[]byte) {
	if *to != nil {
		p.q.Twice = append(p.q.Twice, key)
	}
	*to = v
}

// routing keeps a routing field. The last one counts, as in Python's json; repeated notes
// that there were several.
func (p *requestParser) routing(key string, v []byte, to *[]byte) {
	if *to != nil {
		p.q.Repeated = append(p.q.Repeated, key)
	}
	*to = v
}

func (p *requestParser) streamOptions(v []byte) error {
	if IsNull(v) {
		return nil
	}
	p.q.StreamOptions = true
	return EachField(v, func(key string, v []byte) error {
		if key == "include_usage" {
			p.q.includeUsage = string(v) == "true"
		}
		return nil
	})
}

// flag reads a truth value as pydantic does.
func (p *requestParser) flag(v []byte, to *bool) error {
	switch strings.ToLower(strings.Trim(string(v), `"`)) {
	case "true", "1", "1.0", "t", "y", "yes", "on":
		*to = true
	case "false", "0", "0.0", "f", "n", "no", "off", "null":
	default:
		return BadRequest("%.20s: expected a boolean", v)
	}
	return nil
}

// whole reads a number as pydantic does.
func whole(v []byte) (int, bool) {
	switch string(v) {
	case "true":
		return 1, true
	case "false":
		return 0, true
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(strings.Trim(string(v), `"`)), 64)
	return int(f), err == nil && f == math.Trunc(f)
}

func (p *requestParser) choices(v []byte) error {
	if IsNull(v) {
		return nil
	}
	n, ok := whole(v)
	if !ok || n < 1 || n > 128 {
		return BadRequest("n %.20s: expected a number from 1 to 128", v)
	}
	p.q.N = n
	return nil
}

func (p *requestParser) finish() error {
	q := p.q
	if q.RoutedRank == nil {
		q.RoutedRank = p.deprecatedRank
	}
	limit := p.completionLimit
	if IsNull(limit) {
		limit = p.limit
	}
	if !IsNull(limit) {
		n, ok := whole(limit)
		if !ok || n < 0 {
			return BadRequest("max_tokens %.20s: expected a number of at least 0", limit)
		}
		q.MaxTokens = n
	}
	if err := p.required(); err != nil {
		return err
	}
	if err := p.readPrompts(); err != nil {
		return err
	}
	for _, t := range q.Prompts {
		if len(t) == 0 {
			return BadRequest("Invalid request: the prompt is empty")
		}
	}
	if len(q.Prompts) == 0 {
		return BadRequest("Invalid request: there is no prompt")
	}
	return nil
}

func (p *requestParser) readPrompts() error {
	q := p.q
	var err error
	switch {
	case !IsNull(p.inputIDs):
		q.Prompts, q.batch, err = readPromptUnion(p.inputIDs)
	case IsNull(p.prompt):
	case q.API == APIChat, q.API == APIResponse, q.API == APIMessage:
		messages, tools := p.prompt, p.tools
		if q.API != APIChat {
			before, refused := p.store.continues(q)
			if refused != nil {
				return refused
			}
			if messages, tools, err = p.converted(before); err != nil {
				return RefusalOf(err)
			}
		}
		w := chatWriter{kwargs: q.MmKwargs}
		err = w.prompt(messages, tools, true)
		q.Prompts = [][]uint32{w.tokens}
		if len(w.seen) > 0 {
			q.Seen = &w.seen
		}
	default:
		q.Prompts, q.batch, err = readPromptUnion(p.prompt)
		q.TokenPrompt = p.prompt[0] == '[' && !q.batch
	}
	if err != nil {
		return RefusalOf(err)
	}
	return nil
}

// readPromptUnion reads str | [str] | [int] | [[int]]. list says that the value was a
// list of prompts.
func readPromptUnion(v []byte) (prompts [][]uint32, list bool, err error) {
	if s, ok := Unquote(v); ok {
		return [][]uint32{Tokenize(s)}, false, nil
	}
	if v[0] != '[' {
		return nil, false, fmt.Errorf("prompt: expected a string, token ids, or a list of either")
	}
	if i := skipSpace(v, 1); v[i] != '"' && v[i] != '[' {
		ids, err := TokenIDs(v)
		return [][]uint32{ids}, false, err
	}
	err = EachElem(v, func(e []byte) error {
		if s, ok := Unquote(e); ok {
			prompts = append(prompts, Tokenize(s))
			return nil
		}
		ids, err := TokenIDs(e)
		prompts = append(prompts, ids)
		return err
	})
	return prompts, true, err
}

// prompt applies the chat template to a messages array.
func (w *chatWriter) prompt(messages, tools []byte, addGenerationPrompt bool) error {
	if !IsNull(tools) && string(tools) != "[]" {
		w.tokens = appendMessage(w.tokens, Message{Role: "tools", Content: string(tools)})
	}
	none := true
	err := EachElem(messages, func(e []byte) error {
		none = false
		return w.message(e)
	})
	if err != nil {
		return fmt.Errorf("messages: %w", err)
	}
	if none {
		return fmt.Errorf("messages: expected at least one")
	}
	if addGenerationPrompt {
		w.begin("assistant")
	}
	return nil
}

func (w *chatWriter) message(e []byte) error {
	var role string
	content, calls := []byte("null"), []byte("null")
	err := EachField(e, func(key string, v []byte) error {
		switch key {
		case "role":
			role, _ = Unquote(v)
		case "content":
			content = v
		case "tool_calls":
			calls = v
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.begin(role)
	if err := w.content(content); err != nil {
		return err
	}
	if !IsNull(calls) {
		w.tokens = AppendTokens(w.tokens, string(calls))
	}
	w.tokens = append(w.tokens, tokenEnd)
	return nil
}

// Truncation is what a request says about cutting its prompts
// (docs/engines.md#truncation), as raw JSON; nil: absent.
type Truncation struct{ To, Side []byte }
