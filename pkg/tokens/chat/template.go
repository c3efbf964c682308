package chat

import (
	"encoding/json"
	"strings"
	"sync"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// A Special is a special token that templates know by name, such as bos_token.
type Special struct{ Name, Text string }

// specialNames are those that transformers gives to templates.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// A Template is a model's chat template with its special tokens.
type Template struct {
	jinja    *jinja.Template
	specials []jinja.Var
	forms    sync.Map // by *Caller, the form of the messages that it gives
}

// Compile reads a template.
func Compile(source string, specials []Special, limits jinja.Limits) (*Template, error) {
	j, err := jinja.Compile(source, limits)
	if err != nil {
		return nil, err
	}
	t := &Template{jinja: j}
	for _, s := range specials {
		t.specials = append(t.specials, jinja.Var{Name: s.Name, Value: s.Text})
	}
	return t, nil
}

// Parts reports whether a caller gives the template content as a list of parts.
func (t *Template) Parts(c *Caller) bool { return t.form(c) == asParts }

func (t *Template) form(c *Caller) form {
	f, ok := t.forms.Load(c)
	if !ok {
		f = asTexts
		if c.Parts != nil && c.Parts(t.jinja) {
			f = asParts
		}
		t.forms.Store(c, f)
	}
	return f.(form)
}

// FromConfig reads the template and the special tokens of a tokenizer_config.json. separate
// is the text of a chat_template.jinja beside it, which goes before; "" if there is none.
func FromConfig(config []byte, separate string, limits jinja.Limits) (*Template, error) {
	var members map[string]json.RawMessage
	err := json.Unmarshal(config, &members)
	if err != nil {
		return nil, refuse("a tokenizer_config.json that is no object")
	}
	var specials []Special
	for _, name := range specialNames {
		text, ok := tokenText(members[name])
		if ok {
			specials = append(specials, Special{name, text})
		}
	}
	if separate != "" {
		return Compile(separate, specials, limits)
	}
	source, raw := "", members["chat_template"]
	if isNull(raw) {
		return nil, refuse("a model without a chat template")
	}
	err = json.Unmarshal(raw, &source)
	if err != nil {
		return nil, refuse("a model with several chat templates")
	}
	return Compile(source, specials, limits)
}

// tokenText is the text of a special token, which is a text or an object with it.
func tokenText(raw json.RawMessage) (string, bool) {
	text := ""
	if isNull(raw) {
		return "", false
	}
	err := json.Unmarshal(raw, &text)
	if err == nil {
		return text, true
	}
	var o struct{ Content *string }
	err = json.Unmarshal(raw, &o)
	if err != nil || o.Content == nil {
		return "", false
	}
	return *o.Content, true
}

// A Request is what of a chat request its template sees: raw JSON, as it stands in the body.
type Request struct {
	// Messages is the list of messages.
	Messages []byte
	// Tools, Documents and Kwargs (chat_template_kwargs) are nil if they are not there.
	Tools, Documents, Kwargs []byte
	// ReasoningEffort is its text; "" if it is not there.
	ReasoningEffort string
	// ToolChoice is raw JSON; nil if it is not there.
	ToolChoice []byte
	// AddGenerationPrompt is nil if it is not there: engines then add it, transformers do
	// not.
	AddGenerationPrompt *bool
	// ContinueFinalMessage asks to go on with the last message.
	ContinueFinalMessage bool
	// Now formats the time for strftime_now; nil refuses it.
	Now func(format string) (string, error)
	// Plain renders without what is remembered, to measure or to check.
	Plain bool
}

// A Prompt is a request's text.
type Prompt struct {
	// Pieces are the text in order; see the package's comment.
	Pieces []string
	// Kept is how many of the pieces were remembered.
	Kept int
	// Media: the request has pictures or sounds; where they stand the text has what the
	// template writes for them, and the engine puts something else there.
	Media bool
}

// Text returns the whole text.
func (p *Prompt) Text() string { return strings.Join(p.Pieces, "") }
