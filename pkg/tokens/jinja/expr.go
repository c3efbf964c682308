package jinja

import (
	"slices"
	"strings"
)

// An expr is an expression of a template. Children are always evaluated through [run.ev],
// which counts steps and records what a remembered turn of a loop reads.
type expr interface {
	eval(r *run, sc *scope) Value
}

type (
	constExpr struct{ v Value }
	nameExpr  struct {
		id   int
		name string
	}
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
		by   *filter
		args arguments
	}
	testExpr struct {
		e    expr
		name string
		by   *test
		args arguments
	}
	arguments struct {
		args  []expr
		names []string
		named []expr
	}
)

func (e *constExpr) eval(*run, *scope) Value { return e.v }

func (e *nameExpr) eval(r *run, sc *scope) Value {
	v, from := sc.find(e.id)
	if from == nil {
		v = r.global(e.id, e.name)
		if sc.parent != nil && r.vars[e.id].set {
			switch r.t.later[e.id] {
			case setLater:
				v = &undefined{e.name}
			case setSomewhere:
				panic(refuse("the name %s before it is set", e.name))
			}
		}
	}
	if r.rec != nil {
		r.rec.read(v, from, e, r.t)
	}
	return v
}

func (r *run) evAll(sc *scope, es []expr) []Value {
	vs := make([]Value, len(es))
	for i, e := range es {
		vs[i] = r.ev(e, sc)
	}
	return vs
}

func (e *listExpr) eval(r *run, sc *scope) Value {
	vs := r.evAll(sc, e.items)
	r.spend(16 * len(vs))
	return &List{Items: vs, tuple: e.tuple}
}

func (e *dictExpr) eval(r *run, sc *scope) Value {
	d := NewDict(len(e.keys))
	for i := range e.keys {
		k := r.ev(e.keys[i], sc)
		v := r.ev(e.vals[i], sc)
		if !hashable(k) {
			panic(unhashable(k))
		}
		d.setAny(k, v)
	}
	r.spend(32 * len(e.keys))
	return d
}

// unhashable is why a value is no key.
func unhashable(k Value) *Error {
	switch k.(type) {
	case *List, *Dict:
		return wrong("a key that is %s", k)
	}
	return refuse("a key that is %s", typeName(k))
}

func (e *condExpr) eval(r *run, sc *scope) Value {
	switch {
	case truth(r.ev(e.test, sc)):
		return r.ev(e.then, sc)
	case e.other == nil:
		return &undefined{"a condition without else"}
	}
	return r.ev(e.other, sc)
}

func (e *boolExpr) eval(r *run, sc *scope) Value {
	a := r.ev(e.a, sc)
	if truth(a) == e.or {
		return a
	}
	return r.ev(e.b, sc)
}

func (e *notExpr) eval(r *run, sc *scope) Value { return !truth(r.ev(e.e, sc)) }

func (e *compareExpr) eval(r *run, sc *scope) Value {
	left := r.ev(e.first, sc)
	for i, op := range e.ops {
		right := r.ev(e.rest[i], sc)
		if !r.compare(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (e *binExpr) eval(r *run, sc *scope) Value {
	a := r.ev(e.a, sc)
	b := r.ev(e.b, sc)
	if e.op == "+" {
		return r.add(a, b)
	}
	return r.arithmetic(e.op, a, b)
}

func (e *concatExpr) eval(r *run, sc *scope) Value {
	var sb strings.Builder
	for _, p := range e.parts {
		s := r.str(r.ev(p, sc))
		r.spend(len(s))
		sb.WriteString(s)
	}
	return sb.String()
}

func (e *signExpr) eval(r *run, sc *scope) Value {
	v := r.ev(e.e, sc)
	f, isFloat := v.(float64)
	i, isInt := index(v)
	switch {
	case isFloat && e.minus:
		return -f
	case isFloat:
		return f
	case isInt && e.minus:
		return r.arithmetic("-", 0, i)
	case isInt:
		return i
	}
	panic(wrong("a sign before %s", v))
}

func (e *attrExpr) eval(r *run, sc *scope) Value { return r.attr(r.ev(e.e, sc), e.name) }

func (e *itemExpr) eval(r *run, sc *scope) Value {
	v := r.ev(e.e, sc)
	return r.item(v, r.ev(e.key, sc))
}

func (e *sliceExpr) eval(r *run, sc *scope) Value {
	v := r.ev(e.e, sc)
	var parts [3]Value
	for i, p := range []expr{e.from, e.to, e.by} {
		if p != nil {
			parts[i] = r.ev(p, sc)
		}
	}
	return r.slice(v, parts[0], parts[1], parts[2])
}

// values evaluates arguments, those with a name last.
func (a *arguments) values(r *run, sc *scope) ([]Value, []kwarg) {
	if len(a.args) == 0 && len(a.named) == 0 {
		return nil, nil
	}
	vs := r.evAll(sc, a.args)
	var kw []kwarg
	for i, e := range a.named {
		v := r.ev(e, sc)
		if slices.Contains(a.names[:i], a.names[i]) {
			panic(raise("an argument given twice"))
		}
		kw = append(kw, kwarg{a.names[i], v})
	}
	return vs, kw
}

func (e *callExpr) eval(r *run, sc *scope) Value {
	a, ok := e.fn.(*attrExpr)
	if !ok {
		fn := r.ev(e.fn, sc)
		args, kw := e.values(r, sc)
		return r.call(fn, args, kw)
	}
	recv := r.ev(a.e, sc)
	s, ok := recv.(string)
	if ok && textMethods[a.name] {
		// No value is made of the method first.
		args, kw := e.values(r, sc)
		return r.textMethod(s, a.name, args, kw)
	}
	fn := r.attr(recv, a.name)
	args, kw := e.values(r, sc)
	return r.call(fn, args, kw)
}

func (e *filterExpr) eval(r *run, sc *scope) Value {
	v := r.ev(e.e, sc)
	args, kw := e.args.values(r, sc)
	return e.by.apply(r, e.name, v, args, kw)
}

func (e *testExpr) eval(r *run, sc *scope) Value {
	v := r.ev(e.e, sc)
	args, kw := e.args.values(r, sc)
	if len(kw) > 0 {
		panic(refuse("a test with a named argument"))
	}
	if is[markup](v) {
		return markupTest(e.name)
	}
	return e.by.holds(r, e.name, v, args)
}

// call calls a value.
func (r *run) call(fn Value, args []Value, kw []kwarg) Value {
	switch fn := fn.(type) {
	case *method:
		return r.callMethod(fn.recv, fn.name, args, kw)
	case *builtin:
		return fn.call(r, args, kw)
	case *macro:
		return r.callMacro(fn, args, kw)
	case *undefined:
		panic(raise("%s is undefined", fn.name))
	}
	panic(wrong("a call of %s", fn))
}
