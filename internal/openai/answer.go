package openai

// FinishReason is why an engine stopped. The set is closed: a reason this
// package does not know is FinishOther.
type FinishReason uint8

// The reasons, each more telling than the one before: of several choices the
// greatest counts.
const (
	FinishNone     FinishReason = iota // not said, or null: not finished
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
func (f FinishReason) String() string {
	if int(f) >= len(finishNames) {
		return "invalid"
	}
	return finishNames[f]
}

// Failed reports whether the generation did not end as asked.
func (f FinishReason) Failed() bool { return f == FinishAbort || f == FinishError }

// Answer is what routing needs from an engine's whole, not streamed, answer.
type Answer struct {
	FinishReason FinishReason // the most telling of all choices
	Choices      int          // choices, or answers of a /generate batch
	// HasError says that the answer is an error body: it has an "error" that is
	// not null, or calls itself one by "object":"error".
	HasError bool
}

// ScanAnswer reads a whole answer of /v1/chat/completions, /v1/completions or
// /generate, a batch included. It returns an *[Error] of kind NotJSON for
// anything that is not one JSON object or array, such as a cut body. It keeps
// nothing of body and allocates nothing.
func ScanAnswer(body []byte) (Answer, error) {
	return ScanAnswerMembers(body, func(Span, Span) {})
}

// ScanAnswerMembers is ScanAnswer that also calls fn, in the same pass, with
// each key, quotes included, and value of the object that is the whole of body.
// A fault may follow what fn has seen.
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
	if i = skipSpace(body, end); i < len(body) {
		return Answer{}, notJSON(i, "the end of the body")
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
		case isKey(b, m.key, "object"):
			a.HasError = a.HasError || string(m.val.Of(b)) == `"error"`
		case isKey(b, m.key, "choices") && b[v] == '[':
			eachElement(b, v, depth+1, func(s Span) {
				a.Choices++
				a.scanReason(b, s.Start, depth+2)
			})
		case isKey(b, m.key, "meta_info"):
			a.Choices++
			a.scanReason(b, v, depth+1)
		}
		return true
	})
}

// scanReason reads finish_reason of the object at i: a text, or an object whose
// type is one.
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

func (a *Answer) note(raw []byte) { a.FinishReason = max(a.FinishReason, finishReason(raw)) }

func finishReason(raw []byte) FinishReason {
	switch string(raw) {
	case "null", `""`, `"not_finished"`: // the last: TensorRT-LLM's context_only
		return FinishNone
	case `"length"`:
		return FinishLength
	case `"stop"`:
		return FinishStop
	case `"tool_calls"`, `"function_call"`:
		return FinishToolCall
	case `"content_filter"`:
		return FinishContentFilter
	case `"abort"`:
		return FinishAbort
	case `"error"`:
		return FinishError
	default:
		return FinishOther
	}
}
