package openai

import "slices"

// eachMember calls fn with each member of the object at i, whose value has been checked.
// depth is how many arrays and objects are open around the object. It returns the offset
// after the object, or the complement of the offset of a fault. If fn returns false, it
// stops and returns the end of that member's value.
func eachMember(b []byte, i, depth int, fn func(m member) bool) int {
	m := member{comma: i}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	if depth >= MaxDepth {
		return ^i
	}
	for {
		m.key.Start = i
		v := skipKey(b, i)
		if v < 0 {
			return v
		}
		m.key.End = keyEnd(b, v)
		end := skipValue(b, v, depth+1)
		if end < 0 {
			return end
		}
		m.val = Span{v, end}
		i = skipSpace(b, end)
		if i >= len(b) || b[i] != ',' && b[i] != '}' {
			return ^i
		}
		m.after = i
		if !fn(m) {
			return end
		}
		if b[i] == '}' {
			return i + 1
		}
		m.comma = i
		m.ordinal++
		i = skipSpace(b, i+1)
	}
}

// eachElement is eachMember for the array at i; fn gets the span of the element.
func eachElement(b []byte, i, depth int, fn func(s Span)) int {
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return i + 1
	}
	if depth >= MaxDepth {
		return ^i
	}
	for {
		end := skipValue(b, i, depth+1)
		if end < 0 {
			return end
		}
		fn(Span{i, end})
		i = skipSpace(b, end)
		if i >= len(b) || b[i] != ',' && b[i] != ']' {
			return ^i
		}
		if b[i] == ']' {
			return i + 1
		}
		i = skipSpace(b, i+1)
	}
}

// isKey reports whether the quoted key is name, in any spelling.
func isKey(b []byte, key Span, name string) bool {
	var buf [6 * maxKeyLen]byte
	return string(keyOf(b, key, &buf)) == name
}

// keyOf returns the quoted key unescaped, in buf if it has escapes. It returns nil for an
// escaped key that is longer than any name that is looked for.
func keyOf(b []byte, key Span, buf *[6 * maxKeyLen]byte) []byte {
	raw := b[key.Start+1 : key.End-1]
	switch {
	case !hasEscape(raw):
		return raw
	case len(raw) > len(buf):
		return nil
	default:
		return AppendUnescaped(buf[:0], raw)
	}
}

// limits returns the names in sampling_params of the greatest and the least number of tokens.
func (p Path) limits() (most, least string) {
	if p == TokensIn {
		return "max_tokens", "min_tokens"
	}
	return "max_new_tokens", "min_new_tokens"
}

// scanSampling reads n and the limits in sampling_params at v: an object, or for SGLang a list
// with one object for each prompt.
func (r *Request) scanSampling(body []byte, v int, injected bool) (int, error) {
	end := skipValue(body, v, 1)
	switch {
	case end < 0:
		return 0, notJSON(^end, "a value")
	case body[v] == '{':
		err := r.readSampling(body, v, true)
		if err == nil && r.Path == TokensIn && !injected { // vLLM's extra_args may hold what only a router may set
			err = forbiddenWithin(body[:end], v)
		}
		return end, err
	case body[v] == '[' && r.Path == Generate:
		r.samplingList = true
		var err error
		eachElement(body, v, 1, func(s Span) {
			if err == nil && body[s.Start] == '{' {
				err = r.readSampling(body, s.Start, false)
			}
		})
		return end, err
	case body[v] == 'n':
		return end, nil
	default:
		return 0, wrongType(SamplingParams, v, map[Path]string{Generate: "an object or a list of objects", TokensIn: "an object"}[r.Path])
	}
}

// readSampling reads one object of sampling parameters. Over several objects the greatest
// n and the greatest limit count. If single is true, it notes where the limit and the
// minimum are, for edits.
func (r *Request) readSampling(body []byte, v int, single bool) error {
	var err error
	most, least := r.Path.limits()
	names, fields := [...]string{"n", most, least}, [...]Field{N, MaxNewTokens, MinNewTokens}
	var seen [len(fields)]bool
	eachMember(body, v, 1, func(m member) bool {
		if single {
			r.samplingCount++
		}
		i := slices.IndexFunc(names[:], func(name string) bool { return isKey(body, m.key, name) })
		if i < 0 {
			return true
		}
		if seen[i] {
			err = &Error{Kind: DuplicateField, Field: "sampling_params." + names[i], Offset: m.key.Start}
			return false
		}
		f := fields[i]
		seen[i] = true
		if single && f != N {
			r.members[f] = m
		}
		if f == MinNewTokens || body[m.val.Start] == 'n' {
			return true
		}
		n, limit := r.N, r.MaxTokens
		count, ok := parseCount(m.val.Of(body))
		err = r.setCount(f, count, ok, m.val.Start)
		r.N, r.MaxTokens = max(n, r.N), max(limit, r.MaxTokens)
		return err == nil
	})
	return err
}
