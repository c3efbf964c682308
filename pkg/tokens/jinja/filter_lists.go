package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// path is what an attribute's name with dots leads to.
func (r *run) path(v, attribute Value) Value {
	if n, ok := index(attribute); ok {
		return r.item(v, n)
	}
	s, ok := attribute.(string)
	if !ok {
		panic(refuse("an attribute that is %s", typeName(attribute)))
	}
	for part := range strings.SplitSeq(s, ".") {
		var key Value = part
		n, err := strconv.Atoi(part)
		if err == nil && part[0] != '-' && part[0] != '+' {
			key = n
		}
		v = r.item(v, key)
	}
	return v
}

// fill puts what fn makes of each item of v into the generator.
func (g *generator) fill(r *run, v Value, fn func(Value) (Value, bool)) {
	for _, e := range r.iterate(v) {
		r.step()
		w, ok := fn(e)
		if ok {
			g.items = append(g.items, w)
		}
	}
	r.spend(16 * len(g.items))
}

func mapFilter(r *run, g *generator, v Value, args []Value, kw []kwarg) {
	if len(args) == 0 {
		in := bind("map", nil, kw, []string{"attribute", "default"})
		if !given(in[0]) {
			panic(raise("map without an attribute"))
		}
		g.fill(r, v, func(e Value) (Value, bool) {
			w := r.path(e, in[0])
			if is[*undefined](w) {
				w = orDefault(in[1], w)
			}
			return w, true
		})
		return
	}
	name, _ := args[0].(string)
	f, ok := r.t.filters[name]
	if !ok {
		panic(refuse("map by such a filter"))
	}
	g.fill(r, v, func(e Value) (Value, bool) { return f.apply(r, name, e, args[1:], kw), true })
}

// selectFilter is select, reject and their like for attributes.
func selectFilter(attr, negate bool) *filter {
	return &filter{lazy: func(r *run, g *generator, v Value, args []Value, kw []kwarg) {
		if len(kw) > 0 {
			panic(refuse("select with a named argument"))
		}
		var by Value
		if attr {
			if len(args) == 0 {
				panic(raise("selectattr without an attribute"))
			}
			by, args = args[0], args[1:]
		}
		holds := truth
		if len(args) > 0 {
			name, _ := args[0].(string)
			t, ok := tests[name]
			if !ok {
				panic(refuse("select by such a test"))
			}
			holds = func(v Value) bool { return t.holds(r, name, v, args[1:]) }
		}
		g.fill(r, v, func(e Value) (Value, bool) {
			w := e
			if attr {
				w = r.path(e, by)
			}
			if is[markup](w) {
				panic(refuse("select among what safe returns"))
			}
			return e, holds(w) != negate
		})
	}}
}

// folded is a value as case-insensitive sorting compares it.
func folded(v Value) Value {
	s, ok := v.(string)
	if !ok {
		return v
	}
	if !isASCII(s) {
		panic(refuse("sorting texts beyond ASCII without case"))
	}
	return strings.ToLower(s)
}

// sorted returns the positions of keys in their order, the first of equals first.
func sorted(keys []Value, fold, reverse bool) []int {
	at := make([]int, len(keys))
	by := make([]Value, len(keys))
	for i, k := range keys {
		at[i], by[i] = i, k
		if fold {
			by[i] = folded(k)
		}
	}
	if reverse {
		// Python keeps equals in their order also when it sorts in reverse.
		slices.Reverse(at)
	}
	sortByKeys(at, by)
	if reverse {
		slices.Reverse(at)
	}
	return at
}

func sortByKeys(at []int, keys []Value) {
	slices.SortStableFunc(at, func(i, j int) int { return order(keys[i], keys[j]) })
}

func dictsortFilter(r *run, v Value, in []Value) Value {
	d, ok := v.(*Dict)
	if !ok {
		panic(wrong("dictsort of %s", v))
	}
	keys := d.keys
	if in[1] == "value" {
		keys = d.vals
	} else if given(in[1]) && in[1] != "key" {
		panic(raise("dictsort by something else"))
	}
	at := sorted(keys, !flag(in[0]), flag(in[2]))
	return &List{Items: picked(r.pairs(d), at)}
}

func picked(items []Value, at []int) []Value {
	out := make([]Value, len(at))
	for n, i := range at {
		out[n] = items[i]
	}
	return out
}

// keysOf are what items are sorted by.
func (r *run) keysOf(items []Value, attribute Value) []Value {
	if !given(attribute) || attribute == nil {
		return items
	}
	s, ok := attribute.(string)
	if ok && strings.Contains(s, ",") {
		panic(refuse("sorting by several attributes"))
	}
	keys := make([]Value, len(items))
	for i, e := range items {
		keys[i] = r.path(e, attribute)
	}
	return keys
}

func sortFilter(r *run, v Value, in []Value) Value {
	items := r.iterate(v)
	keys := r.keysOf(items, in[2])
	var at []int
	err := try(func() { at = sorted(keys, !flag(in[1]), flag(in[0])) })
	switch {
	case KindOf(err) == Raised && given(in[2]):
		// Python compares lists of keys there, which may be equal without an order.
		panic(refuse("sorting by such an attribute"))
	case err != nil:
		panic(err)
	}
	r.spend(16 * len(items))
	return &List{Items: picked(items, at)}
}
