package capability

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// test judges a value as written in the body. Engines read a text as the number or the truth
// value that it spells.
type test func(value []byte) bool

// tests has the tests by their names; behind is the number or the word behind the name.
func tests(name, behind string) (test, error) {
	switch name {
	case "given":
		return given, nil
	case "true":
		return truthy, nil
	case "empty":
		return func(v []byte) bool { return string(v) == `""` }, nil
	case "is":
		return func(v []byte) bool { return string(unquoted(v)) == behind }, nil
	case "beside":
		return func(v []byte) bool { return typedBeside(v, strings.Split(behind, ",")) }, nil
	}
	most, err := strconv.ParseFloat(behind, 64)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	switch name {
	case "from":
		return func(v []byte) bool { n, isNumber := number(v); return given(v) && (!isNumber || n >= most) }, err
	case "not":
		return func(v []byte) bool { n, isNumber := number(v); return given(v) && (!isNumber || n != most) }, err
	case "over":
		return func(v []byte) bool { n, isNumber := number(v); return isNumber && n > most }, err
	}
	return nil, fmt.Errorf("%s: expected given, true, empty, is, beside, from, over or not", name)
}

// typedBeside reports whether the value is an object whose member type is none of the types.
func typedBeside(v []byte, types []string) bool {
	known := false
	openai.EachMember(v, openai.Span{End: len(v)}, func(key, val openai.Span) bool {
		known = known || openai.IsKey(v, key, "type") && slices.Contains(types, string(unquoted(val.Of(v))))
		return !known
	})
	return given(v) && !known
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
