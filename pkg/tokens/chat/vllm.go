package chat

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// This file does what vLLM does between a request and its template: the request model of
// vllm/entrypoints/openai/chat_completion/protocol.py, then vllm/renderers/chat_utils.py
// (parse_chat_messages) and vllm/renderers/hf.py (safe_apply_chat_template).

// optionalText returns a member that is a text, or null, or not there.
func optionalText(d *jinja.Dict, name string) (s string, ok bool, err error) {
	v, there := d.Get(name)
	if !there || v == nil {
		return "", false, nil
	}
	s, ok = v.(string)
	if !ok {
		return "", false, refuse("a message's " + name + " that is no text")
	}
	return s, true, nil
}

// known refuses an object that has other members than these: whether the engine keeps them
// is not known.
func known(d *jinja.Dict, what string, names ...string) error {
	for i := range d.Len() {
		k, _ := d.At(i)
		s, _ := k.(string)
		if !slices.Contains(names, s) {
			return refuse("another member of " + what)
		}
	}
	return nil
}

// vllmRoles are the roles whose members are known.
var vllmRoles = []string{"system", "user", "assistant", "tool", "developer"}

// vllmMessage is a message as vLLM's templates see it.
func vllmMessage(d *jinja.Dict, parts bool) (member, error) {
	role, _, err := optionalText(d, "role")
	if err != nil {
		return member{}, err
	}
	if !slices.Contains(vllmRoles, role) {
		return member{}, refuse("a role of another name")
	}
	err = known(d, "a message", "role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")
	if err != nil {
		return member{}, err
	}
	m := jinja.NewDict(8)
	m.Set("role", role)
	content, media, err := vllmContent(d, role, parts)
	if err != nil {
		return member{}, err
	}
	m.Set("content", content)
	if role == "assistant" {
		err = vllmAssistant(d, m)
	} else {
		err = vllmOther(d, m, role)
	}
	if err != nil {
		return member{}, err
	}
	name, ok, err := optionalText(d, "name")
	if ok {
		m.Set("name", name)
	}
	return member{m, media}, err
}

// vllmAssistant adds what only an assistant's message has.
func vllmAssistant(d, m *jinja.Dict) error {
	if _, ok := d.Get("tool_call_id"); ok {
		return refuse("a tool_call_id of an assistant")
	}
	v, _ := d.Get("tool_calls")
	if v != nil {
		calls, err := vllmCalls(v)
		if err != nil {
			return err
		}
		// No calls are none.
		if len(calls.Items) > 0 {
			m.Set("tool_calls", calls)
		}
	}
	reasoning, ok, err := optionalText(d, "reasoning")
	if err != nil {
		return err
	}
	old, ok2, err := optionalText(d, "reasoning_content")
	if !ok && ok2 {
		reasoning, ok = old, true
	}
	if ok {
		m.Set("reasoning", reasoning)
		m.Set("reasoning_content", reasoning)
	}
	return err
}

// vllmOther adds what messages of other roles have.
func vllmOther(d, m *jinja.Dict, role string) error {
	for _, name := range []string{"tool_calls", "reasoning", "reasoning_content"} {
		if _, ok := d.Get(name); ok {
			return refuse("a message's " + name + " of another role")
		}
	}
	id, ok, err := optionalText(d, "tool_call_id")
	switch {
	case err != nil:
		return err
	case role == "tool" && !ok:
		return refuse("a tool's message without tool_call_id")
	case role == "tool":
		m.Set("tool_call_id", id)
	case ok:
		return refuse("a tool_call_id of another role")
	case role == "developer":
		m.Set("tools", nil)
	}
	return nil
}

// vllmContent is a message's content as a text, or as a list of parts.
func vllmContent(d *jinja.Dict, role string, parts bool) (jinja.Value, bool, error) {
	v, ok := d.Get("content")
	if (!ok || v == nil) && role != "assistant" {
		return nil, false, refuse("a message without content")
	}
	list := []jinja.Value{}
	switch c := v.(type) {
	case nil:
	case string:
		list = append(list, textPart(c))
	case *jinja.List:
		list = c.Items
	default:
		return nil, false, refuse("content of another kind")
	}
	var texts []string
	var dicts []jinja.Value
	media := false
	for _, e := range list {
		p, text, err := vllmPart(e, role)
		if err != nil {
			return nil, false, err
		}
		if p == nil {
			continue
		}
		dicts = append(dicts, p)
		if text == nil {
			media = true
			continue
		}
		// As texts, empty parts are left out.
		if parts || *text != "" {
			texts = append(texts, *text)
		}
	}
	switch {
	case media && !parts:
		return nil, false, refuse("media in a template that takes texts")
	case media && role == "tool":
		return nil, false, refuse("media of a tool")
	case !parts || role == "tool":
		return strings.Join(texts, "\n"), false, nil
	}
	return jinja.NewList(dicts...), media, nil
}

func textPart(s string) *jinja.Dict {
	d := jinja.NewDict(2)
	d.Set("type", "text")
	d.Set("text", s)
	return d
}

// billing begins a line that vLLM takes out of a system message.
const billing = "x-anthropic-billing-header"

// vllmPart is one part of content, with its text if it is one. It is nil if it is left out.
func vllmPart(v jinja.Value, role string) (*jinja.Dict, *string, error) {
	d, ok := v.(*jinja.Dict)
	if !ok {
		return nil, nil, refuse("a part that is no object")
	}
	kind, _ := d.Get("type")
	switch kind {
	case "text":
		err := known(d, "a text part", "type", "text")
		if err != nil {
			return nil, nil, err
		}
		s, ok, err := optionalText(d, "text")
		if err != nil || !ok {
			return nil, nil, refuse("a text part without a text")
		}
		if role == "system" && strings.HasPrefix(s, billing) {
			_, s, _ = strings.Cut(s, "\n")
			if s == "" {
				return nil, nil, nil
			}
		}
		return textPart(s), &s, nil
	case "image_url":
		err := known(d, "a picture part", "type", "image_url")
		if err != nil {
			return nil, nil, err
		}
		p := jinja.NewDict(1)
		p.Set("type", "image")
		return p, nil, nil
	}
	return nil, nil, refuse("a part of another type")
}

// vllmCalls are tool calls with their arguments as objects.
func vllmCalls(v jinja.Value) (*jinja.List, error) {
	l, ok := v.(*jinja.List)
	if !ok {
		return nil, refuse("tool_calls that are no list")
	}
	out := make([]jinja.Value, len(l.Items))
	for i, e := range l.Items {
		fn, id, name, err := call(e)
		if err != nil {
			return nil, err
		}
		args, ok, err := optionalText(fn, "arguments")
		if err != nil || !ok {
			return nil, refuse("a tool call without arguments as a text")
		}
		f := jinja.NewDict(2)
		f.Set("arguments", jinja.NewDict(0))
		if args != "" {
			a, err := argumentsOf(args)
			if err != nil {
				return nil, err
			}
			f.Set("arguments", a)
		}
		f.Set("name", name)
		c := jinja.NewDict(3)
		c.Set("id", id)
		c.Set("function", f)
		c.Set("type", "function")
		out[i] = c
	}
	return jinja.NewList(out...), nil
}

// call is a tool call's function, with the names of both, if the call has no other members
// than are known.
func call(v jinja.Value) (fn *jinja.Dict, id, name string, err error) {
	d, ok := v.(*jinja.Dict)
	if !ok {
		return nil, "", "", refuse("a tool call that is no object")
	}
	err = known(d, "a tool call", "id", "type", "function")
	if err != nil {
		return nil, "", "", err
	}
	kind, _ := d.Get("type")
	f, _ := d.Get("function")
	fn, ok = f.(*jinja.Dict)
	if !ok || kind != jinja.Value("function") {
		return nil, "", "", refuse("a tool call of another type")
	}
	err = known(fn, "a tool call's function", "name", "arguments")
	if err != nil {
		return nil, "", "", err
	}
	id, ok, err = optionalText(d, "id")
	if err != nil || !ok {
		return nil, "", "", refuse("a tool call without id")
	}
	name, ok, err = optionalText(fn, "name")
	if err != nil || !ok {
		return nil, "", "", refuse("a tool call without a name")
	}
	return fn, id, name, nil
}

// argumentsOf decodes arguments. vLLM takes what is no object for an empty one; whether text
// that this package cannot decode is JSON to Python is not known.
func argumentsOf(s string) (*jinja.Dict, error) {
	v, err := jinja.Decode([]byte(s))
	if err != nil {
		return nil, refuse("a tool call's arguments that are no JSON")
	}
	d, ok := v.(*jinja.Dict)
	if !ok {
		return jinja.NewDict(0), nil
	}
	return d, nil
}

// vllmTool is a tool as vLLM's request model writes it back.
func vllmTool(d *jinja.Dict) (*jinja.Dict, error) {
	fn, err := function(d)
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
	t := jinja.NewDict(2)
	t.Set("type", "function")
	t.Set("function", f)
	return t, nil
}

// function is a tool's function, if all of it is of the kinds that request models take as
// they are.
func function(d *jinja.Dict) (*jinja.Dict, error) {
	err := known(d, "a tool", "type", "function")
	if err != nil {
		return nil, err
	}
	kind, _ := d.Get("type")
	v, _ := d.Get("function")
	fn, ok := v.(*jinja.Dict)
	if !ok || kind != jinja.Value("function") {
		return nil, refuse("a tool of another type")
	}
	err = known(fn, "a tool's function", "name", "description", "parameters", "strict")
	if err != nil {
		return nil, err
	}
	_, named, err := optionalText(fn, "name")
	if err != nil || !named {
		return nil, refuse("a tool without a name")
	}
	_, _, err = optionalText(fn, "description")
	if err != nil {
		return nil, err
	}
	params, _ := fn.Get("parameters")
	_, isDict := params.(*jinja.Dict)
	strict, _ := fn.Get("strict")
	_, isBool := strict.(bool)
	if params != nil && !isDict || strict != nil && !isBool {
		return nil, refuse("a tool's function of other kinds")
	}
	return fn, nil
}

// finishVLLM does what vLLM does with all messages at once.
func (r *rendering) finishVLLM() error {
	if r.tools != nil && len(r.tools.Items) == 0 {
		return raise("an empty list of tools")
	}
	developer := false
	for _, m := range r.messages {
		role, _ := m.(*jinja.Dict).Get("role")
		developer = developer || role == jinja.Value("developer")
	}
	if developer && !r.t.developer {
		r.messages = oneSystem(asSystem(r.messages))
	}
	if r.q.ContinueFinalMessage {
		r.final = r.messages[len(r.messages)-1].(*jinja.Dict)
	}
	return nil
}

// asSystem makes developer's messages system's.
func asSystem(messages []jinja.Value) []jinja.Value {
	out := slices.Clone(messages)
	for i, m := range out {
		d := m.(*jinja.Dict)
		role, _ := d.Get("role")
		if role != jinja.Value("developer") {
			continue
		}
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
		d := m.(*jinja.Dict)
		role, _ := d.Get("role")
		if role != jinja.Value("system") {
			rest = append(rest, m)
			continue
		}
		needed = needed || i > 0 || seen
		content, _ := d.Get("content")
		s := joined(content)
		if s != "" {
			texts = append(texts, s)
			seen = true
		}
	}
	if !needed {
		return messages
	}
	one := jinja.NewDict(2)
	one.Set("role", "system")
	one.Set("content", strings.Join(texts, "\n\n"))
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
		d, ok := e.(*jinja.Dict)
		if !ok {
			continue
		}
		v, ok := d.Get("text")
		if s, isText := v.(string); ok && isText {
			texts = append(texts, s)
		}
	}
	return strings.Join(texts, "\n")
}
