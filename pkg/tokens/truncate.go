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

// keeps returns the most tokens that a prompt may have without being cut.
func (q *Query) keeps() int {
	if !q.truncates() {
		return math.MaxInt
	}
	n, err := strconv.Atoi(string(q.Request.Value(openai.TruncatePromptTokens).Of(q.Body)))
	switch {
	case err != nil || n < -1: // it is unknown what vLLM does with such a value
		return 0
	case n == -1:
		return max(0, q.MaxModelLen-max(int(min(q.Request.MaxTokens, math.MaxInt32)), leastOutput))
	}
	return n
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
