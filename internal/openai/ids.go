package openai

import (
	"errors"
	"math"
)

var (
	errNoID   = errors.New("openai: token ids: expected a list of integers")
	errIDSize = errors.New("openai: token ids: expected integers below 2^32")
)

// AppendTokenIDs appends the token ids of the list at s. Of a list of lists it
// reads the first. It keeps nothing of body and, given room in dst, allocates
// nothing. On an error dst is returned as it came.
func AppendTokenIDs(dst []uint32, body []byte, s Span) ([]uint32, error) {
	b := s.Of(body)
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		return dst, errNoID
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '[' {
		i = skipSpace(b, i+1)
	}
	start := len(dst)
	if i < len(b) && b[i] == ']' {
		return dst, nil
	}
	for {
		var id uint64
		at := i
		for ; i < len(b) && isDigit(b[i]); i++ {
			if id = id*10 + uint64(b[i]-'0'); id > math.MaxUint32 {
				return dst[:start], errIDSize
			}
		}
		if i == at {
			return dst[:start], errNoID
		}
		dst = append(dst, uint32(id))
		if i = skipSpace(b, i); i >= len(b) {
			return dst[:start], errNoID
		}
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
		case ']':
			return dst, nil
		default:
			return dst[:start], errNoID
		}
	}
}

// CountTokenIDs counts the ids in the list, or in the lists of the list, at s.
// It returns false for anything else.
func CountTokenIDs(body []byte, s Span) (int, bool) {
	b := s.Of(body)
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		return 0, false
	}
	l := promptList{kind: PromptIDs}
	if k := skipSpace(b, i+1); k < len(b) && b[k] == '[' {
		l.kind = PromptIDLists
	}
	_, ok := l.scan(b, i)
	return l.tokens, ok
}

// FindValue returns where the value of the key stands in the object that is
// the whole of body. It checks the body up to there. It is for answers of an
// engine; request bodies are read with [Scan].
func FindValue(body []byte, key string) (Span, bool) {
	var s Span
	i := skipSpace(body, 0)
	if i >= len(body) || body[i] != '{' {
		return s, false
	}
	eachMember(body, i, 0, func(m member) bool {
		if isKey(body, m.key, key) {
			s = m.val
			return false
		}
		return true
	})
	return s, s.End != 0
}
