package openai

import "bytes"

// Usage is what an engine says that an answer took, in tokens.
type Usage struct {
	Prompt, Output int64
	Cached         int64 // of Prompt: not computed, since the worker held them
	HasCached      bool  // engines say it only where they are told to
}

// FindUsage returns the last usage that b names, a whole answer or any part of one: the
// object of an answer or of an event of /v1/chat/completions and /v1/completions, or
// the meta_info of /generate. ok is false where there is none, or it is not whole.
func FindUsage(b []byte) (u Usage, ok bool) {
	for _, key := range []string{`"usage"`, `"meta_info"`} {
		at := bytes.LastIndex(b, []byte(key)) // not in a text: quotes are escaped there
		if at < 0 {
			continue
		}
		i := skipSpace(b, at+len(key))
		if i >= len(b) || b[i] != ':' {
			continue
		}
		if i = skipSpace(b, i+1); i < len(b) && b[i] == '{' && u.read(b, i) {
			return u, true
		}
		u = Usage{}
	}
	return u, false
}

// read reads the object at i, and reports whether it is whole and counts tokens.
func (u *Usage) read(b []byte, i int) bool {
	counted := false
	end := eachMember(b, i, 1, func(m member) bool {
		n, isCount := parseCount(m.val.Of(b))
		switch {
		case isKey(b, m.key, "prompt_tokens_details") && b[m.val.Start] == '{':
			EachMember(b, m.val, func(key, val Span) bool {
				if n, isCount := parseCount(val.Of(b)); isCount && IsKey(b, key, "cached_tokens") {
					u.Cached, u.HasCached = n, true
				}
				return true
			})
		case !isCount:
		case isKey(b, m.key, "prompt_tokens"):
			u.Prompt, counted = n, true
		case isKey(b, m.key, "completion_tokens"):
			u.Output = n
		case isKey(b, m.key, "cached_tokens"): // of meta_info
			u.Cached, u.HasCached = n, true
		}
		return true
	})
	return end >= 0 && counted
}
