package chat

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// reserved are the names that a request's chat_template_kwargs must not set: callers give
// them themselves, or take them for something else.
var reserved = []string{
	"messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
	"continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors",
	"return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self",
}

// Render makes the text of a request as the caller's engine makes it. What store holds of
// the request's members is used, and what is new is put there.
func (t *Template) Render(c *Caller, q *Request, store *Store) (*Prompt, error) {
	r := &rendering{Conversation: Conversation{Request: q, Template: t.jinja}, t: t, caller: c, store: store}
	err := r.read()
	if err != nil {
		return nil, err
	}
	env := jinja.Env{Now: q.Now, Plain: q.Plain}
	env.Vars, err = r.vars()
	if err != nil {
		return nil, err
	}
	if q.ContinueFinalMessage {
		return r.continued(env)
	}
	out, err := t.jinja.Render(env)
	if c.ToolsAgain != nil && r.Tools != nil && jinja.KindOf(err) == jinja.Raised {
		env.Vars = append(env.Vars, jinja.Var{Name: "tools", Value: c.ToolsAgain(r.Tools)})
		out, err = t.jinja.Render(env)
	}
	if err != nil {
		return nil, err
	}
	return &Prompt{Pieces: out.Pieces, Kept: out.Kept, Media: r.media}, nil
}

// rendering is one Render.
type rendering struct {
	Conversation
	t      *Template
	caller *Caller
	store  *Store
	media  bool
}

// read decodes and prepares the messages and the tools.
func (r *rendering) read() error {
	raws, err := Elements(nil, r.Request.Messages)
	if err != nil {
		return err
	}
	if len(raws) == 0 {
		return raise("no messages")
	}
	r.Messages = make([]jinja.Value, len(raws), len(raws)+1)
	w := way{r.caller, r.t.form(r.caller)}
	for i, raw := range raws {
		m, err := r.store.get(raw, w)
		if err != nil {
			return err
		}
		r.Messages[i] = m.value
		r.media = r.media || m.media
	}
	if !isNull(r.Request.Tools) {
		m, err := r.store.get(r.Request.Tools, way{r.caller, asTools})
		if err != nil {
			return err
		}
		r.Tools = m.value.(*jinja.List)
	}
	if r.caller.Finish != nil {
		return r.caller.Finish(&r.Conversation)
	}
	return nil
}

func isNull(raw []byte) bool { return raw == nil || string(raw) == "null" }

// vars are the variables in the order in which the later one wins: special tokens, then
// what the request sets, then what the caller gives.
func (r *rendering) vars() ([]jinja.Var, error) {
	vars := slices.Clip(slices.Clone(r.t.specials))
	given, err := r.kwargs()
	if err != nil {
		return nil, err
	}
	vars = append(vars, given...)
	add := r.caller.AddGenerationPrompt
	if r.Request.AddGenerationPrompt != nil {
		add = *r.Request.AddGenerationPrompt
	}
	if add && r.Request.ContinueFinalMessage {
		return nil, raise("both a generation prompt and to go on with the last message")
	}
	var tools, documents jinja.Value
	if r.Tools != nil {
		tools = r.Tools
	}
	if !isNull(r.Request.Documents) {
		documents, err = jinja.Decode(r.Request.Documents)
		if err != nil {
			return nil, err
		}
		err = checkDocuments(documents)
		if err != nil {
			return nil, err
		}
	}
	return append(vars,
		jinja.Var{Name: "messages", Value: jinja.NewList(r.Messages...)},
		jinja.Var{Name: "tools", Value: tools},
		jinja.Var{Name: "documents", Value: documents},
		jinja.Var{Name: "add_generation_prompt", Value: add},
	), nil
}

func checkDocuments(v jinja.Value) error {
	l, ok := v.(*jinja.List)
	if !ok {
		return refuse("documents that are no list")
	}
	for _, e := range l.Items {
		d, ok := e.(*jinja.Dict)
		if !ok {
			return raise("a document that is no object")
		}
		for i := range d.Len() {
			_, v := d.At(i)
			_, ok := v.(string)
			if !ok {
				return refuse("a document with a member that is no text")
			}
		}
	}
	return nil
}

// kwargs are the variables that the request sets itself, as the caller takes them.
func (r *rendering) kwargs() ([]jinja.Var, error) {
	effort := r.Request.ReasoningEffort
	if effort != "" && !slices.Contains(efforts, effort) {
		return nil, refuse("another reasoning_effort")
	}
	var vars []jinja.Var
	if !isNull(r.Request.Kwargs) {
		v, err := jinja.Decode(r.Request.Kwargs)
		if err != nil {
			return nil, err
		}
		d, ok := v.(*jinja.Dict)
		if !ok {
			return nil, refuse("chat_template_kwargs that are no object")
		}
		for i := range d.Len() {
			k, v := d.At(i)
			name, _ := k.(string)
			if slices.Contains(reserved, name) {
				return nil, refuse("a chat_template_kwargs member of a reserved name")
			}
			vars = append(vars, jinja.Var{Name: name, Value: v})
		}
	}
	if r.caller.Kwargs != nil {
		vars = r.caller.Kwargs(vars, effort)
	}
	return vars, nil
}

// efforts are the values of reasoning_effort that the engines known have in common.
var efforts = []string{"none", "minimal", "low", "medium", "high"}

// continueTag marks where the last message ends, as transformers mark it.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// continued renders with a mark at the end of the last message, and cuts the text there.
func (r *rendering) continued(env jinja.Env) (*Prompt, error) {
	d, ok := r.Messages[len(r.Messages)-1].(*jinja.Dict)
	if !ok {
		return nil, refuse("a message that is no object")
	}
	content, _ := d.Get("content")
	if content == nil {
		return nil, raise("to go on with a message without content")
	}
	if !strings.Contains(r.Template.Source(), "content") {
		return nil, raise("to go on with a message in a template without content")
	}
	final, marked, err := mark(content)
	if err != nil {
		return nil, err
	}
	last := d.Forget()
	last.Set("content", marked)
	messages := slices.Clone(r.Messages)
	messages[len(messages)-1] = last
	env.Vars = append(env.Vars, jinja.Var{Name: "messages", Value: jinja.NewList(messages...)})
	out, err := r.Template.Render(env)
	if err != nil {
		return nil, err
	}
	text := out.Text()
	at := strings.LastIndex(text, strings.TrimSpace(continueTag))
	if at < 0 || !strings.Contains(text, strings.TrimFunc(final, jinja.IsSpace)) {
		return nil, raise("the last message is not in the text")
	}
	cut := text[:at]
	if !strings.HasPrefix(text[at:], continueTag) {
		cut = strings.TrimRightFunc(cut, jinja.IsSpace)
	}
	p := &Prompt{Kept: out.Kept, Media: r.media}
	for _, piece := range out.Pieces {
		piece = piece[:min(len(piece), len(cut))]
		if piece == "" {
			break
		}
		p.Pieces = append(p.Pieces, piece)
		cut = cut[len(piece):]
	}
	return p, nil
}

// mark returns the text to go on with, and the content with the mark after it.
func mark(content jinja.Value) (string, jinja.Value, error) {
	switch c := content.(type) {
	case string:
		return c, c + continueTag, nil
	case *jinja.List:
		parts := slices.Clone(c.Items)
		for i := len(parts) - 1; i >= 0; i-- {
			d, ok := parts[i].(*jinja.Dict)
			if !ok {
				return "", nil, refuse("a part that is no object")
			}
			v, ok := d.Get("text")
			if !ok {
				continue
			}
			s, ok := v.(string)
			if !ok {
				return "", nil, refuse("a part whose text is none")
			}
			d = d.Forget()
			d.Set("text", s+continueTag)
			parts[i] = d
			return s, jinja.NewList(parts...), nil
		}
		return "", nil, raise("no text to go on with")
	}
	return "", nil, refuse("content of another kind")
}
