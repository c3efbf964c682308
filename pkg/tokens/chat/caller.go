package chat

import (
	"slices"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// A Caller is who renders a template, and so in what form the template sees a request. It has
// in data and functions what an engine does between a request and its template, as the engine's
// source shows it. It is one variable that nobody changes: what is made of a template or of a
// message is kept under the Caller's address.
//
// The functions are called by many at once. They keep nothing, and change nothing that they are
// given but what Finish may. If they do not know that the engine does the same they return an
// error of the kind [jinja.Refused]; if the engine itself answers with an error, one of the kind
// [jinja.Raised]. No error has a text of a request. A function that is nil leaves all as it is.
type Caller struct {
	// Name is for people.
	Name string
	// Parts reports whether Message is to give content as a list of parts, as the engine finds
	// out in the template; else content is a text. What it says of a template is kept. nil: a
	// text.
	Parts func(t *jinja.Template) bool
	// Message makes of a message, as it stands in the request, what templates see. media says
	// that it has parts that are no text. What is made is used again for the same bytes.
	Message func(m *jinja.Dict, parts bool) (made *jinja.Dict, media bool, err error)
	// Tool does that for one tool.
	Tool func(tool *jinja.Dict) (*jinja.Dict, error)
	// Finish does what depends on more than one message or tool. It may put others in the
	// place of those that the conversation has, one message at least, and it refuses members
	// of the request whose effect is not known.
	Finish func(c *Conversation) error
	// Kwargs makes the variables of a template of those that the request sets itself, in their
	// order, and of its reasoning_effort: none, minimal, low, medium, high, or "" if it has
	// none. A later variable of the same name wins. nil: those that the request sets.
	Kwargs func(given []jinja.Var, effort string) []jinja.Var
	// AddGenerationPrompt says that one is added unless the request says otherwise.
	AddGenerationPrompt bool
	// ToolsAgain makes of the tools those with which a template is rendered once more if it has
	// raised. nil: it is not.
	ToolsAgain func(tools *jinja.List) *jinja.List
}

// Transformers is apply_chat_template of the transformers library, with all as it is given.
var Transformers = &Caller{Name: "transformers"}

// A Conversation is what a caller has made of a request, before its template is rendered.
type Conversation struct {
	Request  *Request
	Template *jinja.Template
	// Messages are never empty. Each is a *jinja.Dict if [Caller].Message has made it. The list
	// is the conversation's own; its elements are used for other requests too.
	Messages []jinja.Value
	// Tools is nil if there are none.
	Tools *jinja.List
}

// way is how a member is prepared: by whom, and in what form.
type way struct {
	caller *Caller
	form   form
}

type form uint8

// The forms of members: messages with content as a text or as a list of parts, and tools.
const (
	asTexts form = iota
	asParts
	asTools
)

// prepare decodes a member and makes of it what templates see.
func (w way) prepare(raw []byte) (member, error) {
	v, err := jinja.Decode(raw)
	if err != nil {
		return member{}, err
	}
	if w.form == asTools {
		return w.caller.tools(v)
	}
	if w.caller.Message == nil {
		return member{value: v}, nil
	}
	d, ok := v.(*jinja.Dict)
	if !ok {
		return member{}, refuse("a message that is no object")
	}
	made, media, err := w.caller.Message(d, w.form == asParts)
	return member{made, media}, err
}

func (c *Caller) tools(v jinja.Value) (member, error) {
	l, ok := v.(*jinja.List)
	if !ok {
		return member{}, refuse("tools that are no list")
	}
	if c.Tool == nil {
		return member{value: l}, nil
	}
	made := slices.Clone(l.Items)
	for i, v := range made {
		d, ok := v.(*jinja.Dict)
		if !ok {
			return member{}, refuse("a tool that is no object")
		}
		var err error
		made[i], err = c.Tool(d)
		if err != nil {
			return member{}, err
		}
	}
	return member{value: jinja.NewList(made...)}, nil
}
