package handoff

import (
	"errors"
	"slices"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// The content types that [AppendFinal] returns.
const (
	contentJSON = "application/json"
	contentSSE  = "text/event-stream"
)

var (
	errFinalPath   = errors.New("handoff: final answer: expected the path of a chat or a completion")
	errFinalAnswer = errors.New("handoff: final answer: expected an object with a list of choices")
	errFinalChoice = errors.New("handoff: final answer: expected choices that are objects, with a message in a chat, with a text in a completion")
)

// AppendFinal appends the client's response, made from prefill's own answer
// (docs/behaviour.md#prefill-answers), and returns its content type. The response is
// the answer without the hand-off and without what the engine added for the hand-off;
// if the client streams, it is the same as server-sent events. body is the body that r
// was read from. An error means that the answer does not have the form that answers of
// the path have; dst is then returned unchanged.
//
// All other members keep their values byte for byte, so that numbers of any size and
// unknown fields pass.
func AppendFinal(dst, answer []byte, r *openai.Request, body []byte, k Kind) (out []byte, contentType string, err error) {
	if r.Path != openai.ChatCompletions && r.Path != openai.Completions {
		return dst, "", errFinalPath
	}
	root, ok := openai.WholeObject(answer)
	if !ok {
		return dst, "", errFinalAnswer
	}
	f := final{answer: answer, kind: k, chat: r.Path == openai.ChatCompletions}
	openai.EachMember(answer, root, func(key, val openai.Span) bool {
		if openai.IsKey(answer, key, "choices") && answer[val.Start] == '[' {
			f.choices = val
		}
		return true
	})
	if f.choices.End == 0 {
		return dst, "", errFinalAnswer
	}
	if err := f.checkChoices(); err != nil {
		return dst, "", err
	}
	if !r.Stream {
		return f.appendWhole(dst, root), contentJSON, nil
	}
	f.usage = asksForUsage(body, r)
	return f.appendEvents(dst, root), contentSSE, nil
}

// final is one answer of prefill that becomes the client's response.
type final struct {
	answer  []byte
	kind    Kind
	chat    bool
	usage   bool        // the client streams and asks for the usage
	choices openai.Span // the list of choices
}

// checkChoices returns an error if there are no choices, or if a choice lacks the member that
// a streamed event is made of: a completion's text, or a chat's message.
func (f *final) checkChoices() error {
	n, bad := 0, false
	openai.EachElement(f.answer, f.choices, func(c openai.Span) {
		n++
		name, first := "text", byte('"')
		if f.chat {
			name, first = "message", '{'
		}
		bad = bad || !f.begins(f.member(c, name), first)
	})
	switch {
	case bad:
		return errFinalChoice
	case n == 0:
		return errFinalAnswer
	default:
		return nil
	}
}

func (f *final) begins(s openai.Span, c byte) bool { return s.End > 0 && f.answer[s.Start] == c }

// member returns the value of the key in the object at s, or the zero Span if there is
// none.
func (f *final) member(s openai.Span, name string) openai.Span {
	var found openai.Span
	openai.EachMember(f.answer, s, func(key, val openai.Span) bool {
		if openai.IsKey(f.answer, key, name) {
			found = val
		}
		return true
	})
	return found
}

// added reports whether the engine added the member for the hand-off. Token ids count
// for TensorRT-LLM, since its clients cannot ask for them. They do not count for vLLM,
// which answers with them only if the client asks.
func (f *final) added(key openai.Span) bool {
	return f.kind.PrefillFirst() && slices.ContainsFunc(f.kind.First.Added, func(name string) bool { return openai.IsKey(f.answer, key, name) })
}

// appendWhole appends the answer without the added members.
func (f *final) appendWhole(dst []byte, root openai.Span) []byte {
	dst = append(dst, '{')
	o := object{dst: dst}
	openai.EachMember(f.answer, root, func(key, val openai.Span) bool {
		switch {
		case f.added(key):
		case val == f.choices:
			o.key(f.answer, key)
			o.dst = f.appendChoices(o.dst)
		default:
			o.copy(f.answer, key, val)
		}
		return true
	})
	return append(o.dst, '}')
}

func (f *final) appendChoices(dst []byte) []byte {
	dst = append(dst, '[')
	first := true
	openai.EachElement(f.answer, f.choices, func(c openai.Span) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		o := object{dst: append(dst, '{')}
		openai.EachMember(f.answer, c, func(key, val openai.Span) bool {
			if !f.added(key) {
				o.copy(f.answer, key, val)
			}
			return true
		})
		dst = append(o.dst, '}')
	})
	return append(dst, ']')
}

// object appends the members of one object, with commas between them.
type object struct {
	dst  []byte
	some bool
}

func (o *object) comma() {
	if o.some {
		o.dst = append(o.dst, ',')
	}
	o.some = true
}

// key appends a key of b unchanged.
func (o *object) key(b []byte, key openai.Span) {
	o.comma()
	o.dst = append(append(o.dst, key.Of(b)...), ':')
}

// copy appends a member of b unchanged.
func (o *object) copy(b []byte, key, val openai.Span) {
	o.key(b, key)
	o.dst = append(o.dst, val.Of(b)...)
}

// raw appends a member that is already JSON, such as `"index":0`.
func (o *object) raw(member string) {
	o.comma()
	o.dst = append(o.dst, member...)
}

// asksForUsage reports whether stream_options.include_usage is true in the body.
func asksForUsage(body []byte, r *openai.Request) bool {
	if !r.Given(body, openai.StreamOptions) {
		return false
	}
	options := r.Value(openai.StreamOptions).Of(body)
	v, ok := openai.FindValue(options, "include_usage")
	return ok && string(v.Of(options)) == "true"
}
