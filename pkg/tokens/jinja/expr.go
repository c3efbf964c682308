package jinja

import (
	"strings"
)

// An expr is an expression of a template. Children are always evaluated through [run.ev],
// which counts steps and records what a remembered turn of a loop reads.
type expr interface {
	eval(r *run, sc *scope) (Value, error)
}

type (
	constExpr struct{ v Value }
	nameExpr  struct {
		id   int
		name string
	}
	// holeExpr stands for the body that a filter block filters.
	holeExpr struct{}
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct{ keys, vals []expr }
	condExpr struct{ test, then, other expr }
	boolExpr struct {
		or   bool
		a, b expr
	}
	notExpr     struct{ e expr }
	compareExpr struct {
		first expr
		ops   []string
		rest  []expr
	}
	binExpr struct {
		op   string
		a, b expr
	}
	concatExpr struct{ parts []expr }
	signExpr   struct {
		minus bool
		e     expr
	}
	attrExpr struct {
		e    expr
		name string
	}
	itemExpr  struct{ e, key expr }
	sliceExpr struct{ e, from, to, by expr }
	callExpr  struct {
		fn expr
		arguments
	}
	filterExpr struct {
		e    expr
		name string
		fn   filterFunc
		args arguments
	}
	testExpr struct {
		e    expr
		name string
		fn   testFunc
		args arguments
	}
	arguments struct {
		args  []expr
		names []string
		named []expr
	}
)

func (e *constExpr) eval(*run, *scope) (Value, error) { return e.v, nil }

func (e *nameExpr) eval(r *run, sc *scope) (Value, error) {
	v, from := sc.find(e.id)
	if from == nil {
		v = r.global(e.id, e.name)
		if sc.parent != nil && r.vars[e.id].set {
			switch r.t.later[e.id] {
			case setLater:
				v = &undefined{e.name}
			case setSomewhere:
				return nil, refuse("the name %s before it is set", e.name)
			}
		}
	}
	if r.rec != nil {
		r.rec.read(v, from, e, r.t)
	}
	return v, nil
}

func (e *holeExpr) eval(r *run, _ *scope) (Value, error) { return r.hole, nil }

func (r *run) evAll(sc *scope, es []expr) ([]Value, error) {
	vs := make([]Value, len(es))
	for i, e := range es {
		v, err := r.ev(e, sc)
		if err != nil {
			return nil, err
		}
		vs[i] = v
	}
	return vs, nil
}

func (e *listExpr) eval(r *run, sc *scope) (Value, error) {
	vs, err := r.evAll(sc, e.items)
	if err != nil {
		return nil, err
	}
	return &List{Items: vs, tuple: e.tuple}, r.spend(16 * len(vs))
}

func (e *dictExpr) eval(r *run, sc *scope) (Value, error) {
	d := NewDict(len(e.keys))
	for i := range e.keys {
		k, err := r.ev(e.keys[i], sc)
		if err != nil {
			return nil, err
		}
		v, err := r.ev(e.vals[i], sc)
		if err != nil {
			return nil, err
		}
		if !hashable(k) {
			return nil, unhashable(k)
		}
		d.setAny(k, v)
	}
	return d, r.spend(32 * len(e.keys))
}

// unhashable is why a value is no key.
func unhashable(k Value) error {
	switch k.(type) {
	case *List, *Dict:
		return wrong("a key that is %s", k)
	}
	return refuse("a key that is %s", typeName(k))
}

func (e *condExpr) eval(r *run, sc *scope) (Value, error) {
	t, err := r.ev(e.test, sc)
	switch {
	case err != nil:
		return nil, err
	case truth(t):
		return r.ev(e.then, sc)
	case e.other == nil:
		return &undefined{"a condition without else"}, nil
	}
	return r.ev(e.other, sc)
}

func (e *boolExpr) eval(r *run, sc *scope) (Value, error) {
	a, err := r.ev(e.a, sc)
	if err != nil || truth(a) == e.or {
		return a, err
	}
	return r.ev(e.b, sc)
}

func (e *notExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.ev(e.e, sc)
	return !truth(v), err
}

func (e *compareExpr) eval(r *run, sc *scope) (Value, error) {
	left, err := r.ev(e.first, sc)
	if err != nil {
		return nil, err
	}
	for i, op := range e.ops {
		right, err := r.ev(e.rest[i], sc)
		if err != nil {
			return nil, err
		}
		ok, err := r.compare(op, left, right)
		if err != nil || !ok {
			return false, err
		}
		left = right
	}
	return true, nil
}

func (e *binExpr) eval(r *run, sc *scope) (Value, error) {
	a, err := r.ev(e.a, sc)
	if err != nil {
		return nil, err
	}
	b, err := r.ev(e.b, sc)
	if err != nil {
		return nil, err
	}
	if e.op == "+" {
		return r.add(a, b)
	}
	return r.arithmetic(e.op, a, b)
}

func (e *concatExpr) eval(r *run, sc *scope) (Value, error) {
	var sb strings.Builder
	for _, p := range e.parts {
		v, err := r.ev(p, sc)
		if err != nil {
			return nil, err
		}
		s, err := r.str(v)
		if err != nil {
			return nil, err
		}
		err = r.spend(len(s))
		if err != nil {
			return nil, err
		}
		sb.WriteString(s)
	}
	return sb.String(), nil
}

func (e *signExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.ev(e.e, sc)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case int:
		if e.minus {
			return r.arithmetic("-", 0, v)
		}
		return v, nil
	case float64:
		if e.minus {
			return -v, nil
		}
		return v, nil
	case bool:
		n := asInt(v)
		if e.minus {
			n = -n
		}
		return n, nil
	}
	return nil, wrong("a sign before %s", v)
}

func (e *attrExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.ev(e.e, sc)
	if err != nil {
		return nil, err
	}
	return r.attr(v, e.name)
}

func (e *itemExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.ev(e.e, sc)
	if err != nil {
		return nil, err
	}
	k, err := r.ev(e.key, sc)
	if err != nil {
		return nil, err
	}
	return r.item(v, k)
}

func (e *sliceExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.ev(e.e, sc)
	if err != nil {
		return nil, err
	}
	var parts [3]Value
	for i, p := range []expr{e.from, e.to, e.by} {
		if p == nil {
			continue
		}
		parts[i], err = r.ev(p, sc)
		if err != nil {
			return nil, err
		}
	}
	return r.slice(v, parts[0], parts[1], parts[2])
}

// values evaluates arguments, those with a name last.
func (a *arguments) values(r *run, sc *scope) ([]Value, []kwarg, error) {
	if len(a.args) == 0 && len(a.named) == 0 {
		return nil, nil, nil
	}
	vs, err := r.evAll(sc, a.args)
	if err != nil {
		return nil, nil, err
	}
	var kw []kwarg
	for i, e := range a.named {
		v, err := r.ev(e, sc)
		if err != nil {
			return nil, nil, err
		}
		for _, k := range kw {
			if k.name == a.names[i] {
				return nil, nil, raise("an argument given twice")
			}
		}
		kw = append(kw, kwarg{a.names[i], v})
	}
	return vs, kw, nil
}

func (e *callExpr) eval(r *run, sc *scope) (Value, error) {
	// A method is called without making a value of it first.
	var fn Value
	var err error
	a, ok := e.fn.(*attrExpr)
	if ok {
		recv, err := r.ev(a.e, sc)
		if err != nil {
			return nil, err
		}
		args, kw, quick, err := e.direct(r, sc, recv, a.name)
		if err != nil {
			return nil, err
		}
		if quick {
			return r.callMethod(recv, a.name, args, kw)
		}
		fn, err = r.attr(recv, a.name)
		if err != nil {
			return nil, err
		}
	} else {
		fn, err = r.ev(e.fn, sc)
		if err != nil {
			return nil, err
		}
	}
	args, kw, err := e.values(r, sc)
	if err != nil {
		return nil, err
	}
	return r.call(fn, args, kw)
}

// direct evaluates the arguments of a text's method, where nothing can shadow it.
func (e *callExpr) direct(r *run, sc *scope, recv Value, name string) ([]Value, []kwarg, bool, error) {
	_, ok := recv.(string)
	if !ok || !hasMethod(recv, name) {
		return nil, nil, false, nil
	}
	args, kw, err := e.values(r, sc)
	return args, kw, true, err
}

func (e *filterExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.ev(e.e, sc)
	if err != nil {
		return nil, err
	}
	args, kw, err := e.args.values(r, sc)
	if err != nil {
		return nil, err
	}
	return e.fn(r, v, args, kw)
}

func (e *testExpr) eval(r *run, sc *scope) (Value, error) {
	v, err := r.ev(e.e, sc)
	if err != nil {
		return nil, err
	}
	args, kw, err := e.args.values(r, sc)
	if err != nil {
		return nil, err
	}
	if len(kw) > 0 {
		return nil, refuse("a test with a named argument")
	}
	_, ok := v.(markup)
	if ok {
		return markupTest(e.name)
	}
	return e.fn(r, v, args)
}

// call calls a value.
func (r *run) call(fn Value, args []Value, kw []kwarg) (Value, error) {
	switch fn := fn.(type) {
	case *method:
		return r.callMethod(fn.recv, fn.name, args, kw)
	case *builtin:
		return fn.call(r, args, kw)
	case *macro:
		return r.callMacro(fn, args, kw, nil)
	case *undefined:
		return nil, raise("%s is undefined", fn.name)
	}
	return nil, wrong("a call of %s", fn)
}
