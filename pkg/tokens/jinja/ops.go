package jinja

import (
	"cmp"
	"math"
	"math/bits"
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

// exactFloat returns an integer as a float, if that changes nothing.
func exactFloat(i int) (float64, bool) {
	return float64(i), i <= 1<<53 && i >= -(1<<53)
}

func (r *run) add(a, b Value) (Value, error) {
	switch x := a.(type) {
	case string:
		y, ok := b.(string)
		if ok {
			err := r.spend(len(x) + len(y))
			if err != nil {
				return nil, err
			}
			return x + y, nil
		}
	case *List:
		y, ok := b.(*List)
		if ok && x.tuple == y.tuple {
			err := r.spend(16 * (len(x.Items) + len(y.Items)))
			if err != nil {
				return nil, err
			}
			return &List{Items: slices.Concat(x.Items, y.Items), tuple: x.tuple}, nil
		}
	default:
		return r.arithmetic("+", a, b)
	}
	return nil, wrong("%s + %s", a, b)
}

func (r *run) arithmetic(op string, a, b Value) (Value, error) {
	if op == "*" {
		v, ok, err := r.repeated(a, b)
		if ok {
			return v, err
		}
	}
	_, text := a.(string)
	if op == "%" && text {
		return nil, refuse("formatting with %%")
	}
	x, fx, xf, ok := number(a)
	y, fy, yf, ok2 := number(b)
	if !ok || !ok2 {
		return nil, wrong("arithmetic with %s and %s", a, b)
	}
	if op == "/" || xf || yf {
		exact := true
		if !xf {
			fx, exact = exactFloat(x)
		}
		if !yf {
			f, e := exactFloat(y)
			fy, exact = f, exact && e
		}
		if !exact {
			return nil, refuse("arithmetic with integers beyond 53 bits and floats")
		}
		return floats(op, fx, fy)
	}
	return integers(op, x, y)
}

// repeated is a text or a list times a number.
func (r *run) repeated(a, b Value) (Value, bool, error) {
	n, _, f, ok := number(b)
	seq := a
	if _, _, _, isNum := number(a); isNum {
		n, _, f, ok = number(a)
		seq = b
	}
	if !ok || f {
		return nil, false, nil
	}
	n = max(n, 0)
	switch s := seq.(type) {
	case string:
		if len(s) > 0 && n > r.bytes/len(s) {
			return nil, true, errBytes
		}
		err := r.spend(n * len(s))
		if err != nil {
			return nil, true, err
		}
		return strings.Repeat(s, n), true, nil
	case *List:
		if len(s.Items) > 0 && n > r.bytes/16/len(s.Items) {
			return nil, true, errBytes
		}
		err := r.spend(16 * n * len(s.Items))
		if err != nil {
			return nil, true, err
		}
		return &List{Items: slices.Repeat(s.Items, n), tuple: s.tuple}, true, nil
	}
	return nil, false, nil
}

func integers(op string, x, y int) (Value, error) {
	over := refuse("an integer beyond 64 bits")
	switch op {
	case "+":
		z := x + y
		if (z > x) != (y > 0) && y != 0 {
			return nil, over
		}
		return z, nil
	case "-":
		z := x - y
		if (z < x) != (y > 0) && y != 0 {
			return nil, over
		}
		return z, nil
	case "*":
		return product(x, y)
	case "//", "%":
		if y == 0 {
			return nil, raise("a division by zero")
		}
		if x == math.MinInt && y == -1 {
			return nil, over
		}
		q, m := x/y, x%y
		if m != 0 && (m < 0) != (y < 0) {
			q, m = q-1, m+y
		}
		if op == "%" {
			return m, nil
		}
		return q, nil
	case "**":
		if y < 0 {
			return nil, refuse("a negative power")
		}
		var z Value = 1
		for range y {
			var err error
			z, err = product(z.(int), x)
			if err != nil || x == 0 || x == 1 {
				return z, err
			}
		}
		return z, nil
	}
	return nil, refuse("the operator %s", op)
}

func product(x, y int) (Value, error) {
	neg := (x < 0) != (y < 0)
	hi, lo := bits.Mul64(magnitude(x), magnitude(y))
	if hi != 0 || lo > math.MaxInt64 {
		return nil, refuse("an integer beyond 64 bits")
	}
	if neg {
		return -int(lo), nil
	}
	return int(lo), nil
}

func magnitude(x int) uint64 {
	if x < 0 {
		return uint64(-(x + 1)) + 1
	}
	return uint64(x)
}

func floats(op string, x, y float64) (Value, error) {
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "/":
		if y == 0 {
			return nil, raise("a division by zero")
		}
		return x / y, nil
	}
	return nil, refuse("the operator %s on floats", op)
}

// compare is one comparison.
func (r *run) compare(op string, a, b Value) (bool, error) {
	switch op {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		ok, err := r.equal(a, b, 0)
		return !ok, err
	case "in":
		return r.contains(b, a)
	case "not in":
		ok, err := r.contains(b, a)
		return !ok, err
	}
	c, err := order(a, b)
	if err != nil {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

// order is Python's < on numbers and texts; other kinds are raised or refused.
func order(a, b Value) (int, error) {
	x, ok := a.(string)
	y, ok2 := b.(string)
	if ok && ok2 {
		return strings.Compare(x, y), nil
	}
	i, f, isF, ok := number(a)
	j, g, isG, ok2 := number(b)
	if ok && ok2 {
		if !isF && !isG {
			return cmp.Compare(i, j), nil
		}
		exact, exact2 := true, true
		if !isF {
			f, exact = exactFloat(i)
		}
		if !isG {
			g, exact2 = exactFloat(j)
		}
		if !exact || !exact2 || math.IsNaN(f) || math.IsNaN(g) {
			return 0, refuse("comparing such numbers")
		}
		return cmp.Compare(f, g), nil
	}
	_, la := a.(*List)
	_, lb := b.(*List)
	if la && lb {
		return 0, refuse("comparing the order of lists")
	}
	return 0, wrong("%s < %s", a, b)
}

// equal is Python's ==.
func (r *run) equal(a, b Value, depth int) (bool, error) {
	if depth > r.limits.Depth {
		return false, errDepth
	}
	err := r.step()
	if err != nil {
		return false, err
	}
	_, marked := b.(markup)
	if marked {
		return false, refuse("comparing what safe returns")
	}
	switch x := a.(type) {
	case nil:
		return b == nil, nil
	case string:
		y, ok := b.(string)
		return ok && x == y, nil
	case bool, int, float64:
		_, _, _, ok := number(b)
		if !ok {
			return false, nil
		}
		return keysEqual(a, b), nil
	case *List:
		y, ok := b.(*List)
		if !ok || x.tuple != y.tuple || len(x.Items) != len(y.Items) {
			return false, nil
		}
		for i := range x.Items {
			ok, err := r.equal(x.Items[i], y.Items[i], depth+1)
			if err != nil || !ok {
				return false, err
			}
		}
		return true, nil
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x == y {
			return ok, nil
		}
		return r.equalDicts(x, y, depth+1)
	case *undefined:
		_, ok := b.(*undefined)
		return ok, nil
	case *namespace, *macro, *builtin, *generator, *loopState:
		return a == b, nil
	}
	return false, refuse("comparing %s", typeName(a))
}

func (r *run) equalDicts(x, y *Dict, depth int) (bool, error) {
	if x.Len() != y.Len() {
		return false, nil
	}
	for i, k := range x.keys {
		j := y.lookup(k)
		if j < 0 {
			return false, nil
		}
		ok, err := r.equal(x.vals[i], y.vals[j], depth)
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
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
			_, list := e.(*List)
			if list || !hashable(e) {
				return false
			}
		}
		return true
	}
	return false
}

func (r *run) contains(in, v Value) (bool, error) {
	switch c := in.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			return false, wrong("%s in a text", v)
		}
		return strings.Contains(c, s), nil
	case *Dict:
		if !hashable(v) {
			if _, ok := v.(*undefined); ok {
				return false, nil
			}
			return false, unhashable(v)
		}
		return c.lookup(v) >= 0, nil
	case *generator:
		// Python stops at what it finds, and goes on from there later.
		return false, refuse("in a generator")
	case *List, *view, *undefined, span:
		items, err := r.iterate(in)
		if err != nil {
			return false, err
		}
		for _, e := range items {
			ok, err := r.equal(e, v, 0)
			if err != nil || ok {
				return ok, err
			}
		}
		return false, nil
	case *loopState:
		return false, refuse("in the loop variable")
	}
	return false, wrong("in %s", in)
}

// iterate returns what a loop over v sees.
func (r *run) iterate(v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Dict:
		return v.keys, nil
	case *view:
		return v.items, nil
	case *undefined:
		return nil, nil
	case string:
		err := r.spend(16 * runes(v))
		if err != nil {
			return nil, err
		}
		items := make([]Value, 0, runes(v))
		for i, c := range v {
			items = append(items, v[i:i+runeLen(c)])
		}
		return items, nil
	case span:
		n := v.len()
		err := r.spend(16 * n)
		if err != nil {
			return nil, err
		}
		items := make([]Value, n)
		for i := range items {
			items[i] = v.start + i*v.step
		}
		return items, nil
	case *generator:
		if r.undoing {
			r.undo = append(r.undo, undone{gen: v, pos: v.pos})
		}
		items := v.items[v.pos:]
		v.pos = len(v.items)
		return items, v.err
	case *loopState:
		return nil, refuse("a loop over the loop variable")
	}
	return nil, wrong("a loop over %s", v)
}

// length is Python's len.
func length(v Value) (int, error) {
	switch v := v.(type) {
	case string:
		return runes(v), nil
	case *List:
		return len(v.Items), nil
	case *Dict:
		return v.Len(), nil
	case *view:
		return len(v.items), nil
	case *undefined:
		return 0, nil
	case span:
		return v.len(), nil
	case *loopState:
		return len(v.items), nil
	}
	return 0, wrong("the length of %s", v)
}
