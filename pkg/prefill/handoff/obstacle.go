package handoff

import (
	"bytes"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// NoPath is the obstacle of a request whose path the engine does not have.
const NoPath = "path"

// Obstacle returns why the request cannot be handed from prefill to decode, or "" if it
// can: NoPath, or the name of the member that prevents it, as written in the body. body is
// the body that r was read from. A member prevents it if it asks for several generations
// (one hand-off serves one), for what only the worker that computes the prompt knows, or
// if it holds a prompt that is not text or token ids (docs/engines.md#obstacles).
func Obstacle(k Kind, body []byte, r *openai.Request) string {
	if k != Rendezvous && r.Path != openai.ChatCompletions && r.Path != openai.Completions {
		return NoPath
	}
	if name := several(k, body, r); name != "" {
		return name
	}
	for i := range obstacles {
		if o := &obstacles[i]; (k == BySidecar || o.of&of(k) != 0) && o.stands(body, r) {
			return o.field.String()
		}
	}
	return ""
}

// several returns the member by which the request starts several generations. Of those,
// vLLM answers only the hand-off of the first: the KV of the others would stay held. SGLang
// serves a list of prompts, with a room for each; its decode never answers n > 1.
func several(k Kind, body []byte, r *openai.Request) string {
	switch {
	case r.N > 1 && r.Path == openai.Generate:
		return openai.SamplingParams.String() + "." + openai.N.String()
	case r.N > 1:
		return openai.N.String()
	case r.Prompts > 1 && k != Rendezvous:
		return r.PromptField.String()
	case r.Path == openai.Generate && beams(body, r.Value(openai.SamplingParams)):
		return openai.SamplingParams.String() + "." + beamWidth
	default:
		return ""
	}
}

// beamWidth is a member of SGLang's sampling_params.
const beamWidth = "beam_width"

// beams reports whether sampling parameters, of one prompt or of several, ask for more than
// one beam.
func beams(body []byte, s openai.Span) (several bool) {
	each := func(params openai.Span) {
		openai.EachMember(body, params, func(key, val openai.Span) bool {
			several = several || openai.IsKey(body, key, beamWidth) && over(1)(val.Of(body))
			return !several
		})
	}
	each(s)
	openai.EachElement(body, s, each)
	return several
}

// engines is a set of kinds, by the engines that have them.
type engines uint8

const (
	vllm engines = 1 << iota
	sglang
	trtllm
)

func of(k Kind) engines {
	switch k {
	case Rendezvous:
		return sglang
	case ContextFirst:
		return trtllm
	default:
		return vllm
	}
}

// paths is a set of paths.
type paths uint8

const (
	chat paths = 1 << iota
	completions
	generate
	everywhere = chat | completions | generate
)

func on(p openai.Path) paths {
	switch p {
	case openai.ChatCompletions:
		return chat
	case openai.Completions:
		return completions
	default:
		return generate
	}
}

// obstacle is a member that prevents a hand-off if its value passes the test, and the value
// of the member also, if there is one, passes its own. Of a list one element has to pass:
// for several prompts SGLang takes a list with a value for each.
type obstacle struct {
	of         engines
	on         paths
	field      openai.Field
	passes     test
	also       openai.Field // NoField: none
	alsoPasses test
}

// test judges a value as written in the body.
type test func(value []byte) bool

// mostTopLogprobs is how many log probabilities of prefill's token SGLang can hand over. Its
// prefill ends with all its requests if there are more.
const mostTopLogprobs = 128

var obstacles = [...]obstacle{
	{of: vllm, on: everywhere, field: openai.PromptLogprobs, passes: given},
	{of: vllm, on: chat, field: openai.Echo, passes: truthy}, // sets prompt_logprobs to top_logprobs
	{of: vllm, on: completions, field: openai.Echo, passes: truthy, also: openai.Logprobs, alsoPasses: given},
	{of: vllm, on: completions, field: openai.PromptEmbeds, passes: given},
	{of: vllm | trtllm, on: everywhere, field: openai.UseBeamSearch, passes: truthy},
	{of: vllm | trtllm, on: everywhere, field: openai.BestOf, passes: notOne},
	{of: trtllm, on: completions, field: openai.ReturnContextLogits, passes: truthy},
	{of: sglang, on: completions, field: openai.Echo, passes: truthy, also: openai.Logprobs, alsoPasses: truthy},
	{of: sglang, on: completions, field: openai.Logprobs, passes: over(mostTopLogprobs)},
	{of: sglang, on: chat, field: openai.TopLogprobs, passes: over(mostTopLogprobs), also: openai.Logprobs, alsoPasses: truthy},
	{of: sglang, on: generate, field: openai.LogprobStartLen, passes: notNegative, also: openai.ReturnLogprob, alsoPasses: truthy},
	{of: sglang, on: generate, field: openai.TokenIDsLogprob, passes: given, also: openai.ReturnLogprob, alsoPasses: truthy},
	{of: sglang, on: generate, field: openai.TopLogprobsNum, passes: over(mostTopLogprobs), also: openai.ReturnLogprob, alsoPasses: truthy},
	{of: sglang, on: generate, field: openai.InputEmbeds, passes: given},
	{of: sglang, on: generate, field: openai.ReturnIndexerTopK, passes: truthy},
	{of: sglang, on: everywhere, field: openai.ReturnHiddenStates, passes: truthy},
	{of: sglang, on: everywhere, field: openai.ReturnRoutedExperts, passes: truthy},
}

// stands reports whether the request has the obstacle.
func (o *obstacle) stands(body []byte, r *openai.Request) bool {
	return o.on&on(r.Path) != 0 && passes(body, r.Value(o.field), o.passes, listDepth) &&
		(o.also == openai.NoField || passes(body, r.Value(o.also), o.alsoPasses, listDepth))
}

// listDepth is how deep lists nest in which an element may pass.
const listDepth = 2

func passes(body []byte, s openai.Span, t test, depth int) (yes bool) {
	switch {
	case s.End == 0:
		return false
	case depth == 0 || body[s.Start] != '[':
		return t(s.Of(body))
	}
	openai.EachElement(body, s, func(e openai.Span) { yes = yes || passes(body, e, t, depth-1) })
	return yes
}

// The tests. Engines read a text as the number or the truth value that it spells.

func given(v []byte) bool { return v[0] != 'n' } // a value of JSON that begins so is null

func truthy(v []byte) bool {
	const longest = len("false")
	v = unquoted(v)
	if len(v) > longest {
		return true
	}
	switch string(bytes.ToLower(v)) {
	case "", "null", "false", "0", "0.0", "no", "off", "n", "f", "{}":
		return false
	}
	return true
}

func notNegative(v []byte) bool {
	n, isNumber := number(v)
	return given(v) && (!isNumber || n >= 0)
}

func notOne(v []byte) bool {
	n, isNumber := number(v)
	return given(v) && (!isNumber || n != 1)
}

func over(most float64) test {
	return func(v []byte) bool {
		n, isNumber := number(v)
		return isNumber && n > most
	}
}

func number(v []byte) (n float64, ok bool) {
	const longest = 64
	if len(v) > longest {
		return 0, false
	}
	n, err := strconv.ParseFloat(string(unquoted(v)), 64)
	return n, err == nil || n != 0 // beyond the range it is infinite
}

func unquoted(v []byte) []byte { return bytes.Trim(v, `"`) }
