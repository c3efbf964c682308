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
	Seen         *Gallery // the pictures of its prompt; nil: none
	MmKwargs     []byte   // names and values of members about reading pictures; nil: none
	endsAtOnce   bool     // its logit_bias makes the end mark the first token of the answer

	CacheSalt     []byte   // raw JSON; nil: absent
	MinTokens     []byte   // raw JSON; nil: absent
	TokenPrompt   bool     // the prompt came as token ids
	StreamOptions bool     // given, and not null
	own           []member // those of Engine.Members, in the body's order

	// Of a response.
	previous           string // the id of the response that it continues; "": none
	unkept, background bool
	ignoresEnd         bool
	turns              []json.RawMessage // its messages
}

// member is one member of a body, as raw JSON.
type member struct {
	name  string
	value []byte
}

// Own returns a member that only the engine reads (Engine.Members), as raw JSON; nil:
// absent. Of several of a name the last one counts, as in Python's json.
func (q *GenRequest) Own(name string) []byte {
	for _, m := range slices.Backward(q.own) {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// Repeated returns which of these members of the engine the body has more than once.
func (q *GenRequest) Repeated(names ...string) []string {
	var out []string
	seen := map[string]bool{}
	for _, m := range q.own {
		if slices.Contains(names, m.name) && seen[m.name] {
			out = append(out, m.name)
		}
		seen[m.name] = true
	}
	return out
}

// First returns the first of these members of the engine that the body has; "": none.
func (q *GenRequest) First(names ...string) string {
	for _, m := range q.own {
		if slices.Contains(names, m.name) {
			return m.name
		}
	}
	return ""
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
	q := &GenRequest{API: kind, N: 1, MaxTokens: -1}
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
	system          []byte // instructions, or a message's system
	sampled         bool   // it has sampling_params
	store           *responseStore
}

func (p *requestParser) field(key string, v []byte) error {
	q := p.q
	if slices.Contains(p.store.members, key) {
		q.own = append(q.own, member{key, v})
	}
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
	case "min_tokens":
		q.MinTokens = v
	case "cache_salt":
		q.CacheSalt = v
	case "mm_processor_kwargs", "media_io_kwargs":
		if !IsNull(v) && string(v) != "{}" {
			q.MmKwargs = append(append(q.MmKwargs, key...), v...)
		}
	}
	return nil
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
			messages, tools, err = p.converted(before)
			if err != nil {
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
