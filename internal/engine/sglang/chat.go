package sglang

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/message"
	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// This file has what SGLang does between a request and its template: the request model of
// sglang/srt/entrypoints/openai/protocol.py, then serving_chat.py (_apply_jinja_template)
// and sglang/srt/parser/jinja_template_utils.py (process_content_for_template_format).

// caller gives templates members in its model's order without null ones; missing content as an
// empty text; texts of parts joined by a blank; a last assistant message as a user's.
var caller = chat.Caller{
	Name:  "sglang",
	Parts: takesParts, Message: chatMessage, Tool: tool, Finish: finish, Kwargs: kwargs,
	AddGenerationPrompt: true, ToolsAgain: functions,
}

// takesParts reports whether a template runs through content, or has a word for media.
func takesParts(t *jinja.Template) bool {
	return t.LoopsOverContentOf("message", "msg", "m") ||
		slices.ContainsFunc([]string{"image", "audio", "video", "vision"}, func(s string) bool { return strings.Contains(t.Source(), s) })
}

// chatMessage is a message with its members in the order of the request model, without those
// that are null.
func chatMessage(d *jinja.Dict, parts bool) (*jinja.Dict, bool, error) {
	role, err := message.Role(d, "role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
	if err != nil {
		return nil, false, err
	}
	m := jinja.NewDict(8)
	m.Set("role", role)
	content, media, err := content(d, role, parts)
	if err != nil {
		return nil, false, err
	}
	// A text keeps its place; a list is put last.
	_, isText := content.(string)
	if isText {
		m.Set("content", content)
	}
	if role != "user" {
		err = other(d, m, role)
	}
	if !isText {
		m.Set("content", content)
	}
	return m, media, err
}

// other adds the members that a user's message does not have.
func other(d, m *jinja.Dict, role string) error {
	err := message.Copy(m, d, "tool_call_id", "name", "reasoning_content")
	if err != nil {
		return err
	}
	v, _ := d.Get("tool_calls")
	if v == nil {
		return nil
	}
	if role != "assistant" {
		return message.Refuse("tool_calls of another role")
	}
	calls, err := message.Calls(v, call)
	if err == nil {
		m.Set("tool_calls", calls)
	}
	return err
}

// content is a message's content as a text, or as a list of parts. A text is no list.
func content(d *jinja.Dict, role string, lists bool) (jinja.Value, bool, error) {
	v, _ := d.Get("content")
	if v == nil && role == "user" {
		return nil, false, message.Refuse("a user's message without content")
	}
	parts, err := message.Parts(v)
	if err != nil {
		return nil, false, err
	}
	_, isList := v.(*jinja.List)
	return message.Content(parts, lists && isList && role != "tool", " ")
}

// call is a tool call in the order of the request model, null members too.
func call(id, name string, args jinja.Value) (*jinja.Dict, error) {
	if text, ok := args.(string); ok {
		var err error
		args, err = message.Arguments(text)
		if err != nil {
			return nil, err
		}
	}
	if _, ok := args.(*jinja.Dict); !ok {
		return nil, message.Refuse("a tool call's arguments that are no object")
	}
	return message.Dict("id", id, "index", nil, "type", "function", "function", message.Dict("name", name, "arguments", args)), nil
}

// tool is a tool as the request model writes it back: the function's members in the order in
// which they came, then those that are null.
func tool(d *jinja.Dict) (*jinja.Dict, error) {
	fn, err := message.Function(d)
	if err != nil {
		return nil, err
	}
	f := jinja.NewDict(4)
	for i := range fn.Len() {
		k, v := fn.At(i)
		if k != jinja.Value("strict") || v != nil {
			f.Set(k.(string), v)
		}
	}
	for _, name := range []string{"description", "parameters"} {
		if _, ok := f.Get(name); !ok {
			f.Set(name, nil)
		}
	}
	return message.Dict("type", "function", "function", f, "defer_loading", nil), nil
}

// kwargs puts what a reasoning_effort sets before what the request sets itself, which wins.
func kwargs(given []jinja.Var, effort string) []jinja.Var {
	if effort == "" {
		return given
	}
	thinks := effort != "none"
	return append([]jinja.Var{
		{Name: "reasoning_effort", Value: effort}, {Name: "enable_thinking", Value: thinks}, {Name: "thinking", Value: thinks},
	}, given...)
}

// finish leaves the tools that tool_choice allows, and makes a last message of an assistant one
// of a user.
func finish(c *chat.Conversation) error {
	q := c.Request
	if q.ContinueFinalMessage || q.AddGenerationPrompt != nil {
		// It joins token ids there, not text.
		return message.Refuse("continue_final_message and add_generation_prompt with sglang")
	}
	if q.Documents != nil && string(q.Documents) != "null" {
		return message.Refuse("documents with sglang")
	}
	switch string(q.ToolChoice) {
	case "", "null", `"auto"`, `"required"`:
	case `"none"`:
		c.Tools = nil
	default:
		return message.Refuse("a tool_choice of one function with sglang")
	}
	if c.Tools != nil && len(c.Tools.Items) == 0 {
		c.Tools = nil
	}
	last := len(c.Messages) - 1
	content, _ := c.Messages[last].(*jinja.Dict).Get("content")
	if s, ok := content.(string); ok && message.Is(c.Messages[last], "assistant") {
		c.Messages[last] = message.Dict("role", "user", "content", s)
	}
	return nil
}

// functions are the tools' functions alone, as some templates have them.
func functions(tools *jinja.List) *jinja.List {
	out := slices.Clone(tools.Items)
	for i, v := range out {
		out[i], _ = v.(*jinja.Dict).Get("function")
	}
	return jinja.NewList(out...)
}
