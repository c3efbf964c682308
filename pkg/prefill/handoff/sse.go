package handoff

import (
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// The events of a finished answer, as OpenAI's API streams them
// (https://platform.openai.com/docs/api-reference/chat-streaming): for each
// choice a chunk with all that was generated and one with the reason of its
// end, then, if asked for, the usage beside an empty list of choices, and
// "[DONE]". Some clients drop what comes along with a reason, hence two chunks.
func (f *final) appendEvents(dst []byte, root openai.Span) []byte {
	i := 0
	openai.EachElement(f.answer, f.choices, func(c openai.Span) {
		dst = f.appendEvent(dst, root, i == 0, func(dst []byte) []byte { return f.appendContent(dst, c, i) })
		dst = f.appendEvent(dst, root, false, func(dst []byte) []byte { return f.appendReason(dst, c, i) })
		i++
	})
	if usage := f.member(root, "usage"); f.usage && f.begins(usage, '{') {
		dst = f.appendEvent(dst, root, false, nil)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

// appendEvent appends one event with one choice; choice nil: the usage instead.
// full: with every member of the answer, not only those of each chunk.
func (f *final) appendEvent(dst []byte, root openai.Span, full bool, choice func([]byte) []byte) []byte {
	dst = append(dst, "data: "...)
	start := len(dst)
	o := object{dst: append(dst, '{')}
	openai.EachMember(f.answer, root, func(key, val openai.Span) bool {
		is := func(name string) bool { return openai.IsKey(f.answer, key, name) }
		switch {
		case f.added(key), is("choices"), is("usage"):
		case f.chat && is("object"):
			o.raw(`"object":"chat.completion.chunk"`)
		case full && f.answer[val.Start] != 'n', is("id"), is("object"), is("created"), is("model"),
			is("system_fingerprint"), is("service_tier"):
			o.copy(f.answer, key, val)
		}
		return true
	})
	switch {
	case choice == nil:
		o.raw(`"choices":[],"usage":`)
		o.dst = append(o.dst, f.member(root, "usage").Of(f.answer)...)
	default:
		o.raw(`"choices":[`)
		o.dst = append(choice(o.dst), ']')
		if f.usage {
			o.raw(`"usage":null`)
		}
	}
	dst = append(o.dst, '}')
	// A line break ends a field of an event. In JSON it can only be white space.
	for i, c := range dst[start:] {
		if c == '\n' || c == '\r' {
			dst[start+i] = ' '
		}
	}
	return append(dst, "\n\n"...)
}

// appendContent appends the choice with what was generated, not yet ended.
func (f *final) appendContent(dst []byte, c openai.Span, i int) []byte {
	o := object{dst: append(dst, '{')}
	f.index(&o, c, i)
	openai.EachMember(f.answer, c, func(key, val openai.Span) bool {
		is := func(name string) bool { return openai.IsKey(f.answer, key, name) }
		switch {
		case f.added(key), is("index"), is("finish_reason"), is("stop_reason"):
		case f.chat && is("message"):
			o.raw(`"delta":`)
			o.dst = f.appendDelta(o.dst, val)
		default:
			o.copy(f.answer, key, val)
		}
		return true
	})
	o.raw(`"finish_reason":null`)
	return append(o.dst, '}')
}

// appendReason appends the choice with nothing but the reason of its end.
func (f *final) appendReason(dst []byte, c openai.Span, i int) []byte {
	o := object{dst: append(dst, '{')}
	f.index(&o, c, i)
	if f.chat {
		o.raw(`"delta":{}`)
	} else {
		o.raw(`"text":""`)
	}
	openai.EachMember(f.answer, c, func(key, val openai.Span) bool {
		if openai.IsKey(f.answer, key, "finish_reason") || openai.IsKey(f.answer, key, "stop_reason") {
			o.copy(f.answer, key, val)
		}
		return true
	})
	return append(o.dst, '}')
}

// index appends the choice's index, its place where it does not say.
func (f *final) index(o *object, c openai.Span, i int) {
	o.raw(`"index":`)
	if s := f.member(c, "index"); s.End > 0 {
		o.dst = append(o.dst, s.Of(f.answer)...)
		return
	}
	o.dst = strconv.AppendInt(o.dst, int64(i), 10)
}

// appendDelta appends a message as the first delta of a stream: the role in
// front, no members that are null but content, and each tool call with the
// index that ties its parts together.
func (f *final) appendDelta(dst []byte, message openai.Span) []byte {
	o := object{dst: append(dst, '{')}
	o.raw(`"role":`)
	if role := f.member(message, "role"); role.End > 0 {
		o.dst = append(o.dst, role.Of(f.answer)...)
	} else {
		o.dst = append(o.dst, `"assistant"`...)
	}
	openai.EachMember(f.answer, message, func(key, val openai.Span) bool {
		is := func(name string) bool { return openai.IsKey(f.answer, key, name) }
		switch {
		case is("role"):
		case f.answer[val.Start] == 'n' && !is("content"):
		case is("tool_calls") && f.answer[val.Start] == '[':
			f.toolCalls(&o, val)
		default:
			o.copy(f.answer, key, val)
		}
		return true
	})
	return append(o.dst, '}')
}

// toolCalls appends the calls of a message, if there are any.
func (f *final) toolCalls(o *object, calls openai.Span) {
	i := 0
	openai.EachElement(f.answer, calls, func(call openai.Span) {
		if i == 0 {
			o.raw(`"tool_calls":[`)
		} else {
			o.dst = append(o.dst, ',')
		}
		c := object{dst: append(o.dst, '{')}
		f.index(&c, call, i)
		openai.EachMember(f.answer, call, func(key, val openai.Span) bool {
			if !openai.IsKey(f.answer, key, "index") {
				c.copy(f.answer, key, val)
			}
			return true
		})
		o.dst = append(c.dst, '}')
		i++
	})
	if i > 0 {
		o.dst = append(o.dst, ']')
	}
}
