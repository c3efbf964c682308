package jinja

import (
	"math"
	"strconv"
	"strings"
)

func intFilter(_ *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("int", args, kw, "default", "base")
	if err != nil {
		return nil, err
	}
	if given(in[1]) {
		return nil, refuse("int with a base")
	}
	switch n := v.(type) {
	case bool:
		return asInt(n), nil
	case int:
		return n, nil
	case float64:
		if math.Abs(n) < 1<<53 {
			return int(n), nil
		}
		return nil, refuse("int of a large float")
	case string:
		return textInt(n, in[0])
	case nil, *List, *Dict, *undefined:
		if _, ok := v.(*undefined); ok {
			return nil, raise("int of what is undefined")
		}
		return orDefault(in[0], 0), nil
	}
	return nil, refuse("int of %s", typeName(v))
}

func orDefault(v, otherwise Value) Value {
	if given(v) {
		return v
	}
	return otherwise
}

// textInt reads decimal digits with a sign; a text without any digit is no number; what is
// between is refused, as Python reads much as a number.
func textInt(s string, byDefault Value) (Value, error) {
	s = strings.TrimFunc(s, IsSpace)
	n, err := strconv.Atoi(s)
	if err == nil {
		return n, nil
	}
	l := strings.ToLower(s)
	if isASCII(s) && !strings.ContainsAny(s, "0123456789") &&
		!strings.Contains(l, "inf") && !strings.Contains(l, "nan") {
		return orDefault(byDefault, 0), nil
	}
	return nil, refuse("int of such a text")
}

func floatFilter(_ *run, v Value, args []Value, kw []kwarg) (Value, error) {
	in, err := bind("float", args, kw, "default")
	if err != nil {
		return nil, err
	}
	switch n := v.(type) {
	case bool:
		return float64(asInt(n)), nil
	case int:
		f, ok := exactFloat(n)
		if ok {
			return f, nil
		}
	case float64:
		return n, nil
	case nil:
		return orDefault(in[0], 0.0), nil
	}
	return nil, refuse("float of %s", typeName(v))
}

func absFilter(_ *run, v Value, args []Value, kw []kwarg) (Value, error) {
	_, err := bind("abs", args, kw)
	if err != nil {
		return nil, err
	}
	switch n := v.(type) {
	case bool:
		return asInt(n), nil
	case int:
		if n == math.MinInt {
			return nil, refuse("an integer beyond 64 bits")
		}
		return max(n, -n), nil
	case float64:
		return math.Abs(n), nil
	}
	return nil, wrong("abs of %s", v)
}

func roundFilter(_ *run, v Value, args []Value, kw []kwarg) (Value, error) {
	if len(args) > 0 || len(kw) > 0 {
		return nil, refuse("round with arguments")
	}
	switch n := v.(type) {
	case int:
		return n, nil
	case float64:
		return math.RoundToEven(n), nil
	}
	return nil, refuse("round of %s", typeName(v))
}

func extremeFilter(largest bool) filterFunc {
	return func(r *run, v Value, args []Value, kw []kwarg) (Value, error) {
		if len(args) > 0 || len(kw) > 0 {
			return nil, refuse("max or min with arguments")
		}
		items, err := r.iterate(v)
		if err != nil {
			return nil, err
		}
		if len(items) == 0 {
			return &undefined{"the largest of nothing"}, nil
		}
		best := items[0]
		for _, e := range items[1:] {
			a, err := folded(e)
			if err != nil {
				return nil, err
			}
			b, err := folded(best)
			if err != nil {
				return nil, err
			}
			c, err := order(a, b)
			if err != nil {
				return nil, err
			}
			if largest && c > 0 || !largest && c < 0 {
				best = e
			}
		}
		return best, nil
	}
}
