package jinja

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// number returns v as an integer or as a float, as Python's arithmetic takes it.
func number(v Value) (i int, f float64, isFloat, ok bool) {
	switch v := v.(type) {
	case bool:
		return asInt(v), 0, false, true
	case int:
		return v, 0, false, true
	case float64:
		return 0, v, true, true
	}
	return 0, 0, false, false
}

// exactFloat returns a number as a float, if that changes nothing.
func exactFloat(i int, f float64, isFloat bool) (float64, bool) {
	if isFloat {
		return f, true
	}
	return float64(i), i <= 1<<53 && i >= -(1<<53)
}

func (r *run) add(a, b Value) Value {
	switch x := a.(type) {
	case string:
		y, ok := b.(string)
		if ok {
			r.spend(len(x) + len(y))
			return x + y
		}
	case *List:
		y, ok := b.(*List)
		if ok && x.tuple == y.tuple {
			r.spend(16 * (len(x.Items) + len(y.Items)))
			return &List{Items: slices.Concat(x.Items, y.Items), tuple: x.tuple}
		}
	default:
		return r.arithmetic("+", a, b)
	}
	panic(wrong("%s + %s", a, b))
}

func (r *run) arithmetic(op string, a, b Value) Value {
	if op == "*" {
		v, ok := r.repeated(a, b)
		if ok {
			return v
		}
	}
	if op == "%" && is[string](a) {
		panic(refuse("formatting with %%"))
	}
	x, fx, xf, ok := number(a)
	y, fy, yf, ok2 := number(b)
	if !ok || !ok2 {
		panic(wrong("arithmetic with %s and %s", a, b))
	}
	if op == "/" || xf || yf {
		fx, exact := exactFloat(x, fx, xf)
		fy, exact2 := exactFloat(y, fy, yf)
		if !exact || !exact2 {
			panic(refuse("arithmetic with integers beyond 53 bits and floats"))
		}
		return floats(op, fx, fy)
	}
	return integers(op, x, y)
}

// repeated is a text or a list times a number.
func (r *run) repeated(a, b Value) (Value, bool) {
	n, _, f, ok := number(b)
	seq := a
	if _, _, _, isNum := number(a); isNum {
		n, _, f, ok = number(a)
		seq = b
	}
	if !ok || f {
		return nil, false
	}
	n = max(n, 0)
	switch s := seq.(type) {
	case string:
		if len(s) > 0 && n > r.bytes/len(s) {
			panic(errBytes)
		}
		r.spend(n * len(s))
		return strings.Repeat(s, n), true
	case *List:
		if len(s.Items) > 0 && n > r.bytes/16/len(s.Items) {
			panic(errBytes)
		}
		r.spend(16 * n * len(s.Items))
		return &List{Items: slices.Repeat(s.Items, n), tuple: s.tuple}, true
	}
	return nil, false
}

func integers(op string, x, y int) Value {
	switch op {
	case "+":
		z := x + y
		if (z > x) != (y > 0) && y != 0 {
			panic(errInteger)
		}
		return z
	case "-":
		z := x - y
		if (z < x) != (y > 0) && y != 0 {
			panic(errInteger)
		}
		return z
	case "*":
		z := x * y
		if x != 0 && z/x != y || x == -1 && y == math.MinInt {
			panic(errInteger)
		}
		return z
	case "//", "%":
		if y == 0 {
			panic(raise("a division by zero"))
		}
		if x == math.MinInt && y == -1 {
			panic(errInteger)
		}
		q, m := x/y, x%y
		if m != 0 && (m < 0) != (y < 0) {
			q, m = q-1, m+y
		}
		if op == "%" {
			return m
		}
		return q
	}
	panic(refuse("the operator %s", op))
}

func floats(op string, x, y float64) Value {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		if y == 0 {
			panic(raise("a division by zero"))
		}
		return x / y
	}
	panic(refuse("the operator %s on floats", op))
}

// compare is one comparison.
func (r *run) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		return !r.equal(a, b, 0)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	c := order(a, b)
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// order is Python's < on numbers and texts; other kinds are raised or refused.
func order(a, b Value) int {
	x, ok := a.(string)
	y, ok2 := b.(string)
	if ok && ok2 {
		return strings.Compare(x, y)
	}
	i, f, isF, ok := number(a)
	j, g, isG, ok2 := number(b)
	if ok && ok2 {
		if !isF && !isG {
			return cmp.Compare(i, j)
		}
		f, exact := exactFloat(i, f, isF)
		g, exact2 := exactFloat(j, g, isG)
		if !exact || !exact2 || math.IsNaN(f) || math.IsNaN(g) {
			panic(refuse("comparing such numbers"))
		}
		return cmp.Compare(f, g)
	}
	if is[*List](a) && is[*List](b) {
		panic(refuse("comparing the order of lists"))
	}
	panic(wrong("%s < %s", a, b))
}

// equal is Python's ==.
func (r *run) equal(a, b Value, depth int) bool {
	if depth > r.limits.Depth {
		panic(errDepth)
	}
	r.step()
	if is[markup](b) {
		panic(refuse("comparing what safe returns"))
	}
	switch x := a.(type) {
	case nil:
		return b == nil
	case string:
		y, ok := b.(string)
		return ok && x == y
	case bool, int, float64:
		return keysEqual(a, b)
	case *List:
		y, ok := b.(*List)
		if !ok || x.tuple != y.tuple || len(x.Items) != len(y.Items) {
			return false
		}
		for i := range x.Items {
			if !r.equal(x.Items[i], y.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x == y {
			return ok
		}
		return r.equalDicts(x, y, depth+1)
	case *undefined:
		return is[*undefined](b)
	case *namespace, *macro, *builtin, *generator, *loopState:
		return a == b
	}
	panic(refuse("comparing %s", typeName(a)))
}

func (r *run) equalDicts(x, y *Dict, depth int) bool {
	if x.Len() != y.Len() {
		return false
	}
	for i, k := range x.keys {
		j := y.lookup(k)
		if j < 0 || !r.equal(x.vals[i], y.vals[j], depth) {
			return false
		}
	}
	return true
}

// keysEqual is == among what may be a key.
func keysEqual(a, b Value) bool {
	i, f, isF, ok := number(a)
	j, g, isG, ok2 := number(b)
	switch {
	case ok && ok2 && !isF && !isG:
		return i == j
	case ok && ok2 && isF && isG:
		return f == g
	case ok && ok2 && isF:
		return f == math.Trunc(f) && math.Abs(f) < 1<<62 && int(f) == j
	case ok && ok2:
		return g == math.Trunc(g) && math.Abs(g) < 1<<62 && int(g) == i
	case ok || ok2:
		return false
	}
	x, ok := a.(*List)
	y, ok2 := b.(*List)
	if ok && ok2 {
		return slices.EqualFunc(x.Items, y.Items, keysEqual)
	}
	s, ok := a.(string)
	t, ok2 := b.(string)
	if ok && ok2 {
		return s == t
	}
	return a == nil && b == nil
}

// hashable says what may be a key here: of tuples only those of scalars.
func hashable(v Value) bool {
	switch v := v.(type) {
	case nil, bool, int, float64, string:
		return true
	case *List:
		if !v.tuple {
			return false
		}
		for _, e := range v.Items {
			if is[*List](e) || !hashable(e) {
				return false
			}
		}
		return true
	}
	return false
}

func (r *run) contains(in, v Value) bool {
	switch c := in.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			panic(wrong("%s in a text", v))
		}
		return strings.Contains(c, s)
	case *Dict:
		if !hashable(v) {
			if is[*undefined](v) {
				return false
			}
			panic(unhashable(v))
		}
		return c.lookup(v) >= 0
	case *generator:
		// Python stops at what it finds, and goes on from there later.
		panic(refuse("in a generator"))
	case *List, *view, *undefined, span:
		for _, e := range r.iterate(in) {
			if r.equal(e, v, 0) {
				return true
			}
		}
		return false
	case *loopState:
		panic(refuse("in the loop variable"))
	}
	panic(wrong("in %s", in))
}

// iterate returns what a loop over v sees.
func (r *run) iterate(v Value) []Value {
	switch v := v.(type) {
	case *List:
		return v.Items
	case *Dict:
		return v.keys
	case *view:
		return v.items
	case *undefined:
		return nil
	case string:
		r.spend(16 * runes(v))
		items := make([]Value, 0, runes(v))
		for i, c := range v {
			items = append(items, v[i:i+runeLen(c)])
		}
		return items
	case span:
		n := v.len()
		r.spend(16 * n)
		items := make([]Value, n)
		for i := range items {
			items[i] = v.start + i*v.step
		}
		return items
	case *generator:
		if r.undoing {
			r.undo = append(r.undo, undone{gen: v, pos: v.pos})
		}
		items := v.items[v.pos:]
		v.pos = len(v.items)
		if v.err != nil {
			panic(v.err)
		}
		return items
	case *loopState:
		panic(refuse("a loop over the loop variable"))
	}
	panic(wrong("a loop over %s", v))
}

// length is Python's len.
func length(v Value) int {
	switch v := v.(type) {
	case string:
		return runes(v)
	case *List:
		return len(v.Items)
	case *Dict:
		return v.Len()
	case *view:
		return len(v.items)
	case *undefined:
		return 0
	case span:
		return v.len()
	case *loopState:
		return len(v.items)
	}
	panic(wrong("the length of %s", v))
}
