package jinja

import (
	"slices"
)

// parser turns tokens into expressions and statements. It is one descent by Jinja's
// grammar; depth bounds it.
type parser struct {
	toks  []token
	pos   int
	depth int
	max   int
	names *names
	known map[string]*filter
	// inLoop: break and continue have a loop to act on.
	inLoop bool
}

// names numbers the names of a template, so that looking one up compares numbers.
type names struct {
	ids  map[string]int
	text []string
}

func (n *names) id(s string) int {
	id, ok := n.ids[s]
	if !ok {
		id = len(n.text)
		n.ids[s] = id
		n.text = append(n.text, s)
	}
	return id
}

func (p *parser) cur() token { return p.toks[p.pos] }

func (p *parser) look() token {
	if p.pos+1 < len(p.toks) {
		return p.toks[p.pos+1]
	}
	return token{}
}

func (p *parser) next() token {
	t := p.toks[p.pos]
	if p.pos+1 < len(p.toks) {
		p.pos++
	}
	return t
}

func (p *parser) is(kind tokenKind, s string) bool {
	t := p.toks[p.pos]
	return t.kind == kind && t.s == s
}

func (p *parser) isOp(op string) bool { return p.is(tokOp, op) }

func (p *parser) isName(name string) bool { return p.is(tokName, name) }

func (p *parser) skip(kind tokenKind, s string) bool {
	ok := p.is(kind, s)
	if ok {
		p.next()
	}
	return ok
}

func (p *parser) skipOp(op string) bool { return p.skip(tokOp, op) }

func (p *parser) skipName(name string) bool { return p.skip(tokName, name) }

func (p *parser) wantOp(op string) {
	if !p.skipOp(op) {
		panic(raise("syntax: expected %q", op))
	}
}

func (p *parser) name() string {
	t := p.next()
	if t.kind != tokName {
		panic(raise("syntax: expected a name"))
	}
	return t.s
}

// list reads items with commas between them, up to and with the operator end.
func (p *parser) list(end string, item func()) {
	for n := 0; !p.skipOp(end); n++ {
		if n > 0 {
			p.wantOp(",")
			if p.skipOp(end) {
				return
			}
		}
		item()
	}
}

func (p *parser) enter() {
	p.depth++
	if p.depth > p.max {
		panic(errDepth)
	}
}

func (p *parser) leave() { p.depth-- }

// maxChain bounds how many operands of one level may be joined: each is one level deeper.
const maxChain = 1000

// chain reads an operand, and joins the next ones to it from the left while more says so.
func (p *parser) chain(operand func() expr, more func() bool, join func(left expr) expr) expr {
	e := operand()
	for n := 0; more(); n++ {
		if n > maxChain {
			panic(errDepth)
		}
		e = join(e)
	}
	return e
}

// expression reads one expression, with a condition if cond.
func (p *parser) expression(cond bool) expr {
	p.enter()
	defer p.leave()
	return p.chain(p.or, func() bool { return cond && p.skipName("if") }, func(then expr) expr {
		c := &condExpr{then: then, test: p.or()}
		if p.skipName("else") {
			c.other = p.expression(true)
		}
		return c
	})
}

func (p *parser) or() expr {
	return p.chain(p.and, func() bool { return p.skipName("or") }, func(a expr) expr { return &boolExpr{or: true, a: a, b: p.and()} })
}

func (p *parser) and() expr {
	return p.chain(p.not, func() bool { return p.skipName("and") }, func(a expr) expr { return &boolExpr{a: a, b: p.not()} })
}

func (p *parser) not() expr {
	if !p.skipName("not") {
		return p.compare()
	}
	p.enter()
	defer p.leave()
	return &notExpr{p.not()}
}

var compareOps = []string{"==", "!=", ">", ">=", "<", "<="}

func (p *parser) compare() expr {
	c := &compareExpr{first: p.sum()}
	for {
		t := p.cur()
		op := ""
		switch {
		case t.kind == tokOp && slices.Contains(compareOps, t.s):
			op = t.s
			p.next()
		case p.skipName("in"):
			op = "in"
		case p.isName("not") && p.look().kind == tokName && p.look().s == "in":
			op = "not in"
			p.next()
			p.next()
		case len(c.ops) == 0:
			return c.first
		default:
			return c
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
}

// binary reads operands of one level, joined from the left.
func (p *parser) binary(operand func() expr, ops ...string) expr {
	more := func() bool { return p.cur().kind == tokOp && slices.Contains(ops, p.cur().s) }
	return p.chain(operand, more, func(a expr) expr { return &binExpr{op: p.next().s, a: a, b: operand()} })
}

func (p *parser) sum() expr { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() expr {
	first := p.product()
	if !p.isOp("~") {
		return first
	}
	c := &concatExpr{parts: []expr{first}}
	for p.skipOp("~") {
		c.parts = append(c.parts, p.product())
	}
	return c
}

func (p *parser) product() expr { return p.binary(p.power, "*", "/", "//", "%") }

func (p *parser) power() expr { return p.binary(func() expr { return p.filters(p.unary()) }, "**") }

// unary reads an expression with a sign, or what a filter applies to.
func (p *parser) unary() expr {
	p.enter()
	defer p.leave()
	if p.isOp("-") || p.isOp("+") {
		return p.postfix(&signExpr{minus: p.next().s == "-", e: p.unary()})
	}
	return p.postfix(p.primary())
}

func (p *parser) primary() expr {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.next()
		switch t.s {
		case "true", "True":
			return &constExpr{true}
		case "false", "False":
			return &constExpr{false}
		case "none", "None":
			return &constExpr{nil}
		}
		return &nameExpr{id: p.names.id(t.s), name: t.s}
	case tokText:
		s := ""
		for p.cur().kind == tokText {
			s += p.next().s
		}
		return &constExpr{s}
	case tokNumber:
		return &constExpr{p.next().v}
	case tokOp:
		switch p.next().s {
		case "(":
			e := p.tuple(true, true, "")
			p.wantOp(")")
			return e
		case "[":
			l := &listExpr{}
			p.list("]", func() { l.items = append(l.items, p.expression(true)) })
			return l
		case "{":
			d := &dictExpr{}
			p.list("}", func() {
				d.keys = append(d.keys, p.expression(true))
				p.wantOp(":")
				d.vals = append(d.vals, p.expression(true))
			})
			return d
		}
	}
	panic(raise("syntax: expected an expression"))
}

// tuple reads one expression, or several with commas between them, up to what ends them.
func (p *parser) tuple(cond, parens bool, end string) expr {
	var items []expr
	many := false
	for {
		if len(items) > 0 {
			p.wantOp(",")
		}
		if p.tupleEnds(end) {
			break
		}
		items = append(items, p.expression(cond))
		if !p.isOp(",") {
			break
		}
		many = true
	}
	switch {
	case !many && len(items) == 1:
		return items[0]
	case !many && !parens:
		panic(raise("syntax: expected an expression"))
	}
	return &listExpr{items: items, tuple: true}
}

func (p *parser) tupleEnds(end string) bool {
	t := p.cur()
	return t.kind == tokVarEnd || t.kind == tokBlockEnd || t.kind == tokEnd || p.isOp(")") ||
		end != "" && p.isName(end)
}
