package tokens

import (
	"math"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// A request may have vLLM cut its prompt (docs/engines.md#truncation): what is hashed is
// what is left. The engine that renders a prompt is told, and cuts it alike. A tokenizer
// cuts nothing: of what it answers, and of ids in the request, a prompt is known only
// where nothing of it is cut.

// truncation are the members that say to what a prompt is cut. Those of the answer's length
// have a part in it where as much is left as the model takes.
func truncation() [4]openai.Field {
	return [...]openai.Field{openai.TruncatePromptTokens, openai.TruncationSide, openai.MaxTokens, openai.MaxCompletionTokens}
}

// truncates reports whether the engine is asked to cut the prompt.
func (q *Query) truncates() bool {
	return q.Renders && q.Request.Given(q.Body, openai.TruncatePromptTokens)
}

// leastOutput is more than vLLM takes the answer to need where nothing is said of it.
const leastOutput = 16

// keeps returns up to how many tokens each of the prompts is sure to be left as it is.
func (q *Query) keeps() int {
	if !q.truncates() {
		return math.MaxInt
	}
	n, err := strconv.Atoi(string(q.Request.Value(openai.TruncatePromptTokens).Of(q.Body)))
	switch {
	case err != nil || n < -1: // what vLLM makes of it, who knows
		return 0
	case n == -1:
		return max(0, q.MaxModelLen-max(int(min(q.Request.MaxTokens, math.MaxInt32)), leastOutput))
	}
	return n
}

// appendTruncation appends what a request says of how its prompt is to be cut, as members.
func (q *Query) appendTruncation(b []byte) []byte {
	if !q.truncates() {
		return b
	}
	for _, f := range truncation() {
		b = q.appendMember(b, f)
	}
	return b
}
