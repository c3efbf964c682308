package openai

import "bytes"

// PieceKind says what a piece of a prompt is.
type PieceKind uint8

// The kinds of pieces.
const (
	PieceText  PieceKind = iota // text, escaped as it stands in the body
	PieceMedia                  // a content part that is not text, as raw JSON
	PieceEnd                    // no bytes: a message, or one prompt of a list, is complete
)

// VisitPrompt calls visit with the parts of the prompt in a canonical order:
// tools first, then message by message role, name, content, tool calls; white
// space and the order of keys between them do not show. The pieces of a
// conversation are therefore a prefix of those of the same conversation gone
// on, up to the tools. A prompt of token ids has no pieces: read them with
// [AppendTokenIDs].
//
// The pieces share memory with body. visit must not keep them, log them or put
// them into errors. VisitPrompt allocates nothing.
func VisitPrompt(body []byte, r *Request, visit func(kind PieceKind, piece []byte)) {
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
		if r.Given(body, Tools) {
			visit(PieceText, r.members[Tools].val.Of(body))
			visit(PieceEnd, nil)
		}
		i := r.members[Messages].val.Start
		for s, more := firstElement(body, i); more; s, more = nextElement(body, s) {
			visitMessage(body, s, visit)
			visit(PieceEnd, nil)
		}
	case PromptNone, PromptIDs, PromptIDLists:
	}
}

// inside takes the quotes off a string's span.
func inside(s Span) Span { return Span{s.Start + 1, s.End - 1} }

// firstElement returns the first element of the checked array at i.
func firstElement(b []byte, i int) (Span, bool) {
	if i = skipSpace(b, i+1); b[i] == ']' {
		return Span{}, false
	}
	return Span{i, skipValid(b, i)}, true
}

// nextElement returns the element after s in its checked array.
func nextElement(b []byte, s Span) (Span, bool) {
	i := skipSpace(b, s.End)
	if b[i] == ']' {
		return Span{}, false
	}
	i = skipSpace(b, i+1)
	return Span{i, skipValid(b, i)}, true
}

// firstMember returns the first member of the checked object at i.
func firstMember(b []byte, i int) (key, val Span, ok bool) {
	if i = skipSpace(b, i+1); b[i] == '}' {
		return Span{}, Span{}, false
	}
	return memberAt(b, i)
}

// nextMember returns the member after the one with the value, in its checked
// object.
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
	var role, name, content, calls, call Span
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
		case isKey(b, k, "tool_call_id"):
			call = v
		}
	}
	for _, v := range [...]Span{role, name, content, calls, call} {
		switch {
		case v.End == 0 || b[v.Start] == 'n':
		case b[v.Start] == '"':
			visit(PieceText, inside(v).Of(b))
		case v == content && b[v.Start] == '[':
			visitContent(b, v.Start, visit)
		default:
			visit(PieceText, v.Of(b))
		}
	}
}

// visitContent visits the parts of a message whose content is the array at i.
func visitContent(b []byte, i int, visit func(PieceKind, []byte)) {
	for s, more := firstElement(b, i); more; s, more = nextElement(b, s) {
		kind, piece := pieceOf(b, s)
		visit(kind, piece.Of(b))
	}
}

// pieceOf returns what the part of a message's content at s is.
func pieceOf(b []byte, s Span) (PieceKind, Span) {
	switch b[s.Start] {
	case '"':
		return PieceText, inside(s)
	case '{':
	default:
		return PieceText, s
	}
	var buf [6 * maxKeyLen]byte
	var text Span
	media := false
	for k, v, ok := firstMember(b, s.Start); ok; k, v, ok = nextMember(b, v) {
		switch name := keyOf(b, k, &buf); {
		case string(name) == "type":
			media = media || !isTextType(b, v)
		case isTextName(name) && b[v.Start] == '"':
			text = v
		case isMediaName(name):
			media = true
		}
	}
	if media || text.End == 0 {
		return PieceMedia, s
	}
	return PieceText, inside(text)
}

// isTextName reports whether a member of a content part with this name is its text.
func isTextName(name []byte) bool {
	switch string(name) {
	case "text", "refusal", "thinking":
		return true
	default:
		return false
	}
}

// isTextType reports whether the type at v, null or the name of one, is that of a text.
func isTextType(b []byte, v Span) bool {
	switch string(v.Of(b)) {
	case "null", `"text"`, `"input_text"`, `"output_text"`, `"refusal"`, `"thinking"`:
		return true
	default:
		return false
	}
}

// isMediaName reports whether a member of a content part with this name is no text,
// whatever else is in the part: engines go by the names where the type is missing, and
// vLLM also where there is a uuid (docs/engines.md#parts).
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

// Picture reports whether a part that is not text, a piece of [VisitPrompt], is a picture
// and nothing besides; and whether it has the picture in it, in a data: URL, rather than
// where to load it from.
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

// urlOf returns the text at v, or that in the member url of the object at v; nothing where
// there is none.
func urlOf(b []byte, v Span) (url Span) {
	switch b[v.Start] {
	case '"':
		return v
	case '{':
		for k, w, ok := firstMember(b, v.Start); ok; k, w, ok = nextMember(b, w) {
			if isKey(b, k, "url") {
				if url = (Span{}); b[w.Start] == '"' {
					url = w
				}
			}
		}
	}
	return url
}

// isDataURL is false also for one whose first letters are escaped.
func isDataURL(quoted []byte) bool {
	const scheme = "data:"
	return len(quoted) > len(scheme) && bytes.EqualFold(quoted[1:len(scheme)+1], []byte(scheme))
}

// AppendBeforeMedia appends the messages of a prompt, a JSON list, up to its first content
// part that is not text: those before the message with it, and of that the parts before it,
// if there are any. It is false where nothing stands before it, and where there is none.
func AppendBeforeMedia(dst, body []byte, r *Request) ([]byte, bool) {
	if r.PromptKind != PromptMessages {
		return dst, false
	}
	list, before := r.members[Messages].val, 0 // the end of the message before
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

// mediaIn finds the first part of the message's content that is not text, and where the
// part before it ends: 0 without one.
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
		if kind, _ := pieceOf(b, s); kind == PieceMedia {
			return content, before, true
		}
		before = s.End
	}
	return content, 0, false
}
