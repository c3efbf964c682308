package jinja

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxNesting bounds how deep JSON may nest. Python's own bound is near a thousand.
const maxNesting = 100

// Decode reads one JSON value as Python's json.loads does: keys keep their order, of a key
// that comes twice the last value counts, and a number with a point or an exponent is a
// float. What Python would read as something that these values cannot hold is refused:
// integers beyond 64 bits, lone surrogates, NaN. So is what is no JSON.
//
// Texts of the result do not share memory with raw.
func Decode(raw []byte) (v Value, err error) {
	defer caught(&err)
	d := decoder{s: string(raw)}
	if !utf8.ValidString(d.s) {
		panic(refuse("JSON that is not UTF-8"))
	}
	v = d.value(0)
	d.space()
	if d.at < len(d.s) {
		panic(errJSON)
	}
	return v, nil
}

// decoder reads s, which texts without escapes share.
type decoder struct {
	s  string
	at int
}

func (d *decoder) space() {
	for d.at < len(d.s) {
		switch d.s[d.at] {
		case ' ', '\t', '\n', '\r':
			d.at++
		default:
			return
		}
	}
}

func (d *decoder) skip(c byte) bool {
	d.space()
	if d.at < len(d.s) && d.s[d.at] == c {
		d.at++
		return true
	}
	return false
}

func (d *decoder) value(depth int) Value {
	if depth > maxNesting {
		panic(errDepth)
	}
	d.space()
	if d.at >= len(d.s) {
		panic(errJSON)
	}
	switch c := d.s[d.at]; {
	case c == '"':
		return d.text()
	case c == '{':
		return d.object(depth)
	case c == '[':
		return d.array(depth)
	case c == '-' || isDigit(c):
		return d.number()
	}
	for _, w := range []struct {
		s string
		v Value
	}{{"true", true}, {"false", false}, {"null", nil}} {
		if strings.HasPrefix(d.s[d.at:], w.s) {
			d.at += len(w.s)
			return w.v
		}
	}
	panic(errJSON)
}

func (d *decoder) object(depth int) Value {
	d.at++
	o := NewDict(4)
	if d.skip('}') {
		return o
	}
	for {
		d.space()
		if d.at >= len(d.s) || d.s[d.at] != '"' {
			panic(errJSON)
		}
		k := d.text()
		if !d.skip(':') {
			panic(errJSON)
		}
		o.Set(k, d.value(depth+1))
		if d.skip('}') {
			return o
		}
		if !d.skip(',') {
			panic(errJSON)
		}
	}
}

func (d *decoder) array(depth int) Value {
	d.at++
	l := &List{}
	if d.skip(']') {
		return l
	}
	for {
		l.Items = append(l.Items, d.value(depth+1))
		if d.skip(']') {
			return l
		}
		if !d.skip(',') {
			panic(errJSON)
		}
	}
}

func (d *decoder) number() Value {
	from := d.at
	digits := func() bool {
		n := d.at
		for d.at < len(d.s) && isDigit(d.s[d.at]) {
			d.at++
		}
		return d.at > n
	}
	if d.s[d.at] == '-' {
		d.at++
	}
	first := d.at
	if !digits() || d.s[first] == '0' && d.at > first+1 {
		panic(errJSON)
	}
	float := false
	if d.at < len(d.s) && d.s[d.at] == '.' {
		d.at++
		float = true
		if !digits() {
			panic(errJSON)
		}
	}
	if d.at < len(d.s) && (d.s[d.at] == 'e' || d.s[d.at] == 'E') {
		d.at++
		float = true
		if d.at < len(d.s) && (d.s[d.at] == '+' || d.s[d.at] == '-') {
			d.at++
		}
		if !digits() {
			panic(errJSON)
		}
	}
	return parseNumber(d.s[from:d.at], float)
}

func (d *decoder) text() string {
	d.at++
	from := d.at
	for d.at < len(d.s) {
		switch c := d.s[d.at]; {
		case c == '"':
			d.at++
			return d.s[from : d.at-1]
		case c == '\\':
			return d.escaped(from)
		case c < ' ':
			panic(errJSON)
		}
		d.at++
	}
	panic(errJSON)
}

var jsonEscapes = map[byte]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// escaped reads a text that has escapes, from where the first one is.
func (d *decoder) escaped(from int) string {
	end := d.at
	for end < len(d.s) && d.s[end] != '"' {
		if d.s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(d.s) {
		panic(errJSON)
	}
	b := make([]byte, 0, end-from)
	b = append(b, d.s[from:d.at]...)
	for d.at < end {
		if d.s[d.at] != '\\' {
			b = append(b, d.unescaped(end)...)
			continue
		}
		d.at++
		if d.s[d.at] == 'u' {
			b = utf8.AppendRune(b, d.unicode())
			continue
		}
		e, ok := jsonEscapes[d.s[d.at]]
		if !ok {
			panic(errJSON)
		}
		b = append(b, e)
		d.at++
	}
	d.at = end + 1
	return string(b)
}

// unescaped reads up to the next escape, or to end.
func (d *decoder) unescaped(end int) string {
	n := strings.IndexByte(d.s[d.at:end], '\\')
	if n < 0 {
		n = end - d.at
	}
	run := d.s[d.at : d.at+n]
	for i := range len(run) {
		if run[i] < ' ' {
			panic(errJSON)
		}
	}
	d.at += n
	return run
}

// unicode reads an escape by number, and its second half if it is one of two.
func (d *decoder) unicode() rune {
	hex := func() (rune, bool) {
		if d.at+5 > len(d.s) || d.s[d.at] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(d.s[d.at+1:d.at+5], 16, 32)
		d.at += 5
		return rune(n), err == nil
	}
	r, ok := hex()
	if !ok {
		panic(errJSON)
	}
	if !utf16.IsSurrogate(r) {
		return r
	}
	if d.at+1 < len(d.s) && d.s[d.at] == '\\' && d.s[d.at+1] == 'u' {
		d.at++
		low, ok := hex()
		if ok && utf16.DecodeRune(r, low) != utf8.RuneError {
			return utf16.DecodeRune(r, low)
		}
	}
	panic(refuse("a lone surrogate"))
}
