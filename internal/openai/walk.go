package openai

import "bytes"

// The functions of this file walk JSON of many forms, such as an engine's answer. A
// request body must have gone through [Scan] before.

// WholeObject returns the span of the object if b is one object, with or without white
// space around it. It returns false if b is anything else: if it returns true, b is valid
// JSON.
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

// EachMember calls fn with the key, quotes included, and the value of each member of the
// object at s, until fn returns false. The JSON at s must have been checked. A value that
// is not an object has no members.
func EachMember(b []byte, s Span, fn func(key, val Span) bool) {
	if s.End == 0 || b[s.Start] != '{' {
		return
	}
	eachMember(b, s.Start, 0, func(m member) bool { return fn(m.key, m.val) })
}

// EachMemberWithin is EachMember for an object that may nest at most depth arrays and
// objects, itself included; depth is at most [MaxDepth]. If the object nests deeper, it
// returns false, perhaps after some calls of fn.
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

// KeyText returns the text of the quoted key at s, which shares memory with b unless the key has
// an escape.
func KeyText(b []byte, s Span) []byte {
	raw := Span{s.Start + 1, s.End - 1}.Of(b)
	if !hasEscape(raw) {
		return raw
	}
	return AppendUnescaped(nil, raw)
}

// SameKey reports whether two quoted keys are the same, in any spelling.
func SameKey(b []byte, s, t Span) bool {
	return bytes.Equal(KeyText(b, s), KeyText(b, t))
}

// HasPrefix reports whether a quoted text, which must have been checked, begins with
// prefix, in any spelling.
func HasPrefix(quoted []byte, prefix string) bool {
	raw := quoted[1 : len(quoted)-1]
	if hasEscape(raw[:min(len(raw), 6*len(prefix))]) {
		raw = AppendUnescaped(nil, raw)
	}
	return bytes.HasPrefix(raw, []byte(prefix))
}
