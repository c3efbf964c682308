package sidechannel

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// HandoffFields is the hand-off object in a request.
type HandoffFields struct {
	C      *core.Call
	name   string
	Raw    []byte
	Fields map[string][]byte
}

// ReadHandoff splits a hand-off into its fields. A value that is not an object is a bad
// request.
func ReadHandoff(c *core.Call, name string, raw []byte) (HandoffFields, error) {
	f := HandoffFields{C: c, name: name, Raw: raw, Fields: make(map[string][]byte)}
	err := core.EachField(raw, func(key string, v []byte) error {
		if _, twice := f.Fields[key]; twice {
			return fmt.Errorf("%s is in it more than once", key)
		}
		f.Fields[key] = v
		return nil
	})
	if err != nil {
		return f, c.Broken("bad_handoff", http.StatusBadRequest, "%s: %v", name, err)
	}
	return f, nil
}

// Value returns a field that must exist and begin with one of the bytes in kinds.
func (f HandoffFields) Value(key, kinds string) ([]byte, error) {
	v := f.Fields[key]
	if core.IsNull(v) {
		return nil, f.C.Broken("bad_handoff", http.StatusInternalServerError, "%s: %s is missing", f.name, key)
	}
	if !strings.Contains(kinds, string(v[0])) {
		return nil, f.C.Broken("bad_handoff", http.StatusBadRequest, "%s: %s %.40s: of the wrong type", f.name, key, v)
	}
	return v, nil
}

// Text reads a string.
func (f HandoffFields) Text(key string) (string, error) {
	v, err := f.Value(key, `"`)
	if err != nil {
		return "", err
	}
	s, _ := core.Unquote(v)
	return s, nil
}

// Number reads an integer from lowest to highest. It must be written as an integer.
func (f HandoffFields) Number(key string, lowest, highest int64) (int64, error) {
	v, err := f.Value(key, "-0123456789")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < lowest || n > highest {
		return 0, f.C.Broken("bad_handoff", http.StatusBadRequest, "%s: %s %.40s: expected an integer from %d to %d", f.name, key, v, lowest, highest)
	}
	return n, nil
}

// Flag reads a boolean. A missing one is false.
func (f HandoffFields) Flag(key string) (bool, error) {
	switch v := f.Fields[key]; string(v) {
	case "true":
		return true, nil
	case "", "null", "false":
		return false, nil
	default:
		return false, f.C.Broken("bad_handoff", http.StatusBadRequest, "%s: %s %.40s: expected a boolean", f.name, key, v)
	}
}

// Spoil returns the answer's field with the hand-off, in the form that the fault
// bad_handoff asks for.
func Spoil(f core.Fault, key, text string) string {
	field := strconv.Quote(key) + ":"
	if f.Mode != core.FaultBadHandoff || text == "null" {
		return field + text
	}
	switch f.Form {
	case core.FormList:
		return field + "[" + text + "]"
	case core.FormTwice:
		return field + text + "," + field + text
	case core.FormBroken:
		return field + text[:len(text)/2]
	default:
		return field + strconv.Quote(text)
	}
}
