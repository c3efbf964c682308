package openai

import "bytes"

// PieceKind says what a piece of a prompt is.
type PieceKind uint8

// The kinds of pieces.
const (
	PieceText  PieceKind = iota // text, with its escapes as in the body
	PieceMedia                  // a content part that is not text, as raw JSON
	PieceEnd                    // no bytes: the end of a message, or of one prompt of a list
)

// VisitPrompt calls visit with the pieces of the prompt in a fixed order: first the
// tools, then what comes before the messages, then message by message its role, name, content
// and tool calls. White space and
// the order of keys do not matter. So the pieces of a conversation are a prefix of those
// of the same conversation with more messages, if the tools are the same. A prompt of
// token ids has no pieces: read it with [AppendTokenIDs].
//
// The pieces share memory with body. The function visit must not keep them, log them or
// put them into errors. VisitPrompt allocates nothing.
func VisitPrompt(body []byte, r *Request, visit func(kind PieceKind, piece []byte)) {
	visitLead(body, r, visit)
	switch r.PromptKind {
	case PromptString:
		visit(PieceText, inside(r.members[r.PromptField].val).Of(body))
		visit(PieceEnd, nil)
	case PromptStrings:
		i := r.members[r.PromptField].val.Start
		for s, more := firstElement(body, i); more; s, more = nextElement(body, s) {
			visit(PieceText, inside(s).Of(body))
			visit(PieceEnd, nil)
		}
	case PromptMessages:
		i := r.members[r.PromptField].val.Start
		for s, more := firstElement(body, i); more; s, more = nextElement(body, s) {
			visitMessage(body, s, visit)
			visit(PieceEnd, nil)
		}
	case PromptNone, PromptIDs, PromptIDLists:
	}
}

// visitLead visits what comes before the messages.
func visitLead(body []byte, r *Request, visit func(PieceKind, []byte)) {
	fields := [...]Field{Tools, System, Instructions}
	lead := fields[:1]
	switch {
	case r.Path == Responses || r.Path == AnthropicMessages:
		lead = fields[:]
	case r.PromptKind != PromptMessages:
		return
	}
	for _, f := range lead {
		if r.Given(body, f) {
			visit(PieceText, r.members[f].val.Of(body))
			visit(PieceEnd, nil)
		}
	}
}

// inside returns a string's span without the quotes.
func inside(s Span) Span { return Span{s.Start + 1, s.End - 1} }

// firstElement returns the first element of the array at i, which must have been checked.
// False means that it is empty.
func firstElement(b []byte, i int) (Span, bool) {
	i = skipSpace(b, i+1)
	if b[i] == ']' {
		return Span{}, false
	}
	return Span{i, skipValid(b, i)}, true
}

// nextElement returns the element after s in its array, which must have been checked.
// False means that s is the last.
func nextElement(b []byte, s Span) (Span, bool) {
	i := skipSpace(b, s.End)
	if b[i] == ']' {
		return Span{}, false
	}
	i = skipSpace(b, i+1)
	return Span{i, skipValid(b, i)}, true
}

// firstMember returns the first member of the object at i, which must have been checked.
// ok is false if it is empty.
func firstMember(b []byte, i int) (key, val Span, ok bool) {
	i = skipSpace(b, i+1)
	if b[i] == '}' {
		return Span{}, Span{}, false
	}
	return memberAt(b, i)
}

// nextMember returns the member after the one with the value val, in an object that must
// have been checked. ok is false if that one is the last.
func nextMember(b []byte, val Span) (key, next Span, ok bool) {
	i := skipSpace(b, val.End)
	if b[i] == '}' {
		return Span{}, Span{}, false
	}
	return memberAt(b, skipSpace(b, i+1))
}

func memberAt(b []byte, i int) (key, val Span, ok bool) {
	key = Span{i, skipValidString(b, i+1)}
	v := skipSpace(b, skipSpace(b, key.End)+1)
	return key, Span{v, skipValid(b, v)}, true
}

func visitMessage(b []byte, s Span, visit func(PieceKind, []byte)) {
	if b[s.Start] != '{' {
		visit(PieceText, s.Of(b))
		return
	}
	var role, name, content, calls, call, output Span
	for k, v, ok := firstMember(b, s.Start); ok; k, v, ok = nextMember(b, v) {
		switch {
		case isKey(b, k, "role"):
			role = v
		case isKey(b, k, "name"):
			name = v
		case isKey(b, k, "content"):
			content = v
		case isKey(b, k, "tool_calls"):
			calls = v
		case isKey(b, k, "tool_call_id"), isKey(b, k, "call_id"):
			call = v
		case isKey(b, k, "output"): // the three of items of /v1/responses
			calls, output = v, v
		case isKey(b, k, "arguments"), isKey(b, k, "summary"):
			calls = v
		}
	}
	for _, v := range [...]Span{role, name, content, calls, call} {
		switch {
		case v.End == 0 || b[v.Start] == 'n':
		case b[v.Start] == '"':
			visit(PieceText, inside(v).Of(b))
		case (v == content || v == output) && b[v.Start] == '[':
			visitContent(b, v.Start, visit)
		default:
			visit(PieceText, v.Of(b))
		}
	}
}

// visitContent visits the parts of the message content at i, which is an array.
func visitContent(b []byte, i int, visit func(PieceKind, []byte)) {
	for s, more := firstElement(b, i); more; s, more = nextElement(b, s) {
		switch kind, piece, parts := pieceOf(b, s); {
		case parts.End != 0:
			visitContent(b, parts.Start, visit)
		case piece.End != 0:
			visit(kind, piece.Of(b))
		}
	}
}

// pieceOf returns the kind and the piece of the content part at s. parts has the list of the parts of
// a tool's result. If both are zero, the engine skips the part.
func pieceOf(b []byte, s Span) (kind PieceKind, piece, parts Span) {
	switch b[s.Start] {
	case '"':
		return PieceText, inside(s), parts
	case '{':
	default:
		return PieceText, s, parts
	}
	var buf [6 * maxKeyLen]byte
	var text Span
	media, raw, skipped := false, false, false
	for k, v, ok := firstMember(b, s.Start); ok; k, v, ok = nextMember(b, v) {
		switch name := keyOf(b, k, &buf); {
		case string(name) == "type":
			raw, skipped = isToolType(b, v), string(v.Of(b)) == `"redacted_thinking"`
			media = media || !raw && !isTextType(b, v)
		case isTextName(name) && b[v.Start] == '"':
			text = v
		case string(name) == "content" && b[v.Start] == '[':
			parts = v
		case isMediaName(name):
			media = true
		}
	}
	switch {
	case skipped: // vLLM's entrypoints/anthropic/serving.py, 0.32
		return PieceText, Span{}, Span{}
	case media || text.End == 0 && !raw:
		return PieceMedia, s, Span{}
	case raw:
		return PieceText, s, parts
	}
	return PieceText, inside(text), Span{}
}

// isToolType reports whether the type at v is that of a part of Anthropic's API whose members are
// text for the model.
func isToolType(b []byte, v Span) bool {
	switch string(v.Of(b)) {
	case `"tool_use"`, `"tool_result"`, `"tool_reference"`:
		return true
	}
	return false
}

// isTextName reports whether a member of a content part with this name is the part's
// text.
func isTextName(name []byte) bool {
	switch string(name) {
	case "text", "refusal", "thinking":
		return true
	default:
		return false
	}
}

// isTextType reports whether the type at v is null, or the name of a type of text.
func isTextType(b []byte, v Span) bool {
	switch string(v.Of(b)) {
	case "null", `"text"`, `"input_text"`, `"output_text"`, `"refusal"`, `"thinking"`:
		return true
	default:
		return false
	}
}

// isMediaName reports whether a member with this name makes a content part media,
// whatever else the part has: engines go by these names if the type is missing, and vLLM
// also if there is a uuid (docs/engines.md#parts).
func isMediaName(name []byte) bool {
	switch string(name) {
	case "image_url", "image", "image_pil", "image_embeds", "input_image",
		"audio_url", "audio", "audio_embeds", "input_audio",
		"video_url", "video", "video_embeds", "prompt_embeds", "file", "input_file":
		return true
	default:
		return false
	}
}

// Picture reports whether a media piece of [VisitPrompt] is a picture and nothing else
// (ok), and whether the piece holds the picture itself, in a data: URL, and not the place
// from which to load it (inside).
func Picture(part []byte) (inside, ok bool) {
	if part[0] != '{' {
		return false, false
	}
	var buf [6 * maxKeyLen]byte
	var url Span
	for k, v, more := firstMember(part, 0); more; k, v, more = nextMember(part, v) {
		switch name := keyOf(part, k, &buf); {
		case string(name) == "image_url":
			url = urlOf(part, v)
		case string(name) == "type":
			if t := string(v.Of(part)); t != `"image_url"` && t != "null" {
				return false, false
			}
		case isMediaName(name):
			return false, false
		}
	}
	if url.End == 0 {
		return false, false
	}
	return isDataURL(url.Of(part)), true
}

// urlOf returns the text at v, or the one in the member url of the object at v; the zero
// Span if there is neither.
func urlOf(b []byte, v Span) (url Span) {
	switch b[v.Start] {
	case '"':
		return v
	case '{':
		for k, w, ok := firstMember(b, v.Start); ok; k, w, ok = nextMember(b, w) {
			if isKey(b, k, "url") {
				url = (Span{})
				if b[w.Start] == '"' {
					url = w
				}
			}
		}
	}
	return url
}

// isDataURL returns false for a data: URL whose first letters are escaped.
func isDataURL(quoted []byte) bool {
	const scheme = "data:"
	return len(quoted) > len(scheme) && bytes.EqualFold(quoted[1:len(scheme)+1], []byte(scheme))
}

// AppendBeforeMedia appends, as a JSON list, the messages of a prompt up to its first
// content part that is not text: all messages before that part's own, and of that one the
// parts before it, if it has any. It returns false if nothing is before that part, or if
// there is no such part.
func AppendBeforeMedia(dst, body []byte, r *Request) ([]byte, bool) {
	if r.PromptKind != PromptMessages {
		return dst, false
	}
	list, before := r.members[Messages].val, 0 // before: where the last message without such a part ends
	for s, more := firstElement(body, list.Start); more; s, more = nextElement(body, s) {
		content, upTo, found := mediaIn(body, s)
		switch {
		case !found:
			before = s.End
			continue
		case upTo > 0:
			dst = append(append(dst, body[list.Start:upTo]...), ']')
			dst = append(dst, body[content.End:s.End]...)
		case before > 0:
			dst = append(dst, body[list.Start:before]...)
		default:
			return dst, false
		}
		return append(dst, ']'), true
	}
	return dst, false
}

// mediaIn finds the first part of the message's content that is not text. It also returns
// where the part before that one ends, 0 if there is none.
func mediaIn(b []byte, message Span) (content Span, before int, found bool) {
	if b[message.Start] != '{' {
		return content, 0, false
	}
	for k, v, ok := firstMember(b, message.Start); ok; k, v, ok = nextMember(b, v) {
		if isKey(b, k, "content") {
			content = v
		}
	}
	if content.End == 0 || b[content.Start] != '[' {
		return content, 0, false
	}
	for s, more := firstElement(b, content.Start); more; s, more = nextElement(b, s) {
		if kind, _, _ := pieceOf(b, s); kind == PieceMedia {
			return content, before, true
		}
		before = s.End
	}
	return content, 0, false
}
