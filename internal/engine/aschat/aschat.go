package aschat

import (
	"bytes"
	"slices"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// Rules is what of a conversion differs between engines.
type Rules struct {
	// PartsOfAssistant says that an assistant's content which is a list stays one. Else its text is
	// taken.
	PartsOfAssistant bool
}

// writer writes the chat request. Once bad is set, the rest has no meaning.
type writer struct {
	Rules
	b   []byte
	out []byte
	bad bool

	// Of the messages, which are a list that out ends with.
	written int
	// open is the message that is not closed yet, if it is an assistant's that later items add to.
	open struct {
		is, content bool
		calls       []byte
	}
}

func (w *writer) refuse() { w.bad = true }

// text returns the contents of a JSON string, as written; it refuses anything else.
func (w *writer) text(s openai.Span) []byte {
	if s.End == 0 || w.b[s.Start] != '"' {
		w.refuse()
		return nil
	}
	return w.b[s.Start+1 : s.End-1]
}

// given reports whether there is a value other than null.
func (w *writer) given(s openai.Span) bool { return s.End != 0 && w.b[s.Start] != 'n' }

func (w *writer) put(parts ...string) {
	for _, p := range parts {
		w.out = append(w.out, p...)
	}
}

// object is the members of an object that are looked for, by name.
type object map[string]openai.Span

// members returns those members of the object at s that have these names.
func (w *writer) members(s openai.Span, names ...string) object {
	o := make(object, len(names))
	if w.b[s.Start] != '{' {
		w.refuse()
	}
	openai.EachMember(w.b, s, func(key, val openai.Span) bool {
		for _, name := range names {
			if openai.IsKey(w.b, key, name) {
				o[name] = val
			}
		}
		return true
	})
	return o
}

// is reports whether a member is the text.
func (w *writer) is(s openai.Span, text string) bool {
	return s.End != 0 && string(s.Of(w.b)) == `"`+text+`"`
}

// begin begins the request, up to its messages.
func (w *writer) begin(r *openai.Request) {
	w.put(`{"model":"m"`)
	w.keep(r, openai.ChatTemplateKwargs)
	w.put(`,"messages":[`)
}

// keep copies a member as it is.
func (w *writer) keep(r *openai.Request, f openai.Field) {
	if r.Given(w.b, f) {
		w.put(`,"`, f.String(), `":`, string(r.Value(f).Of(w.b)))
	}
}

// message begins a message.
func (w *writer) message(role string) {
	w.close()
	if w.written > 0 {
		w.put(",")
	}
	w.written++
	w.put(`{"role":"`, role, `"`)
}

// say writes a whole message whose content is a text, as written.
func (w *writer) say(role string, text []byte) {
	w.message(role)
	w.put(`,"content":"`)
	w.out = append(w.out, text...)
	w.put(`"}`)
}

// call adds a tool call to the assistant's message that is open, or begins one. args is the call's
// arguments as a JSON string.
func (w *writer) call(id, name, args []byte) {
	if !w.open.is {
		w.message("assistant")
		w.open.is = true
	}
	calls := w.open.calls
	if len(calls) > 0 {
		calls = append(calls, ',')
	}
	calls = append(append(calls, `{"id":"`...), id...)
	calls = append(append(calls, `","type":"function","function":{"name":"`...), name...)
	calls = append(append(calls, `","arguments":`...), args...)
	w.open.calls = append(calls, "}}"...)
}

// answer writes what a tool has answered.
func (w *writer) answer(id, text []byte) {
	w.message("tool")
	w.put(`,"tool_call_id":"`, string(id), `","content":"`)
	w.out = append(w.out, text...)
	w.put(`"}`)
}

// close ends the assistant's message that is open.
func (w *writer) close() {
	if !w.open.is {
		return
	}
	if len(w.open.calls) > 0 {
		w.put(`,"tool_calls":[`)
		w.out = append(w.out, w.open.calls...)
		w.put("]")
	}
	w.put("}")
	w.open.is, w.open.content, w.open.calls = false, false, w.open.calls[:0]
}

// end ends the messages, and writes the tools.
func (w *writer) end(tools []byte, choice string) ([]byte, bool) {
	w.close()
	w.put("]")
	if len(tools) > 0 {
		w.put(`,"tools":[`)
		w.out = append(w.out, tools...)
		w.put("]")
		if choice != "" {
			w.put(`,"tool_choice":"`, choice, `"`)
		}
	}
	w.put("}")
	return w.out, !w.bad && w.written > 0
}

// part returns the text of a part that has one of the types.
func (w *writer) part(s openai.Span, types []string) []byte {
	m := w.members(s, "type", "text")
	if !slices.ContainsFunc(types, func(t string) bool { return w.is(m["type"], t) }) {
		w.refuse()
		return nil
	}
	return w.text(m["text"])
}

// texts returns the texts of a list of parts, each of one of the types, joined by sep.
func (w *writer) texts(s openai.Span, sep string, types ...string) (joined []byte, n int) {
	openai.EachElement(w.b, s, func(part openai.Span) {
		n++
		if n > 1 {
			joined = append(joined, sep...)
		}
		joined = append(joined, w.part(part, types)...)
	})
	return joined, n
}

// parts writes content: a text, or a list of parts of these types as one of text parts.
func (w *writer) parts(s openai.Span, types ...string) {
	if w.b[s.Start] == '"' {
		w.put(`,"content":`, string(s.Of(w.b)))
		return
	}
	w.put(`,"content":[`)
	n := 0
	openai.EachElement(w.b, s, func(part openai.Span) {
		n++
		if n > 1 {
			w.put(",")
		}
		w.put(`{"type":"text","text":"`)
		w.out = append(w.out, w.part(part, types)...)
		w.put(`"}`)
	})
	w.put("]")
	if n == 0 {
		w.refuse()
	}
}

// function appends a tool of a chat. parameters is the name of the member that has them.
func (w *writer) function(tools []byte, tool openai.Span, parameters string) []byte {
	m := w.members(tool, "type", "name", "description", "strict", "defer_loading", parameters)
	if w.given(m["type"]) && !w.is(m["type"], "function") && !w.is(m["type"], "custom") || w.given(m["defer_loading"]) {
		w.refuse()
	}
	if len(tools) > 0 {
		tools = append(tools, ',')
	}
	tools = append(append(tools, `{"type":"function","function":{"name":"`...), w.text(m["name"])...)
	tools = append(tools, '"')
	for _, name := range [...]string{"description", parameters, "strict"} {
		if w.given(m[name]) {
			to := name
			if name == parameters {
				to = "parameters"
			}
			tools = append(append(append(append(tools, `,"`...), to...), `":`...), m[name].Of(w.b)...)
		}
	}
	return append(tools, "}}"...)
}

// quoted returns a JSON value as a JSON string.
func quoted(raw []byte) []byte { return openai.AppendString(nil, string(bytes.TrimSpace(raw))) }
