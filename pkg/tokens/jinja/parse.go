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
	known map[string]filterFunc
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

func (p *parser) isOp(op string) bool {
	t := p.toks[p.pos]
	return t.kind == tokOp && t.s == op
}

func (p *parser) isName(name string) bool {
	t := p.toks[p.pos]
	return t.kind == tokName && t.s == name
}

func (p *parser) skipOp(op string) bool {
	ok := p.isOp(op)
	if ok {
		p.next()
	}
	return ok
}

func (p *parser) skipName(name string) bool {
	ok := p.isName(name)
	if ok {
		p.next()
	}
	return ok
}

func (p *parser) wantOp(op string) error {
	if !p.skipOp(op) {
		return raise("syntax: expected %q", op)
	}
	return nil
}

func (p *parser) name() (string, error) {
	t := p.next()
	if t.kind != tokName {
		return "", raise("syntax: expected a name")
	}
	return t.s, nil
}

func (p *parser) enter() error {
	p.depth++
	if p.depth > p.max {
		return errDepth
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// maxChain bounds how many operands of one level may be joined: each is one level deeper.
const maxChain = 1000

// chained returns an error after too many operands of one level.
func chained(n int) error {
	if n > maxChain {
		return errDepth
	}
	return nil
}

// expression reads one expression, with a condition if cond.
func (p *parser) expression(cond bool) (expr, error) {
	err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	e, err := p.or()
	for n := 0; err == nil && cond && p.skipName("if"); n++ {
		err = chained(n)
		if err != nil {
			break
		}
		c := &condExpr{then: e}
		c.test, err = p.or()
		if err == nil && p.skipName("else") {
			c.other, err = p.expression(true)
		}
		e = c
	}
	return e, err
}

func (p *parser) or() (expr, error) {
	left, err := p.and()
	for n := 0; err == nil && p.skipName("or"); n++ {
		err = chained(n)
		if err != nil {
			break
		}
		b := &boolExpr{or: true, a: left}
		b.b, err = p.and()
		left = b
	}
	return left, err
}

func (p *parser) and() (expr, error) {
	left, err := p.not()
	for n := 0; err == nil && p.skipName("and"); n++ {
		err = chained(n)
		if err != nil {
			break
		}
		b := &boolExpr{a: left}
		b.b, err = p.not()
		left = b
	}
	return left, err
}

func (p *parser) not() (expr, error) {
	if !p.skipName("not") {
		return p.compare()
	}
	err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	e, err := p.not()
	return &notExpr{e}, err
}

var compareOps = []string{"==", "!=", ">", ">=", "<", "<="}

func (p *parser) compare() (expr, error) {
	e, err := p.sum()
	if err != nil {
		return nil, err
	}
	c := &compareExpr{first: e}
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
			return e, nil
		default:
			return c, nil
		}
		right, err := p.sum()
		if err != nil {
			return nil, err
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, right)
	}
}

// binary reads operands of one level, joined from the left.
func (p *parser) binary(operand func() (expr, error), ops ...string) (expr, error) {
	left, err := operand()
	for n := 0; err == nil && p.cur().kind == tokOp && slices.Contains(ops, p.cur().s); n++ {
		err = chained(n)
		if err != nil {
			break
		}
		b := &binExpr{op: p.next().s, a: left}
		b.b, err = operand()
		left = b
	}
	return left, err
}

func (p *parser) sum() (expr, error) { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() (expr, error) {
	first, err := p.product()
	if err != nil || !p.isOp("~") {
		return first, err
	}
	c := &concatExpr{parts: []expr{first}}
	for p.skipOp("~") {
		e, err := p.product()
		if err != nil {
			return nil, err
		}
		c.parts = append(c.parts, e)
	}
	return c, nil
}

func (p *parser) product() (expr, error) { return p.binary(p.power, "*", "/", "//", "%") }

func (p *parser) power() (expr, error) {
	return p.binary(func() (expr, error) { return p.unary(true) }, "**")
}

func (p *parser) unary(filters bool) (expr, error) {
	err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	var e expr
	switch {
	case p.isOp("-") || p.isOp("+"):
		u := &signExpr{minus: p.next().s == "-"}
		u.e, err = p.unary(false)
		e = u
	default:
		e, err = p.primary()
	}
	if err != nil {
		return nil, err
	}
	e, err = p.postfix(e)
	if err != nil || !filters {
		return e, err
	}
	return p.filters(e)
}

func (p *parser) primary() (expr, error) {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.next()
		switch t.s {
		case "true", "True":
			return &constExpr{true}, nil
		case "false", "False":
			return &constExpr{false}, nil
		case "none", "None":
			return &constExpr{nil}, nil
		}
		return &nameExpr{id: p.names.id(t.s), name: t.s}, nil
	case tokText:
		s := ""
		for p.cur().kind == tokText {
			s += p.next().s
		}
		return &constExpr{s}, nil
	case tokNumber:
		return &constExpr{p.next().v}, nil
	case tokOp:
		switch t.s {
		case "(":
			p.next()
			e, err := p.tuple(true, true, "")
			if err != nil {
				return nil, err
			}
			return e, p.wantOp(")")
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	return nil, raise("syntax: expected an expression")
}

// tuple reads one expression, or several with commas between them, up to what ends them.
func (p *parser) tuple(cond, parens bool, end string) (expr, error) {
	var items []expr
	many := false
	for {
		if len(items) > 0 {
			err := p.wantOp(",")
			if err != nil {
				return nil, err
			}
		}
		if p.tupleEnds(end) {
			break
		}
		e, err := p.expression(cond)
		if err != nil {
			return nil, err
		}
		items = append(items, e)
		if !p.isOp(",") {
			break
		}
		many = true
	}
	switch {
	case !many && len(items) == 1:
		return items[0], nil
	case !many && !parens:
		return nil, raise("syntax: expected an expression")
	}
	return &listExpr{items: items, tuple: true}, nil
}

func (p *parser) tupleEnds(end string) bool {
	t := p.cur()
	return t.kind == tokVarEnd || t.kind == tokBlockEnd || t.kind == tokEnd || p.isOp(")") ||
		end != "" && p.isName(end)
}

func (p *parser) list() (expr, error) {
	p.next()
	l := &listExpr{}
	for !p.isOp("]") {
		if len(l.items) > 0 {
			err := p.wantOp(",")
			if err != nil {
				return nil, err
			}
			if p.isOp("]") {
				break
			}
		}
		e, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		l.items = append(l.items, e)
	}
	return l, p.wantOp("]")
}

func (p *parser) dict() (expr, error) {
	p.next()
	d := &dictExpr{}
	for !p.isOp("}") {
		if len(d.keys) > 0 {
			err := p.wantOp(",")
			if err != nil {
				return nil, err
			}
			if p.isOp("}") {
				break
			}
		}
		k, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		err = p.wantOp(":")
		if err != nil {
			return nil, err
		}
		v, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		d.keys = append(d.keys, k)
		d.vals = append(d.vals, v)
	}
	return d, p.wantOp("}")
}
