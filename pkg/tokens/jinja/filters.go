package jinja

import (
	"slices"
	"strings"
)

type filterFunc func(r *run, v Value, args []Value, kw []kwarg) (Value, error)

// unset marks an argument that was not given.
type unset struct{}

// bind puts arguments under the names of parameters.
func bind(what string, args []Value, kw []kwarg, names ...string) ([]Value, error) {
	if len(args) > len(names) {
		return nil, raise("%s with too many arguments", what)
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
			return nil, raise("%s has no such argument", what)
		}
		in[i] = k.v
	}
	return in, nil
}

func given(v Value) bool { return v != Value(unset{}) }

// flag is a switch that is off unless given.
func flag(v Value) bool { return given(v) && truth(v) }

// newFilters returns every filter that is done exactly. The parser refuses the others.
func newFilters() map[string]filterFunc {
	all := map[string]filterFunc{"safe": safeFilter, "string": stringFilter}
	for name, fn := range plainFilters() {
		all[name] = func(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
			_, ok := v.(markup)
			if ok {
				return nil, refuse("the filter %s of what safe returns", name)
			}
			return fn(r, v, args, kw)
		}
	}
	return all
}

// plainFilters are the filters that know no markup.
func plainFilters() map[string]filterFunc {
	return map[string]filterFunc{
		"tojson": tojson, "trim": trimFilter, "length": lengthFilter, "count": lengthFilter,
		"default": defaultFilter, "d": defaultFilter, "join": joinFilter, "list": listFilter,
		"first": firstFilter, "last": lastFilter, "items": itemsFilter,
		"upper": caseFilter("upper"), "lower": caseFilter("lower"),
		"capitalize": caseFilter("capitalize"), "title": titleFilter,
		"replace": replaceFilter, "indent": indentFilter, "reverse": reverseFilter,
		"map": whenRun(mapFilter), "select": whenRun(selectFilter(false, false)),
		"reject":     whenRun(selectFilter(false, true)),
		"selectattr": whenRun(selectFilter(true, false)), "rejectattr": whenRun(selectFilter(true, true)),
		"dictsort": dictsortFilter, "sort": sortFilter, "unique": whenRun(uniqueFilter),
		"int": intFilter, "float": floatFilter, "abs": absFilter, "round": roundFilter,
		"max": extremeFilter(true), "min": extremeFilter(false),
	}
}

func safeFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("safe", args, kw)
	if err != nil {
		return nil, err
	}
	s, err := r.str(v)
	return markup{s}, err
}

func trimFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("trim", args, kw, "chars")
	if err != nil {
		return nil, err
	}
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	if !given(in[0]) {
		in = nil
	}
	strip, err := stripSet("trim", in)
	if err != nil {
		return nil, err
	}
	return strings.TrimFunc(s, strip), nil
}

func lengthFilter(_ *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("length", args, kw)
	if err != nil {
		return nil, err
	}
	n, err := length(v)
	return n, err
}

func defaultFilter(_ *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("default", args, kw, "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	_, undef := v.(*undefined)
	if !undef && (!flag(in[1]) || truth(v)) {
		return v, nil
	}
	if !given(in[0]) {
		return "", nil
	}
	return in[0], nil
}

func joinFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("join", args, kw, "d", "attribute")
	if err != nil {
		return nil, err
	}
	sep := ""
	if given(in[0]) {
		sep, err = r.str(in[0])
		if err != nil {
			return nil, err
		}
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	texts := make([]Value, len(items))
	for i, e := range items {
		if given(in[1]) && in[1] != nil {
			e, err = r.path(e, in[1])
			if err != nil {
				return nil, err
			}
		}
		texts[i], err = r.str(e)
		if err != nil {
			return nil, err
		}
	}
	return r.joinTexts(sep, &List{Items: texts})
}

func listFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("list", args, kw)
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	return &List{Items: items}, nil
}

func firstFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("first", args, kw)
	if err != nil {
		return nil, err
	}
	g, ok := v.(*generator)
	if ok && g.pos+1 < len(g.items) {
		return nil, refuse("the first of a generator with more")
	}
	s, ok := v.(string)
	if ok {
		return r.at(s, 0)
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return &undefined{"the first of nothing"}, nil
	}
	return items[0], nil
}

func lastFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("last", args, kw)
	if err != nil {
		return nil, err
	}
	switch o := v.(type) {
	case *generator:
		return nil, raise("the last of a generator")
	case *undefined:
		return nil, refuse("the last of what is undefined")
	case string:
		return r.at(o, -1)
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return &undefined{"the last of nothing"}, nil
	}
	return items[len(items)-1], nil
}

func stringFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("string", args, kw)
	if err != nil {
		return nil, err
	}
	_, ok := v.(markup)
	if ok {
		return v, nil
	}
	return r.str(v)
}

func itemsFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("items", args, kw)
	if err != nil {
		return nil, err
	}
	switch d := v.(type) {
	case *undefined:
		return &generator{}, nil
	case *Dict:
		items, err := r.pairs(d)
		return &generator{items: items}, err
	}
	return &generator{err: wrong("items of %s", v)}, nil
}

func caseFilter(name string) filterFunc {
	return func(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
		_, err := bind(name, args, kw)
		if err != nil {
			return nil, err
		}
		s, err := r.str(v)
		if err != nil {
			return nil, err
		}
		return r.caseOf(name, s)
	}
}

// titleFilter is Jinja's, which begins a word after a blank, a dash or an open bracket.
func titleFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("title", args, kw)
	if err != nil {
		return nil, err
	}
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	if !isASCII(s) {
		return nil, refuse("title of a text beyond ASCII")
	}
	b := []byte(strings.ToLower(s))
	start := true
	for i, c := range b {
		if start && c >= 'a' && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
		start = IsSpace(rune(c)) || strings.IndexByte("-({[<", c) >= 0
	}
	return r.made(string(b))
}

func replaceFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("replace", args, kw, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	if !given(in[0]) || !given(in[1]) {
		return nil, raise("replace with too few arguments")
	}
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	for i := range 2 {
		in[i], err = r.str(in[i])
		if err != nil {
			return nil, err
		}
	}
	if !given(in[2]) {
		in = in[:2]
	}
	return r.replace(s, in)
}

func indentFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("indent", args, kw, "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	s, ok := v.(string)
	if !ok {
		return nil, wrong("indent of %s", v)
	}
	by := "    "
	switch w := in[0].(type) {
	case unset:
	case int:
		by = strings.Repeat(" ", max(0, min(w, 10000)))
	case string:
		by = w
	default:
		return nil, refuse("indent by %s", typeName(w))
	}
	lines := splitLines(s + "\n")
	err = r.spend(len(s) + len(lines)*(len(by)+1))
	if err != nil {
		return nil, err
	}
	for i, l := range lines {
		if i == 0 && flag(in[1]) || i > 0 && (l != "" || flag(in[2])) {
			lines[i] = by + l
		}
	}
	return strings.Join(lines, "\n"), nil
}

func reverseFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("reverse", args, kw)
	if err != nil {
		return nil, err
	}
	s, ok := v.(string)
	if ok {
		return r.slice(s, nil, nil, -1)
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	items = slices.Clone(items)
	slices.Reverse(items)
	_, ok = v.(*generator)
	if ok {
		// What cannot be run through backwards becomes a list.
		return &List{Items: items}, r.spend(16 * len(items))
	}
	return &generator{items: items}, r.spend(16 * len(items))
}
