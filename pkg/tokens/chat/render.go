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
func (t *Template) Render(c Caller, q *Request, store *Store) (*Prompt, error) {
	r := &rendering{t: t, caller: c, q: q, store: store}
	err := r.read()
	if err != nil {
		return nil, err
	}
	env := jinja.Env{Now: q.Now, Plain: q.Plain}
	env.Vars, err = r.vars()
	if err != nil {
		return nil, err
	}
	if r.final != nil {
		return r.continued(env)
	}
	out, err := t.jinja.Render(env)
	if c == SGLang && r.tools != nil && jinja.KindOf(err) == jinja.Raised {
		// SGLang then tries the functions alone, as some templates have them.
		env.Vars = append(env.Vars, jinja.Var{Name: "tools", Value: functionsOf(r.tools)})
		out, err = t.jinja.Render(env)
	}
	if err != nil {
		return nil, err
	}
	return &Prompt{Pieces: out.Pieces, Kept: out.Kept, Media: r.media}, nil
}

// rendering is one Render.
type rendering struct {
	t      *Template
	caller Caller
	q      *Request
	store  *Store

	messages []jinja.Value
	tools    *jinja.List
	media    bool
	// final is the last message, if it is to be gone on with.
	final *jinja.Dict
}

// read decodes and prepares the messages and the tools.
func (r *rendering) read() error {
	raws, err := Elements(nil, r.q.Messages)
	if err != nil {
		return err
	}
	if len(raws) == 0 {
		return raise("no messages")
	}
	r.messages = make([]jinja.Value, len(raws), len(raws)+1)
	w, prepare := r.preparer()
	for i, raw := range raws {
		m, err := r.store.get(raw, w, prepare)
		if err != nil {
			return err
		}
		r.messages[i] = m.value
		r.media = r.media || m.media
	}
	err = r.readTools()
	if err != nil {
		return err
	}
	switch r.caller {
	case VLLM:
		return r.finishVLLM()
	case SGLang:
		return r.finishSGLang()
	}
	if r.q.ContinueFinalMessage {
		d, ok := r.messages[len(r.messages)-1].(*jinja.Dict)
		if !ok {
			return refuse("a message that is no object")
		}
		r.final = d
	}
	return nil
}

// The ways in which a member is prepared.
const (
	asIs way = iota
	vllmTexts
	vllmParts
	sglangTexts
	sglangParts
	vllmTools
	sglangTools
)

func (r *rendering) preparer() (way, func([]byte) (member, error)) {
	parts := r.t.parts[r.caller]
	switch {
	case r.caller == VLLM && parts:
		return vllmParts, message(vllmMessage, true)
	case r.caller == VLLM:
		return vllmTexts, message(vllmMessage, false)
	case r.caller == SGLang && parts:
		return sglangParts, message(sglangMessage, true)
	case r.caller == SGLang:
		return sglangTexts, message(sglangMessage, false)
	}
	return asIs, decoded
}

func decoded(raw []byte) (member, error) {
	v, err := jinja.Decode(raw)
	return member{value: v}, err
}

// message makes a preparer of what prepares one decoded message.
func message(prepare func(*jinja.Dict, bool) (member, error), parts bool) func([]byte) (member, error) {
	return func(raw []byte) (member, error) {
		d, err := object(raw)
		if err != nil {
			return member{}, err
		}
		return prepare(d, parts)
	}
}

func object(raw []byte) (*jinja.Dict, error) {
	v, err := jinja.Decode(raw)
	if err != nil {
		return nil, err
	}
	d, ok := v.(*jinja.Dict)
	if !ok {
		return nil, refuse("a message that is no object")
	}
	return d, nil
}

func isNull(raw []byte) bool { return raw == nil || string(raw) == "null" }

// readTools prepares the tools as the caller gives them.
func (r *rendering) readTools() error {
	if isNull(r.q.Tools) {
		return nil
	}
	w, prepare := asIs, decoded
	switch r.caller {
	case VLLM:
		w, prepare = vllmTools, tools(vllmTool)
	case SGLang:
		w, prepare = sglangTools, tools(sglangTool)
	}
	m, err := r.store.get(r.q.Tools, w, prepare)
	if err != nil {
		return err
	}
	l, ok := m.value.(*jinja.List)
	if !ok {
		return refuse("tools that are no list")
	}
	r.tools = l
	return nil
}

// tools makes a preparer of what prepares one tool.
func tools(prepare func(*jinja.Dict) (*jinja.Dict, error)) func([]byte) (member, error) {
	return func(raw []byte) (member, error) {
		v, err := jinja.Decode(raw)
		if err != nil {
			return member{}, err
		}
		l, ok := v.(*jinja.List)
		if !ok {
			return member{}, refuse("tools that are no list")
		}
		out := make([]jinja.Value, len(l.Items))
		for i, e := range l.Items {
			d, ok := e.(*jinja.Dict)
			if !ok {
				return member{}, refuse("a tool that is no object")
			}
			out[i], err = prepare(d)
			if err != nil {
				return member{}, err
			}
		}
		return member{value: jinja.NewList(out...)}, nil
	}
}

func functionsOf(tools *jinja.List) *jinja.List {
	out := make([]jinja.Value, len(tools.Items))
	for i, v := range tools.Items {
		out[i] = v
		d, ok := v.(*jinja.Dict)
		if !ok {
			continue
		}
		f, ok := d.Get("function")
		if ok {
			out[i] = f
		}
	}
	return jinja.NewList(out...)
}

// vars are the variables in the order in which the later one wins: special tokens, then
// what the request sets, then what the caller gives.
func (r *rendering) vars() ([]jinja.Var, error) {
	vars := slices.Clip(slices.Clone(r.t.specials))
	given, err := r.kwargs()
	if err != nil {
		return nil, err
	}
	vars = append(vars, given...)
	add := r.caller != Transformers
	if r.q.AddGenerationPrompt != nil {
		add = *r.q.AddGenerationPrompt
	}
	if add && r.q.ContinueFinalMessage {
		return nil, raise("both a generation prompt and to go on with the last message")
	}
	var tools, documents jinja.Value
	if r.tools != nil {
		tools = r.tools
	}
	if !isNull(r.q.Documents) {
		if r.caller == SGLang {
			return nil, refuse("documents with sglang")
		}
		documents, err = jinja.Decode(r.q.Documents)
		if err != nil {
			return nil, err
		}
		err = checkDocuments(documents)
		if err != nil {
			return nil, err
		}
	}
	return append(vars,
		jinja.Var{Name: "messages", Value: jinja.NewList(r.messages...)},
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

// kwargs are the variables that the request sets itself.
func (r *rendering) kwargs() ([]jinja.Var, error) {
	d := jinja.NewDict(0)
	if !isNull(r.q.Kwargs) {
		v, err := jinja.Decode(r.q.Kwargs)
		if err != nil {
			return nil, err
		}
		var ok bool
		d, ok = v.(*jinja.Dict)
		if !ok {
			return nil, refuse("chat_template_kwargs that are no object")
		}
	}
	var vars []jinja.Var
	set := map[string]bool{}
	effort := r.q.ReasoningEffort
	if effort != "" && !slices.Contains(efforts, effort) {
		return nil, refuse("another reasoning_effort")
	}
	if effort != "" && r.caller == SGLang {
		vars = append(vars, jinja.Var{Name: "reasoning_effort", Value: effort})
	}
	for i := range d.Len() {
		k, v := d.At(i)
		name, _ := k.(string)
		if slices.Contains(reserved, name) {
			return nil, refuse("a chat_template_kwargs member of a reserved name")
		}
		set[name] = true
		// vLLM takes null and "auto" for a member that is not there.
		if r.caller == VLLM && (v == nil || v == jinja.Value("auto")) {
			continue
		}
		vars = append(vars, jinja.Var{Name: name, Value: v})
	}
	if effort == "" || r.caller == Transformers {
		return vars, nil
	}
	names := []string{"enable_thinking"}
	if r.caller == VLLM {
		vars = append(vars, jinja.Var{Name: "reasoning_effort", Value: effort})
	} else {
		names = append(names, "thinking")
	}
	for _, name := range names {
		if !set[name] {
			vars = append(vars, jinja.Var{Name: name, Value: effort != "none"})
		}
	}
	return vars, nil
}

// efforts are the values of reasoning_effort that both engines know.
var efforts = []string{"none", "minimal", "low", "medium", "high"}

// continueTag marks where the last message ends, as transformers mark it.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// continued renders with a mark at the end of the last message, and cuts the text there.
func (r *rendering) continued(env jinja.Env) (*Prompt, error) {
	content, _ := r.final.Get("content")
	if content == nil {
		return nil, raise("to go on with a message without content")
	}
	if !strings.Contains(r.t.source, "content") {
		return nil, raise("to go on with a message in a template without content")
	}
	final, marked, err := mark(content)
	if err != nil {
		return nil, err
	}
	last := r.final.Forget()
	last.Set("content", marked)
	messages := slices.Clone(r.messages)
	messages[len(messages)-1] = last
	env.Vars = append(env.Vars, jinja.Var{Name: "messages", Value: jinja.NewList(messages...)})
	out, err := r.t.jinja.Render(env)
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
