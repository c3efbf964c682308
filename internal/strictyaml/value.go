package strictyaml

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Word is a value that has a text of its own. Read sets it to what the text stands for; else
// its error says what is expected, in words that go on from "expected".
type Word interface {
	Read(text string) error
}

// value reads n, which stands at key, into v.
func (r *reader) value(n ast.Node, key string, v reflect.Value) {
	r.nodes++
	if r.nodes > maxNodes && !r.form.Exact { // without aliases the file's size bounds them
		if r.nodes == maxNodes+1 {
			r.fault(n, "aliases make this file larger than %d values", maxNodes)
		}
		return
	}
	if v.Kind() == reflect.Interface { // any value: the caller does not read it
		return
	}
	t := v.Type()
	if t == reflect.TypeFor[Part]() {
		v.Set(reflect.ValueOf(Part{n}))
		return
	}
	n = r.settle(n)
	if n == nil {
		return
	}
	if isNull(n) {
		r.nothing(n, key, t)
		return
	}
	if w, is := reflect.TypeAssert[Word](v.Addr()); is {
		r.word(n, key, t, w)
		return
	}
	switch {
	case t.Kind() == reflect.Pointer:
		to := reflect.New(t.Elem())
		if !v.IsNil() {
			to.Elem().Set(v.Elem())
		}
		r.value(n, key, to.Elem())
		v.Set(to)
	case t == reflect.TypeFor[time.Duration]():
		r.duration(n, key, v)
	case t.Kind() == reflect.Struct:
		r.mapping(n, key, v)
	case t.Kind() == reflect.Map:
		r.names(n, key, v)
	case t.Kind() == reflect.Slice:
		r.list(n, key, v)
	default:
		r.scalar(n, key, v)
	}
}

// nothing is no value at key, which leaves a mapping or a list its default.
func (r *reader) nothing(n ast.Node, key string, t reflect.Type) {
	if kind := deref(t).Kind(); r.form.Exact {
		r.wrong(n, key, t)
	} else if kind != reflect.Struct && kind != reflect.Map && kind != reflect.Slice {
		r.fault(n, "%s: no value: expected %s, or no such line for the default", key, r.expected(t))
	}
}

// word reads a scalar whose text w knows to read.
func (r *reader) word(n ast.Node, key string, t reflect.Type, w Word) {
	text := "" // of what has none: w says what is expected of it
	if !compound(n) {
		text = textOf(n)
	}
	switch err := w.Read(text); {
	case !compound(n) && t.Kind() == reflect.String && !r.isText(n), compound(n) && err == nil:
		r.wrong(n, key, t)
	case err != nil:
		r.fault(n, "%s: %s: expected %v", key, describe(n), err)
	}
}

func deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// expected says in words what a value of the type looks like.
func (r *reader) expected(t reflect.Type) string {
	t = deref(t)
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 2s or 100ms"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String && r.form.Exact:
		return "text, in quotes if it looks like something else"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Map:
		return "a mapping of names"
	case t.Kind() == reflect.Struct:
		return "a mapping of " + strings.Join(keysOf(t), ", ")
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64:
		return fmt.Sprintf("a decimal number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	default:
		return "a whole number"
	}
}

// describe says what a node is. Only text is shown in quotes: a number in quotes would
// look like text.
func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return Clip(textOf(n))
	case *ast.NullNode:
		return "no value"
	case *ast.AliasNode:
		return "an alias"
	case *ast.AnchorNode:
		return "an anchor"
	case *ast.TagNode:
		return "a tag"
	}
	return strconv.Quote(Clip(textOf(n)))
}

// textOf is a scalar as it was written, without quotes.
func textOf(n ast.Node) string {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value
	case *ast.LiteralNode:
		if x.Value == nil {
			return ""
		}
		return x.Value.Value
	}
	return n.GetToken().Value
}

func isNull(n ast.Node) bool {
	_, null := n.(*ast.NullNode)
	return null
}

// compound reports whether n is no scalar.
func compound(n ast.Node) bool {
	switch n.(type) {
	case *ast.MappingNode, *ast.SequenceNode, *ast.AliasNode, *ast.AnchorNode, *ast.TagNode:
		return true
	}
	return false
}

// isText reports whether n may stand for text.
func (r *reader) isText(n ast.Node) bool {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return true
	}
	return !r.form.Exact
}

// plain reports whether n is a scalar that was written without quotes.
func plain(n ast.Node) bool {
	switch n.(type) {
	case *ast.LiteralNode, *ast.MappingNode, *ast.SequenceNode:
		return false
	}
	kind := n.GetToken().Type
	return kind != token.SingleQuoteType && kind != token.DoubleQuoteType
}

// quoted reports whether n is text in quotes, which is never a number, true or false.
func quoted(n ast.Node) bool {
	_, text := n.(*ast.StringNode)
	return text && !plain(n)
}

func (r *reader) wrong(n ast.Node, key string, t reflect.Type) {
	if key != "" {
		key += ": "
	}
	switch kind := deref(t).Kind(); {
	case !quoted(n) || t == reflect.TypeFor[time.Duration]():
	case kind >= reflect.Bool && kind <= reflect.Float64:
		r.fault(n, "%stext in quotes: expected %s, without quotes", key, r.expected(t))
		return
	}
	r.fault(n, "%s%s: expected %s", key, describe(n), r.expected(t))
}

func (r *reader) duration(n ast.Node, key string, v reflect.Value) {
	text := textOf(n)
	d, err := time.ParseDuration(text)
	if err != nil || compound(n) {
		r.wrong(n, key, v.Type())
		return
	}
	v.SetInt(int64(d))
}

func (r *reader) scalar(n ast.Node, key string, v reflect.Value) {
	t := v.Type()
	if compound(n) {
		r.wrong(n, key, t)
		return
	}
	text, ok := textOf(n), plain(n)
	switch t.Kind() {
	case reflect.String:
		ok = r.isText(n)
		if ok {
			v.SetString(text)
		}
	case reflect.Bool:
		b, isBool := n.(*ast.BoolNode)
		ok = isBool
		if ok {
			v.SetBool(b.Value)
		}
	case reflect.Float64:
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
		default:
			ok = ok && !r.form.Exact // no "inf", and no other notation than a decimal's
		}
		x, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
		ok = ok && err == nil && !math.IsNaN(x) && !math.IsInf(x, 0)
		if ok {
			v.SetFloat(x)
		}
	case reflect.Int, reflect.Int64:
		x, err := strconv.ParseInt(text, 0, 64)
		ok = ok && err == nil
		if ok {
			v.SetInt(x)
		}
	case reflect.Uint16, reflect.Uint32, reflect.Uint64: // no other notation than a decimal's; 010 is an octal to some readers
		_, isNumber := n.(*ast.IntegerNode)
		x, err := strconv.ParseUint(text, 10, t.Bits())
		ok = isNumber && err == nil && (text == "0" || text[0] != '0')
		if ok {
			v.SetUint(x)
		}
	default:
		panic(fmt.Sprintf("strictyaml: key %s has a type that is not read: %s", key, t))
	}
	if !ok {
		r.wrong(n, key, t)
	}
}

func (r *reader) list(n ast.Node, key string, v reflect.Value) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		r.wrong(n, key, v.Type())
		return
	}
	out := reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values))
	for i, item := range s.Values {
		at := fmt.Sprintf("%s[%d]", key, i)
		r.places.lines[at] = lineOf(item)
		r.value(asText(item), at, out.Index(i))
	}
	v.Set(out)
}

// asText returns the text a:b for an item of a list in brackets that the parser takes for the
// mapping {a: b}, as it does with addresses if braces are around the list. For YAML a colon
// without a space behind it is a part of the text (YAML 1.2.2, 7.3.3).
func asText(item ast.Node) ast.Node {
	m, ok := item.(*ast.MappingNode)
	if !ok || m.IsFlowStyle || len(m.Values) != 1 {
		return item
	}
	kv := m.Values[0]
	key, isScalar := kv.Key.(ast.ScalarNode)
	value, isScalarToo := kv.Value.(ast.ScalarNode)
	if !isScalar || !isScalarToo || !plain(key) || !plain(value) {
		return item
	}
	from, colon, to := key.GetToken(), kv.Start.Position, value.GetToken().Position
	if from.Position.Line != to.Line || from.Position.Column+utf8.RuneCountInString(from.Value) != colon.Column || colon.Column+1 != to.Column {
		return item
	}
	text := textOf(key) + ":" + textOf(value)
	return ast.String(token.New(text, text, from.Position))
}

// names reads a mapping whose keys are names that the file chooses.
func (r *reader) names(n ast.Node, key string, v reflect.Value) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		r.wrong(n, key, v.Type())
		return
	}
	out := reflect.MakeMap(v.Type())
	r.entries(m, key, func(name string, _, value ast.Node) {
		item := reflect.New(v.Type().Elem()).Elem()
		if !r.form.Exact || !isNull(value) {
			r.value(value, join(key, name), item)
		}
		out.SetMapIndex(reflect.ValueOf(name), item)
	})
	v.Set(out)
}

func (r *reader) mapping(n ast.Node, key string, v reflect.Value) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		if key == "" && r.what == "" {
			key = "the file"
		}
		r.wrong(n, key, v.Type())
		return
	}
	fields := r.fieldsOf(v.Type())
	r.entries(m, key, func(name string, at, value ast.Node) {
		i, known := fields[name]
		switch {
		case r.form.Exact && isNull(value):
			delete(r.places.lines, join(key, name))
		case known:
			r.value(value, join(key, name), v.Field(i))
		case !r.form.PassOver && !r.gone(join(key, name)):
			r.fault(at, "%s: there is no such key%s", join(key, Clip(name)), r.hint(key, name, v.Type()))
		}
	})
}

// fieldsOf says which field of a struct has which key.
func (r *reader) fieldsOf(t reflect.Type) map[string]int {
	fields, known := r.fields[t]
	if !known {
		fields = make(map[string]int)
		for i := range t.NumField() {
			if tag := tagOf(t.Field(i)); tag != "" {
				fields[tag] = i
			}
		}
		r.fields[t] = fields
	}
	return fields
}

// entries calls each for the keys of a mapping, those that it merges first, so that
// its own count.
func (r *reader) entries(m *ast.MappingNode, key string, each func(name string, at, value ast.Node)) {
	for _, kv := range m.Values {
		if !kv.Key.IsMergeKey() || r.form.Exact {
			continue
		}
		if from, ok := r.settle(kv.Value).(*ast.MappingNode); ok {
			r.entries(from, key, each)
		} else {
			r.fault(kv.Key, "%s: expected an alias of a mapping", join(key, "<<"))
		}
	}
	first := make(map[string]int)
	for _, kv := range m.Values {
		if _, text := kv.Key.(*ast.StringNode); r.form.Exact && !text {
			r.fault(kv.Key, "%s: expected a key that is text, in quotes if it looks like something else", join(key, Clip(textOf(kv.Key))))
			continue
		}
		if kv.Key.IsMergeKey() {
			continue
		}
		name, l := textOf(kv.Key), lineOf(kv.Key)
		if before := first[name]; before != 0 {
			r.faultAt(l, "%s: this key stands on line %d already", join(key, Clip(name)), before)
			continue
		}
		first[name] = l
		r.places.lines[join(key, name)] = l
		each(name, kv.Key, kv.Value)
	}
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// tagOf is the key of a field, which is also that of JSON if it has no other; "" for one
// that is not read.
func tagOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(cmp.Or(f.Tag.Get("yaml"), f.Tag.Get("json")), ",")
	if name == "-" {
		return ""
	}
	return name
}
