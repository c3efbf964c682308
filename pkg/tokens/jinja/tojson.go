package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonStyle is how json.dumps was asked to write.
type jsonStyle struct {
	r               *run
	ascii, sortKeys bool
	// indent is written once for each level; lines says that there are lines at all.
	indent     string
	lines      bool
	item, pair string
}

// tojson is the filter as transformers defines it: json.dumps with ensure_ascii off.
func tojson(r *run, v Value, in []Value) Value {
	st := jsonStyle{r: r, ascii: flag(in[0]), item: ", ", pair: ": ", sortKeys: flag(in[3])}
	switch n := in[1].(type) {
	case nil, unset:
	case int:
		st.lines, st.indent, st.item = true, strings.Repeat(" ", max(0, min(n, 1000))), ","
	case string:
		st.lines, st.indent, st.item = true, n, ","
	default:
		panic(refuse("tojson with such an indent"))
	}
	switch s := in[2].(type) {
	case nil, unset:
	case *List:
		if len(s.Items) != 2 {
			panic(raise("tojson with separators that are no pair"))
		}
		item, ok := s.Items[0].(string)
		pair, ok2 := s.Items[1].(string)
		if !ok || !ok2 {
			panic(raise("tojson with separators that are no texts"))
		}
		st.item, st.pair = item, pair
	default:
		panic(refuse("tojson with such separators"))
	}
	b := st.write(nil, v, 0)
	return r.made(string(b))
}

func (st *jsonStyle) write(b []byte, v Value, depth int) []byte {
	if depth > st.r.limits.Depth {
		panic(errDepth)
	}
	st.r.step()
	if len(b) > st.r.bytes {
		panic(errBytes)
	}
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case float64:
		return append(b, jsonFloat(v)...)
	case string:
		return st.text(b, v)
	case *List:
		if len(v.Items) == 0 {
			return append(b, "[]"...)
		}
		b = append(b, '[')
		for i, e := range v.Items {
			b = st.between(b, i, depth+1)
			b = st.write(b, e, depth+1)
		}
		return append(st.newline(b, depth), ']')
	case *Dict:
		return st.dict(b, v, depth)
	}
	panic(wrong("tojson of %s", v))
}

func (st *jsonStyle) dict(b []byte, d *Dict, depth int) []byte {
	if d.Len() == 0 {
		return append(b, "{}"...)
	}
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	if st.sortKeys {
		sortByKeys(order, d.keys)
	}
	b = append(b, '{')
	for n, i := range order {
		b = st.between(b, n, depth+1)
		switch k := d.keys[i].(type) {
		case string:
			b = st.text(b, k)
		case nil, bool, int, float64:
			b = append(st.write(append(b, '"'), k, depth), '"')
		default:
			panic(wrong("tojson of a key that is %s", k))
		}
		b = append(b, st.pair...)
		b = st.write(b, d.vals[i], depth+1)
	}
	return append(st.newline(b, depth), '}')
}

// between writes what stands before element i.
func (st *jsonStyle) between(b []byte, i, depth int) []byte {
	if i > 0 {
		b = append(b, st.item...)
	}
	return st.newline(b, depth)
}

func (st *jsonStyle) newline(b []byte, depth int) []byte {
	if !st.lines {
		return b
	}
	b = append(b, '\n')
	for range depth {
		b = append(b, st.indent...)
	}
	return b
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return formatFloat(f)
}

// shortEscapes has what stands after the backslash for characters that have a short escape.
var shortEscapes = [256]byte{'"': '"', '\\': '\\', '\n': 'n', '\r': 'r', '\t': 't', '\f': 'f', '\b': 'b'}

func (st *jsonStyle) text(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf && st.ascii {
			r, size := utf8.DecodeRuneInString(s[i:])
			b = append(b, s[from:i]...)
			b = appendASCII(b, r)
			i += size
			from = i
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' && (c != 0x7f || !st.ascii) || c >= utf8.RuneSelf {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		i++
		from = i
		if short := shortEscapes[c]; short != 0 {
			b = append(b, '\\', short)
		} else {
			b = fmt.Appendf(b, `\u%04x`, c)
		}
	}
	return append(append(b, s[from:]...), '"')
}

func appendASCII(b []byte, r rune) []byte {
	for _, unit := range utf16.AppendRune(nil, r) {
		b = fmt.Appendf(b, `\u%04x`, unit)
	}
	return b
}
