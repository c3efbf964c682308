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

func isNumberAttr(name string) bool { return numberAttrs[name] }

func hasMethod(v Value, name string) bool {
	switch v := v.(type) {
	case string:
		return textMethods[name]
	case *Dict:
		return dictMethods[name]
	case *List:
		if v.tuple {
			return tupleMethods[name]
		}
		return listMethods[name]
	}
	return false
}

// mutates says whether the sandbox hides a method because it changes its object.
func mutates(v Value, name string) bool {
	switch v := v.(type) {
	case *Dict:
		return dictMutators[name]
	case *List:
		return !v.tuple && listMutators[name]
	}
	return false
}

func (r *run) callMethod(recv Value, name string, args []Value, kw []kwarg) (Value, error) {
	switch o := recv.(type) {
	case string:
		return r.textMethod(o, name, args, kw)
	case *Dict:
		if len(kw) > 0 {
			return nil, raise("%s takes no named arguments", name)
		}
		return r.dictMethod(o, name, args)
	}
	return nil, refuse("the method %s of %s", name, typeName(recv))
}

func (r *run) dictMethod(d *Dict, name string, args []Value) (Value, error) {
	if name == "get" {
		if len(args) != 1 && len(args) != 2 {
			return nil, raise("get takes one or two arguments")
		}
		if !hashable(args[0]) {
			return nil, refuse("get with a key that is %s", typeName(args[0]))
		}
		i := d.lookup(args[0])
		switch {
		case i >= 0:
			return d.vals[i], nil
		case len(args) == 2:
			return args[1], nil
		}
		return nil, nil
	}
	if len(args) > 0 {
		return nil, raise("%s takes no arguments", name)
	}
	switch name {
	case "items":
		items, err := r.pairs(d)
		return &view{"dict_items", items}, err
	case "keys":
		return &view{"dict_keys", d.keys}, nil
	case "values":
		return &view{"dict_values", d.vals}, nil
	case "copy":
		return d.Forget(), r.spend(32 * d.Len())
	}
	return nil, refuse("the method %s of a dict", name)
}

func (r *run) pairs(d *Dict) ([]Value, error) {
	items := make([]Value, d.Len())
	for i, k := range d.keys {
		items[i] = &List{Items: []Value{k, d.vals[i]}, tuple: true}
	}
	return items, r.spend(64 * d.Len())
}

// textArgs are the arguments of a text's method, all without a name.
func textArgs(name string, args []Value, kw []kwarg, least, most int) error {
	if len(kw) > 0 {
		return refuse("%s with a named argument", name)
	}
	if len(args) < least || len(args) > most {
		return raise("%s with another number of arguments", name)
	}
	return nil
}

func (r *run) textMethod(s, name string, args []Value, kw []kwarg) (Value, error) {
	switch name {
	case "strip", "lstrip", "rstrip":
		return r.stripMethod(s, name, args, kw)
	case "split", "rsplit", "splitlines":
		return r.splitMethod(s, name, args, kw)
	case "startswith", "endswith":
		return affix(s, name, args, kw)
	case "replace":
		err := textArgs(name, args, kw, 2, 3)
		if err != nil {
			return nil, err
		}
		return r.replace(s, args)
	case "join":
		err := textArgs(name, args, kw, 1, 1)
		if err != nil {
			return nil, err
		}
		return r.joinTexts(s, args[0])
	case "upper", "lower", "title", "capitalize":
		err := textArgs(name, args, kw, 0, 0)
		if err != nil {
			return nil, err
		}
		return r.caseOf(name, s)
	case "find", "rfind", "count", "index", "removeprefix", "removesuffix":
		return r.searchMethod(s, name, args, kw)
	case "partition", "rpartition":
		return r.partition(s, name, args, kw)
	case "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower", "isnumeric", "isdecimal":
		err := textArgs(name, args, kw, 0, 0)
		if err != nil {
			return nil, err
		}
		return classOf(name, s)
	}
	return nil, refuse("the method %s of a text", name)
}

// stripSet returns whether a character is stripped.
func stripSet(name string, args []Value) (func(rune) bool, error) {
	if len(args) == 0 || args[0] == nil {
		return IsSpace, nil
	}
	chars, ok := args[0].(string)
	if !ok {
		return nil, wrong(name+" of %s", args[0])
	}
	return func(c rune) bool { return strings.ContainsRune(chars, c) }, nil
}

func (r *run) stripMethod(s, name string, args []Value, kw []kwarg) (Value, error) {
	err := textArgs(name, args, kw, 0, 1)
	if err != nil {
		return nil, err
	}
	in, err := stripSet(name, args)
	if err != nil {
		return nil, err
	}
	if name != "rstrip" {
		s = strings.TrimLeftFunc(s, in)
	}
	if name != "lstrip" {
		s = strings.TrimRightFunc(s, in)
	}
	return s, nil
}

func (r *run) splitMethod(s, name string, args []Value, kw []kwarg) (Value, error) {
	args, err := splitArgs(name, args, kw)
	if err != nil {
		return nil, err
	}
	most := -1
	if len(args) > 1 {
		n, ok := index(args[1])
		if !ok {
			return nil, wrong(name+" by %s", args[1])
		}
		most = n
	}
	var parts []string
	switch {
	case name == "splitlines":
		if len(args) > 0 {
			return nil, refuse("splitlines with an argument")
		}
		parts = splitLines(s)
	case len(args) == 0 || args[0] == nil:
		if name == "rsplit" && most >= 0 {
			return nil, refuse("rsplit at blanks with a limit")
		}
		parts = splitBlank(s, most)
	default:
		sep, ok := args[0].(string)
		if !ok || sep == "" {
			return nil, wrong(name+" at %s", args[0])
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
	return &List{Items: items}, r.spend(32 * len(parts))
}

// splitArgs puts the named arguments of a split behind the others.
func splitArgs(name string, args []Value, kw []kwarg) ([]Value, error) {
	for _, k := range kw {
		switch {
		case k.name == "sep" && len(args) == 0:
			args = []Value{k.v}
		case k.name == "maxsplit" && len(args) == 0:
			args = []Value{nil, k.v}
		case k.name == "maxsplit" && len(args) == 1:
			args = append(args, k.v)
		default:
			return nil, refuse("%s with a named argument", name)
		}
	}
	return args, nil
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
		switch {
		case most == 0:
			return append(parts, s)
		case i < 0:
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

func affix(s, name string, args []Value, kw []kwarg) (Value, error) {
	err := textArgs(name, args, kw, 1, 1)
	if err != nil {
		return nil, err
	}
	tries := []Value{args[0]}
	l, ok := args[0].(*List)
	if ok && l.tuple {
		tries = l.Items
	}
	for _, v := range tries {
		t, ok := v.(string)
		if !ok {
			return nil, wrong(name+" of %s", v)
		}
		if name == "startswith" && strings.HasPrefix(s, t) || name == "endswith" && strings.HasSuffix(s, t) {
			return true, nil
		}
	}
	return false, nil
}

// replace is str.replace; args are what to replace, by what, and how often.
func (r *run) replace(s string, args []Value) (Value, error) {
	old, ok := args[0].(string)
	by, ok2 := args[1].(string)
	if !ok || !ok2 {
		return nil, wrong("replace of %s by %s", args[0], args[1])
	}
	n := -1
	if len(args) > 2 && args[2] != nil {
		n, ok = index(args[2])
		if !ok {
			return nil, wrong("replace by %s", args[2])
		}
	}
	times := strings.Count(s, old)
	if n >= 0 {
		times = min(times, n)
	}
	if len(by) > 0 && times > r.bytes/len(by) {
		return nil, errBytes
	}
	err := r.spend(len(s) + times*len(by))
	if err != nil {
		return nil, err
	}
	return strings.Replace(s, old, by, n), nil
}

func (r *run) joinTexts(sep string, v Value) (Value, error) {
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	n := 0
	for i, e := range items {
		s, ok := e.(string)
		if !ok {
			return nil, wrong("join of %s", e)
		}
		parts[i] = s
		n += len(s) + len(sep)
		if n > r.bytes {
			return nil, errBytes
		}
	}
	return strings.Join(parts, sep), r.spend(n)
}

// caseOf maps the case of ASCII. Beyond it the mapping depends on Python's Unicode version
// and may change lengths: refused.
func (r *run) caseOf(name, s string) (Value, error) {
	if !isASCII(s) {
		return nil, refuse("%s of a text beyond ASCII", name)
	}
	err := r.spend(len(s))
	if err != nil {
		return nil, err
	}
	switch name {
	case "upper":
		return strings.ToUpper(s), nil
	case "lower":
		return strings.ToLower(s), nil
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
	return string(b), nil
}

func (r *run) searchMethod(s, name string, args []Value, kw []kwarg) (Value, error) {
	err := textArgs(name, args, kw, 1, 1)
	if err != nil {
		return nil, err
	}
	t, ok := args[0].(string)
	if !ok {
		return nil, wrong(name+" of %s", args[0])
	}
	switch name {
	case "removeprefix":
		return strings.TrimPrefix(s, t), nil
	case "removesuffix":
		return strings.TrimSuffix(s, t), nil
	case "count":
		return strings.Count(s, t), nil
	}
	i := strings.Index(s, t)
	if name == "rfind" {
		i = strings.LastIndex(s, t)
	}
	switch {
	case i >= 0:
		return runes(s[:i]), nil
	case name == "index":
		return nil, raise("index of what is not there")
	}
	return -1, nil
}

func (r *run) partition(s, name string, args []Value, kw []kwarg) (Value, error) {
	err := textArgs(name, args, kw, 1, 1)
	if err != nil {
		return nil, err
	}
	sep, ok := args[0].(string)
	if !ok || sep == "" {
		return nil, wrong(name+" at %s", args[0])
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
	return &List{Items: parts, tuple: true}, nil
}

// classOf is isdigit and its like, of ASCII.
func classOf(name, s string) (Value, error) {
	if !isASCII(s) {
		return nil, refuse("%s of a text beyond ASCII", name)
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
			return false, nil
		}
	}
	if name == "isupper" || name == "islower" {
		return cased, nil
	}
	return s != "", nil
}
