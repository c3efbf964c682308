package core

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// The functions below read JSON that json.Valid has accepted. Unlike encoding/json they
// compare keys exactly and report repeated keys in order. They copy no values.

// EachField calls f for every member of the object v, with the key unquoted and the
// value's raw JSON. v must be a valid JSON object.
func EachField(v []byte, f func(key string, value []byte) error) error {
	i := skipSpace(v, 0)
	if i == len(v) || v[i] != '{' {
		return fmt.Errorf("expected an object")
	}
	for i = skipSpace(v, i+1); v[i] != '}'; {
		end := skipValue(v, i)
		key, _ := Unquote(v[i:end])
		i = skipSpace(v, skipSpace(v, end)+1)
		end = skipValue(v, i)
		if err := f(key, v[i:end]); err != nil {
			return err
		}
		i = skipSpace(v, end)
		if v[i] == ',' {
			i = skipSpace(v, i+1)
		}
	}
	return nil
}

// EachElem calls f for every element of the array v, which must be valid JSON.
func EachElem(v []byte, f func(value []byte) error) error {
	i := skipSpace(v, 0)
	if i == len(v) || v[i] != '[' {
		return fmt.Errorf("expected an array")
	}
	for i = skipSpace(v, i+1); v[i] != ']'; {
		end := skipValue(v, i)
		if err := f(v[i:end]); err != nil {
			return err
		}
		i = skipSpace(v, end)
		if v[i] == ',' {
			i = skipSpace(v, i+1)
		}
	}
	return nil
}

func skipSpace(v []byte, i int) int {
	for i < len(v) && (v[i] == ' ' || v[i] == '\n' || v[i] == '\t' || v[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the end of the value that begins at i.
func skipValue(v []byte, i int) int {
	switch v[i] {
	case '"':
		return skipString(v, i)
	case '{', '[':
		for depth := 0; ; {
			switch v[i] {
			case '"':
				i = skipString(v, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
				if depth == 0 {
					return i + 1
				}
			}
			i++
		}
	default:
		for i < len(v) && v[i] != ',' && v[i] != '}' && v[i] != ']' && skipSpace(v, i) == i {
			i++
		}
		return i
	}
}

func skipString(v []byte, i int) int {
	for i++; ; {
		q := bytes.IndexByte(v[i:], '"')
		esc := bytes.IndexByte(v[i:i+q], '\\')
		if esc < 0 {
			return i + q + 1
		}
		i += esc + 2
	}
}

// Unquote reads a JSON string; ok is false for any other value.
func Unquote(v []byte) (s string, ok bool) {
	if len(v) < 2 || v[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1]), true
	}
	return s, json.Unmarshal(v, &s) == nil
}

// IsNull reports whether the field is absent or null.
func IsNull(v []byte) bool { return len(v) == 0 || string(v) == "null" }

// TokenIDs reads an array of token ids.
func TokenIDs(v []byte) ([]uint32, error) {
	ids := make([]uint32, 0, len(v)/5+1)
	err := EachElem(v, func(e []byte) error {
		n, err := strconv.ParseUint(string(e), 10, 32)
		if err != nil {
			return fmt.Errorf("token id %.20q: expected a number from 0 to 2^32-1", e)
		}
		ids = append(ids, uint32(n))
		return nil
	})
	return ids, err
}
