package jinja

import (
	"slices"
	"strings"
)

// block reads statements up to one of the tags in ends, whose name is the current token
// then; or up to the end of the template if there are none.
func (p *parser) block(ends ...string) ([]stmt, error) {
	err := p.enter()
	if err != nil {
		return nil, err
	}
	defer p.leave()
	var body []stmt
	for {
		t := p.next()
		switch t.kind {
		case tokEnd:
			if len(ends) > 0 {
				return nil, raise("syntax: a tag %s is missing", ends[len(ends)-1])
			}
			return body, nil
		case tokData:
			body = append(body, &dataStmt{t.s})
		case tokVarBegin:
			e, err := p.tuple(true, false, "")
			if err != nil {
				return nil, err
			}
			if p.next().kind != tokVarEnd {
				return nil, raise("syntax: an expression does not end")
			}
			s, err := newOutput(e)
			if err != nil {
				return nil, err
			}
			body = append(body, s)
		case tokBlockBegin:
			if p.cur().kind == tokName && slices.Contains(ends, p.cur().s) {
				return body, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			body = append(body, s)
		default:
			return nil, raise("syntax: a tag is out of place")
		}
	}
}

// newOutput is {{ e }}. A last `safe` marks text for escaping, of which there is none.
func newOutput(e expr) (stmt, error) {
	for {
		f, ok := e.(*filterExpr)
		if !ok || f.name != "safe" {
			break
		}
		e = f.e
	}
	return &outputStmt{e}, nil
}

// body reads the statements of a tag up to its end tag, and that.
func (p *parser) body(end string) ([]stmt, error) {
	err := p.endTag()
	if err != nil {
		return nil, err
	}
	b, err := p.block(end)
	if err != nil {
		return nil, err
	}
	p.next()
	return b, p.endTag()
}

func (p *parser) endTag() error {
	if p.next().kind != tokBlockEnd {
		return raise("syntax: a tag does not end")
	}
	return nil
}

// statement reads one tag with its body, and its end.
func (p *parser) statement() (stmt, error) {
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	switch name {
	case "for":
		return p.forLoop()
	case "if":
		return p.ifElse()
	case "set":
		return p.set()
	case "macro":
		return p.macro()
	case "call":
		return p.callBlock()
	case "with":
		return p.with()
	case "filter":
		return p.filterBlock()
	case "generation":
		b, err := p.outside(func() ([]stmt, error) { return p.body("endgeneration") })
		return &scopeStmt{body: b}, err
	case "break", "continue":
		if !p.inLoop {
			return nil, refuse("the tag %s outside of a loop", name)
		}
		return &jumpStmt{ctl: map[string]control{"break": ctlBreak, "continue": ctlContinue}[name]}, p.endTag()
	}
	if strings.HasPrefix(name, "end") || name == "else" || name == "elif" {
		return nil, raise("syntax: a tag %s without its beginning", name)
	}
	return nil, refuse("the tag %s", name)
}

// target reads what a loop or a set assigns to.
func (p *parser) target(namespaces bool) ([]target, bool, error) {
	var ts []target
	many := false
	parens := p.skipOp("(")
	for {
		n, err := p.name()
		if err != nil {
			return nil, false, err
		}
		if slices.Contains([]string{"true", "false", "none", "True", "False", "None", "loop", "caller", "self", "varargs", "kwargs"}, n) {
			return nil, false, refuse("an assignment to %s", n)
		}
		t := target{id: p.names.id(n), name: n}
		if namespaces && p.skipOp(".") {
			t.attr, err = p.name()
			if err != nil {
				return nil, false, err
			}
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
		err := p.wantOp(")")
		if err != nil {
			return nil, false, err
		}
	}
	return ts, many, nil
}

func (p *parser) forLoop() (stmt, error) {
	f := &forStmt{}
	var err error
	f.targets, f.many, err = p.target(false)
	if err != nil {
		return nil, err
	}
	if !p.skipName("in") {
		return nil, raise("syntax: expected in")
	}
	f.iter, err = p.tuple(false, false, "recursive")
	if err != nil {
		return nil, err
	}
	if p.skipName("if") {
		f.cond, err = p.expression(true)
		if err != nil {
			return nil, err
		}
	}
	if p.isName("recursive") {
		return nil, refuse("a recursive loop")
	}
	err = p.endTag()
	if err != nil {
		return nil, err
	}
	was := p.inLoop
	p.inLoop = true
	f.body, err = p.block("endfor", "else")
	p.inLoop = was
	if err != nil {
		return nil, err
	}
	if p.next().s == "else" {
		f.orElse, err = p.body("endfor")
		return f, err
	}
	return f, p.endTag()
}

func (p *parser) ifElse() (stmt, error) {
	s := &ifStmt{}
	for {
		test, err := p.tuple(false, false, "")
		if err != nil {
			return nil, err
		}
		err = p.endTag()
		if err != nil {
			return nil, err
		}
		b, err := p.block("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.tests = append(s.tests, test)
		s.bodies = append(s.bodies, b)
		switch p.next().s {
		case "else":
			s.orElse, err = p.body("endif")
			return s, err
		case "endif":
			return s, p.endTag()
		}
	}
}

func (p *parser) set() (stmt, error) {
	s := &setStmt{}
	var err error
	s.targets, s.many, err = p.target(true)
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		s.e, err = p.tuple(true, false, "")
		if err != nil {
			return nil, err
		}
		return s, p.endTag()
	}
	if s.many {
		return nil, raise("syntax: expected =")
	}
	b := &setBlockStmt{target: s.targets[0]}
	if p.isOp("|") {
		var e expr = &holeExpr{}
		for err == nil && p.skipOp("|") {
			e, err = p.filter(e)
		}
		if err != nil {
			return nil, err
		}
		b.filter = e
	}
	b.body, err = p.outside(func() ([]stmt, error) { return p.body("endset") })
	return b, err
}

// outside reads a body of which a loop around it is out of reach for break and continue.
func (p *parser) outside(read func() ([]stmt, error)) ([]stmt, error) {
	was := p.inLoop
	p.inLoop = false
	b, err := read()
	p.inLoop = was
	return b, err
}

// params reads the parameters of a macro or a call block.
func (p *parser) params(m *macroDef) error {
	err := p.wantOp("(")
	for n := 0; err == nil && !p.isOp(")"); n++ {
		if n > 0 {
			err = p.wantOp(",")
			if err != nil || p.isOp(")") {
				break
			}
		}
		var name string
		name, err = p.name()
		if err != nil {
			break
		}
		m.params = append(m.params, param{id: p.names.id(name), name: name})
		if p.skipOp("=") {
			m.params[n].byDefault, err = p.expression(true)
			continue
		}
		if n > 0 && m.params[n-1].byDefault != nil {
			return raise("syntax: a parameter without a default after one with it")
		}
	}
	if err != nil {
		return err
	}
	return p.wantOp(")")
}

func (p *parser) macro() (stmt, error) {
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	m := &macroDef{name: name}
	err = p.params(m)
	if err != nil {
		return nil, err
	}
	from := p.pos
	m.body, err = p.outside(func() ([]stmt, error) { return p.body("endmacro") })
	if err != nil {
		return nil, err
	}
	for _, t := range p.toks[from:p.pos] {
		if t.kind == tokName && slices.Contains([]string{"varargs", "kwargs", "caller"}, t.s) {
			if t.s != "caller" {
				return nil, refuse("%s in a macro", t.s)
			}
			m.caller = true
		}
	}
	return &macroStmt{id: p.names.id(name), def: m}, nil
}

func (p *parser) callBlock() (stmt, error) {
	m := &macroDef{name: "caller"}
	if p.isOp("(") {
		err := p.params(m)
		if err != nil {
			return nil, err
		}
	}
	e, err := p.expression(true)
	if err != nil {
		return nil, err
	}
	c, ok := e.(*callExpr)
	if !ok {
		return nil, raise("syntax: a call block without a call")
	}
	m.body, err = p.outside(func() ([]stmt, error) { return p.body("endcall") })
	return &callStmt{call: c, caller: m}, err
}

func (p *parser) with() (stmt, error) {
	s := &scopeStmt{}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			err := p.wantOp(",")
			if err != nil {
				return nil, err
			}
		}
		n, err := p.name()
		if err != nil {
			return nil, err
		}
		err = p.wantOp("=")
		if err != nil {
			return nil, err
		}
		e, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		s.targets = append(s.targets, target{id: p.names.id(n), name: n})
		s.values = append(s.values, e)
	}
	var err error
	s.body, err = p.body("endwith")
	return s, err
}

func (p *parser) filterBlock() (stmt, error) {
	e, err := p.filter(&holeExpr{})
	for err == nil && p.skipOp("|") {
		e, err = p.filter(e)
	}
	if err != nil {
		return nil, err
	}
	b, err := p.outside(func() ([]stmt, error) { return p.body("endfilter") })
	return &filterStmt{filter: e, body: b}, err
}
