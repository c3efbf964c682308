package jinja

// A stmt is a statement of a template.
type stmt interface {
	exec(r *run, sc *scope) (control, error)
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
		filter expr
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
	filterStmt struct {
		filter expr
		body   []stmt
	}
	macroStmt struct {
		id  int
		def *macroDef
	}
	callStmt struct {
		call   *callExpr
		caller *macroDef
	}
	macroDef struct {
		name   string
		params []param
		body   []stmt
		// caller: the body asks for a caller.
		caller bool
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

func (r *run) block(body []stmt, sc *scope) (control, error) {
	for _, s := range body {
		err := r.step()
		if err != nil {
			return ctlNext, err
		}
		c, err := s.exec(r, sc)
		if err != nil || c != ctlNext {
			return c, err
		}
	}
	return ctlNext, nil
}

func (s *dataStmt) exec(r *run, _ *scope) (control, error) { return ctlNext, r.write(s.text) }

func (s *outputStmt) exec(r *run, sc *scope) (control, error) {
	v, err := r.ev(s.e, sc)
	if err != nil {
		return ctlNext, err
	}
	t, err := r.str(v)
	if err != nil {
		return ctlNext, err
	}
	return ctlNext, r.write(t)
}

func (s *jumpStmt) exec(*run, *scope) (control, error) { return s.ctl, nil }

func (s *ifStmt) exec(r *run, sc *scope) (control, error) {
	for i, t := range s.tests {
		v, err := r.ev(t, sc)
		if err != nil {
			return ctlNext, err
		}
		if truth(v) {
			return r.block(s.bodies[i], sc)
		}
	}
	return r.block(s.orElse, sc)
}

func (s *setStmt) exec(r *run, sc *scope) (control, error) {
	if r.rec != nil && r.rec.loop.outside.sets[s] {
		return ctlNext, r.rec.redo(r, s, sc)
	}
	v, err := r.ev(s.e, sc)
	if err != nil {
		return ctlNext, err
	}
	if !s.many {
		return ctlNext, r.assign(sc, &s.targets[0], v)
	}
	return ctlNext, r.unpack(sc, s.targets, v)
}

// assign sets a name, or an attribute of a namespace.
func (r *run) assign(sc *scope, t *target, v Value) error {
	if t.attr == "" {
		sc.set(t.id, v)
		if r.rec != nil && r.rec.loop.outside.slots[t.id] {
			r.rec.assigned(r, t, v)
		}
		return nil
	}
	nv, from := sc.find(t.id)
	if from == nil {
		nv = r.global(t.id, t.name)
	}
	ns, ok := nv.(*namespace)
	if !ok {
		return wrong("an assignment to an attribute of %s", nv)
	}
	if r.rec != nil && (from == nil || !from.inside) {
		r.rec.assigned(r, t, v)
	}
	r.setAttr(ns, t.attr, v)
	return nil
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

func (r *run) unpack(sc *scope, ts []target, v Value) error {
	items, err := r.iterate(v)
	if err != nil {
		return err
	}
	if len(items) != len(ts) {
		return raise("unpacking another number of values")
	}
	for i := range ts {
		err = r.assign(sc, &ts[i], items[i])
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *setBlockStmt) exec(r *run, sc *scope) (control, error) {
	v, err := r.captured(s.body, r.inner(sc))
	if err != nil {
		return ctlNext, err
	}
	if s.filter != nil {
		v, err = r.filtered(s.filter, sc, v)
		if err != nil {
			return ctlNext, err
		}
	}
	return ctlNext, r.assign(sc, &s.target, v)
}

// captured runs a body and returns what it wrote.
func (r *run) captured(body []stmt, sc *scope) (Value, error) {
	from := len(r.out)
	r.capturing++
	_, err := r.block(body, sc)
	r.capturing--
	if err != nil {
		return nil, err
	}
	s := string(r.out[from:])
	r.out = r.out[:from]
	return s, nil
}

func (r *run) filtered(filter expr, sc *scope, v Value) (Value, error) {
	was := r.hole
	r.hole = v
	v, err := r.ev(filter, sc)
	r.hole = was
	return v, err
}

func (s *filterStmt) exec(r *run, sc *scope) (control, error) {
	v, err := r.captured(s.body, r.inner(sc))
	if err != nil {
		return ctlNext, err
	}
	v, err = r.filtered(s.filter, sc, v)
	if err != nil {
		return ctlNext, err
	}
	t, err := r.str(v)
	if err != nil {
		return ctlNext, err
	}
	return ctlNext, r.write(t)
}

func (s *scopeStmt) exec(r *run, sc *scope) (control, error) {
	in := r.inner(sc)
	for i := range s.targets {
		v, err := r.ev(s.values[i], sc)
		if err != nil {
			return ctlNext, err
		}
		in.set(s.targets[i].id, v)
	}
	return r.block(s.body, in)
}

func (s *macroStmt) exec(r *run, sc *scope) (control, error) {
	sc.set(s.id, &macro{def: s.def, sc: sc})
	return ctlNext, nil
}

func (s *callStmt) exec(r *run, sc *scope) (control, error) {
	fn, err := r.ev(s.call.fn, sc)
	if err != nil {
		return ctlNext, err
	}
	m, ok := fn.(*macro)
	if !ok || !m.def.caller {
		return ctlNext, refuse("a call block of what takes no caller")
	}
	args, kw, err := s.call.values(r, sc)
	if err != nil {
		return ctlNext, err
	}
	v, err := r.callMacro(m, args, kw, &macro{def: s.caller, sc: sc})
	if err != nil {
		return ctlNext, err
	}
	t, err := r.str(v)
	if err != nil {
		return ctlNext, err
	}
	return ctlNext, r.write(t)
}

// callMacro runs a macro and returns what it wrote.
func (r *run) callMacro(m *macro, args []Value, kw []kwarg, caller *macro) (Value, error) {
	if r.calls >= r.limits.Depth {
		return nil, errDepth
	}
	if len(args) > len(m.def.params) {
		return nil, raise("macro %s takes fewer arguments", m.def.name)
	}
	in := r.inner(m.sc)
	used := 0
	for i, p := range m.def.params {
		if i < len(args) {
			in.set(p.id, args[i])
			continue
		}
		v, ok := Value(nil), false
		for _, k := range kw {
			if k.name == p.name {
				v, ok = k.v, true
				used++
			}
		}
		switch {
		case ok:
		case p.byDefault != nil:
			// A default sees the parameters before it, as in Jinja.
			var err error
			v, err = r.ev(p.byDefault, in)
			if err != nil {
				return nil, err
			}
		default:
			v = &undefined{p.name}
		}
		in.set(p.id, v)
	}
	if used < len(kw) {
		return nil, raise("macro %s has no such argument", m.def.name)
	}
	if m.def.caller {
		var v Value = &undefined{"caller"}
		if caller != nil {
			v = caller
		}
		in.set(r.t.caller, v)
	}
	r.calls++
	v, err := r.captured(m.def.body, in)
	r.calls--
	return v, err
}
