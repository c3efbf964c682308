package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const block = `# a comment
fault   turned
area    states
file    pkg/a/a.go
in      T.f
- if a < b {
+ if a > b {
package ./pkg/a
test    TestA
test    TestB/a subtest
why:    the order is wrong
`

func TestABlockIsReadAsItStands(t *testing.T) {
	got, err := parse(strings.NewReader(block + "\nfault gone\narea x\nfile f.tmpl\n  - - a: b\n  +\npackage ./p\ntest TestC\ntags e2e\nwhy: w\n"))
	require.NoError(t, err)
	require.Equal(t, []fault{
		{
			name: "turned", area: "states", file: "pkg/a/a.go", in: "T.f", old: "if a < b {", new: "if a > b {",
			pkg: "./pkg/a", tests: []string{"TestA", "TestB/a subtest"}, tags: usualTags, why: "the order is wrong",
		},
		{name: "gone", area: "x", file: "f.tmpl", old: "- a: b", pkg: "./p", tests: []string{"TestC"}, tags: "e2e", why: "w"},
	}, got)
}

func TestAListThatIsWrongIsRefusedWithItsPlace(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"a line of no block":      {"# a comment", "area x", "line 1"},
		"a word that is none":     {"in      T.f", "inside T.f", `line 5: fault "turned": "inside"`},
		"a member that is twice":  {"in      T.f", "area x", "line 5: fault \"turned\": area is there twice"},
		"a name that is twice":    {"why:    the order is wrong", "why: w\nfault turned", "line 12: fault \"turned\" is there twice"},
		"a test that is twice":    {"TestB/a subtest", "TestA", `test "TestA" is there twice`},
		"no reason":               {"why:    the order is wrong", "", "why: is missing"},
		"no test":                 {"test    TestA\ntest    TestB/a subtest\n", "", "test is missing"},
		"nothing changes":         {"+ if a > b {", "+ if a < b {", "the same"},
		"a package by its path":   {"./pkg/a", "pkg/a", "expected a folder"},
		"no line that is changed": {"- if a < b {", "", "- is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, block, c.old)
			_, err := parse(strings.NewReader(strings.Replace(block, c.old, c.new, 1)))
			require.ErrorContains(t, err, c.want)
		})
	}
}

const source = `package a

type T struct{}

func (t *T) f(a, b int) bool {
	if a < b {
		return true
	}
	return false
}

func g(a, b int) bool {
	if a < b {
		return false
	}
	return true
}
`

const template = `{{define "one" -}}
- x: 1
- y: 2
{{- end}}
{{define "two" -}}
- x: 1
{{- end}}
`

func TestOneLineIsChangedAndNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		f        fault
		src, at  string // what is after at changes
		was, now string
	}{
		"in a method":                     {fault{file: "a.go", in: "T.f", old: "if a < b {", new: "if a > b {"}, source, "(t *T)", "\tif a < b {", "\tif a > b {"},
		"in a function":                   {fault{file: "a.go", in: "g", old: "if a < b {", new: "if a > b {"}, source, "func g", "\tif a < b {", "\tif a > b {"},
		"a line that is there once":       {fault{file: "a.go", old: "type T struct{}", new: "type T int"}, source, "", "type T struct{}", "type T int"},
		"to nothing":                      {fault{file: "a.go", in: "g", old: "return true"}, source, "func g", "\treturn true\n", "\n"},
		"in the last part of a template":  {fault{file: "a.tmpl", in: "two", old: "- x: 1", new: "- x: 2"}, template, `"two"`, "- x: 1", "- x: 2"},
		"in the first part of a template": {fault{file: "a.tmpl", in: "one", old: "- x: 1", new: "- x: 2"}, template, "", "- x: 1", "- x: 2"},
	} {
		t.Run(name, func(t *testing.T) {
			i := strings.Index(c.src, c.at)
			got, err := c.f.apply(c.src)
			require.NoError(t, err)
			require.Equal(t, c.src[:i]+strings.Replace(c.src[i:], c.was, c.now, 1), got)
		})
	}
}

func TestALineThatIsNotThereOnceIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		f    fault
		want string
	}{
		"not at all":                  {fault{file: "a.go", old: "if a <= b {"}, "a.go: no line is"},
		"a part of a line":            {fault{file: "a.go", old: "if a < b"}, "no line is"},
		"twice":                       {fault{file: "a.go", old: "if a < b {"}, "lines 6 and 13"},
		"not in this function":        {fault{file: "a.go", in: "g", old: "type T struct{}"}, "no line is"},
		"in a function that is none":  {fault{file: "a.go", in: "h", old: "return true"}, "0 functions are h"},
		"in a template that is none":  {fault{file: "a.tmpl", in: "three", old: "- x: 1"}, "no template is three"},
		"not in this template's part": {fault{file: "a.tmpl", in: "two", old: "- y: 2"}, "no line is"},
	} {
		t.Run(name, func(t *testing.T) {
			src := source
			if strings.HasSuffix(c.f.file, ".tmpl") {
				src = template
			}
			_, err := c.f.apply(src)
			require.ErrorContains(t, err, c.want)
		})
	}
}
