package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// IsSpace is Python's str.isspace for one character: it takes four separators for spaces that
// Unicode does not.
func IsSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// runes is Python's len of a text.
func runes(s string) int { return utf8.RuneCountInString(s) }

// formatFloat is Python's repr of a float.
func formatFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	exp := strconv.FormatFloat(f, 'e', -1, 64)
	e, _ := strconv.Atoi(exp[strings.IndexByte(exp, 'e')+1:])
	if e < -4 || e >= 16 {
		return exp
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if strings.IndexByte(s, '.') < 0 {
		s += ".0"
	}
	return s
}

// str is Python's str(): what {{ v }} prints.
func (r *run) str(v Value) string {
	switch v := v.(type) {
	case string:
		return v
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int:
		return strconv.Itoa(v)
	case float64:
		return formatFloat(v)
	case *undefined:
		return ""
	case markup:
		return v.text
	}
	b := r.repr(nil, v, 0)
	return r.made(string(b))
}

// repr appends Python's repr() of v.
func (r *run) repr(b []byte, v Value, depth int) []byte {
	if depth > r.limits.Depth {
		panic(errDepth)
	}
	r.step()
	if len(b) > r.bytes {
		panic(errBytes)
	}
	switch v := v.(type) {
	case string:
		return appendReprText(b, v)
	case *List:
		if !v.tuple {
			return r.reprItems(b, v.Items, "[", "]", depth)
		}
		if len(v.Items) == 1 {
			return r.reprItems(b, v.Items, "(", ",)", depth)
		}
		return r.reprItems(b, v.Items, "(", ")", depth)
	case *view:
		return r.reprItems(b, v.items, v.name+"([", "])", depth)
	case *Dict:
		b = append(b, '{')
		for i, k := range v.keys {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = r.repr(b, k, depth+1)
			b = append(b, ": "...)
			b = r.repr(b, v.vals[i], depth+1)
		}
		return append(b, '}')
	case *undefined:
		return append(b, "Undefined"...)
	case nil, bool, int, float64:
		return append(b, r.str(v)...)
	}
	panic(refuse("printing a %s", typeName(v)))
}

func (r *run) reprItems(b []byte, items []Value, open, end string, depth int) []byte {
	b = append(b, open...)
	for i, v := range items {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = r.repr(b, v, depth+1)
	}
	return append(b, end...)
}

// appendReprText appends Python's repr of a text.
func appendReprText(b []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	b = append(b, quote)
	for _, c := range s {
		switch {
		case c == rune(quote) || c == '\\':
			b = append(b, '\\', byte(c))
		case c == '\n', c == '\r', c == '\t':
			b = append(b, '\\', shortEscapes[c])
		case unicode.IsPrint(c):
			b = utf8.AppendRune(b, c)
		case c < 0x100:
			b = fmt.Appendf(b, `\x%02x`, c)
		case !unicode.In(c, unicode.Z, unicode.Cf, unicode.Co):
			// Which characters are assigned depends on the Unicode version of the engine's
			// Python.
			panic(refuse("printing an unassigned character"))
		case c < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = fmt.Appendf(b, `\U%08x`, c)
		}
	}
	return append(b, quote)
}
