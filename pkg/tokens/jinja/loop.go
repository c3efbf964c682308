package jinja

// loopState is the loop variable within a loop.
type loopState struct {
	items []Value
	i     int
}

func (l *loopState) attr(name string) (Value, bool) {
	switch name {
	case "index":
		return l.i + 1, true
	case "index0":
		return l.i, true
	case "revindex":
		return len(l.items) - l.i, true
	case "revindex0":
		return len(l.items) - l.i - 1, true
	case "first":
		return l.i == 0, true
	case "last":
		return l.i == len(l.items)-1, true
	case "length":
		return len(l.items), true
	case "depth": // of recursive loops, which are refused
		return 1, true
	case "depth0":
		return 0, true
	case "previtem":
		if l.i == 0 {
			return &undefined{"there is no previous item"}, true
		}
		return l.items[l.i-1], true
	case "nextitem":
		if l.i == len(l.items)-1 {
			return &undefined{"there is no next item"}, true
		}
		return l.items[l.i+1], true
	}
	return nil, false
}

func (s *forStmt) exec(r *run, sc *scope) control {
	items := r.iterate(r.ev(s.iter, sc))
	if s.cond != nil {
		items = s.chosen(r, sc, items)
	}
	if len(items) == 0 {
		return r.block(s.orElse, r.inner(sc))
	}
	loop := &loopState{items: items}
	in := r.inner(sc)
	for i := range items {
		loop.i = i
		in.clear()
		if s.turn(r, in, loop) == ctlBreak {
			break
		}
	}
	return ctlNext
}

// chosen filters the items by the loop's condition, which sees the target alone.
func (s *forStmt) chosen(r *run, sc *scope, items []Value) []Value {
	var out []Value
	in := r.inner(sc)
	for _, v := range items {
		in.clear()
		s.bind(r, in, v)
		if truth(r.ev(s.cond, in)) {
			out = append(out, v)
		}
	}
	r.spend(16 * len(out))
	return out
}

func (s *forStmt) bind(r *run, in *scope, v Value) {
	r.step()
	if s.many {
		r.unpack(in, s.targets, v)
		return
	}
	in.set(s.targets[0].id, v)
}

// turn runs the body for one item.
func (s *forStmt) turn(r *run, in *scope, loop *loopState) control {
	v := loop.items[loop.i]
	s.bind(r, in, v)
	in.set(r.t.loop, loop)
	d, ok := v.(*Dict)
	if !ok || d.memory == nil || !r.remembers() {
		return r.block(s.body, in)
	}
	if s.outside != nil {
		return r.remembered(s, in, d)
	}
	c := r.block(s.body, in)
	r.cut()
	return c
}
