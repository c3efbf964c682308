package local

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"unicode/utf8"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens/bpe"
	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// Limits bound what a model takes. A zero field means its default.
type Limits struct {
	// CacheBytes bounds what is remembered of conversations: a half for the tokens of
	// their parts, a half for messages. Default: 64 MiB.
	CacheBytes int

	// Encoders is how many requests are encoded at once. Default: GOMAXPROCS. Each takes
	// some 5 MB.
	Encoders int

	// Template bounds what a chat template may do. Its zero fields have their defaults,
	// but for Steps: 2 million, some 200 ms of a core.
	Template jinja.Limits

	// Text bounds the tokenizer.
	Text bpe.Limits
}

func (l Limits) withDefaults() Limits {
	l.CacheBytes = cmp.Or(l.CacheBytes, 64<<20)
	l.Encoders = cmp.Or(l.Encoders, runtime.GOMAXPROCS(0))
	l.Template.Steps = cmp.Or(l.Template.Steps, 2_000_000)
	return l
}

// Model makes the tokens of one model's requests. Safe for concurrent use.
type Model struct {
	tokenizer *bpe.Tokenizer
	template  *chat.Template // nil: messages are not tokenized, for the reason noChat
	noChat    error
	dated     bool

	segments *bpe.Segments
	messages *chat.Store
	encoders chan *bpe.Encoder // as many as may run; nil: one that has not been made yet

}

// New makes a model of its files. A tokenizer that is not known exactly is an error that
// names what is not. A template that is not known only means that messages are not
// tokenized; see [Model.Chat].
func New(f Files, l Limits) (*Model, error) {
	l = l.withDefaults()
	t, err := bpe.Load(f.Tokenizer, l.Text)
	if err != nil {
		return nil, err
	}
	m := &Model{
		tokenizer: t, segments: bpe.NewSegments(t, l.CacheBytes/2), messages: chat.NewStore(l.CacheBytes / 2),
		encoders: make(chan *bpe.Encoder, l.Encoders),
	}
	for range l.Encoders {
		m.encoders <- nil
	}
	if f.Config == nil {
		m.noChat = errors.New("tokenizer_config.json is not there")
		return m, nil
	}
	err = addedElsewhere(f.Tokenizer, f.Config)
	if err != nil {
		return nil, err
	}
	m.template, m.noChat = chat.FromConfig(f.Config, string(f.Template), l.Template)
	m.dated = bytes.Contains(f.Config, []byte("strftime_now")) || bytes.Contains(f.Template, []byte("strftime_now"))
	return m, nil
}

// Chat returns nil if the model's chat template is known, else the reason why messages are
// not tokenized.
func (m *Model) Chat() error { return m.noChat }

// Dated reports whether the chat template writes the date, so that the tokens of messages
// depend on the day.
func (m *Model) Dated() bool { return m.dated }

// Errors of [Model.Append], besides those of the tokenizer and of the template.
var (
	errNoPrompt  = errors.New("local: no prompt of text")
	errMember    = errors.New("local: the request has a member whose effect is not known")
	errMedia     = errors.New("local: the prompt has pictures or sounds")
	errSurrogate = errors.New("local: the prompt has half of a surrogate pair")
)

// Append appends the ids of the request's prompt to dst; of several prompts those of the
// first. n is how many tokens all prompts have. caller says whose rules hold.
func (m *Model) Append(dst []uint32, caller *chat.Caller, r *openai.Request, body []byte) (ids []uint32, n int, err error) {
	if r.Given(body, openai.AddSpecialTokens) || r.Given(body, openai.ChatTemplate) {
		return dst, 0, errMember
	}
	switch r.PromptKind {
	case openai.PromptString, openai.PromptStrings:
		return m.appendTexts(dst, r, body)
	case openai.PromptMessages:
		p, err := m.render(caller, r, body)
		if err != nil {
			return dst, 0, err
		}
		ids, err = m.encode(dst, joined(p.Pieces), false)
		return ids, len(ids) - len(dst), err
	default:
		return dst, 0, errNoPrompt
	}
}

// appendTexts is Append for one or more prompts of text. Engines put around them what the
// tokenizer has for that.
func (m *Model) appendTexts(dst []uint32, r *openai.Request, body []byte) (ids []uint32, n int, err error) {
	from, first := len(dst), true
	var rest []uint32
	openai.VisitPrompt(body, r, func(kind openai.PieceKind, raw []byte) {
		if kind != openai.PieceText || err != nil {
			return
		}
		var text []byte
		text, err = unescaped(raw)
		if err != nil {
			return
		}
		if first {
			first = false
			dst, err = m.encode(dst, text, true)
			n = len(dst) - from
			return
		}
		rest, err = m.encode(rest[:0], text, true)
		n += len(rest)
	})
	if err == nil && first {
		err = errNoPrompt
	}
	if err != nil {
		return dst[:from], 0, err
	}
	return dst, n, nil
}

// unescaped returns the text of a JSON string, which is given without its quotes. Where a
// half of a surrogate pair stands, engines differ.
func unescaped(raw []byte) ([]byte, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw, nil
	}
	text := openai.AppendUnescaped(make([]byte, 0, len(raw)), raw)
	if bytes.ContainsRune(text, utf8.RuneError) && !bytes.ContainsRune(raw, utf8.RuneError) {
		return nil, errSurrogate
	}
	return text, nil
}

func joined(pieces []string) []byte {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	text := make([]byte, 0, n)
	for _, p := range pieces {
		text = append(text, p...)
	}
	return text
}

func (m *Model) encode(dst []uint32, text []byte, special bool) ([]uint32, error) {
	e := <-m.encoders
	defer func() { m.encoders <- e }()
	if e == nil {
		e = m.tokenizer.NewEncoder()
	}
	return m.segments.Append(e, dst, text, special)
}

// render makes the text of a conversation.
func (m *Model) render(caller *chat.Caller, r *openai.Request, body []byte) (*chat.Prompt, error) {
	if m.noChat != nil {
		return nil, m.noChat
	}
	q, err := question(r, body)
	if err != nil {
		return nil, err
	}
	p, err := m.template.Render(caller, q, m.messages)
	if err != nil {
		return nil, fmt.Errorf("render the messages: %w", err)
	}
	if p.Media {
		return nil, errMedia
	}
	return p, nil
}

// question returns what the template sees of a request.
func question(r *openai.Request, body []byte) (*chat.Request, error) {
	given := func(f openai.Field) []byte {
		if !r.Given(body, f) {
			return nil
		}
		return r.Value(f).Of(body)
	}
	q := &chat.Request{
		Messages: given(openai.Messages), Tools: given(openai.Tools), Documents: given(openai.Documents),
		Kwargs: given(openai.ChatTemplateKwargs), ToolChoice: given(openai.ToolChoice), Now: today,
	}
	var errs [3]error
	for i, f := range [...]struct {
		raw []byte
		to  any
	}{
		{given(openai.ReasoningEffort), &q.ReasoningEffort},
		{given(openai.AddGenerationPrompt), &q.AddGenerationPrompt},
		{given(openai.ContinueFinalMessage), &q.ContinueFinalMessage},
	} {
		if f.raw != nil && json.Unmarshal(f.raw, f.to) != nil {
			errs[i] = errMember
		}
	}
	return q, errors.Join(errs[:]...)
}
