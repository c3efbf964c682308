package chat

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// This file does what SGLang does between a request and its template: the request model of
// sglang/srt/entrypoints/openai/protocol.py, then serving_chat.py (_apply_jinja_template)
// and sglang/srt/parser/jinja_template_utils.py (process_content_for_template_format).

// sglangMessage is a message as SGLang's templates see it: members in the order of its
// request model, without those that are null.
func sglangMessage(d *jinja.Dict, parts bool) (member, error) {
	role, _, err := optionalText(d, "role")
	if err != nil {
		return member{}, err
	}
	if !slices.Contains([]string{"system", "user", "assistant", "tool", "developer"}, role) {
		return member{}, refuse("a role of another name")
	}
	err = known(d, "a message", "role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
	if err != nil {
		return member{}, err
	}
	m := jinja.NewDict(8)
	m.Set("role", role)
	content, media, err := sglangContent(d, role, parts)
	if err != nil {
		return member{}, err
	}
	// A text keeps its place; a list is put last.
	_, isText := content.(string)
	if isText {
		m.Set("content", content)
	}
	if role != "user" {
		err = sglangOther(d, m, role)
		if err != nil {
			return member{}, err
		}
	}
	if !isText {
		m.Set("content", content)
	}
	return member{m, media}, nil
}

// sglangOther adds the members that a user's message does not have.
func sglangOther(d, m *jinja.Dict, role string) error {
	for _, name := range []string{"tool_call_id", "name", "reasoning_content"} {
		s, ok, err := optionalText(d, name)
		if err != nil {
			return err
		}
		if ok {
			m.Set(name, s)
		}
	}
	v, _ := d.Get("tool_calls")
	if v == nil {
		return nil
	}
	if role != "assistant" {
		return refuse("tool_calls of another role")
	}
	calls, err := sglangCalls(v)
	if err == nil {
		m.Set("tool_calls", calls)
	}
	return err
}

// sglangContent is a message's content as a text, or as a list of parts.
func sglangContent(d *jinja.Dict, role string, parts bool) (jinja.Value, bool, error) {
	v, _ := d.Get("content")
	switch c := v.(type) {
	case nil:
		if role == "user" {
			return nil, false, refuse("a user's message without content")
		}
		return "", false, nil
	case string:
		return c, false, nil
	case *jinja.List:
		return sglangList(c, role, parts)
	}
	return nil, false, refuse("content of another kind")
}

func sglangList(l *jinja.List, role string, parts bool) (jinja.Value, bool, error) {
	var texts []string
	var dicts []jinja.Value
	media := false
	for _, e := range l.Items {
		p, text, err := vllmPart(e, "")
		if err != nil {
			return nil, false, err
		}
		dicts = append(dicts, p)
		if text == nil {
			media = true
			continue
		}
		texts = append(texts, *text)
	}
	switch {
	case media && (!parts || role == "tool"):
		return nil, false, refuse("media in a template that takes texts")
	case !parts || role == "tool":
		return strings.Join(texts, " "), false, nil
	}
	return jinja.NewList(dicts...), media, nil
}

// sglangCalls are tool calls in the order of SGLang's model, null members too.
func sglangCalls(v jinja.Value) (*jinja.List, error) {
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
		args, _ := fn.Get("arguments")
		if s, isText := args.(string); isText {
			a, err := jinja.Decode([]byte(s))
			if err != nil {
				return nil, refuse("a tool call's arguments that are no JSON")
			}
			args = a
		}
		a, ok := args.(*jinja.Dict)
		if !ok {
			return nil, refuse("a tool call's arguments that are no object")
		}
		f := jinja.NewDict(2)
		f.Set("name", name)
		f.Set("arguments", a)
		c := jinja.NewDict(4)
		c.Set("id", id)
		c.Set("index", nil)
		c.Set("type", "function")
		c.Set("function", f)
		out[i] = c
	}
	return jinja.NewList(out...), nil
}

// sglangTool is a tool as SGLang's request model writes it back: the function's members in
// the order in which they came, then those that are null.
func sglangTool(d *jinja.Dict) (*jinja.Dict, error) {
	fn, err := function(d)
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
	t := jinja.NewDict(3)
	t.Set("type", "function")
	t.Set("function", f)
	t.Set("defer_loading", nil)
	return t, nil
}

// finishSGLang does what SGLang does with all messages at once.
func (r *rendering) finishSGLang() error {
	if r.q.ContinueFinalMessage || r.q.AddGenerationPrompt != nil {
		// It joins token ids there, not text.
		return refuse("continue_final_message and add_generation_prompt with sglang")
	}
	err := r.chooseTools()
	if err != nil {
		return err
	}
	last := len(r.messages) - 1
	d := r.messages[last].(*jinja.Dict)
	role, _ := d.Get("role")
	content, _ := d.Get("content")
	s, ok := content.(string)
	if role == jinja.Value("assistant") && ok {
		u := jinja.NewDict(2)
		u.Set("role", "user")
		u.Set("content", s)
		r.messages[last] = u
	}
	return nil
}

// chooseTools leaves the tools that tool_choice allows.
func (r *rendering) chooseTools() error {
	if r.tools != nil && len(r.tools.Items) == 0 {
		r.tools = nil
	}
	switch string(r.q.ToolChoice) {
	case "", "null", `"auto"`, `"required"`:
	case `"none"`:
		r.tools = nil
	default:
		return refuse("a tool_choice of one function with sglang")
	}
	return nil
}
