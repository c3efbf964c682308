package aschat

import (
	"bytes"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// billing begins a text of Claude Code's that differs with each request, and that engines leave out.
const billing = "x-anthropic-billing-header"

// Message returns the chat request of a body of /v1/messages, which r was read from.
func (rules Rules) Message(body []byte, r *openai.Request) (chat []byte, ok bool) {
	w := &writer{Rules: rules, b: body, out: make([]byte, 0, len(body)+512)}
	w.begin(r)
	w.system(r.Value(openai.System))
	openai.EachElement(body, r.Value(openai.Messages), w.turn)
	var tools []byte
	openai.EachElement(body, r.Value(openai.Tools), func(tool openai.Span) {
		schema := w.members(tool, "input_schema")["input_schema"]
		if !w.given(schema) || w.members(schema, "type")["type"].End == 0 {
			w.refuse() // an engine adds a type
			return
		}
		tools = w.function(tools, tool, "input_schema")
	})
	choice := ""
	if r.Given(body, openai.ToolChoice) {
		switch kind := w.members(r.Value(openai.ToolChoice), "type")["type"]; {
		case w.is(kind, "none"):
			choice = "none"
		case w.is(kind, "any"):
			choice = "required"
		case !w.is(kind, "auto"):
			w.refuse()
		}
	}
	r.EachMember(func(f openai.Field, key, val openai.Span) bool {
		switch {
		case f != openai.NoField || !w.given(val):
		case openai.IsKey(body, key, "thinking") && w.is(w.members(val, "type")["type"], "disabled"),
			openai.IsKey(body, key, "output_config") && w.given(w.members(val, "effort")["effort"]):
			w.refuse()
		}
		return !w.bad
	})
	return w.end(tools, choice)
}

// system writes what comes before the messages: a text, or texts that become one.
func (w *writer) system(s openai.Span) {
	var text []byte
	switch {
	case !w.given(s):
		return
	case w.b[s.Start] == '"':
		text = w.text(s)
	case w.b[s.Start] != '[':
		w.refuse()
	default:
		openai.EachElement(w.b, s, func(part openai.Span) {
			t := w.part(part, []string{"text"})
			if !bytes.HasPrefix(t, []byte(billing)) {
				text = append(text, t...)
			}
		})
	}
	if len(text) > 0 {
		w.say("system", text)
	}
}

// turn writes one message, and before it what it has of tools' answers.
func (w *writer) turn(s openai.Span) {
	m := w.members(s, "role", "content")
	content := m["content"]
	user := w.is(m["role"], "user")
	switch {
	case !user && !w.is(m["role"], "assistant"), content.End == 0:
		w.refuse()
		return
	case w.b[content.Start] == '"':
		w.say(map[bool]string{true: "user", false: "assistant"}[user], w.text(content))
		return
	}
	var texts [][]byte
	called := false
	openai.EachElement(w.b, content, func(block openai.Span) {
		m := w.members(block, "type", "text", "id", "name", "input", "tool_use_id", "content")
		switch {
		case w.is(m["type"], "text"):
			if t := w.text(m["text"]); len(t) > 0 {
				texts = append(texts, t)
			}
		case w.is(m["type"], "tool_result") && user:
			w.toolResult(w.text(m["tool_use_id"]), m["content"])
		case w.is(m["type"], "tool_use") && !user:
			input := []byte("{}")
			if w.given(m["input"]) {
				input = m["input"].Of(w.b)
			}
			w.call(w.text(m["id"]), w.text(m["name"]), quoted(input))
			called = true
		default:
			w.refuse()
		}
	})
	w.spoken(user, called, texts)
}

// spoken writes the texts of a turn.
func (w *writer) spoken(user, called bool, texts [][]byte) {
	switch {
	case len(texts) == 0:
		if !user && !called {
			w.refuse() // a message without content
		}
	case !called:
		w.message(map[bool]string{true: "user", false: "assistant"}[user])
	}
	switch len(texts) {
	case 0:
	case 1:
		w.put(`,"content":"`, string(texts[0]), `"`)
	default:
		w.put(`,"content":[`)
		for i, t := range texts {
			w.put(map[bool]string{true: ",", false: ""}[i > 0], `{"type":"text","text":"`, string(t), `"}`)
		}
		w.put("]")
	}
	switch {
	case called:
		w.close()
	case len(texts) > 0:
		w.put("}")
	}
}

// toolResult writes a tool's answer: a text, or texts in lines.
func (w *writer) toolResult(id []byte, content openai.Span) {
	var text []byte
	switch {
	case !w.given(content):
	case w.b[content.Start] == '"':
		text = w.text(content)
	default:
		text, _ = w.texts(content, `\n`, "text")
	}
	w.answer(id, text)
}
