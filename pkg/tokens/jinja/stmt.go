package jinja

import "slices"

// A stmt is a statement of a template.
type stmt interface {
	exec(r *run, sc *scope) control
}

// control says where to go on after a statement.
type control uint8

const (
	ctlNext control = iota
	ctlBreak
	ctlContinue
)

type (
	dataStmt   struct{ text string }
	outputStmt struct{ e expr }
	jumpStmt   struct{ ctl control }
	ifStmt     struct {
		tests  []expr
		bodies [][]stmt
		orElse []stmt
	}
	target struct {
		id   int
		name string
		// attr is set where an attribute of a namespace is assigned to.
		attr string
	}
	setStmt struct {
		targets []target
		many    bool
		e       expr
	}
	setBlockStmt struct {
		target target
		body   []stmt
	}
	forStmt struct {
		targets []target
		many    bool
		iter    expr
		cond    expr
		body    []stmt
		orElse  []stmt
		// outside says which expressions read nothing of the message; nil if this loop's
		// turns are not remembered.
		outside *outside
	}
	scopeStmt struct {
		targets []target
		values  []expr
		body    []stmt
	}
	macroStmt struct {
		id  int
		def *macroDef
	}
	macroDef struct {
		name   string
		params []param
		body   []stmt
	}
	param struct {
		id        int
		name      string
		byDefault expr
	}
)

// macro is a macro with the scope in which it was defined.
type macro struct {
	def *macroDef
	sc  *scope
}

func (r *run) block(body []stmt, sc *scope) control {
	for _, s := range body {
		r.step()
		c := s.exec(r, sc)
		if c != ctlNext {
			return c
		}
	}
	return ctlNext
}

func (s *dataStmt) exec(r *run, _ *scope) control {
	r.write(s.text)
	return ctlNext
}

func (s *outputStmt) exec(r *run, sc *scope) control {
	r.write(r.str(r.ev(s.e, sc)))
	return ctlNext
}

func (s *jumpStmt) exec(*run, *scope) control { return s.ctl }

func (s *ifStmt) exec(r *run, sc *scope) control {
	for i, t := range s.tests {
		if truth(r.ev(t, sc)) {
			return r.block(s.bodies[i], sc)
		}
	}
	return r.block(s.orElse, sc)
}

func (s *setStmt) exec(r *run, sc *scope) control {
	if r.rec != nil && r.rec.loop.outside.sets[s] {
		r.rec.redo(r, s, sc)
		return ctlNext
	}
	v := r.ev(s.e, sc)
	if s.many {
		r.unpack(sc, s.targets, v)
	} else {
		r.assign(sc, &s.targets[0], v)
	}
	return ctlNext
}

// assign sets a name, or an attribute of a namespace.
func (r *run) assign(sc *scope, t *target, v Value) {
	if t.attr == "" {
		sc.set(t.id, v)
		if r.rec != nil && r.rec.loop.outside.slots[t.id] {
			r.rec.assigned(r, t, v)
		}
		return
	}
	nv, from := sc.find(t.id)
	if from == nil {
		nv = r.global(t.id, t.name)
	}
	ns, ok := nv.(*namespace)
	if !ok {
		panic(wrong("an assignment to an attribute of %s", nv))
	}
	if r.rec != nil && (from == nil || !from.inside) {
		r.rec.assigned(r, t, v)
	}
	r.setAttr(ns, t.attr, v)
}

// setAttr sets an attribute of a namespace, and keeps what was there if it may have to be
// undone.
func (r *run) setAttr(ns *namespace, attr string, v Value) {
	if r.undoing {
		old, had := ns.attrs.Get(attr)
		r.undo = append(r.undo, undone{ns: ns, attr: attr, old: old, had: had})
	}
	ns.attrs.Set(attr, v)
}

func (r *run) unpack(sc *scope, ts []target, v Value) {
	items := r.iterate(v)
	if len(items) != len(ts) {
		panic(raise("unpacking another number of values"))
	}
	for i := range ts {
		r.assign(sc, &ts[i], items[i])
	}
}

func (s *setBlockStmt) exec(r *run, sc *scope) control {
	r.assign(sc, &s.target, r.captured(s.body, r.inner(sc)))
	return ctlNext
}

// captured runs a body and returns what it wrote.
func (r *run) captured(body []stmt, sc *scope) Value {
	from := len(r.out)
	r.capturing++
	r.block(body, sc)
	r.capturing--
	s := string(r.out[from:])
	r.out = r.out[:from]
	return s
}

func (s *scopeStmt) exec(r *run, sc *scope) control {
	in := r.inner(sc)
	for i := range s.targets {
		in.set(s.targets[i].id, r.ev(s.values[i], sc))
	}
	return r.block(s.body, in)
}

func (s *macroStmt) exec(r *run, sc *scope) control {
	sc.set(s.id, &macro{def: s.def, sc: sc})
	return ctlNext
}

// callMacro runs a macro and returns what it wrote.
func (r *run) callMacro(m *macro, args []Value, kw []kwarg) Value {
	if r.calls >= r.limits.Depth {
		panic(errDepth)
	}
	if len(args) > len(m.def.params) {
		panic(raise("macro %s takes fewer arguments", m.def.name))
	}
	in := r.inner(m.sc)
	used := 0
	for i, p := range m.def.params {
		if i < len(args) {
			in.set(p.id, args[i])
			continue
		}
		v := Value(nil)
		at := slices.IndexFunc(kw, func(k kwarg) bool { return k.name == p.name }) // none comes twice
		switch {
		case at >= 0:
			v = kw[at].v
			used++
		case p.byDefault != nil:
			// A default sees the parameters before it, as in Jinja.
			v = r.ev(p.byDefault, in)
		default:
			v = &undefined{p.name}
		}
		in.set(p.id, v)
	}
	if used < len(kw) {
		panic(raise("macro %s has no such argument", m.def.name))
	}
	r.calls++
	v := r.captured(m.def.body, in)
	r.calls--
	return v
}
