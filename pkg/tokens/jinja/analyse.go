package jinja

import "slices"

// outside is what compiling finds of a loop: which parts of its body read nothing of the
// loop's item, so that they can be evaluated again without it.
type outside struct {
	// exprs are the expressions that read only what is outside: other variables, the loop
	// variable, namespaces, and slots.
	exprs map[expr]bool
	// slots are names that the body sets from outside; they are set again on replay.
	slots map[int]bool
	// sets are the set statements that assign such an expression to a slot or to an
	// attribute of a namespace from outside.
	sets map[*setStmt]bool
}

// analyse fills in what loops may remember.
func (t *Template) analyse() {
	t.macros = map[int]bool{}
	defined := map[int]int{}
	var loops []*forStmt
	walk(t.body, func(s stmt, _ place) {
		switch s := s.(type) {
		case *macroStmt:
			defined[s.id]++
		case *forStmt:
			loops = append(loops, s)
		}
		for _, g := range bindsOf(s) {
			defined[g.id] += 2
		}
	})
	for _, s := range t.body {
		m, ok := s.(*macroStmt)
		if ok && defined[m.id] == 1 {
			t.macros[m.id] = true
		}
	}
	for _, f := range loops {
		t.analyseLoop(f)
	}
	t.findLater()
}

// findLater fills in later: it goes through the template's own frame in its order, then
// through the frames within.
func (t *Template) findLater() {
	t.later = map[int]nameBefore{}
	t.frame(t.body)
	walk(t.body, func(s stmt, at place) {
		set, ok := s.(*setStmt)
		if !ok || !at.inner {
			return
		}
		for _, g := range set.targets {
			t.see(g.id, setSomewhere)
		}
	})
}

// see notes how a name is met first.
func (t *Template) see(id int, b nameBefore) {
	_, seen := t.later[id]
	if !seen {
		t.later[id] = b
	}
}

// seeReads notes the names that an expression reads.
func (t *Template) seeReads(e expr) {
	if e == nil {
		return
	}
	n, ok := e.(*nameExpr)
	if ok {
		t.see(n.id, readFirst)
	}
	for _, c := range children(e) {
		t.seeReads(c)
	}
}

// frame goes through statements of the template's own frame.
func (t *Template) frame(body []stmt) {
	for _, s := range body {
		own, _ := exprsOf(s)
		for _, e := range own {
			t.seeReads(e)
		}
		switch s := s.(type) {
		case *ifStmt:
			t.frameIf(s)
		case *setStmt:
			for _, g := range s.targets {
				if g.attr == "" {
					t.see(g.id, setLater)
				}
			}
		case *setBlockStmt:
			t.see(s.target.id, setLater)
		case *macroStmt:
			t.see(s.id, setLater)
		}
	}
}

// frameIf notes the names of a condition's branches. Jinja looks at three: the first, all
// elifs, and the else. A name that not all of them set is the rendering's variable before.
func (t *Template) frameIf(s *ifStmt) {
	var elifs []stmt
	for _, b := range s.bodies[1:] {
		elifs = append(elifs, b...)
	}
	sets := map[int]int{}
	for _, b := range [][]stmt{s.bodies[0], elifs, s.orElse} {
		for id := range setIn(b) {
			sets[id]++
		}
	}
	for id, n := range sets {
		if n == 3 {
			t.see(id, setSomewhere)
		} else {
			t.see(id, readFirst)
		}
	}
	for _, b := range append(slices.Clip(s.bodies), s.orElse) {
		t.frame(b)
	}
}

// setIn are the names that statements of one frame set.
func setIn(body []stmt) map[int]bool {
	ids := map[int]bool{}
	walk(body, func(s stmt, at place) {
		if at.inner {
			return
		}
		switch s := s.(type) {
		case *setStmt:
			for _, g := range s.targets {
				if g.attr == "" {
					ids[g.id] = true
				}
			}
		case *setBlockStmt:
			ids[s.target.id] = true
		case *macroStmt:
			ids[s.id] = true
		}
	})
	return ids
}

// place says where in a loop's body something stands.
type place struct {
	// nested: within a loop of the body, so its loop variable is another one.
	nested bool
	// inner: within a scope of its own.
	inner bool
}

// walk visits statements, those of macros too, with their place.
func walk(body []stmt, visit func(stmt, place)) { walkAt(body, place{}, visit) }

func walkAt(body []stmt, at place, visit func(stmt, place)) {
	deeper := place{at.nested, true}
	for _, s := range body {
		visit(s, at)
		switch s := s.(type) {
		case *ifStmt:
			for _, b := range s.bodies {
				walkAt(b, at, visit)
			}
			walkAt(s.orElse, at, visit)
		case *forStmt:
			walkAt(s.body, place{true, true}, visit)
			walkAt(s.orElse, deeper, visit)
		case *scopeStmt:
			walkAt(s.body, deeper, visit)
		case *setBlockStmt:
			walkAt(s.body, deeper, visit)
		case *macroStmt:
			walkAt(s.def.body, deeper, visit)
		}
	}
}

// exprsOf are the expressions that a statement has itself. The condition and the body of a
// loop see the loop's own names; its iter does not.
func exprsOf(s stmt) (own, within []expr) {
	switch s := s.(type) {
	case *outputStmt:
		return []expr{s.e}, nil
	case *ifStmt:
		return s.tests, nil
	case *setStmt:
		return []expr{s.e}, nil
	case *forStmt:
		return []expr{s.iter}, []expr{s.cond}
	case *scopeStmt:
		return s.values, nil
	}
	return nil, nil
}

// children are the expressions that an expression has.
func children(e expr) []expr {
	switch e := e.(type) {
	case *listExpr:
		return e.items
	case *dictExpr:
		return append(append([]expr{}, e.keys...), e.vals...)
	case *condExpr:
		return []expr{e.test, e.then, e.other}
	case *boolExpr:
		return []expr{e.a, e.b}
	case *notExpr:
		return []expr{e.e}
	case *compareExpr:
		return append([]expr{e.first}, e.rest...)
	case *binExpr:
		return []expr{e.a, e.b}
	case *concatExpr:
		return e.parts
	case *signExpr:
		return []expr{e.e}
	case *attrExpr:
		return []expr{e.e}
	case *itemExpr:
		return []expr{e.e, e.key}
	case *sliceExpr:
		return []expr{e.e, e.from, e.to, e.by}
	case *callExpr:
		return append(append([]expr{e.fn}, e.args...), e.named...)
	case *filterExpr:
		return append(append([]expr{e.e}, e.args.args...), e.args.named...)
	case *testExpr:
		return append(append([]expr{e.e}, e.args.args...), e.args.named...)
	}
	return nil
}

// loopScan is the work of analyseLoop.
type loopScan struct {
	t *Template
	o *outside
	// local are the names that the body binds, the loop's item among them.
	local map[int]bool
	// item is the loop's item, or -1 if the body binds its name anew.
	item int
	// known is what reads has found, until local changes.
	known map[scanKey]found
}

type scanKey struct {
	e      expr
	nested bool
}

// found says whether an expression reads the loop's item, another local name, or anything
// from outside.
type found struct{ other, item, outside bool }

// onlyOutside: something from outside, and nothing else.
func (f found) onlyOutside() bool { return f.outside && !f.item && !f.other }

// maxSlotRounds bounds how long a chain of names may be that are set from each other. A name
// that is not found to be a slot only makes more turns run.
const maxSlotRounds = 8

// analyseLoop decides whether a loop's turns can be remembered, and what of its body reads
// only what is outside.
func (t *Template) analyseLoop(f *forStmt) {
	if f.many {
		return
	}
	item := f.targets[0].id
	sc := &loopScan{t: t, local: map[int]bool{}, item: item, o: &outside{
		exprs: map[expr]bool{}, slots: map[int]bool{}, sets: map[*setStmt]bool{}}}
	writes, able := sc.bound(f.body)
	if !writes || !able {
		return
	}
	if sc.local[item] {
		sc.item = -1
	}
	sc.local[item] = true
	for n := 0; n < maxSlotRounds && sc.findSlots(f); n++ {
	}
	walk(f.body, func(s stmt, at place) {
		own, within := exprsOf(s)
		for _, e := range own {
			sc.mark(e, at.nested)
		}
		for _, e := range within {
			sc.mark(e, true)
		}
		set, ok := s.(*setStmt)
		if !ok || set.many || !sc.reads(set.e, at.nested).onlyOutside() {
			return
		}
		g := set.targets[0]
		if g.attr == "" && sc.o.slots[g.id] || g.attr != "" && !sc.local[g.id] {
			sc.o.sets[set] = true
		}
	})
	f.outside = sc.o
}

// bound collects the names that a body binds, and says whether it writes anything, and
// whether it is made of what can be remembered.
func (sc *loopScan) bound(body []stmt) (writes, able bool) {
	able = true
	walk(body, func(s stmt, _ place) {
		switch s.(type) {
		case *outputStmt, *dataStmt:
			writes = true
		case *macroStmt:
			able = false
		}
		for _, g := range bindsOf(s) {
			sc.local[g.id] = true
		}
	})
	return writes, able
}

// findSlots makes a slot of a name that the body sets, in its own scope only, once at least
// from what is outside. It reports whether it found one.
func (sc *loopScan) findSlots(f *forStmt) bool {
	from, not := map[int]bool{}, map[int]bool{f.targets[0].id: true}
	walk(f.body, func(s stmt, at place) {
		set, ok := s.(*setStmt)
		if !ok {
			for _, g := range bindsOf(s) {
				not[g.id] = true
			}
			return
		}
		for _, g := range bindsOf(s) {
			if at.inner || set.many {
				not[g.id] = true
			}
			if sc.reads(set.e, at.nested).onlyOutside() {
				from[g.id] = true
			}
		}
	})
	found := false
	sc.known = nil
	for id := range from {
		if !not[id] && !sc.o.slots[id] {
			sc.o.slots[id] = true
			delete(sc.local, id)
			found = true
		}
	}
	return found
}

// bindsOf are the names that a statement binds; attributes of namespaces are none.
func bindsOf(s stmt) []target {
	var all, names []target
	switch s := s.(type) {
	case *forStmt:
		all = s.targets
	case *setStmt:
		all = s.targets
	case *setBlockStmt:
		all = []target{s.target}
	case *scopeStmt:
		all = s.targets
	}
	for _, g := range all {
		if g.attr == "" {
			names = append(names, g)
		}
	}
	return names
}

// reads reports what an expression reads.
func (sc *loopScan) reads(e expr, nested bool) found {
	switch n := e.(type) {
	case nil:
		return found{}
	case *nameExpr:
		return sc.readsName(n, nested)
	}
	k := scanKey{e, nested}
	f, ok := sc.known[k]
	if ok {
		return f
	}
	for _, c := range children(e) {
		if c == nil {
			continue
		}
		g := sc.reads(c, nested)
		f = found{f.other || g.other, f.item || g.item, f.outside || g.outside}
	}
	if sc.known == nil {
		sc.known = map[scanKey]found{}
	}
	sc.known[k] = f
	return f
}

func (sc *loopScan) readsName(n *nameExpr, nested bool) found {
	switch {
	case n.id == sc.t.loop:
		return found{other: nested, outside: !nested}
	case n.id == sc.item:
		return found{item: true}
	case sc.local[n.id]:
		return found{other: true}
	}
	b, ok := sc.t.globals[n.id].(*builtin)
	if ok && b.name != "strftime_now" || sc.t.macros[n.id] {
		return found{}
	}
	return found{outside: true}
}

// mark notes each expression that can be evaluated again: it reads only what is outside, or
// it compares that with the item.
func (sc *loopScan) mark(e expr, nested bool) {
	if e == nil {
		return
	}
	f := sc.reads(e, nested)
	if f.onlyOutside() || is[*compareExpr](e) && f.outside && !f.other {
		sc.o.exprs[e] = true
	}
	for _, c := range children(e) {
		sc.mark(c, nested)
	}
}
