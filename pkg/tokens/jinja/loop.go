package jinja

// loopState is the loop variable within a loop.
type loopState struct {
	items []Value
	i     int
	depth int
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
	case "depth":
		return l.depth, true
	case "depth0":
		return l.depth - 1, true
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

func (s *forStmt) exec(r *run, sc *scope) (control, error) {
	v, err := r.ev(s.iter, sc)
	if err != nil {
		return ctlNext, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return ctlNext, err
	}
	if s.cond != nil {
		items, err = s.chosen(r, sc, items)
		if err != nil {
			return ctlNext, err
		}
	}
	if len(items) == 0 {
		return r.block(s.orElse, r.inner(sc))
	}
	loop := &loopState{items: items, depth: 1}
	in := r.inner(sc)
	for i := range items {
		loop.i = i
		in.clear()
		c, err := s.turn(r, in, loop)
		if err != nil {
			return ctlNext, err
		}
		if c == ctlBreak {
			break
		}
	}
	return ctlNext, nil
}

// chosen filters the items by the loop's condition, which sees the target alone.
func (s *forStmt) chosen(r *run, sc *scope, items []Value) ([]Value, error) {
	var out []Value
	in := r.inner(sc)
	for _, v := range items {
		in.clear()
		err := s.bind(r, in, v)
		if err != nil {
			return nil, err
		}
		ok, err := r.ev(s.cond, in)
		if err != nil {
			return nil, err
		}
		if truth(ok) {
			out = append(out, v)
		}
	}
	return out, r.spend(16 * len(out))
}

func (s *forStmt) bind(r *run, in *scope, v Value) error {
	err := r.step()
	if err != nil {
		return err
	}
	if s.many {
		return r.unpack(in, s.targets, v)
	}
	in.set(s.targets[0].id, v)
	return nil
}

// turn runs the body for one item.
func (s *forStmt) turn(r *run, in *scope, loop *loopState) (control, error) {
	v := loop.items[loop.i]
	err := s.bind(r, in, v)
	if err != nil {
		return ctlNext, err
	}
	in.set(r.t.loop, loop)
	d, ok := v.(*Dict)
	if !ok || d.memory == nil || !r.remembers() {
		return r.block(s.body, in)
	}
	if s.outside != nil {
		return r.remembered(s, in, d)
	}
	c, err := r.block(s.body, in)
	r.cut()
	return c, err
}
