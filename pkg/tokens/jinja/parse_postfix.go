package jinja

import (
	"slices"
	"strings"
)

// postfix reads the attributes, subscripts and calls after an expression.
func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		if n > p.max {
			panic(errDepth)
		}
		switch {
		case p.isOp("."):
			p.next()
			t := p.next()
			switch {
			case t.kind == tokName && strings.HasPrefix(t.s, "__"):
				panic(refuse("the attribute %s", t.s))
			case t.kind == tokName:
				e = &attrExpr{e: e, name: t.s}
			case t.kind == tokNumber:
				e = &itemExpr{e: e, key: &constExpr{t.v}}
			default:
				panic(raise("syntax: expected a name after a dot"))
			}
		case p.isOp("["):
			e = p.subscript(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) subscript(e expr) expr {
	p.next()
	parts := [3]expr{}
	colons := 0
	for !p.isOp("]") {
		if p.skipOp(":") {
			colons++
			if colons > 2 {
				panic(raise("syntax: a slice with too many colons"))
			}
			continue
		}
		if p.isOp(",") {
			panic(refuse("a subscript with a comma"))
		}
		parts[colons] = p.expression(true)
		if !p.isOp("]") && !p.isOp(":") && !p.isOp(",") {
			panic(raise("syntax: expected \"]\""))
		}
	}
	p.next()
	if colons > 0 {
		return &sliceExpr{e: e, from: parts[0], to: parts[1], by: parts[2]}
	}
	if parts[0] == nil {
		panic(refuse("an empty subscript"))
	}
	return &itemExpr{e: e, key: parts[0]}
}

func (p *parser) call(e expr) expr {
	c := &callExpr{fn: e, arguments: p.arguments()}
	n, ok := e.(*nameExpr)
	if ok && slices.Contains([]string{"cycler", "joiner", "lipsum"}, n.name) {
		panic(refuse("the function %s", n.name))
	}
	return c
}

// arguments reads the arguments of a call, between parentheses.
func (p *parser) arguments() (a arguments) {
	p.wantOp("(")
	p.list(")", func() {
		switch {
		case p.isOp("*") || p.isOp("**"):
			panic(refuse("a call with a star"))
		case p.cur().kind == tokName && p.look().kind == tokOp && p.look().s == "=":
			a.names = append(a.names, p.next().s)
			p.next()
			a.named = append(a.named, p.expression(true))
		case len(a.named) > 0:
			panic(raise("syntax: an argument after one with a name"))
		default:
			a.args = append(a.args, p.expression(true))
		}
	})
	return a
}

// filters reads the filters, tests and calls after an expression.
func (p *parser) filters(e expr) expr {
	for n := 0; ; n++ {
		if n > p.max {
			panic(errDepth)
		}
		switch {
		case p.isOp("|"):
			p.next()
			e = p.filter(e)
		case p.isName("is"):
			e = p.test(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) filter(e expr) expr {
	name := p.name()
	by, ok := p.known[name]
	if !ok {
		panic(refuse("the filter %s", name))
	}
	f := &filterExpr{e: e, name: name, by: by}
	if p.isOp("(") {
		f.args = p.arguments()
	}
	return f
}

func (p *parser) test(e expr) expr {
	p.next()
	negated := p.skipName("not")
	name := p.name()
	by, ok := tests[name]
	if !ok {
		panic(refuse("the test %s", name))
	}
	t := &testExpr{e: e, name: name, by: by}
	k := p.cur()
	switch {
	case p.isOp("("):
		t.args = p.arguments()
	case k.kind == tokText || k.kind == tokNumber || p.isOp("[") || p.isOp("{") ||
		k.kind == tokName && k.s != "else" && k.s != "or" && k.s != "and":
		if k.kind == tokName && k.s == "is" {
			panic(raise("syntax: a test of a test"))
		}
		t.args.args = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &notExpr{t}
	}
	return t
}
