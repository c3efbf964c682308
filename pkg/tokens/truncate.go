package tokens

import (
	"math"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// A request may ask vLLM to cut its prompt (docs/engines.md#truncation). The hashes must
// then be of the tokens that are left. An engine that renders a prompt is given the same
// members and cuts it alike. A tokenizer does not cut. So a tokenizer's answer, and ids
// in a request, are used only if the prompt is short enough not to be cut.

// truncation are the members that say to what length a prompt is cut. The limits of the
// answer matter if the prompt may fill the rest of the model's length.
func truncation() [4]openai.Field {
	return [...]openai.Field{openai.TruncatePromptTokens, openai.TruncationSide, openai.MaxTokens, openai.MaxCompletionTokens}
}

// truncates reports whether the request asks an engine that cuts prompts to cut this one.
func (q *Query) truncates() bool {
	return q.Renders && q.Request.Given(q.Body, openai.TruncatePromptTokens)
}

// leastOutput is more than the answer length that vLLM assumes if the request names none.
const leastOutput = 16

// cutTo returns the number of tokens to which the request asks to cut its prompt; fits: to
// as many as fit. ok is false if it is unknown what vLLM does with the value.
func (q *Query) cutTo() (n int, ok bool) {
	n, err := strconv.Atoi(string(q.Request.Value(openai.TruncatePromptTokens).Of(q.Body)))
	return n, err == nil && n >= fits
}

const fits = -1

// keeps returns the most tokens that a prompt may have without being cut.
func (q *Query) keeps() int {
	if !q.truncates() {
		return math.MaxInt
	}
	return q.whole()
}

// whole returns the most tokens that a prompt may have if no version of vLLM cuts it.
func (q *Query) whole() int {
	n, ok := q.cutTo()
	switch {
	case !ok:
		return 0
	case n == fits:
		return max(0, q.MaxModelLen-max(int(min(q.Request.MaxTokens, math.MaxInt32)), leastOutput))
	}
	return n
}

// leaves returns the most tokens that are left of a prompt once it is cut, by any version
// of vLLM. It bounds lengths that were estimated, or counted before the cut.
func (q *Query) leaves() int {
	if !q.truncates() {
		return math.MaxInt
	}
	n, ok := q.cutTo()
	switch {
	case !ok, n == fits && q.MaxModelLen == 0:
		return math.MaxInt
	case n == fits:
		return q.MaxModelLen - 1 // there is room for one token of the answer at least
	}
	return n
}

// cut returns what is left, at most, of so many tokens of all prompts together.
func (q *Query) cut(isl int) int {
	n, prompts := q.leaves(), q.Request.Prompts
	if n > isl/prompts {
		return isl
	}
	return n * prompts
}

// templateTokens is more tokens than a chat template adds to the messages and tools of a
// request, beyond the bytes of the JSON that they stand in.
const templateTokens = 1024

// CutToFit reports whether an engine that cuts prompts may cut q's, which p describes, to
// a length that depends on the engine's version and on the limit of the answer. So prefill,
// which is asked for one token, may keep another part of the prompt than decode does
// (docs/engines.md#truncation).
func (q *Query) CutToFit(p *Prompt) bool {
	if !q.Request.Given(q.Body, openai.TruncatePromptTokens) {
		return false
	}
	n, ok := q.cutTo()
	if ok && n != fits {
		return false
	}
	switch {
	case p.Partial || p.Reason == ReasonTruncated:
		return true
	case p.Source == FromRequest, p.Source == FromLocal:
		return p.ISLTokens > q.whole()
	case p.Source == FromEngine: // which may have cut the prompt itself
		return p.ISLTokens >= q.whole()
	case p.Source == Estimate: // a token has at least one byte
		media := false
		openai.VisitPrompt(q.Body, q.Request, func(k openai.PieceKind, _ []byte) { media = media || k == openai.PieceMedia })
		return media || q.promptBytes()+templateTokens > q.whole()
	default:
		return true
	}
}

// appendTruncation appends, as members, what the request says about cutting its prompt.
func (q *Query) appendTruncation(b []byte) []byte {
	if !q.truncates() {
		return b
	}
	for _, f := range truncation() {
		b = q.appendMember(b, f)
	}
	return b
}
