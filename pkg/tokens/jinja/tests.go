package jinja

// A test is one of Jinja's, of a value and of an argument where it takes one.
type test struct {
	is   func(r *run, v Value) bool
	with func(r *run, v, arg Value) bool
}

// tests has every test that is done exactly. The parser refuses the others.
var tests = map[string]*test{
	"defined":   plain(func(v Value) bool { return !is[*undefined](v) }),
	"undefined": plain(is[*undefined]),
	"none":      plain(func(v Value) bool { return v == nil }),
	"string":    plain(is[string]),
	"mapping":   plain(is[*Dict]),
	"boolean":   plain(is[bool]),
	"integer":   plain(is[int]),
	"float":     plain(is[float64]),
	"number":    plain(func(v Value) bool { _, _, _, ok := number(v); return ok }),
	"true":      plain(func(v Value) bool { return v == true }),
	"false":     plain(func(v Value) bool { return v == false }),
	"iterable":  plain(iterable),
	"sequence":  plain(sequence),
	"callable":  plain(callable),
	"odd":       parity(1),
	"even":      parity(0),
	"lower":     caseTest("islower"),
	"upper":     caseTest("isupper"),
	"in":        {with: func(r *run, v, arg Value) bool { return r.contains(arg, v) }},
	"sameas":    {with: sameAs},
	"==":        comparing("=="), "eq": comparing("=="), "equalto": comparing("=="),
	"ne": comparing("!="), "lt": comparing("<"), "lessthan": comparing("<"), "le": comparing("<="),
	"gt": comparing(">"), "greaterthan": comparing(">"), "ge": comparing(">="),
}

// holds is what the test of that name says of v.
func (t *test) holds(r *run, name string, v Value, args []Value) bool {
	switch {
	case t.is != nil && len(args) == 0:
		return t.is(r, v)
	case t.with != nil && len(args) == 1:
		return t.with(r, v, args[0])
	}
	panic(raise("the test %s with another number of arguments", name))
}

// markupTest is a test of what safe returns, which is a text.
func markupTest(name string) Value {
	switch name {
	case "defined", "string", "sequence", "iterable":
		return true
	case "undefined", "none", "mapping", "boolean", "integer", "float", "number", "true", "false", "callable":
		return false
	}
	panic(refuse("the test %s of what safe returns", name))
}

func comparing(op string) *test {
	return &test{with: func(r *run, v, arg Value) bool { return r.compare(op, v, arg) }}
}

func plain(is func(Value) bool) *test {
	return &test{is: func(_ *run, v Value) bool { return is(v) }}
}

func parity(rest int) *test {
	return &test{is: func(r *run, v Value) bool { return keysEqual(r.arithmetic("%", v, 2), rest) }}
}

// sameAs is Python's is, of what there is one of.
func sameAs(_ *run, v, arg Value) bool {
	switch arg.(type) {
	case nil, bool:
		return v == arg
	}
	panic(refuse("the test sameas of %s", typeName(arg)))
}

func caseTest(name string) *test {
	return &test{is: func(r *run, v Value) bool { return classOf(name, r.str(v)) }}
}

func iterable(v Value) bool {
	switch v.(type) {
	case string, *List, *Dict, *undefined, *generator, *view, span, *loopState:
		return true
	}
	return false
}

// sequence is what has a length and items by position or key. Undefined has both.
func sequence(v Value) bool {
	switch v.(type) {
	case string, *List, *Dict, *undefined, span:
		return true
	}
	return false
}

func callable(v Value) bool {
	switch v.(type) {
	case *method, *builtin, *macro, *undefined:
		return true
	}
	return false
}

// builtins are the functions that a template has without being given any.
var builtins = map[string]*builtin{
	"range":           {"range", rangeOf},
	"namespace":       {"namespace", namespaceOf},
	"dict":            {"dict", dictOf},
	"raise_exception": {"raise_exception", raiseException},
	"strftime_now":    {"strftime_now", strftimeNow},
	"cycler":          {"cycler", noFunction("cycler")},
	"joiner":          {"joiner", noFunction("joiner")},
	"lipsum":          {"lipsum", noFunction("lipsum")},
}

func noFunction(name string) func(*run, []Value, []kwarg) Value {
	return func(*run, []Value, []kwarg) Value { panic(refuse("the function %s", name)) }
}

// raiseException is the template's own refusal. Its message may hold a message's text, so it
// goes no further.
func raiseException(*run, []Value, []kwarg) Value {
	panic(raise("raise_exception"))
}

func strftimeNow(r *run, args []Value, kw []kwarg) Value {
	if len(args) != 1 || len(kw) > 0 {
		panic(raise("strftime_now takes one argument"))
	}
	format, ok := args[0].(string)
	if !ok || r.env.Now == nil {
		panic(refuse("the function strftime_now"))
	}
	s, err := r.env.Now(format)
	if err != nil {
		panic(refuse("strftime_now with such a format"))
	}
	return r.made(s)
}

// maxRange is the sandbox's limit of a range.
const maxRange = 100_000

func rangeOf(_ *run, args []Value, kw []kwarg) Value {
	if len(args) == 0 || len(args) > 3 || len(kw) > 0 {
		panic(raise("range takes one to three arguments"))
	}
	s := span{step: 1}
	at := []*int{&s.start, &s.stop, &s.step}
	if len(args) == 1 {
		at = at[1:]
	}
	for i, v := range args {
		n, ok := index(v)
		if !ok {
			panic(wrong("range of %s", v))
		}
		if n > 1<<40 || n < -1<<40 {
			panic(refuse("range of such a number"))
		}
		*at[i] = n
	}
	if s.step == 0 || s.len() > maxRange {
		panic(raise("a range that is too long"))
	}
	return s
}

func dictOf(r *run, args []Value, kw []kwarg) Value {
	d := NewDict(len(kw))
	if len(args) > 1 {
		panic(raise("dict takes one argument"))
	}
	if len(args) == 1 {
		o, ok := args[0].(*Dict)
		if !ok {
			panic(refuse("dict of %s", typeName(args[0])))
		}
		d = o.Forget()
	}
	for _, k := range kw {
		d.Set(k.name, k.v)
	}
	r.spend(32 * d.Len())
	return d
}

func namespaceOf(r *run, args []Value, kw []kwarg) Value {
	return &namespace{dictOf(r, args, kw).(*Dict)}
}
