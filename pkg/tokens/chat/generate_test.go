package chat_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
)

// generator makes chat requests of a seed: conversations as clients send them, and some that
// no client should.
type generator struct {
	*rand.Rand
	// odd also makes what templates and engines refuse: roles out of order, missing members,
	// content of other kinds.
	odd bool
	// parts also makes content as lists of parts, with pictures if media.
	parts, media bool
	// objects makes arguments of tool calls objects too, as Python callers have them.
	objects bool
}

func newGenerator(seed uint64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 0x6261746f6e))}
}

func (g *generator) one(of ...string) string { return of[g.IntN(len(of))] }

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// words are what texts are made of: scripts, blanks, quotes, look-alikes of special tokens.
var words = []string{
	"the", "route", "prefill", "of", "a", "worker", "Überraschung", "naïve", "東京", "の", "天気",
	"מזג", "погода", "😀", "👩‍👩‍👧", "é", "e\u0301", "\u00a0", "\u2003", "\u200b", "\n", "\n\n", "\t", "  ",
	"\"quoted\"", "it's", "\\", "\\n", "{{ x }}", "{% if %}", "<think>", "</think>", "<|im_start|>",
	"<|im_end|>", "<tool_response>", "</tool_response>", "<bos>", "[INST]", "[/INST]", "</s>", "<｜User｜>",
	"```go\nfunc f() {}\n```", "1,234.5", "0", "-7", "3.0e8", "a<b>&c", "\x7f", "\u0001", "\r\n", "'", "None",
}

func (g *generator) text(most int) string {
	var b strings.Builder
	for range g.IntN(most + 1) {
		b.WriteString(words[g.IntN(len(words))])
		if g.chance(70) {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// pairs is a JSON object that keeps the order of its members.
type pairs []pair

type pair struct {
	key   string
	value any
}

// MarshalJSON writes the members in their order, in one of several styles of no meaning.
func (p pairs) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, m := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		k, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		v, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s:%s", k, v)
	}
	b.WriteByte('}')
	return []byte(b.String()), nil
}

// value is any JSON value.
func (g *generator) value(depth int) any {
	kinds := 8
	if depth <= 0 {
		kinds = 6
	}
	switch g.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return g.chance(50)
	case 2:
		return g.IntN(2_000_000) - 1_000_000
	case 3:
		return json.RawMessage(g.one("1.0", "0.5", "-2.25", "1e3", "1.5e-7", "123456789.125", "1e22", "0.1", "100.0"))
	case 4, 5:
		return g.text(6)
	case 6:
		list := []any{}
		for range g.IntN(4) {
			list = append(list, g.value(depth-1))
		}
		return list
	}
	return g.object(depth - 1)
}

func (g *generator) object(depth int) pairs {
	p := pairs{}
	for i := range g.IntN(5) {
		p = append(p, pair{fmt.Sprintf("%s%d", g.one("city", "größe", "items", "a b", "type", "keys", "n"), i), g.value(depth)})
	}
	return p
}

// schema is a parameter's JSON schema.
func (g *generator) schema(depth int) pairs {
	switch kind := g.one("string", "integer", "array", "object", "enum"); {
	case kind == "enum":
		return pairs{{"type", "string"}, {"enum", []string{"celsius", "°F", g.text(1)}}}
	case kind == "array" && depth > 0:
		return pairs{{"type", "array"}, {"items", g.schema(depth - 1)}}
	case kind == "object" && depth > 0:
		props := pairs{}
		for i := range 1 + g.IntN(3) {
			props = append(props, pair{fmt.Sprintf("p%d", i), g.schema(depth - 1)})
		}
		return pairs{{"type", "object"}, {"properties", props}, {"required", []string{"p0"}}, {"additionalProperties", false}}
	default:
		return pairs{{"type", g.one("string", "integer", "number", "boolean")}, {"description", g.text(5)}}
	}
}

func (g *generator) tools() any {
	var list []any
	for i := range 1 + g.IntN(3) {
		fn := pairs{{"name", fmt.Sprintf("tool_%d", i)}}
		if g.chance(80) {
			fn = append(fn, pair{"description", g.text(8)})
		}
		if g.chance(90) {
			props := pairs{}
			for j := range g.IntN(4) {
				props = append(props, pair{fmt.Sprintf("arg%d", j), g.schema(2)})
			}
			fn = append(fn, pair{"parameters", pairs{{"type", "object"}, {"properties", props}, {"required", []string{}}}})
		}
		if g.chance(10) {
			fn = append(fn, pair{"strict", g.chance(50)})
		}
		if g.chance(20) {
			g.Shuffle(len(fn), func(a, b int) { fn[a], fn[b] = fn[b], fn[a] })
		}
		t := pairs{{"type", "function"}, {"function", fn}}
		if g.chance(10) {
			t[0], t[1] = t[1], t[0]
		}
		list = append(list, t)
	}
	return list
}

func (g *generator) calls() any {
	var list []any
	for i := range 1 + g.IntN(2) {
		args, _ := json.Marshal(g.object(2))
		var a any = string(args)
		if g.objects && g.chance(50) {
			a = g.object(2)
		}
		fn := pairs{{"name", fmt.Sprintf("tool_%d", i)}, {"arguments", a}}
		if g.chance(20) {
			fn[0], fn[1] = fn[1], fn[0]
		}
		list = append(list, pairs{{"id", fmt.Sprintf("call%05d", g.IntN(99999))}, {"type", "function"}, {"function", fn}})
	}
	return list
}

// content is a message's content.
func (g *generator) content(role string) any {
	if g.odd && g.chance(4) {
		return []any{nil, 5, "", []any{}}[g.IntN(4)]
	}
	if !g.parts || g.chance(60) {
		return g.text(14)
	}
	var list []any
	for range 1 + g.IntN(3) {
		if g.media && role == "user" && g.chance(30) {
			list = append(list, pairs{{"type", "image_url"}, {"image_url", pairs{{"url", "data:image/png;base64,AAAA"}}}})
			continue
		}
		list = append(list, pairs{{"type", "text"}, {"text", g.text(8)}})
	}
	return list
}

func (g *generator) assistant() pairs {
	p := pairs{{"role", "assistant"}}
	calls := g.chance(30)
	switch {
	case calls && g.chance(40):
		p = append(p, pair{"content", nil})
	case calls && g.chance(20):
	default:
		p = append(p, pair{"content", g.content("assistant")})
	}
	if g.chance(25) {
		p = append(p, pair{"reasoning_content", g.text(10)})
	} else if g.chance(15) {
		s := "<think>\n" + g.text(6) + "\n</think>\n\n" + g.text(6)
		p = pairs{{"role", "assistant"}, {"content", s}}
	}
	if calls {
		p = append(p, pair{"tool_calls", g.calls()})
	}
	return p
}

// messages is a conversation of so many exchanges.
func (g *generator) messages(exchanges int) []pairs {
	var list []pairs
	if g.chance(50) {
		list = append(list, pairs{{"role", "system"}, {"content", g.content("system")}})
	}
	for i := range exchanges {
		list = append(list, pairs{{"role", "user"}, {"content", g.content("user")}})
		for g.chance(25) {
			list = append(list, g.assistant())
			for range 1 + g.IntN(2) {
				list = append(list, pairs{{"role", "tool"}, {"tool_call_id", "call1"}, {"content", g.content("tool")}})
			}
		}
		if i < exchanges-1 || g.chance(15) {
			list = append(list, g.assistant())
		}
	}
	if g.odd && g.chance(10) {
		i := g.IntN(len(list))
		list[i] = pairs{{"role", g.one("system", "user", "tool", "assistant", "developer", "critic")}, {"content", g.text(5)}}
	}
	return list
}

// request is a whole request.
func (g *generator) request() *chat.Request {
	return g.requestOf(g.messages(1 + g.IntN(4)))
}

func (g *generator) requestOf(messages []pairs) *chat.Request {
	q := &chat.Request{Messages: encode(messages)}
	if g.chance(35) {
		q.Tools = encode(g.tools())
	}
	if g.chance(30) {
		kw := pairs{}
		if g.chance(60) {
			kw = append(kw, pair{"enable_thinking", g.chance(50)})
		}
		if g.chance(20) {
			kw = append(kw, pair{g.one("thinking", "custom", "bos_token"), g.text(2)})
		}
		q.Kwargs = encode(kw)
	}
	if g.chance(60) {
		add := g.chance(70)
		q.AddGenerationPrompt = &add
	}
	if g.chance(8) {
		no := false
		q.AddGenerationPrompt, q.ContinueFinalMessage = &no, true
	}
	return q
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
