package openai

import (
	"bytes"
	"strings"
)

// Finding is what the first events of a streamed answer show.
type Finding uint8

// The findings.
const (
	FoundNothing Finding = iota // nothing yet: only a role, a usage or a comment
	FoundToken                  // a token, or a finish reason that is no failure
	FoundError                  // an error event, or a finish reason that is a failure
	FoundEnd                    // the stream has ended without a token
	FoundOther                  // something that this package cannot read: it may be a token
)

var findingNames = [...]string{"nothing", "token", "error", "end", "other"}

// String returns the finding as a metric label.
func (f Finding) String() string { return findingNames[f] }

// MaxFirstEvents is how many bytes of an answer are read to find its first token.
const MaxFirstEvents = 64 << 10

// FirstEvents reads an answer's event stream (text/event-stream, as the WHATWG specifies
// it) until an event shows whether the answer serves the request. Engines send the
// response headers, and an event with only the role, before they know that. The zero
// value is ready. It is not safe for concurrent use, and keeps at most [MaxFirstEvents]
// bytes.
type FirstEvents struct {
	rest   []byte // the beginning of a line whose end has not come yet
	data   []byte // of the event that is being read
	read   int
	found  Finding
	status int
	failed []byte // the data of the error event
}

// Status returns the status in the error event, 0 if it has none.
func (f *FirstEvents) Status() int { return f.status }

// Error returns the data of the error event; nil: there was none.
func (f *FirstEvents) Error() []byte { return f.failed }

// Read takes the next piece of the answer; the bool says that it is the last one. Once a
// call has found something, all later ones return the same.
func (f *FirstEvents) Read(piece []byte, last bool) Finding {
	if f.found != FoundNothing {
		return f.found
	}
	f.read += len(piece)
	if f.read > MaxFirstEvents {
		f.found, f.rest, f.data = FoundOther, nil, nil
		return f.found
	}
	if len(f.rest) > 0 {
		f.rest = append(f.rest, piece...)
		piece = f.rest
	}
	for f.found == FoundNothing {
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			break
		}
		f.line(bytes.TrimSuffix(piece[:end], []byte{'\r'}))
		piece = piece[end+1:]
	}
	if last && f.found == FoundNothing {
		f.line(piece)
		f.line(nil) // some streams end without the empty line
		if f.found == FoundNothing {
			f.found = FoundEnd
		}
	}
	f.rest = append(f.rest[:0], piece...)
	if f.found != FoundNothing {
		f.rest, f.data = nil, nil
	}
	return f.found
}

// line takes one line: a field, a comment, or the empty line that ends an event.
func (f *FirstEvents) line(l []byte) {
	if value, ok := bytes.CutPrefix(l, []byte("data:")); ok {
		if len(f.data) > 0 {
			f.data = append(f.data, '\n')
		}
		f.data = append(f.data, bytes.TrimPrefix(value, []byte{' '})...)
		return
	}
	if len(l) > 0 || len(f.data) == 0 || f.found != FoundNothing {
		return
	}
	f.found = f.event(f.data)
	f.data = f.data[:0]
}

// event judges the data of one event.
func (f *FirstEvents) event(b []byte) Finding {
	if string(b) == "[DONE]" {
		return FoundEnd
	}
	obj, ok := WholeObject(b)
	if !ok {
		return FoundOther
	}
	found, failed := FoundNothing, false
	EachMember(b, obj, func(key, val Span) bool {
		v := val.Of(b)
		switch {
		case IsKey(b, key, "error") && string(v) != "null":
			failed = true
			f.statusOf(b, val)
		case IsKey(b, key, "object") && string(v) == `"error"`:
			failed = true
			f.statusOf(b, obj)
		case IsKey(b, key, "type"):
			found = max(found, kindOfEvent(v))
			failed = failed || found == FoundError
		case IsKey(b, key, "choices"):
			EachElement(b, val, func(choice Span) { found = max(found, f.choice(b, choice)) })
		case IsKey(b, key, "text"), IsKey(b, key, "output_ids"): // /generate has these
			found = max(found, tokenIf(!isEmpty(v)))
		case IsKey(b, key, "meta_info"):
			found = max(found, f.reason(b, val))
		}
		return true
	})
	if failed {
		f.failed = bytes.Clone(b)
		return FoundError
	}
	return found
}

// kindOfEvent judges an event of /v1/responses or /v1/messages by its type: the events with tokens
// are named so, and those that end an answer come after them.
func kindOfEvent(quoted []byte) Finding {
	switch kind := string(bytes.Trim(quoted, `"`)); {
	case kind == "error", kind == "response.failed":
		return FoundError
	case strings.HasSuffix(kind, ".delta"), kind == "content_block_delta", kind == "message_delta",
		kind == "message_stop", kind == "response.completed", kind == "response.incomplete":
		return FoundToken
	}
	return FoundNothing
}

func (f *FirstEvents) choice(b []byte, s Span) Finding {
	found := f.reason(b, s)
	EachMember(b, s, func(key, val Span) bool {
		switch {
		case IsKey(b, key, "text"), IsKey(b, key, "token_ids"): // the latter of /inference/v1/generate
			found = max(found, tokenIf(!isEmpty(val.Of(b))))
		case IsKey(b, key, "delta"):
			EachMember(b, val, func(key, val Span) bool {
				found = max(found, tokenIf(!IsKey(b, key, "role") && !isEmpty(val.Of(b))))
				return true
			})
		}
		return true
	})
	return found
}

// reason judges the finish reason of the object at s: a text, or an object that may also
// have a status.
func (f *FirstEvents) reason(b []byte, s Span) Finding {
	var a Answer
	a.scanReason(b, s.Start, 0)
	if !a.FinishReason.Failed() {
		return tokenIf(a.FinishReason != FinishNone)
	}
	EachMember(b, s, func(key, val Span) bool {
		if IsKey(b, key, "finish_reason") {
			f.statusOf(b, val)
		}
		return true
	})
	return FoundError
}

// statusOf reads the status in an error: engines write it as code or status_code.
func (f *FirstEvents) statusOf(b []byte, s Span) {
	EachMember(b, s, func(key, val Span) bool {
		if n, ok := parseCount(val.Of(b)); ok && n >= 400 && n < 600 && (IsKey(b, key, "code") || IsKey(b, key, "status_code")) {
			f.status = int(n)
		}
		return true
	})
}

func tokenIf(some bool) Finding {
	if some {
		return FoundToken
	}
	return FoundNothing
}

func isEmpty(v []byte) bool {
	switch string(v) {
	case "null", `""`, "[]", "{}":
		return true
	}
	return false
}

// LaterEvents reads the pieces of an answer for what says that its engine has failed: a finish
// reason, and in an event stream, once the first token has come, an error event. vLLM's chats end
// with such an event in place of the finish reason error. The zero value is ready. It is not safe for
// concurrent use, and allocates nothing.
type LaterEvents struct {
	tail [lateTail]byte // how a piece ended that did not end with a line
	n    int            // bytes of tail
	amid bool           // tail does not begin with its line
}

// lateTail is longer than what is looked for, which may begin in one piece and end in another.
const lateTail = 64

// Failed takes the next piece, and reports whether the engine says in it that it has failed. errors
// says that an error event counts.
func (l *LaterEvents) Failed(piece []byte, errors bool) bool {
	failed := failedIn(piece, errors, l.n > 0)
	if l.n > 0 && !failed {
		var room [2 * lateTail]byte
		both := append(append(room[:0], l.tail[:l.n]...), piece[:min(len(piece), lateTail)]...)
		failed = failedIn(both, errors, l.amid)
	}
	end := bytes.LastIndexByte(piece, '\n') + 1
	if end > 0 {
		l.n, l.amid = 0, false
	}
	piece = piece[end:]
	if over := l.n + len(piece) - lateTail; over > 0 {
		l.n = copy(l.tail[:], l.tail[min(over, l.n):l.n])
		piece, l.amid = piece[len(piece)-(lateTail-l.n):], true
	}
	l.n += copy(l.tail[l.n:], piece)
	return failed
}

// failedIn looks in b, which begins amid a line or with one.
func failedIn(b []byte, errors, amid bool) bool {
	if FindFinish(b).Failed() {
		return true
	}
	for errors {
		if !amid && isErrorLine(b) {
			return true
		}
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			return false
		}
		b, amid = b[end+1:], false
	}
	return false
}

// isErrorLine reports whether b begins with a line of an error event: its name, or data whose first
// member says so. An error with the code 4xx is the request's own fault. It returns false, too, if b
// ends too early to tell.
func isErrorLine(b []byte) bool {
	if name, ok := bytes.CutPrefix(b, []byte("event:")); ok {
		line, _, ended := bytes.Cut(name, []byte{'\n'})
		switch string(bytes.TrimSpace(line)) {
		case "error", "response.failed":
			return ended
		}
		return false
	}
	data, ok := bytes.CutPrefix(b, []byte("data:"))
	i := skipSpace(data, 0)
	if !ok || i >= len(data) || data[i] != '{' {
		return false
	}
	data = data[skipSpace(data, i+1):]
	if v, ok := valueBehind(data, `"error"`); ok {
		var f FirstEvents
		line, _, _ := bytes.Cut(b[len("data:"):], []byte{'\n'})
		return v[0] != 'n' && (f.event(line) != FoundError || f.status/100 != 4) // n: of null
	}
	v, ok := valueBehind(data, `"type"`)
	return ok && (bytes.HasPrefix(v, []byte(`"error"`)) || bytes.HasPrefix(v, []byte(`"response.failed"`)))
}

// valueBehind returns b from the value of its first member on, if that has the key.
func valueBehind(b []byte, key string) ([]byte, bool) {
	if !bytes.HasPrefix(b, []byte(key)) {
		return nil, false
	}
	i := skipSpace(b, len(key))
	if i < len(b) && b[i] == ':' {
		i = skipSpace(b, i+1)
		return b[i:], i < len(b)
	}
	return nil, false
}
