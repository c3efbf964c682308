package openai

import (
	"bytes"
	"math"
	"strconv"
	"strings"
)

// check reads the small values, and checks that the request has what its path needs.
// Every span is known and valid here.
func (r *Request) check(body []byte) error {
	if err := r.checkModel(body); err != nil {
		return err
	}
	if r.Path == Other {
		return nil
	}
	if m := &r.members[Stream]; m.found() {
		var ok bool
		r.Stream, ok = ParseFlag(m.val.Of(body))
		if !ok {
			return wrongType(Stream, m.val.Start, "true or false")
		}
	}
	if !r.Path.samples() {
		if err := r.checkCounts(body); err != nil {
			return err
		}
	}
	r.CacheSalt, r.ExtraKey, r.LoRA = r.text(body, CacheSalt), r.text(body, ExtraKey), r.text(body, LoRAPath)
	return r.checkPrompt(body)
}

func (r *Request) checkModel(body []byte) error {
	m := &r.members[Model]
	if !r.Given(body, Model) {
		return nil
	}
	if body[m.val.Start] != '"' {
		return wrongType(Model, m.val.Start, "a text")
	}
	r.Model = r.text(body, Model)
	return nil
}

// checkCounts reads n and the limit on output tokens. In a chat with both limits, the
// newer one, max_completion_tokens, counts. A completion has only the older one: the
// engines ignore the other there.
func (r *Request) checkCounts(body []byte) error {
	for _, f := range [...]Field{N, MaxTokens, MaxCompletionTokens, MaxOutputTokens} {
		if !r.Given(body, f) || !r.Path.counts(f) {
			continue
		}
		s := r.members[f].val
		v, ok := spelledCount(s.Of(body))
		if err := r.setCount(f, v, ok, s.Start); err != nil {
			return err
		}
	}
	return nil
}

// counts reports whether requests on the path have the number.
func (p Path) counts(f Field) bool {
	switch p {
	case Responses:
		return f == MaxOutputTokens
	case AnthropicMessages:
		return f == MaxTokens
	case ChatCompletions:
		return f != MaxOutputTokens
	default:
		return f == N || f == MaxTokens
	}
}

func (r *Request) setCount(f Field, v int64, ok bool, at int) error {
	if f == N {
		if !ok || v < 1 || v > MaxN {
			return wrongType(f, at, "an integer from 1 to 65536")
		}
		r.N = int(v)
		return nil
	}
	if !ok {
		return wrongType(f, at, "an integer of at least 0")
	}
	r.MaxTokens = v
	return nil
}

// The engines read what a client sends with pydantic, which takes a value of another type for the
// one that it spells: 3.0, "3" and true for a number, 1 and "yes" for a truth value. What is read
// here is read so, and goes to the engine as it came, which may still refuse it.

// spelledCount reads a number that is whole and not below 0.
func spelledCount(b []byte) (int64, bool) {
	if v, ok := parseCount(b); ok {
		return v, true
	}
	switch string(b) {
	case "true":
		return 1, true
	case "false":
		return 0, true
	}
	const longest = 32
	b = bytes.TrimSpace(bytes.Trim(b, `"`))
	if len(b) > longest {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(b), 64)
	return int64(f), err == nil && f >= 0 && f < 1<<53 && f == math.Trunc(f)
}

// parseCount reads a non-negative JSON integer.
func parseCount(b []byte) (int64, bool) {
	if len(b) == 0 || skipDigits(b, 0) != len(b) {
		return 0, false
	}
	var v int64
	for _, c := range b {
		d := int64(c - '0')
		if v > (math.MaxInt64-d)/10 {
			return 0, false
		}
		v = v*10 + d
	}
	return v, true
}

// ParseFlag reads a truth value as pydantic takes it; null is false. ok is false if it is none.
func ParseFlag(b []byte) (yes, ok bool) {
	switch string(b) { // as nearly all are written
	case "true":
		return true, true
	case "false", "null":
		return false, true
	}
	if len(b) > len(`"false"`) {
		return false, false
	}
	switch strings.ToLower(string(bytes.Trim(b, `"`))) {
	case "true", "1", "1.0", "yes", "on", "t", "y":
		return true, true
	case "false", "0", "0.0", "no", "off", "f", "n", "null":
		return false, true
	}
	return false, false
}

// checkPrompt finds the field that holds the prompt.
func (r *Request) checkPrompt(body []byte) error {
	switch r.Path {
	case ChatCompletions:
		return r.checkMessages(body)
	case Completions:
		if !r.Given(body, PromptText) && r.Given(body, PromptEmbeds) {
			r.PromptField = PromptEmbeds
			return nil
		}
		return r.checkText(body, PromptText)
	case Generate:
		if r.Given(body, InputIDs) {
			return r.checkIDs(body)
		}
		if r.Given(body, Text) {
			return r.checkText(body, Text)
		}
		if r.Given(body, InputEmbeds) {
			r.PromptField = InputEmbeds
			return nil
		}
		return &Error{Kind: MissingField, Field: Text.String(), Offset: r.end}
	case AnthropicMessages:
		return r.checkMessages(body)
	case Responses:
		return r.checkInput(body)
	case TokensIn:
		if r.PromptKind != PromptIDs {
			return r.wrongOrMissing(body, TokenIDs, "a list of token ids")
		}
		return nil
	default:
		return nil
	}
}

func (r *Request) wrongOrMissing(body []byte, f Field, expected string) error {
	if !r.Given(body, f) {
		return &Error{Kind: MissingField, Field: f.String(), Offset: r.end}
	}
	return wrongType(f, r.members[f].val.Start, expected)
}

// checkInput reads where the input of a response is. One that continues a response may have none
// of its own.
func (r *Request) checkInput(body []byte) error {
	s := r.members[Input].val
	switch {
	case r.Given(body, Input) && body[s.Start] == '"':
		r.PromptKind = PromptString
	case r.Given(body, Input) && body[s.Start] == '[':
		r.PromptKind = PromptMessages
	default:
		return r.wrongOrMissing(body, Input, "a text or a list of items")
	}
	r.PromptField = Input
	return nil
}

func (r *Request) checkMessages(body []byte) error {
	ids := r.Path == ChatCompletions && r.Given(body, InputIDs)
	if r.Given(body, Messages) {
		if s := r.members[Messages].val; body[s.Start] != '[' {
			return wrongType(Messages, s.Start, "a list of messages")
		}
		if !ids {
			r.PromptKind, r.PromptField = PromptMessages, Messages
			return nil
		}
	}
	if ids {
		return r.checkIDs(body)
	}
	return r.wrongOrMissing(body, Messages, "")
}

func (r *Request) checkIDs(body []byte) error {
	if r.PromptField != InputIDs || r.PromptKind != PromptIDs && r.PromptKind != PromptIDLists ||
		r.Path == ChatCompletions && r.PromptKind != PromptIDs {
		return wrongType(InputIDs, r.members[InputIDs].val.Start, "a list of token ids")
	}
	return nil
}

func (r *Request) checkText(body []byte, f Field) error {
	given := r.Given(body, f)
	switch {
	case given && body[r.members[f].val.Start] == '"':
		r.PromptKind, r.PromptField = PromptString, f
	case !given, r.PromptField != f, f == Text && r.PromptKind != PromptStrings:
		return r.wrongOrMissing(body, f, "a text or a list of texts")
	}
	return nil
}
