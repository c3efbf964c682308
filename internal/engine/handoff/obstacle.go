package handoff

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// NoPath is the obstacle of a request whose path the engine does not have.
const NoPath = "path"

// Hindrance returns why the request cannot be handed from prefill to decode, or "" if it
// can: NoPath, or the name of the member that prevents it, as written in the body. body is
// the body that r was read from. A member prevents it if it asks for several generations
// (one hand-off serves one), for what only the worker that computes the prompt knows, or
// if it holds a prompt that is not text or token ids (docs/engines.md#obstacles).
func Hindrance(k Kind, body []byte, r *openai.Request) string {
	if k == nil || !slices.Contains(k.Paths, r.Path) {
		return NoPath
	}
	if name := several(k, r); name != "" {
		return name
	}
	if k.Own != nil {
		if name := k.Own(body, r); name != "" {
			return name
		}
	}
	for i := range k.Obstacles {
		if o := &k.Obstacles[i]; o.stands(body, r) {
			return o.Field.String()
		}
	}
	return ""
}

// several returns the member by which the request starts several generations. One hand-off
// serves one.
func several(k Kind, r *openai.Request) string {
	switch {
	case r.N > 1 && r.Path == openai.Generate:
		return openai.SamplingParams.String() + "." + openai.N.String()
	case r.N > 1:
		return openai.N.String()
	case r.Prompts > 1 && !k.ManyPrompts:
		return r.PromptField.String()
	default:
		return ""
	}
}

// Paths is a set of paths.
type Paths uint8

// The paths.
const (
	Chat Paths = 1 << iota
	Completions
	Generate
	Everywhere = Chat | Completions | Generate
)

func on(p openai.Path) Paths {
	switch p {
	case openai.ChatCompletions:
		return Chat
	case openai.Completions:
		return Completions
	default:
		return Generate
	}
}

// Obstacle is a member that prevents a hand-off if its value passes the test, and the value
// of the member Also, if there is one, passes its own. Of a list one element has to pass:
// for several prompts an engine may take a list with a value for each.
type Obstacle struct {
	On         Paths
	Field      openai.Field
	Passes     Test
	Also       openai.Field // NoField: none
	AlsoPasses Test
}

// Test judges a value as written in the body.
type Test func(value []byte) bool

// stands reports whether the request has the obstacle.
func (o *Obstacle) stands(body []byte, r *openai.Request) bool {
	return o.On&on(r.Path) != 0 && passes(body, r.Value(o.Field), o.Passes, listDepth) &&
		(o.Also == openai.NoField || passes(body, r.Value(o.Also), o.AlsoPasses, listDepth))
}

// listDepth is how deep lists nest in which an element may pass.
const listDepth = 2

func passes(body []byte, s openai.Span, t Test, depth int) (yes bool) {
	switch {
	case s.End == 0:
		return false
	case depth == 0 || body[s.Start] != '[':
		return t(s.Of(body))
	}
	openai.EachElement(body, s, func(e openai.Span) { yes = yes || passes(body, e, t, depth-1) })
	return yes
}

// The tests follow. Engines read a text as the number or the truth value that it spells.

// Given reports whether a value is not null.
func Given(v []byte) bool { return v[0] != 'n' } // a value of JSON that begins so is null

// Truthy reports whether a value counts as true.
func Truthy(v []byte) bool {
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

// NotNegative reports whether a value is neither null nor below zero.
func NotNegative(v []byte) bool {
	n, isNumber := number(v)
	return Given(v) && (!isNumber || n >= 0)
}

// NotOne reports whether a value is neither null nor one.
func NotOne(v []byte) bool {
	n, isNumber := number(v)
	return Given(v) && (!isNumber || n != 1)
}

// Over returns a test for numbers above most.
func Over(most float64) Test {
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
