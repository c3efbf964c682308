package jinja

import (
	"math"
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
func Decode(raw []byte) (Value, error) {
	d := decoder{s: string(raw)}
	if !utf8.ValidString(d.s) {
		return nil, refuse("JSON that is not UTF-8")
	}
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	d.space()
	if d.at < len(d.s) {
		return nil, d.bad()
	}
	return v, nil
}

// decoder reads s, which texts without escapes share.
type decoder struct {
	s  string
	at int
}

func (d *decoder) bad() error { return refuse("a member that is no JSON") }

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

func (d *decoder) value(depth int) (Value, error) {
	if depth > maxNesting {
		return nil, errDepth
	}
	d.space()
	if d.at >= len(d.s) {
		return nil, d.bad()
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
			return w.v, nil
		}
	}
	return nil, d.bad()
}

func (d *decoder) object(depth int) (Value, error) {
	d.at++
	o := NewDict(4)
	if d.skip('}') {
		return o, nil
	}
	for {
		d.space()
		if d.at >= len(d.s) || d.s[d.at] != '"' {
			return nil, d.bad()
		}
		k, err := d.text()
		if err != nil {
			return nil, err
		}
		if !d.skip(':') {
			return nil, d.bad()
		}
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		o.Set(k, v)
		if d.skip('}') {
			return o, nil
		}
		if !d.skip(',') {
			return nil, d.bad()
		}
	}
}

func (d *decoder) array(depth int) (Value, error) {
	d.at++
	l := &List{}
	if d.skip(']') {
		return l, nil
	}
	for {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
		if d.skip(']') {
			return l, nil
		}
		if !d.skip(',') {
			return nil, d.bad()
		}
	}
}

func (d *decoder) number() (Value, error) {
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
		return nil, d.bad()
	}
	float := false
	if d.at < len(d.s) && d.s[d.at] == '.' {
		d.at++
		float = true
		if !digits() {
			return nil, d.bad()
		}
	}
	if d.at < len(d.s) && (d.s[d.at] == 'e' || d.s[d.at] == 'E') {
		d.at++
		float = true
		if d.at < len(d.s) && (d.s[d.at] == '+' || d.s[d.at] == '-') {
			d.at++
		}
		if !digits() {
			return nil, d.bad()
		}
	}
	if float {
		f, err := strconv.ParseFloat(d.s[from:d.at], 64)
		if err != nil || math.IsInf(f, 0) {
			return nil, refuse("a number out of range")
		}
		return f, nil
	}
	n, err := strconv.Atoi(d.s[from:d.at])
	if err != nil {
		return nil, refuse("an integer beyond 64 bits")
	}
	return n, nil
}

func (d *decoder) text() (string, error) {
	d.at++
	from := d.at
	for d.at < len(d.s) {
		switch c := d.s[d.at]; {
		case c == '"':
			d.at++
			return d.s[from : d.at-1], nil
		case c == '\\':
			return d.escaped(from)
		case c < ' ':
			return "", d.bad()
		}
		d.at++
	}
	return "", d.bad()
}

var jsonEscapes = map[byte]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// escaped reads a text that has escapes, from where the first one is.
func (d *decoder) escaped(from int) (string, error) {
	end := d.at
	for end < len(d.s) && d.s[end] != '"' {
		if d.s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(d.s) {
		return "", d.bad()
	}
	b := make([]byte, 0, end-from)
	b = append(b, d.s[from:d.at]...)
	for d.at < end {
		if d.s[d.at] != '\\' {
			run, err := d.unescaped(end)
			if err != nil {
				return "", err
			}
			b = append(b, run...)
			continue
		}
		d.at++
		if d.s[d.at] == 'u' {
			r, err := d.unicode()
			if err != nil {
				return "", err
			}
			b = utf8.AppendRune(b, r)
			continue
		}
		e, ok := jsonEscapes[d.s[d.at]]
		if !ok {
			return "", d.bad()
		}
		b = append(b, e)
		d.at++
	}
	d.at = end + 1
	return string(b), nil
}

// unescaped reads up to the next escape, or to end.
func (d *decoder) unescaped(end int) (string, error) {
	n := strings.IndexByte(d.s[d.at:end], '\\')
	if n < 0 {
		n = end - d.at
	}
	run := d.s[d.at : d.at+n]
	for i := range len(run) {
		if run[i] < ' ' {
			return "", d.bad()
		}
	}
	d.at += n
	return run, nil
}

// unicode reads an escape by number, and its second half if it is one of two.
func (d *decoder) unicode() (rune, error) {
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
		return 0, d.bad()
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if d.at+1 < len(d.s) && d.s[d.at] == '\\' && d.s[d.at+1] == 'u' {
		d.at++
		low, ok := hex()
		if ok && utf16.DecodeRune(r, low) != utf8.RuneError {
			return utf16.DecodeRune(r, low), nil
		}
	}
	return 0, refuse("a lone surrogate")
}
