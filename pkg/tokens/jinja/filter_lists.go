package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// path is what an attribute's name with dots leads to.
func (r *run) path(v, attribute Value) (Value, error) {
	if n, ok := index(attribute); ok {
		return r.item(v, n)
	}
	s, ok := attribute.(string)
	if !ok {
		return nil, refuse("an attribute that is %s", typeName(attribute))
	}
	for part := range strings.SplitSeq(s, ".") {
		var key Value = part
		n, err := strconv.Atoi(part)
		if err == nil && part[0] != '-' && part[0] != '+' {
			key = n
		}
		v, err = r.item(v, key)
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

// lazily makes a generator of what fn makes of each item. Python makes an item when it is
// asked for, so an exception is kept until then; a refusal is not.
func (r *run) lazily(v Value, fn func(Value) (Value, bool, error)) (Value, error) {
	g := &generator{}
	if !truth(v) {
		return g, nil
	}
	items, err := r.iterate(v)
	if err != nil {
		g.err = err
		return g, refusal(err)
	}
	for _, e := range items {
		err = r.step()
		if err != nil {
			return nil, err
		}
		w, ok, err := fn(e)
		if err != nil {
			g.err = err
			return g, refusal(err)
		}
		if ok {
			g.items = append(g.items, w)
		}
	}
	return g, r.spend(16 * len(g.items))
}

// refusal returns err unless Python raises it.
func refusal(err error) error {
	if KindOf(err) == Raised {
		return nil
	}
	return err
}

// whenRun makes what fn raises an exception of the generator that it returns: the body of
// such a filter runs when its first item is asked for.
func whenRun(fn filterFunc) filterFunc {
	return func(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
		g, err := fn(r, v, args, kw)
		if KindOf(err) == Raised {
			return &generator{err: err}, nil
		}
		return g, err
	}
}

func mapFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	if !truth(v) {
		return &generator{}, nil
	}
	if len(args) == 0 {
		in, err := bind("map", nil, kw, "attribute", "default")
		if err != nil {
			return nil, err
		}
		if !given(in[0]) {
			return nil, raise("map without an attribute")
		}
		return r.lazily(v, func(e Value) (Value, bool, error) {
			w, err := r.path(e, in[0])
			_, undef := w.(*undefined)
			if err == nil && undef && given(in[1]) {
				w = in[1]
			}
			return w, true, err
		})
	}
	name, _ := args[0].(string)
	fn, ok := r.t.filters[name]
	if !ok {
		return nil, refuse("map by such a filter")
	}
	return r.lazily(v, func(e Value) (Value, bool, error) {
		w, err := fn(r, e, args[1:], kw)
		return w, true, err
	})
}

// selectFilter is select, reject and their like for attributes.
func selectFilter(attr, negate bool) filterFunc {
	return func(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
		if !truth(v) {
			return &generator{}, nil
		}
		if len(kw) > 0 {
			return nil, refuse("select with a named argument")
		}
		var by Value
		if attr {
			if len(args) == 0 {
				return nil, raise("selectattr without an attribute")
			}
			by, args = args[0], args[1:]
		}
		test := func(_ *run, v Value, _ []Value) (Value, error) { return truth(v), nil }
		if len(args) > 0 {
			name, _ := args[0].(string)
			fn, ok := testTable[name]
			if !ok {
				return nil, refuse("select by such a test")
			}
			test, args = fn, args[1:]
		}
		return r.lazily(v, func(e Value) (Value, bool, error) {
			w := e
			if attr {
				var err error
				w, err = r.path(e, by)
				if err != nil {
					return nil, false, err
				}
			}
			_, marked := w.(markup)
			if marked {
				return nil, false, refuse("select among what safe returns")
			}
			ok, err := test(r, w, args)
			return e, truth(ok) != negate, err
		})
	}
}

// folded is a value as case-insensitive sorting compares it.
func folded(v Value) (Value, error) {
	s, ok := v.(string)
	if !ok {
		return v, nil
	}
	if !isASCII(s) {
		return nil, refuse("sorting texts beyond ASCII without case")
	}
	return strings.ToLower(s), nil
}

// sorted returns the positions of keys in their order, the first of equals first.
func sorted(keys []Value, fold, reverse bool) ([]int, error) {
	at := make([]int, len(keys))
	by := make([]Value, len(keys))
	for i, k := range keys {
		at[i], by[i] = i, k
		if fold {
			f, err := folded(k)
			if err != nil {
				return nil, err
			}
			by[i] = f
		}
	}
	if reverse {
		// Python keeps equals in their order also when it sorts in reverse.
		slices.Reverse(at)
	}
	err := sortByKeys(at, by)
	if reverse {
		slices.Reverse(at)
	}
	return at, err
}

func sortByKeys(at []int, keys []Value) error {
	var failed error
	slices.SortStableFunc(at, func(i, j int) int {
		c, err := order(keys[i], keys[j])
		if err != nil {
			failed = err
		}
		return c
	})
	return failed
}

func dictsortFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("dictsort", args, kw, "case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, wrong("dictsort of %s", v)
	}
	keys := d.keys
	if in[1] == "value" {
		keys = d.vals
	} else if given(in[1]) && in[1] != "key" {
		return nil, raise("dictsort by something else")
	}
	at, err := sorted(keys, !flag(in[0]), flag(in[2]))
	if err != nil {
		return nil, err
	}
	pairs, err := r.pairs(d)
	return &List{Items: picked(pairs, at)}, err
}

func picked(items []Value, at []int) []Value {
	out := make([]Value, len(at))
	for n, i := range at {
		out[n] = items[i]
	}
	return out
}

// keysOf are what items are sorted or told apart by.
func (r *run) keysOf(items []Value, attribute Value) ([]Value, error) {
	if !given(attribute) || attribute == nil {
		return items, nil
	}
	s, ok := attribute.(string)
	if ok && strings.Contains(s, ",") {
		return nil, refuse("sorting by several attributes")
	}
	keys := make([]Value, len(items))
	for i, e := range items {
		k, err := r.path(e, attribute)
		if err != nil {
			return nil, err
		}
		keys[i] = k
	}
	return keys, nil
}

func sortFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("sort", args, kw, "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	keys, err := r.keysOf(items, in[2])
	if err != nil {
		return nil, err
	}
	at, err := sorted(keys, !flag(in[1]), flag(in[0]))
	if KindOf(err) == Raised && given(in[2]) {
		// Python compares lists of keys there, which may be equal without an order.
		return nil, refuse("sorting by such an attribute")
	}
	if err != nil {
		return nil, err
	}
	return &List{Items: picked(items, at)}, r.spend(16 * len(items))
}

func uniqueFilter(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("unique", args, kw, "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	keys, err := r.keysOf(items, in[1])
	if err != nil {
		return nil, err
	}
	seen := NewDict(len(items))
	g := &generator{}
	for i, k := range keys {
		if !flag(in[0]) {
			k, err = folded(k)
			if err != nil {
				return nil, err
			}
		}
		err = r.step()
		if err != nil {
			return nil, err
		}
		if !hashable(k) {
			return nil, refuse("unique of %s", typeName(k))
		}
		if seen.lookup(k) < 0 {
			seen.add(k, nil)
			g.items = append(g.items, items[i])
		}
	}
	return g, r.spend(32 * len(items))
}
