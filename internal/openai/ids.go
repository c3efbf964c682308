package openai

import (
	"errors"
	"math"
)

var (
	errNoID   = errors.New("openai: token ids: expected a list of integers")
	errIDSize = errors.New("openai: token ids: expected integers below 2^32")
)

// AppendTokenIDs appends the token ids of the list at s; of a list of lists, those of the
// first. It keeps no reference to body, and allocates nothing if dst has room. With an
// error dst is returned unchanged.
func AppendTokenIDs(dst []uint32, body []byte, s Span) ([]uint32, error) {
	b := s.Of(body)
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		return dst, errNoID
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '[' {
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
			id = id*10 + uint64(b[i]-'0')
			if id > math.MaxUint32 {
				return dst[:start], errIDSize
			}
		}
		if i == at {
			return dst[:start], errNoID
		}
		dst = append(dst, uint32(id))
		i = skipSpace(b, i)
		if i >= len(b) {
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

// CountTokenIDs counts the ids in the list at s, or in all lists of a list of lists. It
// returns false for any other value.
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

// FindValue returns the value of the key, if body is an object that has it. It checks
// body up to there. False means that there is no such member, or that body is not valid
// up to there. Bodies of requests have to go through [Scan] first.
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
