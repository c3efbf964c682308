package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// filter is one of Jinja's filters.
type filter struct {
	params []string
	// fn is what it makes of a value; in is by params.
	fn func(r *run, v Value, in []Value) Value
	// lazy, in place of fn, fills the generator that the filter returns.
	lazy func(r *run, g *generator, v Value, args []Value, kw []kwarg)
}

// newFilters returns every filter that is done exactly. The parser refuses the others.
func newFilters() map[string]*filter {
	length := &filter{fn: func(_ *run, v Value, _ []Value) Value { return length(v) }}
	byDefault := &filter{params: []string{"default_value", "boolean"}, fn: defaultFilter}
	return map[string]*filter{
		"safe":       {fn: func(r *run, v Value, _ []Value) Value { return markup{r.str(v)} }},
		"string":     {fn: stringFilter},
		"tojson":     {params: []string{"ensure_ascii", "indent", "separators", "sort_keys"}, fn: tojson},
		"trim":       {params: []string{"chars"}, fn: trimFilter},
		"length":     length,
		"count":      length,
		"default":    byDefault,
		"d":          byDefault,
		"join":       {params: []string{"d", "attribute"}, fn: joinFilter},
		"list":       {fn: func(r *run, v Value, _ []Value) Value { return &List{Items: r.iterate(v)} }},
		"first":      {fn: firstFilter},
		"last":       {fn: lastFilter},
		"items":      {fn: itemsFilter},
		"upper":      caseFilter("upper"),
		"lower":      caseFilter("lower"),
		"capitalize": caseFilter("capitalize"),
		"replace":    {params: []string{"old", "new", "count"}, fn: replaceFilter},
		"indent":     {params: []string{"width", "first", "blank"}, fn: indentFilter},
		"reverse":    {fn: reverseFilter},
		"map":        {lazy: mapFilter},
		"select":     selectFilter(false, false),
		"reject":     selectFilter(false, true),
		"selectattr": selectFilter(true, false),
		"rejectattr": selectFilter(true, true),
		"dictsort":   {params: []string{"case_sensitive", "by", "reverse"}, fn: dictsortFilter},
		"sort":       {params: []string{"reverse", "case_sensitive", "attribute"}, fn: sortFilter},
		"int":        {params: []string{"default", "base"}, fn: intFilter},
	}
}

// apply is what the filter of that name makes of v.
func (f *filter) apply(r *run, name string, v Value, args []Value, kw []kwarg) Value {
	switch {
	case is[markup](v) && name != "safe" && name != "string":
		panic(refuse("the filter %s of what safe returns", name))
	case f.fn != nil:
		return f.fn(r, v, bind(name, args, kw, f.params))
	}
	g := &generator{}
	if !truth(v) {
		return g
	}
	// Python makes an item when it is asked for, so an exception is kept until then; a refusal
	// is not.
	g.err = try(func() { f.lazy(r, g, v, args, kw) })
	if g.err != nil && KindOf(g.err) != Raised {
		panic(g.err)
	}
	return g
}

// unset marks an argument that was not given.
type unset struct{}

// bind puts arguments under the names of parameters.
func bind(what string, args []Value, kw []kwarg, names []string) []Value {
	if len(args) > len(names) {
		panic(raise("%s with too many arguments", what))
	}
	in := make([]Value, len(names))
	for i := range in {
		in[i] = unset{}
		if i < len(args) {
			in[i] = args[i]
		}
	}
	for _, k := range kw {
		i := slices.Index(names, k.name)
		if i < 0 || i < len(args) {
			panic(raise("%s has no such argument", what))
		}
		in[i] = k.v
	}
	return in
}

func given(v Value) bool { return v != Value(unset{}) }

func orDefault(v, otherwise Value) Value {
	if given(v) {
		return v
	}
	return otherwise
}

// flag is a switch that is off unless given.
func flag(v Value) bool { return given(v) && truth(v) }

func trimFilter(r *run, v Value, in []Value) Value {
	s := r.str(v)
	if !given(in[0]) {
		in = nil
	}
	return strings.TrimFunc(s, stripSet("trim", in))
}

func defaultFilter(_ *run, v Value, in []Value) Value {
	if !is[*undefined](v) && (!flag(in[1]) || truth(v)) {
		return v
	}
	return orDefault(in[0], "")
}

func joinFilter(r *run, v Value, in []Value) Value {
	sep := ""
	if given(in[0]) {
		sep = r.str(in[0])
	}
	items := r.iterate(v)
	texts := make([]Value, len(items))
	for i, e := range items {
		if given(in[1]) && in[1] != nil {
			e = r.path(e, in[1])
		}
		texts[i] = r.str(e)
	}
	return r.joinTexts(sep, &List{Items: texts})
}

func firstFilter(r *run, v Value, _ []Value) Value {
	g, ok := v.(*generator)
	if ok && g.pos+1 < len(g.items) {
		panic(refuse("the first of a generator with more"))
	}
	s, ok := v.(string)
	if ok {
		return r.at(s, 0)
	}
	items := r.iterate(v)
	if len(items) == 0 {
		return &undefined{"the first of nothing"}
	}
	return items[0]
}

func lastFilter(r *run, v Value, _ []Value) Value {
	switch o := v.(type) {
	case *generator:
		panic(raise("the last of a generator"))
	case *undefined:
		panic(refuse("the last of what is undefined"))
	case string:
		return r.at(o, -1)
	}
	items := r.iterate(v)
	if len(items) == 0 {
		return &undefined{"the last of nothing"}
	}
	return items[len(items)-1]
}

func stringFilter(r *run, v Value, _ []Value) Value {
	if is[markup](v) {
		return v
	}
	return r.str(v)
}

func itemsFilter(r *run, v Value, _ []Value) Value {
	switch d := v.(type) {
	case *undefined:
		return &generator{}
	case *Dict:
		return &generator{items: r.pairs(d)}
	}
	return &generator{err: wrong("items of %s", v)}
}

func caseFilter(name string) *filter {
	return &filter{fn: func(r *run, v Value, _ []Value) Value { return r.caseOf(name, r.str(v)) }}
}

func replaceFilter(r *run, v Value, in []Value) Value {
	if !given(in[0]) || !given(in[1]) {
		panic(raise("replace with too few arguments"))
	}
	s := r.str(v)
	for i := range 2 {
		in[i] = r.str(in[i])
	}
	if !given(in[2]) {
		in = in[:2]
	}
	return r.replace(s, in)
}

func indentFilter(r *run, v Value, in []Value) Value {
	s, ok := v.(string)
	if !ok {
		panic(wrong("indent of %s", v))
	}
	by := "    "
	switch w := in[0].(type) {
	case unset:
	case int:
		by = strings.Repeat(" ", max(0, min(w, 10000)))
	case string:
		by = w
	default:
		panic(refuse("indent by %s", typeName(w)))
	}
	lines := splitLines(s + "\n")
	r.spend(len(s) + len(lines)*(len(by)+1))
	for i, l := range lines {
		if i == 0 && flag(in[1]) || i > 0 && (l != "" || flag(in[2])) {
			lines[i] = by + l
		}
	}
	return strings.Join(lines, "\n")
}

func reverseFilter(r *run, v Value, _ []Value) Value {
	s, ok := v.(string)
	if ok {
		return r.slice(s, nil, nil, -1)
	}
	items := slices.Clone(r.iterate(v))
	slices.Reverse(items)
	r.spend(16 * len(items))
	if is[*generator](v) {
		// What cannot be run through backwards becomes a list.
		return &List{Items: items}
	}
	return &generator{items: items}
}

func intFilter(_ *run, v Value, in []Value) Value {
	if given(in[1]) {
		panic(refuse("int with a base"))
	}
	switch n := v.(type) {
	case bool:
		return asInt(n)
	case int:
		return n
	case float64:
		if math.Abs(n) < 1<<53 {
			return int(n)
		}
		panic(refuse("int of a large float"))
	case string:
		return textInt(n, in[0])
	case *undefined:
		panic(raise("int of what is undefined"))
	case nil, *List, *Dict:
		return orDefault(in[0], 0)
	}
	panic(refuse("int of %s", typeName(v)))
}

// textInt reads decimal digits with a sign; a text without any digit is no number; what is
// between is refused, as Python reads much as a number.
func textInt(s string, byDefault Value) Value {
	s = strings.TrimFunc(s, IsSpace)
	n, err := strconv.Atoi(s)
	if err == nil {
		return n
	}
	l := strings.ToLower(s)
	if isASCII(s) && !strings.ContainsAny(s, "0123456789") &&
		!strings.Contains(l, "inf") && !strings.Contains(l, "nan") {
		return orDefault(byDefault, 0)
	}
	panic(refuse("int of such a text"))
}
