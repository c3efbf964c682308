package jinja

import (
	"unicode/utf8"
)

func runeLen(c rune) int { return max(1, utf8.RuneLen(c)) }

// attr is v.name: what Python's object has by that name, else the item.
func (r *run) attr(v Value, name string) Value {
	switch o := v.(type) {
	case *Dict:
		if !dictMethods[name] {
			i := o.find(name)
			if i >= 0 {
				return o.vals[i]
			}
			return &undefined{name}
		}
	case *undefined:
		panic(raise("%s is undefined", o.name))
	case *namespace:
		w, ok := o.attrs.Get(name)
		if ok {
			return w
		}
		return &undefined{name}
	case *loopState:
		w, ok := o.attr(name)
		if ok {
			return w
		}
		panic(refuse("the attribute %s of loop", name))
	}
	return r.python(v, name)
}

// python is the attribute that a Python object has by its type.
func (r *run) python(v Value, name string) Value {
	all, hidden := methodsOf(v)
	switch {
	case hidden[name]:
		return &undefined{name}
	case all[name]:
		return &method{v, name}
	}
	switch v.(type) {
	case nil, string, *Dict, *List:
		return &undefined{name}
	case bool, int, float64:
		if numberAttrs[name] {
			panic(refuse("the attribute %s of a number", name))
		}
		return &undefined{name}
	}
	panic(refuse("the attribute %s of %s", name, typeName(v)))
}

// item is v[key]: the item, else what Python's object has by that name.
func (r *run) item(v, key Value) Value {
	name, text := key.(string)
	switch o := v.(type) {
	case *Dict:
		if hashable(key) {
			i := o.lookup(key)
			if i >= 0 {
				return o.vals[i]
			}
		}
	case *undefined:
		panic(raise("%s is undefined", o.name))
	case markup:
		panic(refuse("an item of what safe returns"))
	case *List, string, span:
		n, ok := index(key)
		if ok {
			return r.at(v, n)
		}
	case *namespace, *loopState:
		if text {
			return unnamed(r.attr, v, name)
		}
	}
	if !text {
		return &undefined{"an item"}
	}
	return unnamed(r.python, v, name)
}

// unnamed is what get finds by name, and takes the name, which may be a request's, out of what
// is said of it.
func unnamed(get func(Value, string) Value, v Value, name string) (out Value) {
	err := try(func() { out = get(v, name) })
	switch _, undef := out.(*undefined); {
	case KindOf(err) == Refused:
		panic(refuse("such an item"))
	case err != nil:
		panic(err)
	case undef:
		return &undefined{"an item"}
	}
	return out
}

func index(key Value) (int, bool) {
	switch k := key.(type) {
	case int:
		return k, true
	case bool:
		return asInt(k), true
	}
	return 0, false
}

// at is an item by its position, counted from the end if negative.
func (r *run) at(v Value, n int) Value {
	size := length(v)
	if n < 0 {
		n += size
	}
	if n < 0 || n >= size {
		return &undefined{"an item"}
	}
	switch o := v.(type) {
	case *List:
		return o.Items[n]
	case span:
		return o.start + n*o.step
	case string:
		from := byteAt(o, n)
		_, w := utf8.DecodeRuneInString(o[from:])
		return o[from : from+w]
	}
	panic(refuse("an item of %s", typeName(v)))
}

// byteAt is where code point n begins.
func byteAt(s string, n int) int {
	if isASCII(s) {
		return n
	}
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// slice is v[from:to:by].
func (r *run) slice(v, from, to, by Value) Value {
	if u, ok := v.(*undefined); ok {
		panic(raise("%s is undefined", u.name))
	}
	step := 1
	if by != nil {
		var ok bool
		step, ok = index(by)
		if !ok || step == 0 {
			panic(refuse("a slice by %s", typeName(by)))
		}
	}
	switch v.(type) {
	case string, *List:
	default:
		// It raises, but not where Jinja finds the value when it compiles.
		panic(refuse("a slice of %s", typeName(v)))
	}
	size := length(v)
	lo, hi := bounds(from, to, step, size)
	n := span{lo, hi, step}.len()
	switch o := v.(type) {
	case *List:
		if step == 1 {
			return &List{Items: o.Items[lo : lo+n : lo+n], tuple: o.tuple}
		}
		items := make([]Value, n)
		for i := range items {
			items[i] = o.Items[lo+i*step]
		}
		r.spend(16 * n)
		return &List{Items: items, tuple: o.tuple}
	case string:
		if step == 1 {
			if n == 0 {
				return ""
			}
			a := byteAt(o, lo)
			return o[a : a+byteAt(o[a:], n)]
		}
		rs := []rune(o)
		out := make([]rune, n)
		for i := range out {
			out[i] = rs[lo+i*step]
		}
		return r.made(string(out))
	}
	panic(refuse("a slice of %s", typeName(v)))
}

// bounds are the limits of a slice as Python clamps them.
func bounds(from, to Value, step, size int) (lo, hi int) {
	lo, hi = 0, size
	low, high := 0, size
	if step < 0 {
		lo, hi = size-1, -1
		low, high = -1, size-1
	}
	for i, v := range []Value{from, to} {
		if v == nil {
			continue
		}
		n, ok := index(v)
		if !ok {
			panic(refuse("a slice at %s", typeName(v)))
		}
		if n < 0 {
			n += size
		}
		n = min(max(n, low), high)
		if i == 0 {
			lo = n
		} else {
			hi = n
		}
	}
	return lo, hi
}
