package openai

import "bytes"

// MaxN is the greatest n that [Scan] accepts. It bounds the bootstrap rooms of one
// request (docs/behaviour.md#room).
const MaxN = 1 << 16

// Scan reads a client's body for the path into r, and overwrites what r held. It returns
// an *[Error]; r must not be used then.
func Scan(p Path, body []byte, r *Request) error { return scan(p, body, r, false) }

// ScanInjected is Scan for a body that a router has written: members that only a router
// may set are accepted, and can be edited. The prefill leg uses it, since Envoy's mirror
// sends the body as the main leg has changed it.
func ScanInjected(p Path, body []byte, r *Request) error { return scan(p, body, r, true) }

func scan(p Path, body []byte, r *Request, injected bool) error {
	r.reset(p)
	i := skipSpace(body, markAt(body))
	if i >= len(body) || body[i] != '{' {
		return notJSON(i, "an object")
	}
	m := member{comma: i}
	i = skipSpace(body, i+1)
	if i < len(body) && body[i] == '}' {
		r.end = i
		i++
	} else {
		var err error
		i, err = r.scanMembers(body, i, m, injected)
		if err != nil {
			return err
		}
	}
	i = skipSpace(body, i)
	if i < len(body) {
		return notJSON(i, "the end of the body")
	}
	return r.check(body)
}

// markAt returns the length of the byte order mark before a body, which vLLM passes over.
func markAt(body []byte) int {
	const mark = "\ufeff"
	if bytes.HasPrefix(body, []byte(mark)) {
		return len(mark)
	}
	return 0
}

// scanMembers reads the members of the body's object, from the first one at i, and
// returns the offset after the closing brace.
func (r *Request) scanMembers(body []byte, i int, m member, injected bool) (int, error) {
	for {
		m.key.Start = i
		v := skipKey(body, i)
		if v < 0 {
			return 0, notJSON(^v, "a key and a colon")
		}
		m.key.End = keyEnd(body, v)
		f := lookupKey(body[i+1 : m.key.End-1])
		end, err := r.scanValue(body, v, f, injected)
		if err != nil {
			return 0, err
		}
		m.val = Span{v, end}
		i = skipSpace(body, end)
		if i >= len(body) || body[i] != ',' && body[i] != '}' {
			return 0, notJSON(i, "a comma or a closing brace")
		}
		m.after = i
		m.ordinal = r.count
		r.count++
		if f != NoField {
			r.members[f] = m
			r.order[r.known] = f
			r.known++
		} else if len(r.others) < MostOthers {
			r.others = append(r.others, other{m.key, m.val})
		}
		if body[i] == '}' {
			r.end = i
			return i + 1, nil
		}
		m.comma = i
		i = skipSpace(body, i+1)
	}
}

// keyEnd returns the offset after the closing quote of the key whose value is at v.
// Between the two there are only white space and the colon.
func keyEnd(body []byte, v int) int {
	for v--; body[v] != '"'; v-- {
	}
	return v + 1
}

// lookupKey returns the field of a key, given as written between its quotes.
func lookupKey(raw []byte) Field {
	if len(raw) > 6*maxKeyLen {
		return NoField
	}
	if !hasEscape(raw) {
		return lookup(raw)
	}
	var buf [6 * maxKeyLen]byte
	return lookup(AppendUnescaped(buf[:0], raw))
}

// scanValue checks the value at v, reads it if more than its place is needed, and returns
// the offset of its end.
func (r *Request) scanValue(body []byte, v int, f Field, injected bool) (int, error) {
	if f != NoField {
		if r.members[f].found() {
			return 0, &Error{Kind: DuplicateField, Field: f.String(), Offset: v}
		}
		if f.routerOnly() && !injected {
			return 0, &Error{Kind: ForbiddenField, Field: f.String(), Offset: v}
		}
	}
	var end int
	switch {
	case v < len(body) && body[v] == '[' && r.carriesPrompt(f):
		return r.scanPromptList(body, v, f)
	case f == SamplingParams && r.Path.samples():
		return r.scanSampling(body, v, injected)
	default:
		end = skipValue(body, v, 1)
	}
	if end < 0 {
		return 0, notJSON(^end, "a value")
	}
	if f == VLLMXArgs && !injected {
		return end, checkXArgs(body, Span{v, end})
	}
	return end, nil
}

// checkXArgs refuses, in vLLM's vllm_xargs, what only a router may set: vLLM's connectors
// read it there as well as at the top level.
func checkXArgs(body []byte, s Span) (err error) {
	EachMember(body, s, func(key, val Span) bool {
		for _, f := range [...]Field{KVTransferParams, ECTransferParams} {
			if isKey(body, key, f.String()) {
				err = &Error{Kind: ForbiddenField, Field: VLLMXArgs.String() + "." + f.String(), Offset: val.Start}
				return false
			}
		}
		return true
	})
	return err
}

// carriesPrompt reports whether a list in the field is read element by element, since it
// is the prompt.
func (r *Request) carriesPrompt(f Field) bool {
	switch f {
	case PromptText:
		return r.Path == Completions
	case Text:
		return r.Path == Generate
	case InputIDs:
		return r.Path == ChatCompletions || r.Path == Generate
	case TokenIDs:
		return r.Path == TokensIn
	default:
		return false
	}
}

// promptList is what a list in a prompt field holds.
type promptList struct {
	kind   PromptKind
	lists  int
	tokens int
}

// scanPromptList checks the list at v, whose elements must all be of one kind.
func (r *Request) scanPromptList(body []byte, v int, f Field) (int, error) {
	expected := "a text, a list of texts, a list of token ids or a list of such lists"
	if f == TokenIDs {
		expected = "a list of token ids"
	}
	end := skipSpace(body, v+1)
	var l promptList
	switch {
	case end >= len(body):
		return 0, notJSON(end, "a value")
	case body[end] == '"':
		l.kind = PromptStrings
	case body[end] == '[':
		l.kind = PromptIDLists
	case isDigit(body[end]):
		l.kind = PromptIDs
	}
	var ok bool
	end, ok = l.scan(body, v)
	if !ok {
		// Either it is not JSON, or JSON of another form: the error says which.
		end = skipValue(body, v, 1)
		if end < 0 {
			return 0, notJSON(^end, "a value")
		}
		return 0, wrongType(f, v, expected)
	}
	// input_ids overrides text, whichever comes first.
	if r.PromptKind == PromptNone || f == InputIDs {
		r.PromptKind, r.PromptField, r.PromptTokens = l.kind, f, l.tokens
		r.Prompts = max(l.lists, 1)
	}
	return end, nil
}

// scan checks the list at v. It returns false at the first thing that a list of its kind
// cannot hold.
func (l *promptList) scan(b []byte, v int) (int, bool) {
	switch l.kind {
	case PromptIDs:
		end, n := skipIDs(b, v)
		l.tokens = n
		return end, end >= 0
	case PromptStrings, PromptIDLists:
	default:
		return 0, false
	}
	for i := skipSpace(b, v+1); ; i = skipSpace(b, i+1) {
		if i >= len(b) {
			return 0, false
		}
		switch {
		case l.kind == PromptStrings && b[i] == '"':
			i = skipString(b, i+1)
		case l.kind == PromptIDLists && b[i] == '[':
			var n int
			i, n = skipIDs(b, i)
			l.tokens += n
		default:
			return 0, false
		}
		if i < 0 {
			return 0, false
		}
		l.lists++
		i = skipSpace(b, i)
		if i >= len(b) || b[i] != ',' && b[i] != ']' {
			return 0, false
		}
		if b[i] == ']' {
			return i + 1, true
		}
	}
}

// skipIDs skips the list of token ids at v and counts them. It returns -1 for anything
// else, also for the empty list.
func skipIDs(b []byte, v int) (end, n int) {
	i := skipSpace(b, v+1)
	for {
		start := i
		i = skipDigits(b, i)
		// No id has more than ten digits, and a JSON number has no leading zeros.
		if i == start || i-start > 10 || b[start] == '0' && i-start > 1 {
			return -1, 0
		}
		n++
		if i < len(b) && b[i] <= ' ' {
			i = skipSpace(b, i)
		}
		if i >= len(b) {
			return -1, 0
		}
		switch b[i] {
		case ',':
			i++
			if i < len(b) && b[i] <= ' ' {
				i = skipSpace(b, i)
			}
		case ']':
			return i + 1, n
		default:
			return -1, 0
		}
	}
}
