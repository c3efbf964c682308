package jinja

type testFunc func(r *run, v Value, args []Value) (Value, error)

// testTable has every test that is done exactly. The parser refuses the others.
var testTable = map[string]testFunc{
	"defined":   plain(func(v Value) bool { _, ok := v.(*undefined); return !ok }),
	"undefined": plain(func(v Value) bool { _, ok := v.(*undefined); return ok }),
	"none":      plain(func(v Value) bool { return v == nil }),
	"string":    plain(func(v Value) bool { _, ok := v.(string); return ok }),
	"mapping":   plain(func(v Value) bool { _, ok := v.(*Dict); return ok }),
	"boolean":   plain(func(v Value) bool { _, ok := v.(bool); return ok }),
	"integer":   plain(func(v Value) bool { _, ok := v.(int); return ok }),
	"float":     plain(func(v Value) bool { _, ok := v.(float64); return ok }),
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
	"in": func(r *run, v Value, args []Value) (Value, error) {
		if len(args) != 1 {
			return nil, raise("the test in takes one argument")
		}
		return r.contains(args[0], v)
	},
	"divisibleby": func(r *run, v Value, args []Value) (Value, error) {
		if len(args) != 1 {
			return nil, raise("the test divisibleby takes one argument")
		}
		m, err := r.arithmetic("%", v, args[0])
		return !truth(m), err
	},
	"==": comparing("=="), "eq": comparing("=="), "equalto": comparing("=="),
	"ne": comparing("!="), "lt": comparing("<"), "lessthan": comparing("<"), "le": comparing("<="),
	"gt": comparing(">"), "greaterthan": comparing(">"), "ge": comparing(">="),
	"sameas": func(_ *run, v Value, args []Value) (Value, error) {
		if len(args) != 1 {
			return nil, raise("the test sameas takes one argument")
		}
		switch args[0].(type) {
		case nil, bool:
			return v == args[0], nil
		}
		return nil, refuse("the test sameas of %s", typeName(args[0]))
	},
}

// markupTest is a test of what safe returns, which is a text.
func markupTest(name string) (Value, error) {
	switch name {
	case "defined", "string", "sequence", "iterable":
		return true, nil
	case "undefined", "none", "mapping", "boolean", "integer", "float", "number", "true", "false", "callable":
		return false, nil
	}
	return nil, refuse("the test %s of what safe returns", name)
}

func plain(is func(Value) bool) testFunc {
	return func(_ *run, v Value, args []Value) (Value, error) {
		if len(args) > 0 {
			return nil, raise("a test that takes no argument has one")
		}
		return is(v), nil
	}
}

func comparing(op string) testFunc {
	return func(r *run, v Value, args []Value) (Value, error) {
		if len(args) != 1 {
			return nil, raise("a comparing test takes one argument")
		}
		return r.compare(op, v, args[0])
	}
}

func parity(rest int) testFunc {
	return func(r *run, v Value, args []Value) (Value, error) {
		if len(args) > 0 {
			return nil, raise("odd and even take no argument")
		}
		m, err := r.arithmetic("%", v, 2)
		return err == nil && keysEqual(m, rest), err
	}
}

func caseTest(name string) testFunc {
	return func(r *run, v Value, args []Value) (Value, error) {
		s, err := r.str(v)
		if err != nil || len(args) > 0 {
			return nil, refuse("a test of case of %s", typeName(v))
		}
		return classOf(name, s)
	}
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

func noFunction(name string) func(*run, []Value, []kwarg) (Value, error) {
	return func(*run, []Value, []kwarg) (Value, error) { return nil, refuse("the function %s", name) }
}

// raiseException is the template's own refusal. Its message may hold a message's text, so it
// goes no further.
func raiseException(*run, []Value, []kwarg) (Value, error) {
	return nil, raise("raise_exception")
}

func strftimeNow(r *run, args []Value, kw []kwarg) (Value, error) {
	if len(args) != 1 || len(kw) > 0 {
		return nil, raise("strftime_now takes one argument")
	}
	format, ok := args[0].(string)
	if !ok || r.env.Now == nil {
		return nil, refuse("the function strftime_now")
	}
	s, err := r.env.Now(format)
	if err != nil {
		return nil, refuse("strftime_now with such a format")
	}
	return r.made(s)
}

// maxRange is the sandbox's limit of a range.
const maxRange = 100_000

func rangeOf(_ *run, args []Value, kw []kwarg) (Value, error) {
	if len(args) == 0 || len(args) > 3 || len(kw) > 0 {
		return nil, raise("range takes one to three arguments")
	}
	s := span{step: 1}
	at := []*int{&s.start, &s.stop, &s.step}
	if len(args) == 1 {
		at = at[1:]
	}
	for i, v := range args {
		n, ok := index(v)
		if !ok {
			return nil, wrong("range of %s", v)
		}
		if n > 1<<40 || n < -1<<40 {
			return nil, refuse("range of such a number")
		}
		*at[i] = n
	}
	if s.step == 0 || s.len() > maxRange {
		return nil, raise("a range that is too long")
	}
	return s, nil
}

func dictOf(r *run, args []Value, kw []kwarg) (Value, error) {
	d := NewDict(len(kw))
	if len(args) > 1 {
		return nil, raise("dict takes one argument")
	}
	if len(args) == 1 {
		o, ok := args[0].(*Dict)
		if !ok {
			return nil, refuse("dict of %s", typeName(args[0]))
		}
		d = o.Forget()
	}
	for _, k := range kw {
		d.Set(k.name, k.v)
	}
	return d, r.spend(32 * d.Len())
}

func namespaceOf(r *run, args []Value, kw []kwarg) (Value, error) {
	v, err := dictOf(r, args, kw)
	if err != nil {
		return nil, err
	}
	return &namespace{v.(*Dict)}, nil
}
