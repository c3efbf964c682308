package enginesim

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

// api is the kind of a request, which decides its body and its answer.
type api uint8

const (
	apiChat api = iota + 1
	apiCompletion
	apiGenerate
	apiResponse // this and those below: apis.go
	apiMessage
	apiTokens
)

func (a api) promptField() string {
	switch a {
	case apiChat, apiMessage:
		return "messages"
	case apiCompletion:
		return "prompt"
	case apiResponse:
		return "input"
	case apiTokens:
		return "token_ids"
	default:
		return "text"
	}
}

// defaultOutput is how many tokens an answer has when the request sets no
// limit; it then ends with finish reason "stop".
const defaultOutput = 16

// genRequest is one generation request, as read from its body.
type genRequest struct {
	api          api
	model        string
	rid          string
	prompts      [][]uint32
	batch        bool // prompts came as a list
	n            int
	maxTokens    int // -1: not given
	stream       bool
	includeUsage bool
	payload      bool     // asks /render for the processed pictures
	seen         *gallery // the pictures of its prompt; nil: none
	mmKwargs     []byte   // names and values of members about reading pictures; nil: none
	endsAtOnce   bool     // its logit_bias makes the end mark the first token of the answer
	truncation   truncation

	cacheSalt, extraKey, loraPath []byte // raw JSON; nil: absent

	// Routing fields as raw JSON (docs/engines.md#sglang-triple); nil: absent.
	bootstrapHost, bootstrapPort, bootstrapRoom []byte
	routedRank, prefillRank                     []byte
	repeated                                    []string // routing fields that the body has more than once

	// Fields that other engines read, as raw JSON; nil: absent.
	transfer, disagg, promptIDs []byte // kv_transfer_params, disaggregated_params, prompt_token_ids
	minTokens                   []byte
	tokenPrompt                 bool     // the prompt came as token ids
	streamOptions               bool     // given, and not null
	twice                       []string // fields of a hand-off that the body has more than once
	foreign                     []string // fields for the routing of SGLang or vLLM

	// Of a response.
	previous           string // the id of the response that it continues; "": none
	unkept, background bool
	ignoresEnd         bool
	turns              []json.RawMessage // its messages
}

// apiError is an error with the status that the client gets.
type apiError struct {
	status     int
	reason     string // label of the failure counter
	msg        string
	retryAfter string // the answer's Retry-After; "": none
}

// Error implements error.
func (e *apiError) Error() string { return e.msg }

func badRequest(format string, a ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, reason: "bad_request", msg: fmt.Sprintf(format, a...)}
}

// refusalOf returns the answer to a request that cannot be read.
func refusalOf(err error) *apiError {
	var ae *apiError
	if errors.As(err, &ae) {
		return ae
	}
	return badRequest("Invalid request: %v", err)
}

// parseRequest reads a body of which nothing is kept.
func parseRequest(kind api, body []byte) (*genRequest, error) {
	return new(responseStore).parse(kind, body)
}

// parse reads a body. Unknown fields are ignored, as engines do.
func (r *responseStore) parse(kind api, body []byte) (*genRequest, error) {
	if !json.Valid(body) {
		return nil, badRequest("Invalid request: body is not valid JSON")
	}
	q := &genRequest{api: kind, n: 1, maxTokens: -1, payload: true}
	p := requestParser{q: q, store: r}
	err := eachField(body, func(key string, v []byte) error {
		if p.own(key, v) {
			return nil
		}
		return p.field(key, v)
	})
	if err != nil {
		return nil, refusalOf(err)
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	return q, nil
}

// requestParser collects the fields that depend on each other.
type requestParser struct {
	q               *genRequest
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
		q.model, _ = unquote(v)
	case "rid":
		q.rid, _ = unquote(v)
	case "stream":
		return p.flag(v, &q.stream)
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
		if key == q.api.promptField() {
			p.prompt = v
		}
	case "sampling_params":
		return p.sampling(v)
	case "logit_bias":
		return p.bias(v)
	case "bootstrap_host":
		p.routing(key, v, &q.bootstrapHost)
	case "bootstrap_port":
		p.routing(key, v, &q.bootstrapPort)
	case "bootstrap_room":
		p.routing(key, v, &q.bootstrapRoom)
	case "routed_dp_rank":
		p.routing(key, v, &q.routedRank)
	case "disagg_prefill_dp_rank":
		p.routing(key, v, &q.prefillRank)
	case "data_parallel_rank":
		p.routing(key, v, &p.deprecatedRank)
	case "kv_transfer_params":
		p.handoff(key, v, &q.transfer)
	case "disaggregated_params":
		p.handoff(key, v, &q.disagg)
	case "prompt_token_ids":
		p.handoff(key, v, &q.promptIDs)
	case "min_tokens":
		q.minTokens = v
	case "cache_salt":
		q.cacheSalt = v
	case "extra_key":
		q.extraKey = v
	case "lora_path":
		q.loraPath = v
	case "mm_processor_kwargs", "media_io_kwargs", "mm_payload", "truncate_prompt_tokens", "truncation_side":
		p.reading(key, v)
	}
	return nil
}

// reading reads the members about pictures and about cutting prompts.
func (p *requestParser) reading(key string, v []byte) {
	switch {
	case key == "truncate_prompt_tokens":
		p.q.truncation.to = v
	case key == "truncation_side":
		p.q.truncation.side = v
	case key == "mm_payload":
		p.q.payload = string(v) != `"none"`
	case !isNull(v) && string(v) != "{}":
		p.q.mmKwargs = append(append(p.q.mmKwargs, key...), v...)
	}
}

// sampling reads the native API's sampling_params.
func (p *requestParser) sampling(v []byte) error {
	if p.q.api != apiGenerate && p.q.api != apiTokens || isNull(v) {
		return nil
	}
	p.sampled = true
	return eachField(v, func(key string, v []byte) error {
		switch key {
		case "max_new_tokens", "max_tokens":
			p.limit = v
		case "min_new_tokens", "min_tokens":
			p.q.minTokens = v
		case "n":
			return p.choices(v)
		}
		return nil
	})
}

// bias reads a logit_bias only to see whether it ends the answer at once.
func (p *requestParser) bias(v []byte) error {
	return eachField(v, func(token string, bias []byte) error {
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
		p.q.foreign = append(p.q.foreign, key)
	}
}

// handoff keeps a field of a hand-off. The last one counts.
func (p *requestParser) handoff(key string, v []byte, to *[]byte) {
	if *to != nil {
		p.q.twice = append(p.q.twice, key)
	}
	*to = v
}

// routing keeps a routing field. The last one counts, as in Python's json; repeated notes
// that there were several.
func (p *requestParser) routing(key string, v []byte, to *[]byte) {
	if *to != nil {
		p.q.repeated = append(p.q.repeated, key)
	}
	*to = v
}

func (p *requestParser) streamOptions(v []byte) error {
	if isNull(v) {
		return nil
	}
	p.q.streamOptions = true
	return eachField(v, func(key string, v []byte) error {
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
		return badRequest("%.20s: expected a boolean", v)
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
	if isNull(v) {
		return nil
	}
	n, ok := whole(v)
	if !ok || n < 1 || n > 128 {
		return badRequest("n %.20s: expected a number from 1 to 128", v)
	}
	p.q.n = n
	return nil
}

func (p *requestParser) finish() error {
	q := p.q
	if q.routedRank == nil {
		q.routedRank = p.deprecatedRank
	}
	limit := p.completionLimit
	if isNull(limit) {
		limit = p.limit
	}
	if !isNull(limit) {
		n, ok := whole(limit)
		if !ok || n < 0 {
			return badRequest("max_tokens %.20s: expected a number of at least 0", limit)
		}
		q.maxTokens = n
	}
	if err := p.required(); err != nil {
		return err
	}
	if err := p.readPrompts(); err != nil {
		return err
	}
	for _, t := range q.prompts {
		if len(t) == 0 {
			return badRequest("Invalid request: the prompt is empty")
		}
	}
	if len(q.prompts) == 0 {
		return badRequest("Invalid request: there is no prompt")
	}
	return nil
}

func (p *requestParser) readPrompts() error {
	q := p.q
	var err error
	switch {
	case !isNull(p.inputIDs):
		q.prompts, q.batch, err = readPromptUnion(p.inputIDs)
	case isNull(p.prompt):
	case q.api == apiChat, q.api == apiResponse, q.api == apiMessage:
		messages, tools := p.prompt, p.tools
		if q.api != apiChat {
			before, refused := p.store.continues(q)
			if refused != nil {
				return refused
			}
			if messages, tools, err = p.converted(before); err != nil {
				return refusalOf(err)
			}
		}
		w := chatWriter{kwargs: q.mmKwargs}
		err = w.prompt(messages, tools, true)
		q.prompts = [][]uint32{w.tokens}
		if len(w.seen) > 0 {
			q.seen = &w.seen
		}
	default:
		q.prompts, q.batch, err = readPromptUnion(p.prompt)
		q.tokenPrompt = p.prompt[0] == '[' && !q.batch
	}
	if err != nil {
		return refusalOf(err)
	}
	return nil
}

// readPromptUnion reads str | [str] | [int] | [[int]]. list says that the value was a
// list of prompts.
func readPromptUnion(v []byte) (prompts [][]uint32, list bool, err error) {
	if s, ok := unquote(v); ok {
		return [][]uint32{Tokenize(s)}, false, nil
	}
	if v[0] != '[' {
		return nil, false, fmt.Errorf("prompt: expected a string, token ids, or a list of either")
	}
	if i := skipSpace(v, 1); v[i] != '"' && v[i] != '[' {
		ids, err := tokenIDs(v)
		return [][]uint32{ids}, false, err
	}
	err = eachElem(v, func(e []byte) error {
		if s, ok := unquote(e); ok {
			prompts = append(prompts, Tokenize(s))
			return nil
		}
		ids, err := tokenIDs(e)
		prompts = append(prompts, ids)
		return err
	})
	return prompts, true, err
}

// prompt applies the chat template to a messages array.
func (w *chatWriter) prompt(messages, tools []byte, addGenerationPrompt bool) error {
	if !isNull(tools) && string(tools) != "[]" {
		w.tokens = appendMessage(w.tokens, Message{Role: "tools", Content: string(tools)})
	}
	none := true
	err := eachElem(messages, func(e []byte) error {
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
	err := eachField(e, func(key string, v []byte) error {
		switch key {
		case "role":
			role, _ = unquote(v)
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
	if !isNull(calls) {
		w.tokens = AppendTokens(w.tokens, string(calls))
	}
	w.tokens = append(w.tokens, tokenEnd)
	return nil
}

// truncation is what a request says about cutting its prompts
// (docs/engines.md#truncation), as raw JSON; nil: absent.
type truncation struct{ to, side []byte }
