package capability

import (
	"bytes"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// test judges a value as written in the body. Engines read a text as the number or the truth
// value that it spells.
type test func(value []byte) bool

// tests has the tests by their names; most is the number behind the name.
func tests(name string, most float64) test {
	switch name {
	case "given":
		return given
	case "true":
		return truthy
	case "empty":
		return func(v []byte) bool { return string(v) == `""` }
	case "from":
		return func(v []byte) bool { n, isNumber := number(v); return given(v) && (!isNumber || n >= most) }
	case "not":
		return func(v []byte) bool { n, isNumber := number(v); return given(v) && (!isNumber || n != most) }
	case "over":
		return func(v []byte) bool { n, isNumber := number(v); return isNumber && n > most }
	}
	return nil
}

func given(v []byte) bool { return v[0] != 'n' } // a value of JSON that begins so is null

// truthy takes what is no truth value, such as an object, for true unless it is empty.
func truthy(v []byte) bool {
	yes, isFlag := openai.ParseFlag(v)
	text := unquoted(v)
	return yes || !isFlag && len(text) > 0 && string(text) != "{}"
}

func number(v []byte) (n float64, ok bool) {
	const longest = 64
	if len(v) > longest {
		return 0, false
	}
	n, err := strconv.ParseFloat(string(unquoted(v)), 64)
	return n, err == nil || n != 0 // beyond the range it is infinite
}

func unquoted(v []byte) []byte { return bytes.Trim(v, `"`) }
