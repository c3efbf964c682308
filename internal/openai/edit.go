package openai

import "slices"

// InjectInPlace inserts members before the closing brace of the body's object, after a
// comma if one is needed. members is JSON text such as
//
//	"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":1
//
// With empty members nothing changes. The result is in body's own memory, of which only the
// closing brace and what follows move. It allocates, and copies the body, only if body's
// capacity is too small. Afterwards r describes the result: its spans have not moved, and
// the new members are not among its fields.
func InjectInPlace(body []byte, r *Request, members []byte) []byte {
	if len(members) == 0 {
		return body
	}
	n := len(members)
	if r.count > 0 {
		n++
	}
	size := len(body)
	body = slices.Grow(body, n)[:size+n]
	copy(body[r.end+n:], body[r.end:size])
	at := r.end
	if r.count > 0 {
		body[at] = ','
		at++
	}
	copy(body[at:], members)
	r.end += n
	r.count++
	return body
}

// Edit sets one member to a raw JSON value, or removes the member.
type Edit struct {
	Field Field
	Value []byte // valid JSON; nil removes the member
}

// AppendEdited appends body with the edits made, in one pass. A member that exists keeps
// its place and the spelling of its key. A new one is added at the end of the object, in
// the order of edits. A member is removed with one comma. No other byte changes. Of
// several edits of one field the last one counts.
//
// An edit of [MaxNewTokens] changes sampling_params, which is added if it is missing or
// null. One of [MinNewTokens] replaces the member if it is there. Neither is made if
// sampling_params is a list, or has an edit itself. dst must not share memory with body.
func AppendEdited(dst, body []byte, r *Request, edits ...Edit) []byte {
	e := editor{body: body, r: r, dst: dst, kept: r.count}
	for i, ed := range edits {
		e.by[ed.Field] = uint8(i + 1)
	}
	for _, f := range r.order[:r.known] {
		switch i := e.by[f]; {
		case i > 0:
			e.change(&r.members[f], edits[i-1].Value)
		case f == SamplingParams:
			e.editSampling(edits)
		}
	}
	e.copyTo(r.end)
	for i, ed := range edits {
		if int(e.by[ed.Field]) == i+1 && ed.Value != nil {
			e.add(ed)
		}
	}
	return append(e.dst, body[r.end:]...)
}

// editor is the state of one AppendEdited.
type editor struct {
	body []byte
	r    *Request
	by   [numFields]uint8 // the number of a field's edit, counted from 1; 0: none

	dst  []byte
	pos  int // body has been copied up to here
	lead int // how many of the first members were removed, without one that stays between
	kept int // members that stay or were added
}

func (e *editor) copyTo(end int) {
	e.dst = append(e.dst, e.body[e.pos:end]...)
	e.pos = end
}

// change replaces or removes a top-level member.
func (e *editor) change(m *member, value []byte) {
	if value == nil {
		e.kept--
		e.cut(m, &e.lead)
		return
	}
	e.replace(m.val, value)
}

func (e *editor) replace(s Span, value []byte) {
	e.copyTo(s.Start)
	e.dst = append(e.dst, value...)
	e.pos = s.End
}

// cut removes a member with the comma before it, or, if no member before it stays, with
// the comma after it.
func (e *editor) cut(m *member, lead *int) {
	if m.ordinal != *lead {
		e.copyTo(m.comma)
		e.pos = m.val.End
		return
	}
	*lead++
	e.copyTo(m.key.Start)
	e.pos = m.val.End
	if e.body[m.after] == ',' {
		e.pos = m.after + 1
	}
}

// editSampling makes the edits within sampling_params, in the body's order.
func (e *editor) editSampling(edits []Edit) {
	limit, least := &e.r.members[MaxNewTokens], &e.r.members[MinNewTokens]
	lower := e.by[MinNewTokens] > 0 && least.found()
	first := lower && least.val.Start < limit.val.Start
	if first {
		e.replace(least.val, edits[e.by[MinNewTokens]-1].Value)
	}
	if e.by[MaxNewTokens] > 0 {
		e.changeSampling(edits[e.by[MaxNewTokens]-1].Value)
	}
	if lower && !first {
		e.replace(least.val, edits[e.by[MinNewTokens]-1].Value)
	}
}

// changeSampling sets or removes max_new_tokens in sampling_params.
func (e *editor) changeSampling(value []byte) {
	m, s := &e.r.members[MaxNewTokens], e.r.members[SamplingParams].val
	switch {
	case e.r.samplingList:
	case m.found() && value == nil:
		lead := 0
		e.cut(m, &lead)
	case m.found():
		e.replace(m.val, value)
	case value == nil:
	case e.body[s.Start] == '{':
		e.copyTo(s.Start + 1)
		e.dst = e.appendLimit(value)
		if e.r.samplingCount > 0 {
			e.dst = append(e.dst, ',')
		}
	default: // null
		e.copyTo(s.Start)
		e.dst = append(e.appendLimit(value, '{'), '}')
		e.pos = s.End
	}
}

// add appends a member that the body does not have.
func (e *editor) add(ed Edit) {
	nested := ed.Field == MaxNewTokens
	if e.r.Has(ed.Field) || ed.Field == NoField || ed.Field == MinNewTokens ||
		nested && (e.r.Has(SamplingParams) || e.by[SamplingParams] > 0) {
		return
	}
	if e.kept > 0 {
		e.dst = append(e.dst, ',')
	}
	e.kept++
	if nested {
		e.dst = append(e.dst, `"sampling_params":`...)
		e.dst = append(e.appendLimit(ed.Value, '{'), '}')
		return
	}
	e.dst = append(e.dst, '"')
	e.dst = append(e.dst, ed.Field.String()...)
	e.dst = append(e.dst, `":`...)
	e.dst = append(e.dst, ed.Value...)
}

// appendLimit appends the member of sampling_params that limits the tokens, behind what is
// before it.
func (e *editor) appendLimit(value []byte, before ...byte) []byte {
	most, _ := e.r.Path.limits()
	dst := append(append(append(e.dst, before...), '"'), most...)
	return append(append(dst, `":`...), value...)
}
