package jinja

import "slices"

// This file answers what engines ask of a template's syntax before they give it messages.

// everyExpr visits every expression of the template, with those within.
func (t *Template) everyExpr(visit func(expr)) {
	var in func(e expr)
	in = func(e expr) {
		if e == nil {
			return
		}
		visit(e)
		for _, c := range children(e) {
			in(c)
		}
	}
	walk(t.body, func(s stmt, _ place) {
		own, within := exprsOf(s)
		for _, e := range own {
			in(e)
		}
		for _, e := range within {
			in(e)
		}
		m, ok := s.(*macroStmt)
		if !ok {
			return
		}
		for _, p := range m.def.params {
			in(p.byDefault)
		}
	})
}

// reads says whether e is name[key] or name.key, or the name alone if key is empty; filters,
// tests and slices around it do not count.
func reads(e expr, name, key string) bool {
	switch n := e.(type) {
	case *filterExpr:
		return reads(n.e, name, key)
	case *testExpr:
		return reads(n.e, name, key)
	case *sliceExpr:
		return reads(n.e, name, key)
	}
	if key != "" {
		switch n := e.(type) {
		case *attrExpr:
			if n.name != key {
				return false
			}
			e = n.e
		case *itemExpr:
			c, ok := n.key.(*constExpr)
			if !ok || c.v != Value(key) {
				return false
			}
			e = n.e
		default:
			return false
		}
	}
	n, ok := e.(*nameExpr)
	return ok && n.name == name
}

func readsAny(e expr, names []string, key string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return reads(e, n, key) })
}

// loopsOf are all loops, and which of them are in a macro.
func (t *Template) loopsOf() (all []*forStmt, inMacro map[*forStmt]*macroDef) {
	inMacro = map[*forStmt]*macroDef{}
	walk(t.body, func(s stmt, _ place) {
		switch s := s.(type) {
		case *forStmt:
			all = append(all, s)
		case *macroStmt:
			walk(s.def.body, func(in stmt, _ place) {
				f, ok := in.(*forStmt)
				if ok {
					inMacro[f] = s.def
				}
			})
		}
	})
	return all, inMacro
}

// LoopsOverContent reports whether the template runs through the parts of a message's
// content, as vLLM finds out (vllm/renderers/hf.py, _detect_content_format): vLLM then gives
// it lists of parts, else texts.
func (t *Template) LoopsOverContent() bool {
	loops, inMacro := t.loopsOf()
	lists, ok := t.aliases("messages")
	if !ok {
		return false
	}
	var messages []string
	for _, f := range loops {
		if readsAny(f.iter, lists, "") {
			if f.many {
				return false
			}
			messages = append(messages, f.targets[0].name)
		}
	}
	params := t.contentParams(messages)
	for _, f := range loops {
		found := readsAny(f.iter, messages, "content")
		n, isName := f.iter.(*nameExpr)
		if !found && isName {
			m := inMacro[f]
			found = m != nil && params[m][n.name] || m == nil && n.name == "content"
		}
		if found {
			return !f.many
		}
	}
	return false
}

// aliases are the names that are set to name, or to what is set to it. It is false if a
// set of several names is among them: vLLM then takes its default.
func (t *Template) aliases(name string) ([]string, bool) {
	names, ok := []string{name}, true
	for i := 0; i < len(names); i++ {
		walk(t.body, func(s stmt, _ place) {
			set, isSet := s.(*setStmt)
			if !isSet || !reads(set.e, names[i], "") {
				return
			}
			if set.many || set.targets[0].attr != "" {
				ok = false
				return
			}
			if !slices.Contains(names, set.targets[0].name) {
				names = append(names, set.targets[0].name)
			}
		})
	}
	return names, ok
}

// contentParams are the parameters of macros that are given a message's content.
func (t *Template) contentParams(messages []string) map[*macroDef]map[string]bool {
	byName := map[string][]*macroDef{}
	walk(t.body, func(s stmt, _ place) {
		m, ok := s.(*macroStmt)
		if ok {
			byName[m.def.name] = append(byName[m.def.name], m.def)
		}
	})
	out := map[*macroDef]map[string]bool{}
	t.everyExpr(func(e expr) {
		c, ok := e.(*callExpr)
		if !ok {
			return
		}
		fn, ok := c.fn.(*nameExpr)
		if !ok {
			return
		}
		for _, m := range byName[fn.name] {
			if out[m] == nil {
				out[m] = map[string]bool{}
			}
			m.given(c, messages, out[m])
		}
	})
	return out
}

// given notes the parameters to which a call gives a message's content.
func (m *macroDef) given(c *callExpr, messages []string, params map[string]bool) {
	for i, a := range c.args {
		if i < len(m.params) && readsAny(a, messages, "content") {
			params[m.params[i].name] = true
		}
	}
	for i, a := range c.named {
		if readsAny(a, messages, "content") {
			params[c.names[i]] = true
		}
	}
}

// LoopsOverContentOf reports whether a loop runs through the content of one of the names, as
// SGLang finds out (sglang/srt/parser/jinja_template_utils.py).
func (t *Template) LoopsOverContentOf(names ...string) bool {
	loops, _ := t.loopsOf()
	return slices.ContainsFunc(loops, func(f *forStmt) bool { return readsAny(f.iter, names, "content") })
}
