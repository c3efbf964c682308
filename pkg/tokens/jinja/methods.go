package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// The names that Python's types have, without those that begin with an underscore, which
// the sandbox hides. A name that is here and not in callMethod is refused when called.
var (
	textMethods = set(`capitalize casefold center count encode endswith expandtabs find format
		format_map index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric
		isprintable isspace istitle isupper join ljust lower lstrip maketrans partition
		removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split
		splitlines startswith strip swapcase title translate upper zfill`)
	dictMethods  = set("clear copy fromkeys get items keys pop popitem setdefault update values")
	dictMutators = set("clear pop popitem setdefault update")
	listMethods  = set("append clear copy count extend index insert pop remove reverse sort")
	listMutators = set("append clear extend insert pop remove reverse sort")
	tupleMethods = set("count index")
	numberAttrs  = set(`as_integer_ratio bit_count bit_length conjugate denominator from_bytes
		fromhex hex imag is_integer numerator real to_bytes`)
)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// methodsOf returns the methods that a value has in Python, and those of them that the sandbox
// hides because they change it.
func methodsOf(v Value) (all, hidden map[string]bool) {
	switch v := v.(type) {
	case string:
		return textMethods, nil
	case *Dict:
		return dictMethods, dictMutators
	case *List:
		if v.tuple {
			return tupleMethods, nil
		}
		return listMethods, listMutators
	}
	return nil, nil
}

func (r *run) callMethod(recv Value, name string, args []Value, kw []kwarg) Value {
	switch o := recv.(type) {
	case string:
		return r.textMethod(o, name, args, kw)
	case *Dict:
		if len(kw) > 0 {
			panic(raise("%s takes no named arguments", name))
		}
		return r.dictMethod(o, name, args)
	}
	panic(refuse("the method %s of %s", name, typeName(recv)))
}

func (r *run) dictMethod(d *Dict, name string, args []Value) Value {
	if name == "get" {
		if len(args) != 1 && len(args) != 2 {
			panic(raise("get takes one or two arguments"))
		}
		if !hashable(args[0]) {
			panic(refuse("get with a key that is %s", typeName(args[0])))
		}
		i := d.lookup(args[0])
		switch {
		case i >= 0:
			return d.vals[i]
		case len(args) == 2:
			return args[1]
		}
		return nil
	}
	if len(args) > 0 {
		panic(raise("%s takes no arguments", name))
	}
	switch name {
	case "items":
		return &view{"dict_items", r.pairs(d)}
	case "keys":
		return &view{"dict_keys", d.keys}
	case "values":
		return &view{"dict_values", d.vals}
	case "copy":
		r.spend(32 * d.Len())
		return d.Forget()
	}
	panic(refuse("the method %s of a dict", name))
}

func (r *run) pairs(d *Dict) []Value {
	items := make([]Value, d.Len())
	for i, k := range d.keys {
		items[i] = &List{Items: []Value{k, d.vals[i]}, tuple: true}
	}
	r.spend(64 * d.Len())
	return items
}

// textCall is a method of texts: how many arguments it takes, all without a name, and what it
// does, by its name.
type textCall struct {
	least, most int
	call        func(r *run, s, name string, args []Value) Value
}

// textCalls are the methods of texts that are done, but for those that split.
var textCalls = map[string]textCall{
	"strip": {0, 1, stripMethod}, "lstrip": {0, 1, stripMethod}, "rstrip": {0, 1, stripMethod},
	"startswith": {1, 1, affix}, "endswith": {1, 1, affix},
	"replace": {2, 3, func(r *run, s, _ string, args []Value) Value { return r.replace(s, args) }},
	"join":    {1, 1, func(r *run, s, _ string, args []Value) Value { return r.joinTexts(s, args[0]) }},
	"upper":   {0, 0, caseMethod}, "lower": {0, 0, caseMethod}, "title": {0, 0, caseMethod}, "capitalize": {0, 0, caseMethod},
	"find": {1, 1, search}, "rfind": {1, 1, search}, "count": {1, 1, search}, "index": {1, 1, search},
	"removeprefix": {1, 1, search}, "removesuffix": {1, 1, search},
	"partition": {1, 1, partition}, "rpartition": {1, 1, partition},
	"isdigit": {0, 0, classMethod}, "isnumeric": {0, 0, classMethod}, "isdecimal": {0, 0, classMethod}, "isalpha": {0, 0, classMethod},
	"isalnum": {0, 0, classMethod}, "isspace": {0, 0, classMethod}, "isupper": {0, 0, classMethod}, "islower": {0, 0, classMethod},
}

func (r *run) textMethod(s, name string, args []Value, kw []kwarg) Value {
	switch name {
	case "split", "rsplit", "splitlines":
		return r.splitMethod(s, name, splitArgs(name, args, kw))
	}
	m, ok := textCalls[name]
	switch {
	case !ok:
		panic(refuse("the method %s of a text", name))
	case len(kw) > 0:
		panic(refuse("%s with a named argument", name))
	case len(args) < m.least || len(args) > m.most:
		panic(raise("%s with another number of arguments", name))
	}
	return m.call(r, s, name, args)
}

// stripSet returns whether a character is stripped.
func stripSet(name string, args []Value) func(rune) bool {
	if len(args) == 0 || args[0] == nil {
		return IsSpace
	}
	chars, ok := args[0].(string)
	if !ok {
		panic(wrong(name+" of %s", args[0]))
	}
	return func(c rune) bool { return strings.ContainsRune(chars, c) }
}

func stripMethod(_ *run, s, name string, args []Value) Value {
	in := stripSet(name, args)
	if name != "rstrip" {
		s = strings.TrimLeftFunc(s, in)
	}
	if name != "lstrip" {
		s = strings.TrimRightFunc(s, in)
	}
	return s
}

func (r *run) splitMethod(s, name string, args []Value) Value {
	most := -1
	if len(args) > 1 {
		n, ok := index(args[1])
		if !ok {
			panic(wrong(name+" by %s", args[1]))
		}
		most = n
	}
	var parts []string
	switch {
	case name == "splitlines":
		if len(args) > 0 {
			panic(refuse("splitlines with an argument"))
		}
		parts = splitLines(s)
	case len(args) == 0 || args[0] == nil:
		if name == "rsplit" && most >= 0 {
			panic(refuse("rsplit at blanks with a limit"))
		}
		parts = splitBlank(s, most)
	default:
		sep, ok := args[0].(string)
		if !ok || sep == "" {
			panic(wrong(name+" at %s", args[0]))
		}
		if name == "rsplit" {
			parts = splitRight(s, sep, most)
		} else {
			parts = strings.SplitN(s, sep, splitCount(most))
		}
	}
	items := make([]Value, len(parts))
	for i, p := range parts {
		items[i] = p
	}
	r.spend(32 * len(parts))
	return &List{Items: items}
}

// splitArgs puts the named arguments of a split behind the others.
func splitArgs(name string, args []Value, kw []kwarg) []Value {
	for _, k := range kw {
		switch {
		case k.name == "sep" && len(args) == 0:
			args = []Value{k.v}
		case k.name == "maxsplit" && len(args) == 0:
			args = []Value{nil, k.v}
		case k.name == "maxsplit" && len(args) == 1:
			args = append(args, k.v)
		default:
			panic(refuse("%s with a named argument", name))
		}
	}
	return args
}

func splitCount(most int) int {
	if most < 0 {
		return -1
	}
	return most + 1
}

func splitRight(s, sep string, most int) []string {
	var parts []string
	for most != 0 {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
		most--
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return parts
}

func splitBlank(s string, most int) []string {
	var parts []string
	for s = strings.TrimLeftFunc(s, IsSpace); s != ""; s = strings.TrimLeftFunc(s, IsSpace) {
		i := strings.IndexFunc(s, IsSpace)
		if most == 0 || i < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:i])
		s = s[i:]
		most--
	}
	return parts
}

func splitLines(s string) []string {
	var parts []string
	from := 0
	for i := 0; i < len(s); {
		c := rune(s[i])
		size := 1
		if c >= 0x80 {
			c, size = utf8.DecodeRuneInString(s[i:])
		}
		brk := c >= '\n' && c <= '\r' || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
		if !brk {
			i += size
			continue
		}
		parts = append(parts, s[from:i])
		if c == '\r' && i+1 < len(s) && s[i+1] == '\n' {
			size = 2
		}
		i += size
		from = i
	}
	if from < len(s) {
		parts = append(parts, s[from:])
	}
	return parts
}

func affix(_ *run, s, name string, args []Value) Value {
	tries := []Value{args[0]}
	l, ok := args[0].(*List)
	if ok && l.tuple {
		tries = l.Items
	}
	for _, v := range tries {
		t, ok := v.(string)
		if !ok {
			panic(wrong(name+" of %s", v))
		}
		if name == "startswith" && strings.HasPrefix(s, t) || name == "endswith" && strings.HasSuffix(s, t) {
			return true
		}
	}
	return false
}

// replace is str.replace; args are what to replace, by what, and how often.
func (r *run) replace(s string, args []Value) Value {
	old, ok := args[0].(string)
	by, ok2 := args[1].(string)
	if !ok || !ok2 {
		panic(wrong("replace of %s by %s", args[0], args[1]))
	}
	n := -1
	if len(args) > 2 && args[2] != nil {
		n, ok = index(args[2])
		if !ok {
			panic(wrong("replace by %s", args[2]))
		}
	}
	times := strings.Count(s, old)
	if n >= 0 {
		times = min(times, n)
	}
	if len(by) > 0 && times > r.bytes/len(by) {
		panic(errBytes)
	}
	r.spend(len(s) + times*len(by))
	return strings.Replace(s, old, by, n)
}

func (r *run) joinTexts(sep string, v Value) Value {
	items := r.iterate(v)
	parts := make([]string, len(items))
	n := 0
	for i, e := range items {
		s, ok := e.(string)
		if !ok {
			panic(wrong("join of %s", e))
		}
		parts[i] = s
		n += len(s) + len(sep)
		if n > r.bytes {
			panic(errBytes)
		}
	}
	r.spend(n)
	return strings.Join(parts, sep)
}

func caseMethod(r *run, s, name string, _ []Value) Value { return r.caseOf(name, s) }

// caseOf maps the case of ASCII. Beyond it the mapping depends on Python's Unicode version
// and may change lengths: refused.
func (r *run) caseOf(name, s string) Value {
	if !isASCII(s) {
		panic(refuse("%s of a text beyond ASCII", name))
	}
	r.spend(len(s))
	switch name {
	case "upper":
		return strings.ToUpper(s)
	case "lower":
		return strings.ToLower(s)
	}
	b := []byte(strings.ToLower(s))
	start := true
	for i, c := range b {
		letter := c >= 'a' && c <= 'z'
		if letter && start {
			b[i] = c - 'a' + 'A'
		}
		start = name == "title" && !letter
	}
	return string(b)
}

func search(_ *run, s, name string, args []Value) Value {
	t, ok := args[0].(string)
	if !ok {
		panic(wrong(name+" of %s", args[0]))
	}
	switch name {
	case "removeprefix":
		return strings.TrimPrefix(s, t)
	case "removesuffix":
		return strings.TrimSuffix(s, t)
	case "count":
		return strings.Count(s, t)
	}
	i := strings.Index(s, t)
	if name == "rfind" {
		i = strings.LastIndex(s, t)
	}
	switch {
	case i >= 0:
		return runes(s[:i])
	case name == "index":
		panic(raise("index of what is not there"))
	}
	return -1
}

func partition(_ *run, s, name string, args []Value) Value {
	sep, ok := args[0].(string)
	if !ok || sep == "" {
		panic(wrong(name+" at %s", args[0]))
	}
	i := strings.Index(s, sep)
	parts := []Value{s, "", ""}
	if name == "rpartition" {
		i = strings.LastIndex(s, sep)
		parts = []Value{"", "", s}
	}
	if i >= 0 {
		parts = []Value{s[:i], sep, s[i+len(sep):]}
	}
	return &List{Items: parts, tuple: true}
}

func classMethod(_ *run, s, name string, _ []Value) Value { return classOf(name, s) }

// classOf is isdigit and its like, of ASCII.
func classOf(name, s string) bool {
	if !isASCII(s) {
		panic(refuse("%s of a text beyond ASCII", name))
	}
	cased := false
	for i := range len(s) {
		c := s[i]
		up, low, digit := c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', isDigit(c)
		cased = cased || up || low
		ok := false
		switch name {
		case "isdigit", "isnumeric", "isdecimal":
			ok = digit
		case "isalpha":
			ok = up || low
		case "isalnum":
			ok = up || low || digit
		case "isspace":
			ok = IsSpace(rune(c))
		case "isupper":
			ok = !low
		case "islower":
			ok = !up
		}
		if !ok {
			return false
		}
	}
	if name == "isupper" || name == "islower" {
		return cased
	}
	return s != ""
}
