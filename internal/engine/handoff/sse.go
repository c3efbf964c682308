package handoff

import (
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// appendEvents appends the events of a finished answer, as OpenAI's API streams them
// (https://platform.openai.com/docs/api-reference/chat-streaming): for each choice a
// chunk with all that was generated and a chunk with its finish reason; then, if the
// client asks for it, the usage with an empty list of choices; then "[DONE]". There are
// two chunks because some clients ignore text that comes together with a finish reason.
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

// appendEvent appends one event, with the choice that choice appends, or if that is nil
// with the usage. With full it has every member of the answer, else only those that
// each chunk has.
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
	// A line break ends a field of an event. In JSON a line break can only be white
	// space.
	for i, c := range dst[start:] {
		if c == '\n' || c == '\r' {
			dst[start+i] = ' '
		}
	}
	return append(dst, "\n\n"...)
}

// appendContent appends the choice with what was generated, and no finish reason yet.
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

// appendReason appends the choice with only its finish reason.
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

// index appends the choice's index, or its position i if it has none.
func (f *final) index(o *object, c openai.Span, i int) {
	o.raw(`"index":`)
	if s := f.member(c, "index"); s.End > 0 {
		o.dst = append(o.dst, s.Of(f.answer)...)
		return
	}
	o.dst = strconv.AppendInt(o.dst, int64(i), 10)
}

// appendDelta appends a message as the first delta of a stream: the role first, no null
// members except content, and each tool call with its index, by which clients put its
// parts together.
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

// toolCalls appends the tool calls of a message, if there are any.
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
