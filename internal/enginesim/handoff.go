package enginesim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// handoffFields is the hand-off object in a request.
type handoffFields struct {
	c      *call
	name   string
	raw    []byte
	fields map[string][]byte
}

// readHandoff splits a hand-off into its fields. A value that is not an object is a bad
// request.
func readHandoff(c *call, name string, raw []byte) (handoffFields, error) {
	f := handoffFields{c: c, name: name, raw: raw, fields: make(map[string][]byte)}
	err := eachField(raw, func(key string, v []byte) error {
		if _, twice := f.fields[key]; twice {
			return fmt.Errorf("%s is in it more than once", key)
		}
		f.fields[key] = v
		return nil
	})
	if err != nil {
		return f, c.broken("bad_handoff", http.StatusBadRequest, "%s: %v", name, err)
	}
	return f, nil
}

// value returns a field that must exist and begin with one of the bytes in kinds.
func (f handoffFields) value(key, kinds string) ([]byte, error) {
	v := f.fields[key]
	if isNull(v) {
		return nil, f.c.broken("bad_handoff", http.StatusInternalServerError, "%s: %s is missing", f.name, key)
	}
	if !strings.Contains(kinds, string(v[0])) {
		return nil, f.c.broken("bad_handoff", http.StatusBadRequest, "%s: %s %.40s: of the wrong type", f.name, key, v)
	}
	return v, nil
}

func (f handoffFields) text(key string) (string, error) {
	v, err := f.value(key, `"`)
	if err != nil {
		return "", err
	}
	s, _ := unquote(v)
	return s, nil
}

// number reads an integer from lowest to highest. It must be written as an integer.
func (f handoffFields) number(key string, lowest, highest int64) (int64, error) {
	v, err := f.value(key, "-0123456789")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < lowest || n > highest {
		return 0, f.c.broken("bad_handoff", http.StatusBadRequest, "%s: %s %.40s: expected an integer from %d to %d", f.name, key, v, lowest, highest)
	}
	return n, nil
}

// flag reads a boolean. A missing one is false.
func (f handoffFields) flag(key string) (bool, error) {
	switch v := f.fields[key]; string(v) {
	case "true":
		return true, nil
	case "", "null", "false":
		return false, nil
	default:
		return false, f.c.broken("bad_handoff", http.StatusBadRequest, "%s: %s %.40s: expected a boolean", f.name, key, v)
	}
}

// spoil returns the answer's field with the hand-off, in the form that the fault
// bad_handoff asks for.
func spoil(f Fault, key, text string) string {
	field := strconv.Quote(key) + ":"
	if f.Mode != FaultBadHandoff || text == "null" {
		return field + text
	}
	switch f.Form {
	case FormList:
		return field + "[" + text + "]"
	case FormTwice:
		return field + text + "," + field + text
	case FormBroken:
		return field + text[:len(text)/2]
	default:
		return field + strconv.Quote(text)
	}
}
