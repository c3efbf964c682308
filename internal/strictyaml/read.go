package strictyaml

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	maxBytes  = 256 << 10 // unless the form says otherwise
	maxDepth  = 64        // of brackets; a parser recurses on it
	maxNodes  = 5000      // visited, each time that an alias is followed
	maxFaults = 50        // named of one file
)

// Places says where each key of a file stands. The zero value knows of none.
type Places struct {
	name  string
	lines map[string]int
}

// Given reports whether the file has the key, as a.b.c.
func (p Places) Given(key string) bool { return p.lines[key] != 0 }

// Known reports whether keys were read, if with faults: else nothing can be said of
// the file but why it cannot be read.
func (p Places) Known() bool { return len(p.lines) > 0 }

// Overruled says that the value of the key is not the file's any more: faults of it
// are not the file's either.
func (p Places) Overruled(key string) { p.lines[key] = 0 }

// At is what stands in front of a fault of the key: the file and the line of the
// key, or of the nearest mapping around it that the file has. Empty where it has
// none.
func (p Places) At(key string) string {
	for k := key; k != ""; {
		if l, said := p.lines[k]; l != 0 {
			return fmt.Sprintf("%s:%d: ", p.name, l)
		} else if said {
			return "" // overruled
		}
		i := strings.LastIndexByte(k, '.')
		if i < 0 {
			break
		}
		k = k[:i]
	}
	return ""
}

// Explain returns err with each fault in it on a line of its own, the place of its
// key in front. A fault begins with its key: "a.b.c 3: expected …".
func (p Places) Explain(err error) error {
	var out []error
	for _, e := range flatten(err) {
		text := e.Error()
		key := text
		if i := strings.IndexAny(text, " :"); i >= 0 {
			key = text[:i]
		}
		if at := p.At(key); at != "" {
			e = placed{at, e}
		}
		out = append(out, e)
	}
	return errors.Join(out...)
}

// InOrder returns the faults that err joins in the order of their lines; those without
// one come last, as they came.
func (p Places) InOrder(err error) error {
	all := flatten(err)
	slices.SortStableFunc(all, func(a, b error) int { return cmp.Compare(p.lineOf(a), p.lineOf(b)) })
	return errors.Join(all...)
}

func (p Places) lineOf(err error) int {
	rest, ok := strings.CutPrefix(err.Error(), p.name+":")
	if ok {
		digits, _, _ := strings.Cut(rest, ":")
		if n, err := strconv.Atoi(digits); err == nil {
			return n
		}
	}
	return math.MaxInt
}

// placed is a fault with its place in front.
type placed struct {
	at  string
	err error
}

func (p placed) Error() string { return p.at + p.err.Error() }
func (p placed) Unwrap() error { return p.err }

// flatten returns the faults that err joins.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok { // not errors.As: what wraps a join has text of its own
		var out []error
		for _, e := range many.Unwrap() {
			out = append(out, flatten(e)...)
		}
		return out
	}
	return []error{err}
}

// Form says what of YAML a file may use. The zero value is the form of a file that people
// write, where a value may be written in all the ways that YAML has.
type Form struct {
	// MaxBytes is how large the file may be. Default 256 KiB.
	MaxBytes int
	// Exact refuses what readers of YAML and JSON take for different things: anchors,
	// aliases, merge keys and tags; text without quotes that looks like something else;
	// numbers that are not plain decimals. A key without a value counts as absent.
	Exact bool
	// PassOver passes over keys that the struct does not have.
	PassOver bool
}

// Read reads data, the content of the file called name, into the struct that into
// points to. The error joins all faults.
func Read(name string, data []byte, into any) (Places, error) {
	d := Form{}.Open(name, data)
	places, _ := d.Read(into)
	return places, d.Err()
}

// Document is the content of a file. It gathers what is wrong with it. Not safe for
// concurrent use.
type Document struct {
	r    reader
	body ast.Node // nil: the file is empty, or cannot be read at all
}

// Open parses data, the content of the file called name.
func (f Form) Open(name string, data []byte) *Document {
	d := &Document{r: reader{name: name, form: f, fields: make(map[reflect.Type]map[string]int)}}
	d.body = d.r.document(data)
	if d.body != nil && !f.Exact {
		d.r.anchors = make(anchorsOf)
		ast.Walk(d.r.anchors, d.body)
	}
	return d
}

// Empty reports whether there is nothing in the file.
func (d *Document) Empty() bool { return d.body == nil && len(d.r.faults) == 0 }

// Whole is the file as a part.
func (d *Document) Whole() Part { return Part{d.body} }

// Read reads the file into the struct that into points to. It reports whether it has found
// no fault in it.
func (d *Document) Read(into any) (Places, bool) { return d.ReadPart(d.Whole(), "", into) }

// ReadPart reads a part of the file into the struct that into points to. It reports whether
// it has found no fault in it. What is said of a fault in it begins with what, and the keys
// of the places are those within the part.
func (d *Document) ReadPart(p Part, what string, into any) (Places, bool) {
	r, before := &d.r, len(d.r.faults)+d.r.more
	r.places = Places{name: r.name, lines: make(map[string]int)}
	v := reflect.ValueOf(into).Elem()
	r.root, r.what = v.Type(), what
	if p.node != nil {
		r.value(p.node, "", v)
	}
	r.what = ""
	return r.places, p.node != nil && len(r.faults)+r.more == before
}

// Fault adds a fault that is found later.
func (d *Document) Fault(line int, format string, a ...any) { d.r.faultAt(line, format, a...) }

// Err joins all faults.
func (d *Document) Err() error {
	faults := d.r.faults
	if d.r.more > 0 {
		faults = append(slices.Clip(faults), fmt.Errorf("%s: and %d more", d.r.name, d.r.more))
	}
	return errors.Join(faults...)
}

// reader walks a document and collects its faults.
type reader struct {
	name    string
	form    Form
	anchors anchorsOf
	fields  map[reflect.Type]map[string]int // of each struct: which field has which key
	nodes   int
	faults  []error
	more    int // beyond maxFaults

	// Of the part that is being read.
	what   string // in front of each fault
	root   reflect.Type
	places Places
}

func (r *reader) faultAt(line int, format string, a ...any) {
	if len(r.faults) == maxFaults {
		r.more++
		return
	}
	r.faults = append(r.faults, fmt.Errorf("%s:%d: %s%s", r.name, line, r.what, fmt.Sprintf(format, a...)))
}

func (r *reader) fault(n ast.Node, format string, a ...any) { r.faultAt(lineOf(n), format, a...) }

func lineOf(n ast.Node) int {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key // the mapping's own token is a colon
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 1
	}
	return n.GetToken().Position.Line
}

// document returns the body of the file's only document; nil where it is empty, or
// after a fault.
func (r *reader) document(data []byte) ast.Node {
	if most := cmp.Or(r.form.MaxBytes, maxBytes); len(data) > most {
		r.faultAt(1, "%d bytes: expected at most %d", len(data), most)
		return nil
	}
	data = withoutMark(data)
	if at := notText(data); at >= 0 {
		r.faultAt(1+bytes.Count(data[:at], []byte("\n")), "this is no text file (byte %d is 0x%02x): expected YAML in UTF-8", at, data[at])
		return nil
	}
	if l := tooDeep(data); l > 0 {
		r.faultAt(l, "brackets are nested more than %d levels deep", maxDepth)
		return nil
	}
	f, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		l, text := syntax(data, err)
		r.faultAt(l, "%s", text)
		return nil
	}
	var body ast.Node
	for _, d := range f.Docs {
		if d.Body == nil {
			continue
		}
		if body != nil {
			r.fault(d.Body, "a second document begins here: expected one")
			return nil
		}
		body = d.Body
	}
	return body
}

// notText returns where data ceases to be text, or -1. What is no text is not echoed.
func notText(data []byte) int {
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		if c == utf8.RuneError && n == 1 || c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			return i
		}
		i += n
	}
	return -1
}

// tooDeep returns the line on which brackets, or dashes and colons, nest deeper than
// maxDepth, or 0. It may count what stands in a text; no good file has such a text.
func tooDeep(data []byte) int {
	depth, line, marks := 0, 1, 0
	for _, c := range data {
		switch c {
		case '\n':
			line, marks = line+1, 0
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case '-', '?', ':':
			marks++
		}
		if depth > maxDepth || marks > 8*maxDepth {
			return line
		}
	}
	return 0
}

// Clip bounds what is shown of a file: the first line, at most 60 characters of it.
func Clip(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// anchorsOf notes the anchors of a document as it is walked.
type anchorsOf map[string]ast.Node

func (a anchorsOf) Visit(n ast.Node) ast.Visitor {
	if x, ok := n.(*ast.AnchorNode); ok {
		a[x.Name.GetToken().Value] = x.Value
	}
	return a
}

// settle follows aliases and drops tags and anchors, unless the file may have none.
func (r *reader) settle(n ast.Node) ast.Node {
	if r.form.Exact {
		return n
	}
	for range maxDepth {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.AliasNode:
			to, ok := r.anchors[x.Value.GetToken().Value]
			if !ok {
				r.fault(n, "alias %s: expected an anchor of that name, or quotes if it is text", Clip(x.String()))
				return nil
			}
			n = to
		case *ast.TagNode:
			n = x.Value
		case *ast.MappingValueNode: // a mapping of one key
			return ast.Mapping(x.Start, false, x)
		default:
			return n
		}
	}
	r.fault(n, "aliases refer to each other")
	return nil
}
