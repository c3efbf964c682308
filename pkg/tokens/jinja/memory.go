package jinja

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

// loopMemory is what one loop has done for one message: a tree of what a turn read from
// outside, at whose leaves is what it wrote.
type loopMemory struct {
	loop *forStmt
	root *node
	// leaves is how many turns are remembered. hopeless: this loop's turns cannot be.
	leaves   int
	hopeless bool
}

// maxLeaves is how many turns of one loop are remembered for a message. A message is the
// last one, then in the current exchange, then in a past one.
const maxLeaves = 4

// maxLoops is of how many loops, of all templates that have the message.
const maxLoops = 4

// nodeBytes is what a step of a tree is taken to use.
const nodeBytes = 200

type nodeKind uint8

const (
	// nodeProbe evaluates what was read from outside; the value leads on.
	nodeProbe nodeKind = iota
	// nodeRedo executes a set statement again.
	nodeRedo
	// nodeAssign assigns what the turn had assigned.
	nodeAssign
	nodeLeaf
)

// node is one step of a turn.
type node struct {
	kind     nodeKind
	e        expr
	set      *setStmt
	target   *target
	value    Value
	branches []branch
	next     *node

	// Of a leaf: what was written, if anything, how the turn ended, what it used.
	piece        string
	ctl          control
	steps, bytes int
	written      bool
}

type branch struct {
	value Value
	to    *node
}

// undone is what has to be put back if a remembered turn does not fit after all.
type undone struct {
	ns   *namespace
	attr string
	old  Value
	had  bool
	gen  *generator
	pos  int
}

// remembers says whether the current loop is one whose turns may be remembered: it writes to
// the rendering itself, and is not within another such turn.
func (r *run) remembers() bool {
	return r.capturing == 0 && r.calls == 0 && r.rec == nil && !r.inMemory && !r.env.Plain
}

// remembered is one turn of a loop over messages: as it is remembered, else run and recorded.
func (r *run) remembered(s *forStmt, in *scope, d *Dict) control {
	r.cut()
	m := d.memory
	free := m.mu.TryLock()
	if !free || m.of(s).hopeless {
		// Another rendering has the message, or nothing can be remembered: run.
		if free {
			m.mu.Unlock()
		}
		c := r.block(s.body, in)
		r.cut()
		return c
	}
	defer m.mu.Unlock()
	bound := len(in.ids)
	leaf := r.replay(m.of(s).root, in)
	if leaf != nil && !invariants.Enabled {
		return r.take(leaf)
	}
	r.unwind()
	in.ids, in.vals = in.ids[:bound], in.vals[:bound]
	c := r.recorded(m, s, in)
	if leaf != nil {
		last := ""
		if leaf.written {
			last = r.pieces[len(r.pieces)-1]
		}
		if last != leaf.piece || c != leaf.ctl {
			panic("jinja: J1: a remembered piece is not what the template writes")
		}
		r.kept++
	}
	return c
}

// take makes a remembered turn's piece the next one.
func (r *run) take(leaf *node) control {
	r.undo = r.undo[:0]
	r.steps -= leaf.steps
	if r.steps < 0 {
		panic(errSteps)
	}
	r.spend(leaf.bytes)
	if leaf.written {
		r.pieces = append(r.pieces, leaf.piece)
		r.kept++
	}
	return leaf.ctl
}

func (m *memory) of(s *forStmt) *loopMemory {
	for i := range m.loops {
		if m.loops[i].loop == s {
			return &m.loops[i]
		}
	}
	if len(m.loops) >= maxLoops {
		// Templates come and go; the latest are remembered.
		m.loops, m.used = m.loops[:0], 0
	}
	m.loops = append(m.loops, loopMemory{loop: s})
	return &m.loops[len(m.loops)-1]
}

// replay follows what is remembered as far as it fits. It returns the leaf, or nil.
func (r *run) replay(n *node, in *scope) *node {
	r.inMemory, r.undoing = true, true
	defer func() { r.inMemory, r.undoing = false, false }()
	for n != nil && n.kind != nodeLeaf {
		switch n.kind {
		case nodeProbe:
			n = n.fitting(r.ev(n.e, in))
		case nodeRedo:
			r.assign(in, &n.set.targets[0], r.ev(n.set.e, in))
			n = n.next
		case nodeAssign:
			r.assign(in, n.target, n.value)
			n = n.next
		}
	}
	return n
}

func (n *node) fitting(v Value) *node {
	for i := range n.branches {
		if same(n.branches[i].value, v) {
			return n.branches[i].to
		}
	}
	return nil
}

// unwind takes back what a turn that did not fit has changed.
func (r *run) unwind() {
	for i := len(r.undo) - 1; i >= 0; i-- {
		u := r.undo[i]
		switch {
		case u.gen != nil:
			u.gen.pos = u.pos
		case u.had:
			u.ns.attrs.Set(u.attr, u.old)
		default:
			u.ns.attrs.drop(u.attr)
		}
	}
	r.undo = r.undo[:0]
}

// drop removes the key that was added last.
func (d *Dict) drop(key string) {
	n := len(d.keys) - 1
	if n < 0 || d.keys[n] != Value(key) {
		return
	}
	d.keys, d.vals = d.keys[:n], d.vals[:n]
	delete(d.index, key)
}

// same says whether two values are the very same for whoever reads them: scalars of one
// type, and lists and dictionaries that are one object, since these never change.
func same(a, b Value) bool {
	switch x := a.(type) {
	case *undefined:
		return is[*undefined](b)
	case float64:
		y, ok := b.(float64)
		return ok && x == y && (x != 0 || 1/x == 1/y)
	}
	return a == b
}

// keepable says whether a value read from outside, or assigned, can be compared later.
func keepable(v Value) bool {
	switch v.(type) {
	case nil, bool, int, float64, string, *List, *Dict, *undefined:
		return true
	}
	return false
}

// record is the turn of a loop that is being recorded.
type record struct {
	loop  *forStmt
	state *loopState
	steps []node
	// gaveUp: the turn read or changed something that cannot be recorded.
	gaveUp bool
}

// recorded runs a turn and remembers it.
func (r *run) recorded(m *memory, s *forStmt, in *scope) control {
	state, _ := in.find(r.t.loop)
	rec := &record{loop: s, state: state.(*loopState)}
	steps, bytes, pieces := r.steps, r.bytes, len(r.pieces)
	r.rec, in.inside = rec, true
	c := r.block(s.body, in)
	r.rec, in.inside = nil, false
	r.cut()
	leaf := node{kind: nodeLeaf, ctl: c, steps: steps - r.steps, bytes: bytes - r.bytes, written: len(r.pieces) > pieces}
	if leaf.written {
		leaf.piece = r.pieces[len(r.pieces)-1]
	}
	cost := len(leaf.piece) + nodeBytes*(1+len(rec.steps))
	switch {
	case rec.gaveUp || cost > m.limit:
		m.of(s).hopeless = true
		return c
	case m.of(s).leaves >= maxLeaves || m.used+cost > m.limit:
		m.loops, m.used = m.loops[:0], 0
	}
	m.used += cost
	m.of(s).insert(append(rec.steps, leaf))
	return c
}

// insert adds a recorded turn to the tree.
func (lm *loopMemory) insert(steps []node) {
	at := &lm.root
	for i := range steps {
		st := &steps[i]
		if *at == nil {
			n := *st
			n.branches = nil
			*at = &n
			if st.kind == nodeLeaf {
				lm.leaves++
			}
		}
		n := *at
		if n.kind != nodeProbe {
			at = &n.next
			continue
		}
		j := slices.IndexFunc(n.branches, func(b branch) bool { return same(b.value, st.value) })
		if j < 0 {
			j = len(n.branches)
			n.branches = append(n.branches, branch{value: st.value})
		}
		at = &n.branches[j].to
	}
}

// probe evaluates an expression that reads only what is outside, and records its value.
func (rec *record) probe(r *run, e expr, sc *scope) Value {
	r.rec = nil
	v := e.eval(r, sc)
	r.rec = rec
	rec.keep(node{kind: nodeProbe, e: e, value: v}, v)
	return v
}

// maxRecorded bounds what a turn records; a loop that reads more from outside is run.
const maxRecorded = 256

func (rec *record) keep(n node, v Value) {
	if !keepable(v) || len(rec.steps) >= maxRecorded {
		rec.gaveUp = true
	}
	if rec.gaveUp {
		return
	}
	rec.steps = append(rec.steps, n)
}

// redo executes a set from outside, and records that it has to be done again.
func (rec *record) redo(r *run, s *setStmt, sc *scope) {
	r.rec = nil
	r.assign(sc, &s.targets[0], r.ev(s.e, sc))
	r.rec = rec
	rec.keep(node{kind: nodeRedo, set: s}, nil)
}

// assigned records an assignment of a value that this turn has found.
func (rec *record) assigned(r *run, t *target, v Value) {
	if r.calls > 0 {
		// A macro's names are not this body's.
		rec.gaveUp = true
		return
	}
	rec.keep(node{kind: nodeAssign, target: t, value: v}, v)
}

// read gives up if a name that was not recorded is read from outside of the turn.
func (rec *record) read(v Value, from *scope, e *nameExpr, t *Template) {
	switch o := v.(type) {
	case *builtin:
		if from == nil && o.name != "strftime_now" {
			return
		}
	case *macro:
		if t.macros[e.id] {
			return
		}
	case *loopState:
		if o == rec.state {
			rec.gaveUp = true
			return
		}
	}
	if from == nil || !from.inside {
		rec.gaveUp = true
	}
}
