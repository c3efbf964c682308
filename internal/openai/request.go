package openai

import (
	"bytes"
	"unicode/utf8"
)

// Span is a part of a body, from Start up to but not including End. The zero Span means
// that there is none.
type Span struct{ Start, End int }

// Of returns the bytes of the span, which are shared with body.
func (s Span) Of(body []byte) []byte { return body[s.Start:s.End:s.End] }

// PromptKind says in which form a request has its prompt.
type PromptKind uint8

// The kinds.
const (
	PromptNone     PromptKind = iota // in none that this package can read, as embeddings
	PromptString                     // one text
	PromptStrings                    // a list of texts
	PromptIDs                        // one list of token ids
	PromptIDLists                    // a list of lists of token ids
	PromptMessages                   // chat messages
)

var promptKindNames = [...]string{
	PromptNone: "none", PromptString: "text", PromptStrings: "texts",
	PromptIDs: "ids", PromptIDLists: "id lists", PromptMessages: "messages",
}

// String returns the name of the kind.
func (k PromptKind) String() string { return nameOf(promptKindNames[:], k) }

// member is one member of an object: where it is, and what separates it from its
// neighbours.
type member struct {
	comma   int // offset of the comma before it, or of the opening brace before the first
	key     Span
	val     Span
	after   int // offset of the comma or brace after the value
	ordinal int // 0 for the first member of the object
}

func (m *member) found() bool { return m.val.End != 0 }

// other is a member that this package does not know.
type other struct{ key, val Span }

// MostOthers is of how many members that this package does not know a Request keeps the places:
// more than any engine's requests have.
const MostOthers = 128

// Request is what [Scan] has read from one body. The zero value is ready; a Request that
// is used again allocates nothing. It must not be used concurrently while it is being
// filled.
//
// The byte slices share memory with the body, or with the Request if a value had to be
// unescaped. They are valid until either is used again, and must not be written to.
type Request struct {
	Path  Path
	Model []byte // empty if the body names none

	Stream    bool
	N         int   // how many completions are asked for each prompt; at least 1
	MaxTokens int64 // the limit on output tokens; -1: not given

	CacheSalt []byte // a string unescaped, any other value raw; nil: absent or null
	ExtraKey  []byte // the same; SGLang appends it to the salt
	LoRA      []byte // the same

	PromptKind  PromptKind
	PromptField Field // the field that holds the prompt
	Prompts     int   // number of prompts; 1 unless the prompt is a list
	// PromptTokens counts the ids of PromptIDs and PromptIDLists, over all lists; 0 for
	// other kinds.
	PromptTokens int

	members [numFields]member
	order   [numFields]Field // known top-level fields in the body's order
	known   int
	others  []other // top-level members that this package does not know, the first MostOthers of them
	count   int     // top-level members, with unknown ones
	end     int     // offset of the closing brace
	buf     []byte

	samplingCount int // members of sampling_params, if that is an object
	samplingList  bool
}

// Parallel returns how many generations the request starts: prompts times completions for
// each. Each needs a bootstrap room of its own.
func (r *Request) Parallel() int { return r.Prompts * r.N }

// Has reports whether the body has the field, with any value.
func (r *Request) Has(f Field) bool { return r.members[f].found() }

// Value returns the span of the field's raw value, or the zero Span.
func (r *Request) Value(f Field) Span { return r.members[f].val }

// EachMember calls fn with each member at the top of the body that r was read from, until fn
// returns false: first those that this package knows, then the others, with NoField. It returns
// false if there are [MostOthers] others, so that fn may not have seen all.
func (r *Request) EachMember(fn func(f Field, key, val Span) bool) bool {
	for _, f := range r.order[:r.known] {
		if !fn(f, r.members[f].key, r.members[f].val) {
			return true
		}
	}
	for _, o := range r.others {
		if !fn(NoField, o.key, o.val) {
			return true
		}
	}
	return len(r.others) < MostOthers
}

// End returns the offset of the closing brace of the body's object.
func (r *Request) End() int { return r.end }

// Given reports whether the body has the field with a value other than null.
func (r *Request) Given(body []byte, f Field) bool {
	return r.Has(f) && body[r.members[f].val.Start] != 'n'
}

// reset clears r for the next body, and keeps its memory.
func (r *Request) reset(p Path) {
	for _, f := range r.order[:r.known] {
		r.members[f] = member{}
	}
	r.members[MaxNewTokens], r.members[MinNewTokens] = member{}, member{}
	r.Path, r.Model, r.Stream, r.N, r.MaxTokens = p, nil, false, 1, -1
	r.CacheSalt, r.ExtraKey, r.LoRA = nil, nil, nil
	r.PromptKind, r.PromptField, r.Prompts, r.PromptTokens = PromptNone, NoField, 1, 0
	r.known, r.count, r.end, r.samplingCount, r.samplingList = 0, 0, 0, 0, false
	r.others = r.others[:0]
	r.buf = r.buf[:0]
}

// text returns the value of a field: a string unescaped, any other value raw, and nil for null
// and for a field that is not there.
func (r *Request) text(body []byte, f Field) []byte {
	s := r.members[f].val
	switch {
	case !r.Given(body, f):
		return nil
	case body[s.Start] == '"':
		raw := Span{s.Start + 1, s.End - 1}.Of(body)
		if !hasEscape(raw) {
			return raw
		}
		start := len(r.buf)
		r.buf = AppendUnescaped(r.buf, raw)
		return r.buf[start:len(r.buf):len(r.buf)]
	default:
		return s.Of(body)
	}
}

func hasEscape(raw []byte) bool { return bytes.IndexByte(raw, '\\') >= 0 }

// AppendUnescaped appends the text of a JSON string to dst. raw is the string without its
// quotes, as [VisitPrompt] gives it, and must have been checked. Half surrogates become
// U+FFFD, as in encoding/json.
func AppendUnescaped(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		c := raw[i+1]
		if c != 'u' {
			dst = append(dst, unescaped[c])
			i += 2
			continue
		}
		u := hex4(raw[i+2:])
		i += 6
		if u >= 0xd800 && u < 0xdc00 && i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
			if low := hex4(raw[i+2:]); low >= 0xdc00 && low < 0xe000 {
				u = (u-0xd800)<<10 | (low - 0xdc00) + 0x10000
				i += 6
			}
		}
		dst = utf8.AppendRune(dst, u)
	}
	return dst
}

// unescaped is what the letter after a backslash stands for.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func hex4(b []byte) (u rune) {
	for _, c := range b[:4] {
		if c > '9' {
			c = c | 0x20 - 'a' + '0' + 10
		}
		u = u<<4 | rune(c-'0')
	}
	return u
}
