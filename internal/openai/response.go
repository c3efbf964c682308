package openai

import (
	"strconv"
	"strings"
)

// The id of a response says which worker keeps it, so that no router has to remember that: a client
// names the response by it. It looks like an engine's own, resp_ and 32 hexadecimal digits: 16 drawn
// at random, and 16 of the worker's id.
const (
	responseMark = "resp_"
	digitsOfHalf = 16
)

// AppendResponseID appends the id of a response that the worker makes.
func AppendResponseID(dst []byte, drawn, worker uint64) []byte {
	dst = append(dst, responseMark...)
	for _, n := range [...]uint64{drawn, worker} {
		half := strconv.FormatUint(n, 16)
		dst = append(append(dst, strings.Repeat("0", digitsOfHalf-len(half))...), half...)
	}
	return dst
}

// KeeperOf returns the worker that a response's id names. ok is false if it names none.
func KeeperOf(id string) (worker uint64, ok bool) {
	digits, marked := strings.CutPrefix(id, responseMark)
	if !marked || len(digits) != 2*digitsOfHalf {
		return 0, false
	}
	worker, err := strconv.ParseUint(digits[digitsOfHalf:], 16, 64)
	return worker, err == nil && worker != 0
}

// ResponseAt returns the id of the response that a path names, as /v1/responses/ID/cancel does; ""
// if it names none.
func ResponseAt(path string) string {
	path, _, _ = strings.Cut(path, "?")
	below, is := strings.CutPrefix(path, Responses.String()+"/")
	id, more, _ := strings.Cut(below, "/")
	if !is || !strings.HasPrefix(id, responseMark) || more != "" && more != "cancel" && more != "input_items" {
		return ""
	}
	return id
}
