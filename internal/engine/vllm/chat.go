package vllm

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/message"
	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// This file has what vLLM does between a request and its template: the request model of
// vllm/entrypoints/openai/chat_completion/protocol.py, then vllm/renderers/chat_utils.py
// (parse_chat_messages) and vllm/renderers/hf.py (safe_apply_chat_template).

// caller gives templates only the members that the request model keeps; content as a text or as a
// list of parts, whichever the template runs through; the arguments of tool calls as objects;
// reasoning_content as reasoning and reasoning_content; tools with description and parameters
// even if they are null; developer as system where a template has none.
var caller = chat.Caller{
	Name:  "vllm",
	Parts: (*jinja.Template).LoopsOverContent, Message: chatMessage, Tool: tool, Finish: finish, Kwargs: kwargs,
	AddGenerationPrompt: true,
}

// chatMessage is a message with the members that the request model keeps, in its order.
func chatMessage(d *jinja.Dict, parts bool) (*jinja.Dict, bool, error) {
	role, err := message.Role(d, "role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")
	if err != nil {
		return nil, false, err
	}
	m := jinja.NewDict(8)
	m.Set("role", role)
	content, media, err := content(d, role, parts)
	if err != nil {
		return nil, false, err
	}
	m.Set("content", content)
	if role == "assistant" {
		err = assistant(d, m)
	} else {
		err = other(d, m, role)
	}
	if err != nil {
		return nil, false, err
	}
	return m, media, message.Copy(m, d, "name")
}

// assistant adds what only an assistant's message has.
func assistant(d, m *jinja.Dict) error {
	if _, ok := d.Get("tool_call_id"); ok {
		return message.Refuse("a tool_call_id of an assistant")
	}
	v, _ := d.Get("tool_calls")
	if v != nil {
		calls, err := message.Calls(v, call)
		if err != nil {
			return err
		}
		// No calls are none.
		if len(calls.Items) > 0 {
			m.Set("tool_calls", calls)
		}
	}
	reasoning, ok, err := message.Text(d, "reasoning")
	if err != nil {
		return err
	}
	old, ok2, err := message.Text(d, "reasoning_content")
	if !ok && ok2 {
		reasoning, ok = old, true
	}
	if ok {
		m.Set("reasoning", reasoning)
		m.Set("reasoning_content", reasoning)
	}
	return err
}

// other adds what messages of other roles have.
func other(d, m *jinja.Dict, role string) error {
	for _, name := range []string{"tool_calls", "reasoning", "reasoning_content"} {
		if _, ok := d.Get(name); ok {
			return message.Refuse("a message's " + name + " of another role")
		}
	}
	id, ok, err := message.Text(d, "tool_call_id")
	switch {
	case err != nil:
		return err
	case role == "tool" && !ok:
		return message.Refuse("a tool's message without tool_call_id")
	case role == "tool":
		m.Set("tool_call_id", id)
	case ok:
		return message.Refuse("a tool_call_id of another role")
	case role == "developer":
		m.Set("tools", nil)
	}
	return nil
}

// billing begins a line that vLLM takes out of a system message.
const billing = "x-anthropic-billing-header"

// content is a message's content as a text, or as a list of parts.
func content(d *jinja.Dict, role string, lists bool) (jinja.Value, bool, error) {
	v, _ := d.Get("content")
	if v == nil && role != "assistant" {
		return nil, false, message.Refuse("a message without content")
	}
	parts, err := message.Parts(v)
	if err != nil {
		return nil, false, err
	}
	kept := parts[:0]
	for _, p := range parts {
		billed := role == "system" && strings.HasPrefix(p.Text, billing)
		if billed {
			_, p.Text, _ = strings.Cut(p.Text, "\n")
		}
		// As texts, empty parts are left out.
		if p.Media || p.Text != "" || lists && !billed {
			kept = append(kept, p)
		}
	}
	return message.Content(kept, lists && role != "tool", "\n")
}

// call is a tool call with its arguments as an object. What is no object is an empty one.
func call(id, name string, args jinja.Value) (*jinja.Dict, error) {
	text, ok := args.(string)
	if !ok {
		return nil, message.Refuse("a tool call without arguments as a text")
	}
	a := jinja.NewDict(0)
	if text != "" {
		v, err := message.Arguments(text)
		if err != nil {
			return nil, err
		}
		if d, ok := v.(*jinja.Dict); ok {
			a = d
		}
	}
	return message.Dict("id", id, "function", message.Dict("arguments", a, "name", name), "type", "function"), nil
}

// tool is a tool as the request model writes it back.
func tool(d *jinja.Dict) (*jinja.Dict, error) {
	fn, err := message.Function(d)
	if err != nil {
		return nil, err
	}
	f := jinja.NewDict(4)
	for _, name := range []string{"name", "description", "parameters"} {
		v, _ := fn.Get(name)
		f.Set(name, v)
	}
	strict, _ := fn.Get("strict")
	if strict != nil {
		f.Set("strict", strict)
	}
	return message.Dict("type", "function", "function", f), nil
}

// kwargs leaves out members that are null or "auto". Such a member keeps a reasoning_effort from
// setting enable_thinking all the same.
func kwargs(given []jinja.Var, effort string) []jinja.Var {
	var vars []jinja.Var
	thinking := false
	for _, v := range given {
		thinking = thinking || v.Name == "enable_thinking"
		if v.Value != nil && v.Value != jinja.Value("auto") {
			vars = append(vars, v)
		}
	}
	if effort == "" {
		return vars
	}
	if !thinking {
		vars = append(vars, jinja.Var{Name: "enable_thinking", Value: effort != "none"})
	}
	return append(vars, jinja.Var{Name: "reasoning_effort", Value: effort})
}

// finish makes of developers systems, and of systems one, where a template has no developer.
func finish(c *chat.Conversation) error {
	if c.Tools != nil && len(c.Tools.Items) == 0 {
		return &jinja.Error{Kind: jinja.Raised, What: "an empty list of tools"}
	}
	developer := slices.ContainsFunc(c.Messages, func(m jinja.Value) bool { return message.Is(m, "developer") })
	if source := c.Template.Source(); developer && !strings.Contains(source, `"developer"`) && !strings.Contains(source, `'developer'`) {
		c.Messages = oneSystem(asSystem(c.Messages))
	}
	return nil
}

// asSystem makes developer's messages system's, for a template without that role.
func asSystem(messages []jinja.Value) []jinja.Value {
	out := slices.Clone(messages)
	for i, m := range out {
		if !message.Is(m, "developer") {
			continue
		}
		d := m.(*jinja.Dict)
		s := jinja.NewDict(d.Len())
		for j := range d.Len() {
			k, v := d.At(j)
			switch k {
			case "role":
				s.Set("role", "system")
			case "tools":
			default:
				s.Set(k.(string), v)
			}
		}
		out[i] = s
	}
	return out
}

// oneSystem merges all system messages into the first, if there is one that is not first.
func oneSystem(messages []jinja.Value) []jinja.Value {
	var texts []string
	var rest []jinja.Value
	needed, seen := false, false
	for i, m := range messages {
		if !message.Is(m, "system") {
			rest = append(rest, m)
			continue
		}
		needed = needed || i > 0 || seen
		content, _ := m.(*jinja.Dict).Get("content")
		s := joined(content)
		if s != "" {
			texts = append(texts, s)
			seen = true
		}
	}
	if !needed {
		return messages
	}
	one := message.Dict("role", "system", "content", strings.Join(texts, "\n\n"))
	return append([]jinja.Value{one}, rest...)
}

// joined is content's text.
func joined(content jinja.Value) string {
	l, ok := content.(*jinja.List)
	if !ok {
		s, _ := content.(string)
		return s
	}
	var texts []string
	for _, e := range l.Items {
		v, _ := e.(*jinja.Dict).Get("text")
		if s, ok := v.(string); ok {
			texts = append(texts, s)
		}
	}
	return strings.Join(texts, "\n")
}
