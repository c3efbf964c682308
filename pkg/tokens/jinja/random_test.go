package jinja_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// randomVars are the variables of random templates.
const randomVars = `{"m": {"role": "user", "content": "héllo </think> x", "n": 3, "list": [1, "a", null, 2.5], "d": {"k": "v"}, "items": [1], "none": null, "t": true},
"s": "  abc ABC 😀\n", "e": "", "i": 5, "f": 1.5, "b": false, "z": null, "l": ["x", "y", "z"], "ll": [[1, 2], [3, 4]],
"ms": [{"role": "user", "content": "a", "n": 1}, {"role": "tool", "content": null, "n": 2}, {"role": "user", "content": "", "n": 3, "x": [1]}]}`

// author writes random templates of the constructs that chat templates use, most of them
// with types that fit badly.
type author struct{ *rand.Rand }

func (a author) of(choices ...string) string { return choices[a.IntN(len(choices))] }

func (a author) atom() string {
	return a.of("m", "s", "e", "i", "f", "b", "z", "l", "ll", "ms", "x", "ns", "ns.a", "m.role", "m.content", "m['n']", "m.list",
		"m.nope", "m.d", "m.items", "m['items']", "ms[0]", "ms[-1].content", "l[0]", "l[1:]", "ms[::-1]", "s[1:4]", "s[::-1]",
		"1", "0", "-1", "2.5", "'a'", "'</think>'", "''", "true", "none", "[]", "[1, 'a']", "{}", "{'a': 1}", "(1, 2)", "range(3)", "loop", "loop.index0")
}

func (a author) filter() string {
	return a.of("length", "trim", "upper", "lower", "list", "first", "last", "join(',')", "join", "string", "tojson", "tojson(indent=2)",
		"default('d')", "default('d', true)", "int", "items", "reverse", "sort", "unique", "map('upper')", "map(attribute='role')",
		"selectattr('role', 'equalto', 'user')", "rejectattr('x')", "select('string')", "reject", "replace('a', 'b')", "indent(2)",
		"capitalize", "title", "dictsort", "abs", "max", "map('trim')", "selectattr('n', 'gt', 1)", "round", "float", "trim('a ')")
}

func (a author) test() string {
	return a.of("defined", "not defined", "none", "not none", "string", "mapping", "iterable", "sequence", "number", "boolean",
		"true", "false", "integer", "float", "undefined", "callable", "in l", "eq 1", "odd", "sameas none", "divisibleby 2", "gt 1")
}

func (a author) method() string {
	return a.of("split('a')", "split()", "strip()", "strip('a')", "lstrip('\\n')", "rstrip()", "startswith('a')", "endswith(('a', 'z'))",
		"replace('a', '')", "upper()", "lower()", "title()", "get('role')", "get('q', 1)", "items()", "keys()", "values()", "join(l)",
		"find('a')", "count('a')", "splitlines()", "partition('a')", "isdigit()", "append(1)", "update({})", "copy()", "rsplit('a', 1)", "nope()")
}

func (a author) expr(depth int) string {
	if depth <= 0 {
		return a.atom()
	}
	x := func() string { return a.expr(depth - 1) }
	switch a.IntN(16) {
	case 0, 1:
		return x() + " " + a.of("+", "~", "-", "*", "/", "//", "%", "+", "~", "==", "!=", "<", ">=", "in", "not in") + " " + x()
	case 2, 3:
		return x() + " " + a.of("and", "or") + " " + x()
	case 4:
		return a.of("not ", "-", "not ") + x()
	case 5, 6, 7:
		return "(" + x() + ") | " + a.filter()
	case 8, 9:
		return "(" + x() + ") is " + a.test()
	case 10, 11:
		return "(" + x() + ")." + a.method()
	case 12:
		return x() + " if " + x() + a.of("", " else "+x())
	case 13:
		return "(" + x() + ")[" + a.of("0", "-1", "'role'", "1:", ":-1", "::2", "::-1", "5", x()) + "]"
	case 14:
		return "(" + x() + ")." + a.of("role", "content", "n", "items", "x", "upper")
	}
	return a.atom()
}

func (a author) tag(s string) string {
	return a.of("{%", "{%-", "{%", "{%+") + " " + s + " " + a.of("%}", "-%}", "%}", "+%}")
}

func (a author) blank() string { return a.of("", " ", "\n", "\n  ", "x", " y\n", "\t") }

func (a author) body(depth int) string {
	var b strings.Builder
	for range 1 + a.IntN(3) {
		b.WriteString(a.blank())
		b.WriteString(a.statement(depth))
		b.WriteString(a.blank())
	}
	return b.String()
}

func (a author) statement(depth int) string {
	if depth <= 0 {
		return a.of("{{", "{{-") + " " + a.expr(2) + " " + a.of("}}", "-}}")
	}
	switch a.IntN(12) {
	case 0, 1:
		return a.tag("if "+a.expr(2)) + a.body(depth-1) + a.of("", a.tag("else")+a.body(depth-1), a.tag("elif "+a.expr(1))+a.body(depth-1)) + a.tag("endif")
	case 2, 3:
		return a.tag("for "+a.of("x", "m", "k, v")+" in "+a.expr(1)+a.of("", "", " if "+a.expr(1))) + a.body(depth-1) + a.of("", a.tag("else")+a.blank()) + a.tag("endfor")
	case 4, 5:
		return a.tag("set " + a.of("x", "y", "ns.a", "i", "x, y") + " = " + a.expr(2))
	case 6:
		return a.tag("set ns = namespace(a="+a.atom()+")") + a.body(depth-1)
	case 7:
		return a.tag("macro f(x, y=1)") + a.body(depth-1) + a.tag("endmacro") + "{{ f(" + a.expr(1) + ") }}"
	case 8:
		return a.tag("set x") + a.body(depth-1) + a.tag("endset") + "{{ x }}"
	case 9:
		return a.tag("for q in "+a.of("l", "ms", "ll")) + a.body(depth-1) + "{# " + a.blank() + " #}" + a.tag("if "+a.expr(1)) +
			a.tag(a.of("break", "continue")) + a.tag("endif") + a.blank() + a.tag("endfor")
	}
	return a.of("{{", "{{-") + " " + a.expr(2) + " " + a.of("}}", "-}}")
}

// template is the template of a seed.
func template(seed uint64) string {
	a := author{rand.New(rand.NewPCG(seed, 7))}
	switch seed % 3 {
	case 0:
		return fmt.Sprintf("{{ %s }}", a.expr(3))
	case 1:
		return a.body(1)
	}
	return a.body(3)
}
