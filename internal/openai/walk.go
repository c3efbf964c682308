package openai

import "bytes"

// The functions of this file walk an engine's answer, which has many shapes.
// Request bodies are read with [Scan].

// WholeObject returns where the object stands that is the whole of b, white
// space around it aside. It returns false for anything else: what it lets pass
// is valid JSON.
func WholeObject(b []byte) (Span, bool) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return Span{}, false
	}
	end := skipValue(b, i, 0)
	if end < 0 || skipSpace(b, end) < len(b) {
		return Span{}, false
	}
	return Span{i, end}, true
}

// EachMember calls fn with each key, quotes included, and value of the object
// at s, as they stand, until fn returns false. s must be a value of checked
// JSON; of a value that is no object there are no members.
func EachMember(b []byte, s Span, fn func(key, val Span) bool) {
	if s.End == 0 || b[s.Start] != '{' {
		return
	}
	eachMember(b, s.Start, 0, func(m member) bool { return fn(m.key, m.val) })
}

// EachMemberWithin is EachMember for an object that must nest no more than depth
// arrays and objects, itself included; depth is at most [MaxDepth]. It returns
// false, perhaps after some calls, where the object nests deeper.
func EachMemberWithin(b []byte, s Span, depth int, fn func(key, val Span) bool) bool {
	return eachMember(b, s.Start, MaxDepth-depth, func(m member) bool { return fn(m.key, m.val) }) >= 0
}

// EachElement is EachMember for the elements of the array at s.
func EachElement(b []byte, s Span, fn func(val Span)) {
	if s.End == 0 || b[s.Start] != '[' {
		return
	}
	eachElement(b, s.Start, 0, fn)
}

// IsKey reports whether the quoted key at s is name, in any spelling.
func IsKey(b []byte, s Span, name string) bool { return isKey(b, s, name) }

// SameKey reports whether two quoted keys are the same, in any spelling.
func SameKey(b []byte, s, t Span) bool {
	x, y := b[s.Start+1:s.End-1], b[t.Start+1:t.End-1]
	if !hasEscape(x) && !hasEscape(y) {
		return bytes.Equal(x, y)
	}
	return bytes.Equal(appendUnescaped(nil, x), appendUnescaped(nil, y))
}

// HasPrefix reports whether the quoted text, an element or a value of checked
// JSON, begins with prefix, in any spelling.
func HasPrefix(quoted []byte, prefix string) bool {
	raw := quoted[1 : len(quoted)-1]
	if hasEscape(raw[:min(len(raw), 6*len(prefix))]) {
		raw = appendUnescaped(nil, raw)
	}
	return bytes.HasPrefix(raw, []byte(prefix))
}
