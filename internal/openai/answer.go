package openai

import "bytes"

// FinishReason says why an engine stopped. A reason that this package does not know is
// FinishOther.
type FinishReason uint8

// The reasons. Of several choices the one with the greatest reason counts: the reasons
// are ordered by how much they say.
const (
	FinishNone     FinishReason = iota // absent or null: not finished
	FinishLength                       // the limit on output tokens
	FinishStop                         // end of sequence, or a stop text
	FinishToolCall                     // "tool_calls" and "function_call"
	FinishOther
	FinishContentFilter
	FinishAbort
	FinishError
)

var finishNames = [...]string{
	FinishNone: "none", FinishLength: "length", FinishStop: "stop",
	FinishToolCall: "tool_calls", FinishOther: "other",
	FinishContentFilter: "content_filter", FinishAbort: "abort", FinishError: "error",
}

// String returns the reason as engines write it.
func (f FinishReason) String() string { return nameOf(finishNames[:], f) }

// Failed reports whether the generation has ended by an error or an abort.
func (f FinishReason) Failed() bool { return f == FinishAbort || f == FinishError }

// Answer is what routing needs from an engine's answer that is not streamed.
type Answer struct {
	FinishReason FinishReason // the greatest of all choices
	Choices      int          // choices, or answers of a /generate batch; a response or a message is one
	// HasError says that the answer is an error body: it has an "error" that is not null,
	// or "object":"error".
	HasError bool
	// Usage is the sum over a batch of /generate. HasUsage is false if an answer of it has
	// none that can be read.
	Usage    Usage
	HasUsage bool
	unread   bool // an answer has none that can be read
}

// ScanAnswer reads a whole answer of a path that is read, or a batch of /generate. It returns an *[Error] of kind NotJSON if body is not one JSON
// object or array, for example if it is cut. It keeps no reference to body and allocates
// nothing.
func ScanAnswer(body []byte) (Answer, error) {
	return ScanAnswerMembers(body, func(Span, Span) {})
}

// ScanAnswerMembers is ScanAnswer, and in the same pass calls fn with the key, quotes
// included, and the value of each member, if body is an object. An error may follow after
// calls of fn.
func ScanAnswerMembers(body []byte, fn func(key, val Span)) (Answer, error) {
	var a Answer
	i := skipSpace(body, 0)
	if i >= len(body) {
		return a, notJSON(i, "an object")
	}
	var end int
	switch body[i] {
	case '{':
		end = a.scanObject(body, i, 0, fn)
	case '[':
		end = eachElement(body, i, 0, func(s Span) {
			if body[s.Start] == '{' {
				a.scanObject(body, s.Start, 1, func(Span, Span) {})
			}
		})
	default:
		return a, notJSON(i, "an object")
	}
	if end < 0 {
		return Answer{}, notJSON(^end, "a value")
	}
	i = skipSpace(body, end)
	if i < len(body) {
		return Answer{}, notJSON(i, "the end of the body")
	}
	if a.unread {
		a.Usage, a.HasUsage, a.unread = Usage{}, false, false
	}
	return a, nil
}

func (a *Answer) scanObject(b []byte, i, depth int, fn func(key, val Span)) int {
	return eachMember(b, i, depth, func(m member) bool {
		fn(m.key, m.val)
		v := m.val.Start
		switch {
		case isKey(b, m.key, "error"):
			a.HasError = a.HasError || b[v] != 'n'
		case isKey(b, m.key, "object"), isKey(b, m.key, "type"):
			a.kind(m.val.Of(b))
		case isKey(b, m.key, "status"), isKey(b, m.key, "stop_reason"):
			a.note(m.val.Of(b))
		case isKey(b, m.key, "choices") && b[v] == '[':
			eachElement(b, v, depth+1, func(s Span) {
				a.Choices++
				a.scanReason(b, s.Start, depth+2)
			})
		case isKey(b, m.key, "usage"):
			a.scanUsage(b, v)
		case isKey(b, m.key, "meta_info"):
			a.Choices++
			a.scanReason(b, v, depth+1)
			a.scanUsage(b, v)
		}
		return true
	})
}

// kind takes what an answer says it is.
func (a *Answer) kind(raw []byte) {
	switch string(raw) {
	case `"error"`:
		a.HasError = true
	case `"response"`, `"message"`:
		a.Choices++
	}
}

// scanUsage reads the usage at i, and adds it to those of the answers before.
func (a *Answer) scanUsage(b []byte, i int) {
	var u Usage
	switch {
	case b[i] != '{' || !u.read(b, i):
		a.unread = true
	case a.HasUsage:
		a.Usage = a.Usage.plus(u)
	default:
		a.Usage, a.HasUsage = u, true
	}
}

// scanReason reads the finish_reason of the object at i: a text, or an object whose type
// is one.
func (a *Answer) scanReason(b []byte, i, depth int) {
	if b[i] != '{' {
		return
	}
	eachMember(b, i, depth, func(m member) bool {
		if !isKey(b, m.key, "finish_reason") {
			return true
		}
		if b[m.val.Start] == '{' {
			eachMember(b, m.val.Start, depth+1, func(t member) bool {
				if isKey(b, t.key, "type") {
					a.note(t.val.Of(b))
				}
				return true
			})
			return true
		}
		a.note(m.val.Of(b))
		return true
	})
}

// FindFinish returns the last finish reason in b, which is a whole answer or a part of one, as an event
// is; FinishNone: there is none, or it is cut.
func FindFinish(b []byte) FinishReason {
	const key = `"finish_reason"` // in a text the quotes would be escaped
	at := bytes.LastIndex(b, []byte(key))
	if at < 0 {
		return FinishNone
	}
	i := skipSpace(b, at+len(key))
	if i >= len(b) || b[i] != ':' {
		return FinishNone
	}
	i = skipSpace(b, i+1)
	if i >= len(b) {
		return FinishNone
	}
	var a Answer
	if b[i] == '{' {
		if s, ok := FindValue(b[i:], "type"); ok {
			a.note(s.Of(b[i:]))
		}
	} else if end := bytes.IndexByte(b[i+1:], '"'); b[i] == '"' && end >= 0 {
		a.note(b[i : i+end+2])
	}
	return a.FinishReason
}

func (a *Answer) note(raw []byte) { a.FinishReason = max(a.FinishReason, finishReason(raw)) }

func finishReason(raw []byte) FinishReason {
	switch string(raw) {
	case "null", `""`, `"not_finished"`, `"queued"`, `"in_progress"`: // TensorRT-LLM's context_only writes not_finished
		return FinishNone
	case `"length"`, `"max_tokens"`, `"incomplete"`:
		return FinishLength
	case `"stop"`, `"end_turn"`, `"stop_sequence"`, `"completed"`:
		return FinishStop
	case `"tool_calls"`, `"function_call"`, `"tool_use"`:
		return FinishToolCall
	case `"content_filter"`, `"refusal"`:
		return FinishContentFilter
	case `"abort"`, `"cancelled"`:
		return FinishAbort
	case `"error"`, `"failed"`:
		return FinishError
	default:
		return FinishOther
	}
}
