package message

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// Refuse returns the error that says that the engine may do otherwise with what a request has.
func Refuse(what string) error { return &jinja.Error{Kind: jinja.Refused, What: what} }

// Dict returns an object of names and values in turn.
func Dict(members ...jinja.Value) *jinja.Dict {
	d := jinja.NewDict(len(members) / 2)
	for i := 0; i < len(members); i += 2 {
		d.Set(members[i].(string), members[i+1])
	}
	return d
}

// Text returns a member that is a text. False means that it is null or not there.
func Text(d *jinja.Dict, name string) (s string, ok bool, err error) {
	v, _ := d.Get(name)
	s, ok = v.(string)
	if v != nil && !ok {
		return "", false, Refuse("a message's " + name + " that is no text")
	}
	return s, ok, nil
}

// must returns a member that is a text.
func must(d *jinja.Dict, what, name string) (string, error) {
	v, _ := d.Get(name)
	s, ok := v.(string)
	if !ok {
		return "", Refuse(what + " without " + name)
	}
	return s, nil
}

// Copy sets those of the members in to that are texts in from.
func Copy(to, from *jinja.Dict, names ...string) error {
	for _, name := range names {
		s, ok, err := Text(from, name)
		if err != nil {
			return err
		}
		if ok {
			to.Set(name, s)
		}
	}
	return nil
}

// known refuses an object that has other members than these.
func known(d *jinja.Dict, what string, names ...string) error {
	for i := range d.Len() {
		k, _ := d.At(i)
		s, _ := k.(string)
		if !slices.Contains(names, s) {
			return Refuse("another member of " + what)
		}
	}
	return nil
}

// roles are the roles whose members are known.
var roles = []string{"system", "user", "assistant", "tool", "developer"}

// Role returns the role of a message that has no other members than these.
func Role(d *jinja.Dict, members ...string) (string, error) {
	role, _, err := Text(d, "role")
	if err != nil {
		return "", err
	}
	if !slices.Contains(roles, role) {
		return "", Refuse("a role of another name")
	}
	return role, known(d, "a message", members...)
}

// Is reports whether a message that a room has made is of a role.
func Is(m jinja.Value, role string) bool {
	v, _ := m.(*jinja.Dict).Get("role")
	s, _ := v.(string)
	return s == role
}

// A Part is a part of a message's content: a text, or a picture, which has none.
type Part struct {
	Text  string
	Media bool
}

// Parts returns the parts of content. A text is one part; null has none.
func Parts(content jinja.Value) ([]Part, error) {
	switch c := content.(type) {
	case nil:
		return nil, nil
	case string:
		return []Part{{Text: c}}, nil
	case *jinja.List:
		parts := make([]Part, len(c.Items))
		for i, v := range c.Items {
			var err error
			parts[i], err = part(v)
			if err != nil {
				return nil, err
			}
		}
		return parts, nil
	}
	return nil, Refuse("content of another kind")
}

func part(v jinja.Value) (Part, error) {
	d, ok := v.(*jinja.Dict)
	if !ok {
		return Part{}, Refuse("a part that is no object")
	}
	kind, _ := d.Get("type")
	switch kind {
	case "text":
		err := known(d, "a text part", "type", "text")
		if err != nil {
			return Part{}, err
		}
		s, err := must(d, "a text part", "text")
		return Part{Text: s}, err
	case "image_url":
		return Part{Media: true}, known(d, "a picture part", "type", "image_url")
	}
	return Part{}, Refuse("a part of another type")
}

// Content returns what a template is given of parts: if lists is true a list of them, else
// their texts, joined by sep. It reports whether the list has parts that are no text.
func Content(parts []Part, lists bool, sep string) (content jinja.Value, media bool, err error) {
	texts := make([]string, len(parts))
	list := make([]jinja.Value, len(parts))
	for i, p := range parts {
		switch {
		case p.Media && !lists:
			return nil, false, Refuse("media in a template that takes texts")
		case p.Media:
			media = true
			list[i] = Dict("type", "image")
		case lists:
			list[i] = Dict("type", "text", "text", p.Text)
		default:
			texts[i] = p.Text
		}
	}
	if !lists {
		return strings.Join(texts, sep), false, nil
	}
	return jinja.NewList(list...), media, nil
}

// Calls returns tool calls, each as made makes it of the call's id and of the function's name
// and arguments.
func Calls(v jinja.Value, made func(id, name string, args jinja.Value) (*jinja.Dict, error)) (*jinja.List, error) {
	l, ok := v.(*jinja.List)
	if !ok {
		return nil, Refuse("tool_calls that are no list")
	}
	out := make([]jinja.Value, len(l.Items))
	for i, v := range l.Items {
		d, ok := v.(*jinja.Dict)
		if !ok {
			return nil, Refuse("a tool call that is no object")
		}
		fn, err := function(d, "a tool call", []string{"id", "type", "function"}, []string{"name", "arguments"})
		if err != nil {
			return nil, err
		}
		id, err := must(d, "a tool call", "id")
		if err != nil {
			return nil, err
		}
		name, _ := fn.Get("name")
		args, _ := fn.Get("arguments")
		out[i], err = made(id, name.(string), args)
		if err != nil {
			return nil, err
		}
	}
	return jinja.NewList(out...), nil
}

// function returns the function of a tool, or of a call of one, if it has a name and both have
// no other members than these.
func function(d *jinja.Dict, what string, members, functions []string) (*jinja.Dict, error) {
	err := known(d, what, members...)
	if err != nil {
		return nil, err
	}
	kind, _ := d.Get("type")
	v, _ := d.Get("function")
	fn, ok := v.(*jinja.Dict)
	if !ok || kind != jinja.Value("function") {
		return nil, Refuse(what + " of another type")
	}
	err = known(fn, what, functions...)
	if err == nil {
		_, err = must(fn, what, "name")
	}
	return fn, err
}

// Arguments decodes the arguments of a call. Whether a text that cannot be decoded here is JSON
// to Python is not known.
func Arguments(text string) (jinja.Value, error) {
	v, err := jinja.Decode([]byte(text))
	if err != nil {
		return nil, Refuse("a tool call's arguments that are no JSON")
	}
	return v, nil
}

// Function returns a tool's function, if all of it is of the kinds that request models take as
// they are.
func Function(tool *jinja.Dict) (*jinja.Dict, error) {
	fn, err := function(tool, "a tool", []string{"type", "function"}, []string{"name", "description", "parameters", "strict"})
	if err != nil {
		return nil, err
	}
	_, _, err = Text(fn, "description")
	if err != nil {
		return nil, err
	}
	params, _ := fn.Get("parameters")
	_, isDict := params.(*jinja.Dict)
	strict, _ := fn.Get("strict")
	_, isBool := strict.(bool)
	if params != nil && !isDict || strict != nil && !isBool {
		return nil, Refuse("a tool's function of other kinds")
	}
	return fn, nil
}
