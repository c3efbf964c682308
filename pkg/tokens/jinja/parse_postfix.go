package jinja

import (
	"slices"
	"strings"
)

// postfix reads the attributes, subscripts and calls after an expression.
func (p *parser) postfix(e expr) (expr, error) {
	var err error
	for n := 0; err == nil; n++ {
		if n > p.max {
			return nil, errDepth
		}
		switch {
		case p.isOp("."):
			p.next()
			t := p.next()
			switch {
			case t.kind == tokName && strings.HasPrefix(t.s, "__"):
				err = refuse("the attribute %s", t.s)
			case t.kind == tokName:
				e = &attrExpr{e: e, name: t.s}
			case t.kind == tokNumber:
				e = &itemExpr{e: e, key: &constExpr{t.v}}
			default:
				err = raise("syntax: expected a name after a dot")
			}
		case p.isOp("["):
			e, err = p.subscript(e)
		case p.isOp("("):
			e, err = p.call(e)
		default:
			return e, nil
		}
	}
	return nil, err
}

func (p *parser) subscript(e expr) (expr, error) {
	p.next()
	parts := [3]expr{}
	colons := 0
	for !p.isOp("]") {
		if p.skipOp(":") {
			colons++
			if colons > 2 {
				return nil, raise("syntax: a slice with too many colons")
			}
			continue
		}
		if p.isOp(",") {
			return nil, refuse("a subscript with a comma")
		}
		var err error
		parts[colons], err = p.expression(true)
		if err != nil {
			return nil, err
		}
		if !p.isOp("]") && !p.isOp(":") && !p.isOp(",") {
			return nil, raise("syntax: expected \"]\"")
		}
	}
	p.next()
	if colons > 0 {
		return &sliceExpr{e: e, from: parts[0], to: parts[1], by: parts[2]}, nil
	}
	if parts[0] == nil {
		return nil, refuse("an empty subscript")
	}
	return &itemExpr{e: e, key: parts[0]}, nil
}

func (p *parser) call(e expr) (expr, error) {
	c := &callExpr{fn: e}
	var err error
	c.arguments, err = p.arguments()
	if err != nil {
		return nil, err
	}
	n, ok := e.(*nameExpr)
	if ok && slices.Contains([]string{"cycler", "joiner", "lipsum"}, n.name) {
		return nil, refuse("the function %s", n.name)
	}
	return c, nil
}

// arguments reads the arguments of a call, between parentheses.
func (p *parser) arguments() (arguments, error) {
	var a arguments
	err := p.wantOp("(")
	for n := 0; err == nil && !p.isOp(")"); n++ {
		if n > 0 {
			err = p.wantOp(",")
			if err != nil || p.isOp(")") {
				break
			}
		}
		if p.isOp("*") || p.isOp("**") {
			return a, refuse("a call with a star")
		}
		var e expr
		if p.cur().kind == tokName && p.look().kind == tokOp && p.look().s == "=" {
			name := p.next().s
			p.next()
			e, err = p.expression(true)
			a.names = append(a.names, name)
			a.named = append(a.named, e)
			continue
		}
		if len(a.named) > 0 {
			return a, raise("syntax: an argument after one with a name")
		}
		e, err = p.expression(true)
		a.args = append(a.args, e)
	}
	if err != nil {
		return a, err
	}
	return a, p.wantOp(")")
}

// filters reads the filters, tests and calls after an expression.
func (p *parser) filters(e expr) (expr, error) {
	var err error
	for n := 0; err == nil; n++ {
		if n > p.max {
			return nil, errDepth
		}
		switch {
		case p.isOp("|"):
			p.next()
			e, err = p.filter(e)
		case p.isName("is"):
			e, err = p.test(e)
		case p.isOp("("):
			e, err = p.call(e)
		default:
			return e, nil
		}
	}
	return nil, err
}

func (p *parser) filter(e expr) (expr, error) {
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	fn, ok := p.known[name]
	if !ok {
		return nil, refuse("the filter %s", name)
	}
	f := &filterExpr{e: e, name: name, fn: fn}
	if p.isOp("(") {
		f.args, err = p.arguments()
	}
	return f, err
}

func (p *parser) test(e expr) (expr, error) {
	p.next()
	negated := p.skipName("not")
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	fn, ok := testTable[name]
	if !ok {
		return nil, refuse("the test %s", name)
	}
	t := &testExpr{e: e, name: name, fn: fn}
	k := p.cur()
	switch {
	case p.isOp("("):
		t.args, err = p.arguments()
	case k.kind == tokText || k.kind == tokNumber || p.isOp("[") || p.isOp("{") ||
		k.kind == tokName && k.s != "else" && k.s != "or" && k.s != "and":
		if k.kind == tokName && k.s == "is" {
			return nil, raise("syntax: a test of a test")
		}
		var arg expr
		arg, err = p.primary()
		if err == nil {
			arg, err = p.postfix(arg)
		}
		t.args.args = []expr{arg}
	}
	if err != nil {
		return nil, err
	}
	if negated {
		return &notExpr{t}, nil
	}
	return t, nil
}
