package capability

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// Source is where a row is shown.
type Source struct {
	Version string // of the engine
	Place   string // the file, and what in it
}

// Path is a path that an engine serves.
type Path struct {
	Pattern string // as in a request line; a name in braces is one segment
	Apart   bool   // a hand-off is taken; else one worker serves the request
	Any     bool   // of any role
	Source  Source
}

// Row says what a member means for a hand-off.
type Row struct {
	Paths  []string
	Member string
	Stops  string // the values that prevent a hand-off, as the file has them; "": none
	Never  bool   // such a value ends the engine: it must not get one
	Tokens bool   // with any value the prompt has other tokens
	Source Source
	when   []condition
}

// condition is a member with a value that passes the test.
type condition struct {
	member string
	passes test
}

// Table is what an engine takes.
type Table struct {
	Paths []Path
	Rows  []Row
	on    [openai.Other]map[string][]*Row
	never [openai.Other][]*Row
}

// Obstacle is what of a request prevents a hand-off. The zero value is none.
type Obstacle struct {
	Member  string // as written in the body
	Unknown bool   // no row has the member
}

// longest is how long a member's name is at most, and how much is told of a longer one.
const longest = 64

// Takes reports whether a hand-off is taken on the path.
func (t *Table) Takes(p openai.Path) bool { return t != nil && p < openai.Other && t.on[p] != nil }

// Obstacle returns the first member of the request that prevents a hand-off. body is the body
// that r was read from, and known says which members may be handed over though no row has them.
func (t *Table) Obstacle(body []byte, r *openai.Request, known func(member string) bool) (o Obstacle) {
	j := judge{t.on[r.Path], body, r, known}
	all := r.EachMember(func(f openai.Field, key, val openai.Span) bool {
		o = j.member(f, key, val)
		return o == Obstacle{}
	})
	if o == (Obstacle{}) && !all {
		o = Obstacle{Member: "members", Unknown: true}
	}
	return o
}

// mostUnlisted is how many names Unlisted returns at most.
const mostUnlisted = 8

// Unlisted returns the names of the members of the request that no row has, in their order and once
// each: what is not known to be served. Of many it returns the first few.
func (t *Table) Unlisted(body []byte, r *openai.Request) (names []string) {
	if !t.Takes(r.Path) {
		return nil
	}
	j := judge{t.on[r.Path], body, r, func(name string) bool {
		at, has := slices.BinarySearch(names, name)
		if !has {
			names = slices.Insert(names, at, strings.Clone(name))
		}
		names = names[:min(len(names), mostUnlisted)]
		return true
	}}
	r.EachMember(func(f openai.Field, key, val openai.Span) bool {
		j.member(f, key, val)
		return true
	})
	return names
}

// Ends returns the row of the member by which the engine would end, or nil.
func (t *Table) Ends(body []byte, r *openai.Request) (row *Row) {
	if t == nil || r.Path >= openai.Other {
		return nil
	}
	j := judge{body: body, r: r}
	for _, never := range t.never[r.Path] {
		if j.all(never.when) {
			return never
		}
	}
	return nil
}

// Retokens calls visit with the value of each member of the request by which its prompt has other
// tokens. Of members beyond [openai.MostOthers] nobody knows, so visit then gets the whole body.
func (t *Table) Retokens(body []byte, r *openai.Request, visit func(value []byte)) {
	if !t.Takes(r.Path) {
		return
	}
	all := r.EachMember(func(f openai.Field, key, val openai.Span) bool {
		rows := t.on[r.Path][f.String()]
		if f == openai.NoField {
			rows = t.on[r.Path][string(openai.KeyText(body, key))]
		}
		if slices.ContainsFunc(rows, func(row *Row) bool { return row.Tokens }) && given(val.Of(body)) {
			visit(val.Of(body))
		}
		return true
	})
	if !all {
		visit(body)
	}
}

// judge judges the members of one request.
type judge struct {
	rows  map[string][]*Row
	body  []byte
	r     *openai.Request
	known func(string) bool
}

// member judges one member of the body.
func (j *judge) member(f openai.Field, key, val openai.Span) (o Obstacle) {
	if f == openai.NoField {
		o = j.named("", openai.KeyText(j.body, key), val)
	} else {
		o = j.found(j.rows[f.String()], f.String(), val)
	}
	if f == openai.SamplingParams && o == (Obstacle{}) {
		o = j.sampling(val)
	}
	return o
}

// sampling is what stands before the members of sampling_params in the table.
const sampling = "sampling_params."

// named judges a member that is found by its name, which stands behind a prefix in the table.
func (j *judge) named(prefix string, name []byte, val openai.Span) Obstacle {
	if len(name) > longest {
		return j.found(nil, prefix+string(bytes.ToValidUTF8(name[:longest], nil)), val)
	}
	var room [len(sampling) + longest]byte
	full := append(append(room[:0], prefix...), name...)
	if rows := j.rows[string(full)]; rows != nil {
		return j.found(rows, rows[0].Member, val)
	}
	return j.found(nil, string(full), val)
}

// found judges a member by the rows that have it. One that is null prevents nothing.
func (j *judge) found(rows []*Row, name string, val openai.Span) Obstacle {
	if j.body[val.Start] == 'n' {
		return Obstacle{}
	}
	for _, row := range rows {
		if j.stands(row, val) {
			return Obstacle{Member: row.Member}
		}
	}
	if rows == nil && (j.known == nil || !j.known(name)) {
		return Obstacle{Member: cmp.Or(name, `""`), Unknown: true}
	}
	return Obstacle{}
}

// sampling judges the members of sampling_params, or of the elements of its list.
func (j *judge) sampling(val openai.Span) (o Obstacle) {
	each := func(s openai.Span) {
		openai.EachMember(j.body, s, func(key, val openai.Span) bool {
			if o == (Obstacle{}) {
				o = j.named(sampling, openai.KeyText(j.body, key), val)
			}
			return o == Obstacle{}
		})
	}
	each(val)
	openai.EachElement(j.body, val, each)
	return o
}

// stands reports whether the row's member, with this value, prevents a hand-off.
func (j *judge) stands(row *Row, val openai.Span) bool {
	return len(row.when) > 0 && passes(j.body, val, row.when[0].passes, listDepth) && j.all(row.when[1:])
}

// all reports whether the request has members that meet the conditions.
func (j *judge) all(when []condition) bool {
	return !slices.ContainsFunc(when, func(c condition) bool { return !j.has(&c) })
}

// has reports whether the request has a member that meets the condition.
func (j *judge) has(c *condition) (has bool) {
	j.r.EachMember(func(f openai.Field, key, val openai.Span) bool {
		is := f.String() == c.member || f == openai.NoField && openai.IsKey(j.body, key, c.member)
		has = is && passes(j.body, val, c.passes, listDepth)
		return !has
	})
	return has
}

// listDepth is how deep lists nest in which an element may pass.
const listDepth = 2

func passes(body []byte, s openai.Span, t test, depth int) (yes bool) {
	if depth == 0 || body[s.Start] != '[' {
		return t(s.Of(body))
	}
	openai.EachElement(body, s, func(e openai.Span) { yes = yes || passes(body, e, t, depth-1) })
	return yes
}
