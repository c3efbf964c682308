package jinja

import (
	"strings"
)

// A Template is a compiled template: immutable, safe for concurrent use.
type Template struct {
	source  string
	body    []stmt
	names   *names
	loop    int
	globals map[int]Value
	filters map[string]*filter
	limits  Limits
	// macros are the names that are one macro, always: reading one reads no state.
	macros map[int]bool
	// later says of names that a set assigns what a loop, a macro or another frame within sees
	// that reads them before, while the rendering has a variable of that name.
	later map[int]nameBefore
}

// Source returns the template's text.
func (t *Template) Source() string { return t.source }

// nameBefore says what a name is before the template has set it. In Jinja the template's own
// name hides the rendering's variable from the start, if its frame does not read it first.
type nameBefore uint8

const (
	// readFirst: the rendering's variable.
	readFirst nameBefore = iota
	// setLater: undefined.
	setLater
	// setSomewhere: one or the other; it is set in a condition or in a frame within.
	setSomewhere
)

// Compile reads a template.
func Compile(source string, limits Limits) (t *Template, err error) {
	defer caught(&err)
	limits = limits.withDefaults()
	if len(source) > limits.SourceBytes {
		panic(&Error{Limited, "a template that is too long"})
	}
	if strings.ToValidUTF8(source, "") != source {
		panic(refuse("a template that is not UTF-8"))
	}
	filters := newFilters()
	p := &parser{toks: lex(source), max: limits.Depth, names: &names{ids: map[string]int{}}, known: filters}
	t = &Template{source: source, names: p.names, limits: limits, globals: map[int]Value{}, filters: filters}
	t.loop = p.names.id("loop")
	t.body = p.block()
	for name, fn := range builtins {
		id, ok := p.names.ids[name]
		if ok {
			t.globals[id] = fn
		}
	}
	t.analyse()
	return t, nil
}

// A Rendering is what a template made: its text is the pieces one after the other.
type Rendering struct {
	Pieces []string
	// Kept is how many of the pieces were remembered.
	Kept int
}

// Text returns the whole text.
func (r *Rendering) Text() string {
	if len(r.Pieces) == 1 {
		return r.Pieces[0]
	}
	return strings.Join(r.Pieces, "")
}

// A Var is a name that a rendering defines for its template.
type Var struct {
	Name  string
	Value Value
}

// Env is what a rendering is given besides its variables.
type Env struct {
	Vars []Var
	// Now formats the time for strftime_now. nil refuses it.
	Now func(format string) (string, error)
	// Plain runs everything, whatever is remembered.
	Plain bool
}

// Render runs the template. A later variable of the same name wins.
func (t *Template) Render(env Env) (out *Rendering, err error) {
	defer caught(&err)
	r := &run{t: t, limits: t.limits, steps: t.limits.Steps, bytes: t.limits.Bytes, env: env}
	r.vars = make([]variable, len(t.names.text))
	for _, v := range env.Vars {
		id, ok := t.names.ids[v.Name]
		if ok {
			r.vars[id] = variable{v.Value, true}
		}
	}
	r.block(t.body, &scope{})
	r.cut()
	return &Rendering{Pieces: r.pieces, Kept: r.kept}, nil
}

type variable struct {
	v   Value
	set bool
}

// run is one rendering.
type run struct {
	t      *Template
	env    Env
	vars   []variable
	limits Limits
	steps  int
	bytes  int
	calls  int
	deep   int
	// out is what was written and not cut into a piece yet. While capturing, its end is
	// what a body writes.
	out       []byte
	capturing int
	pieces    []string
	kept      int

	// rec records a turn of a loop; undoing keeps what to undo if a remembered turn does
	// not fit.
	rec      *record
	inMemory bool
	undoing  bool
	undo     []undone
}

func (r *run) step() {
	r.steps--
	if r.steps < 0 {
		panic(errSteps)
	}
}

// spend counts bytes that were made.
func (r *run) spend(n int) {
	r.bytes -= n
	if r.bytes < 0 {
		panic(errBytes)
	}
}

// made counts a text that was made, and returns it.
func (r *run) made(s string) string {
	r.spend(len(s))
	return s
}

// ev evaluates an expression.
func (r *run) ev(e expr, sc *scope) Value {
	r.step()
	if r.deep > maxDeep {
		panic(errDepth)
	}
	r.deep++
	var v Value
	if r.rec != nil && r.rec.loop.outside.exprs[e] {
		v = r.rec.probe(r, e, sc)
	} else {
		v = e.eval(r, sc)
	}
	r.deep--
	return v
}

// maxDeep bounds how deep evaluations nest, over all macros that are running: it bounds the
// stack.
const maxDeep = 20_000

func (r *run) write(s string) {
	r.spend(len(s))
	r.out = append(r.out, s...)
}

// cut makes a piece of what was written since the last one.
func (r *run) cut() {
	if len(r.out) > 0 {
		r.pieces = append(r.pieces, string(r.out))
		r.out = r.out[:0]
	}
}

// global is a name that no scope has: a variable of the rendering, else a function.
func (r *run) global(id int, name string) Value {
	if r.vars[id].set {
		return r.vars[id].v
	}
	v, ok := r.t.globals[id]
	if ok {
		return v
	}
	return &undefined{name}
}

// scope holds the names of one frame: the template, a loop's turn, a macro, a with.
type scope struct {
	parent *scope
	ids    []int
	vals   []Value
	// inside: it was made while a turn of a loop is recorded, or is that turn's.
	inside bool
}

func (r *run) inner(sc *scope) *scope { return &scope{parent: sc, inside: r.rec != nil} }

func (s *scope) find(id int) (Value, *scope) {
	for ; s != nil; s = s.parent {
		for i, k := range s.ids {
			if k == id {
				return s.vals[i], s
			}
		}
	}
	return nil, nil
}

func (s *scope) set(id int, v Value) {
	for i, k := range s.ids {
		if k == id {
			s.vals[i] = v
			return
		}
	}
	s.ids = append(s.ids, id)
	s.vals = append(s.vals, v)
}

func (s *scope) clear() { s.ids, s.vals = s.ids[:0], s.vals[:0] }
