package openai

import "bytes"

// Usage is how many tokens an answer took, as the engine reports it.
type Usage struct {
	Prompt, Output int64
	HasOutput      bool  // the engine reports Output
	Cached         int64 // of Prompt: not computed, since the worker had them cached
	HasCached      bool  // the engine reports Cached; some do so only if configured to
}

// FindUsage returns the last usage in b, which is a whole answer or a part of one: the
// usage object, in an answer or in an event, or the meta_info of /generate. ok is false if there is none, or only a part of one.
func FindUsage(b []byte) (u Usage, ok bool) {
	for _, key := range []string{`"usage"`, `"meta_info"`} {
		at := bytes.LastIndex(b, []byte(key)) // it is a key: in a text the quotes would be escaped
		if at < 0 {
			continue
		}
		i := skipSpace(b, at+len(key))
		if i >= len(b) || b[i] != ':' {
			continue
		}
		i = skipSpace(b, i+1)
		if i < len(b) && b[i] == '{' && u.read(b, i) {
			return u, true
		}
		u = Usage{}
	}
	return u, false
}

// plus returns the sum of two usages. It has what both have.
func (u Usage) plus(v Usage) Usage {
	return Usage{
		Prompt: u.Prompt + v.Prompt, Output: u.Output + v.Output, HasOutput: u.HasOutput && v.HasOutput,
		Cached: u.Cached + v.Cached, HasCached: u.HasCached && v.HasCached,
	}
}

// read reads the object at i. It returns false if the object is cut or has no
// prompt_tokens.
func (u *Usage) read(b []byte, i int) bool {
	counted, apart := false, int64(0) // apart: of the prompt, beside what input_tokens counts in Anthropic's API
	end := eachMember(b, i, 1, func(m member) bool {
		n, isCount := parseCount(m.val.Of(b))
		switch {
		case b[m.val.Start] == '{' && (isKey(b, m.key, "prompt_tokens_details") || isKey(b, m.key, "input_tokens_details")):
			EachMember(b, m.val, func(key, val Span) bool {
				if n, isCount := parseCount(val.Of(b)); isCount && IsKey(b, key, "cached_tokens") {
					u.Cached, u.HasCached = n, true
				}
				return true
			})
		case !isCount:
		case isKey(b, m.key, "prompt_tokens"), isKey(b, m.key, "input_tokens"):
			u.Prompt, counted = n, true
		case isKey(b, m.key, "completion_tokens"), isKey(b, m.key, "output_tokens"):
			u.Output, u.HasOutput = n, true
		case isKey(b, m.key, "cache_read_input_tokens"):
			u.Cached, u.HasCached = n, true
			apart += n
		case isKey(b, m.key, "cache_creation_input_tokens"):
			apart += n
		case isKey(b, m.key, "cached_tokens"): // in meta_info
			u.Cached, u.HasCached = n, true
		}
		return true
	})
	u.Prompt += apart
	return end >= 0 && counted
}
