package aschat

import "github.com/seed-60ae5743/baton/internal/openai"

// Response returns the chat request of a body of /v1/responses, which r was read from.
func (rules Rules) Response(body []byte, r *openai.Request) (chat []byte, ok bool) {
	w := &writer{Rules: rules, b: body, out: make([]byte, 0, len(body)+512)}
	w.begin(r)
	if r.Given(body, openai.Instructions) {
		if text := w.text(r.Value(openai.Instructions)); len(text) > 0 {
			w.say("system", text)
		}
	}
	if input := r.Value(openai.Input); body[input.Start] == '"' {
		w.say("user", w.text(input))
	} else {
		openai.EachElement(body, input, w.item)
	}
	var tools []byte
	openai.EachElement(body, r.Value(openai.Tools), func(tool openai.Span) {
		if !w.is(w.members(tool, "type")["type"], "function") {
			w.refuse()
			return
		}
		tools = w.function(tools, tool, "parameters")
	})
	choice := ""
	if s := r.Value(openai.ToolChoice); w.given(s) && !w.is(s, "auto") {
		choice = string(w.text(s))
	}
	r.EachMember(func(f openai.Field, key, val openai.Span) bool {
		switch {
		case f == openai.PreviousResponseID && w.given(val),
			f == openai.NoField && w.given(val) && (openai.IsKey(body, key, "previous_input_messages") ||
				openai.IsKey(body, key, "reasoning") && w.given(w.members(val, "effort")["effort"])):
			w.refuse()
		}
		return !w.bad
	})
	return w.end(tools, choice)
}

// item writes one item of the input.
func (w *writer) item(s openai.Span) {
	m := w.members(s, "type", "role", "content", "status", "call_id", "name", "namespace", "arguments", "output")
	if st := m["status"]; w.given(st) && !w.is(st, "completed") || w.given(m["namespace"]) {
		w.refuse()
		return
	}
	switch kind := m["type"]; {
	case w.is(kind, "function_call"):
		w.call(w.text(m["call_id"]), w.text(m["name"]), append(append([]byte(`"`), w.text(m["arguments"])...), '"'))
	case w.is(kind, "function_call_output"):
		w.answer(w.text(m["call_id"]), w.text(m["output"]))
	case w.given(kind) && !w.is(kind, "message"), m["content"].End == 0:
		w.refuse()
	case w.is(m["role"], "user"), w.is(m["role"], "system") && w.written == 0:
		w.message(string(w.text(m["role"])))
		w.parts(m["content"], "input_text", "text")
		w.put("}")
	case w.is(m["role"], "assistant"):
		w.assistant(m["content"])
	default:
		w.refuse()
	}
}

// assistant writes what an assistant has said. Later calls of tools belong to it.
func (w *writer) assistant(content openai.Span) {
	if w.open.is && w.open.content {
		w.refuse() // two in a row
		return
	}
	if !w.open.is {
		w.message("assistant")
	}
	w.open.is, w.open.content = true, true
	if w.PartsOfAssistant || w.b[content.Start] == '"' {
		w.parts(content, "output_text", "input_text", "text")
		return
	}
	text, n := w.texts(content, "", "output_text")
	if n != 1 {
		w.refuse()
	}
	w.put(`,"content":"`, string(text), `"`)
}
