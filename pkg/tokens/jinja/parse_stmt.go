package jinja

import (
	"slices"
	"strings"
)

// block reads statements up to one of the tags in ends, whose name is the current token
// then; or up to the end of the template if there are none.
func (p *parser) block(ends ...string) []stmt {
	p.enter()
	defer p.leave()
	var body []stmt
	for {
		t := p.next()
		switch t.kind {
		case tokEnd:
			if len(ends) > 0 {
				panic(raise("syntax: a tag %s is missing", ends[len(ends)-1]))
			}
			return body
		case tokData:
			body = append(body, &dataStmt{t.s})
		case tokVarBegin:
			e := p.tuple(true, false, "")
			if p.next().kind != tokVarEnd {
				panic(raise("syntax: an expression does not end"))
			}
			body = append(body, newOutput(e))
		case tokBlockBegin:
			if p.cur().kind == tokName && slices.Contains(ends, p.cur().s) {
				return body
			}
			body = append(body, p.statement())
		default:
			panic(raise("syntax: a tag is out of place"))
		}
	}
}

// newOutput is {{ e }}. A last `safe` marks text for escaping, of which there is none.
func newOutput(e expr) stmt {
	for {
		f, ok := e.(*filterExpr)
		if !ok || f.name != "safe" {
			break
		}
		e = f.e
	}
	return &outputStmt{e}
}

// body reads the statements of a tag up to its end tag, and that.
func (p *parser) body(end string) []stmt {
	p.endTag()
	b := p.block(end)
	p.next()
	p.endTag()
	return b
}

func (p *parser) endTag() {
	if p.next().kind != tokBlockEnd {
		panic(raise("syntax: a tag does not end"))
	}
}

// statement reads one tag with its body, and its end.
func (p *parser) statement() stmt {
	name := p.name()
	switch name {
	case "for":
		return p.forLoop()
	case "if":
		return p.ifElse()
	case "set":
		return p.set()
	case "macro":
		return p.macro()
	case "with":
		return p.with()
	case "generation":
		return &scopeStmt{body: p.outside("endgeneration")}
	case "break", "continue":
		if !p.inLoop {
			panic(refuse("the tag %s outside of a loop", name))
		}
		p.endTag()
		return &jumpStmt{ctl: map[string]control{"break": ctlBreak, "continue": ctlContinue}[name]}
	}
	if strings.HasPrefix(name, "end") || name == "else" || name == "elif" {
		panic(raise("syntax: a tag %s without its beginning", name))
	}
	panic(refuse("the tag %s", name))
}

// target reads what a loop or a set assigns to.
func (p *parser) target(namespaces bool) ([]target, bool) {
	var ts []target
	many := false
	parens := p.skipOp("(")
	for {
		n := p.name()
		if slices.Contains([]string{"true", "false", "none", "True", "False", "None", "loop", "caller", "self", "varargs", "kwargs"}, n) {
			panic(refuse("an assignment to %s", n))
		}
		t := target{id: p.names.id(n), name: n}
		if namespaces && p.skipOp(".") {
			t.attr = p.name()
		}
		ts = append(ts, t)
		if !p.skipOp(",") {
			break
		}
		many = true
		if p.cur().kind != tokName || p.isName("in") {
			break
		}
	}
	if parens {
		p.wantOp(")")
	}
	return ts, many
}

func (p *parser) forLoop() stmt {
	f := &forStmt{}
	f.targets, f.many = p.target(false)
	if !p.skipName("in") {
		panic(raise("syntax: expected in"))
	}
	f.iter = p.tuple(false, false, "recursive")
	if p.skipName("if") {
		f.cond = p.expression(true)
	}
	if p.isName("recursive") {
		panic(refuse("a recursive loop"))
	}
	p.endTag()
	was := p.inLoop
	p.inLoop = true
	f.body = p.block("endfor", "else")
	p.inLoop = was
	if p.next().s == "else" {
		f.orElse = p.body("endfor")
	} else {
		p.endTag()
	}
	return f
}

func (p *parser) ifElse() stmt {
	s := &ifStmt{}
	for {
		s.tests = append(s.tests, p.tuple(false, false, ""))
		p.endTag()
		s.bodies = append(s.bodies, p.block("elif", "else", "endif"))
		switch p.next().s {
		case "else":
			s.orElse = p.body("endif")
			return s
		case "endif":
			p.endTag()
			return s
		}
	}
}

func (p *parser) set() stmt {
	s := &setStmt{}
	s.targets, s.many = p.target(true)
	switch {
	case p.skipOp("="):
		s.e = p.tuple(true, false, "")
		p.endTag()
		return s
	case s.many:
		panic(raise("syntax: expected ="))
	case p.isOp("|"):
		panic(refuse("a set block with a filter"))
	}
	return &setBlockStmt{target: s.targets[0], body: p.outside("endset")}
}

// outside reads a body of which a loop around it is out of reach for break and continue.
func (p *parser) outside(end string) []stmt {
	was := p.inLoop
	p.inLoop = false
	b := p.body(end)
	p.inLoop = was
	return b
}

// params reads the parameters of a macro.
func (p *parser) params(m *macroDef) {
	p.wantOp("(")
	p.list(")", func() {
		name := p.name()
		d := param{id: p.names.id(name), name: name}
		n := len(m.params)
		switch {
		case p.skipOp("="):
			d.byDefault = p.expression(true)
		case n > 0 && m.params[n-1].byDefault != nil:
			panic(raise("syntax: a parameter without a default after one with it"))
		}
		m.params = append(m.params, d)
	})
}

func (p *parser) macro() stmt {
	m := &macroDef{name: p.name()}
	p.params(m)
	from := p.pos
	m.body = p.outside("endmacro")
	for _, t := range p.toks[from:p.pos] {
		if t.kind == tokName && slices.Contains([]string{"varargs", "kwargs", "caller"}, t.s) {
			panic(refuse("%s in a macro", t.s))
		}
	}
	return &macroStmt{id: p.names.id(m.name), def: m}
}

func (p *parser) with() stmt {
	s := &scopeStmt{}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			p.wantOp(",")
		}
		n := p.name()
		p.wantOp("=")
		s.values = append(s.values, p.expression(true))
		s.targets = append(s.targets, target{id: p.names.id(n), name: n})
	}
	s.body = p.body("endwith")
	return s
}
