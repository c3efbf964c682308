package jinja_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// A renderer renders one template with the variables of a JSON object. The package is one,
// Python is the other.
type renderer func(t *testing.T, template, vars string) string

// quoted writes a text on one line, as it stands in the scenario files.
func quoted(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(b.String())
}

// varsOf decodes the variables of a rendering.
func varsOf(t *testing.T, vars string) []jinja.Var {
	v, err := jinja.Decode([]byte(vars))
	require.NoError(t, err)
	d := v.(*jinja.Dict)
	var out []jinja.Var
	for i := range d.Len() {
		k, w := d.At(i)
		out = append(out, jinja.Var{Name: k.(string), Value: w})
	}
	return out
}

// ours renders with this package.
func ours(t *testing.T, template, vars string) string {
	tpl, err := jinja.Compile(template, jinja.Limits{})
	if err == nil {
		var r *jinja.Rendering
		r, err = tpl.Render(jinja.Env{Vars: varsOf(t, vars)})
		if err == nil {
			return quoted(r.Text())
		}
	}
	e := new(jinja.Error)
	require.ErrorAs(t, err, &e)
	if e.Kind == jinja.Raised {
		return "raises"
	}
	return e.Kind.String() + ": " + e.What
}

// play runs the scenario files of testdata/snippets:
//
//	vars      sets the variables, a JSON object, from here on
//	render    renders the input as one template
//	lines     renders each line as a template
//	json      the same, each template written as a JSON text
//	refused   the same as lines; Python renders these, this package must not
//
// Each answer is a JSON text, or `raises`, or why there is none.
func play(t *testing.T, path string, render renderer, isPython bool) {
	vars := "{}"
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		templates := strings.Split(d.Input, "\n")
		switch d.Cmd {
		case "vars":
			vars = d.Input
			return ""
		case "render":
			templates = []string{d.Input}
		case "json":
			for i, s := range templates {
				require.NoError(t, json.Unmarshal([]byte(s), &templates[i]))
			}
		case "refused":
			if isPython {
				return d.Expected
			}
		}
		var b strings.Builder
		for _, s := range templates {
			b.WriteString(render(t, s, vars) + "\n")
		}
		return b.String()
	})
}

func TestSnippetsRenderAsInPython(t *testing.T) {
	datadriven.Walk(t, "testdata/snippets", func(t *testing.T, path string) { play(t, path, ours, false) })
}

func TestErrorsHoldNoValue(t *testing.T) {
	for _, template := range []string{
		"{{ raise_exception(x) }}", "{{ x + 1 }}", "{{ x[1:].nope.more }}", "{{ x | int }}",
		"{{ {'a': 1}[x].y }}", "{{ x | map(x) }}", "{{ d | dictsort(by=x) }}",
	} {
		tpl, err := jinja.Compile(template, jinja.Limits{})
		require.NoError(t, err)
		_, err = tpl.Render(jinja.Env{Vars: varsOf(t, `{"x": "secret", "d": {"secret": "secret"}}`)})
		if err != nil {
			require.NotContains(t, err.Error(), "secret", template)
		}
	}
}

// deep is an expression as deep as the source may nest, around another.
func deep(e string) string {
	for range 40 {
		e = "(" + e + strings.Repeat("+1", 900) + ")"
	}
	return e
}

func TestATemplateEndsWithinItsLimits(t *testing.T) {
	limits := jinja.Limits{Steps: 200_000, Bytes: 1 << 20}
	for name, template := range map[string]string{
		"a loop in a loop":            "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
		"a text that doubles":         "{% set ns = namespace(s='x') %}{% for a in range(24) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"a text that doubles by ~":    "{% set ns = namespace(s='x') %}{% for a in range(24) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
		"a list that doubles":         "{% set ns = namespace(s=[1]) %}{% for a in range(24) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"a repeated text":             "{{ 'x' * 1000000000000 }}",
		"a repeated text, twice":      "{{ ('x' * 100000) * 100000 }}",
		"a replaced text":             "{{ ('x' * 100000).replace('x', 'y' * 10000) }}",
		"a joined text":               "{{ ('x' * 10000).join(('y' * 10000) | list) }}",
		"an output":                   "{% for a in range(9999) %}{{ 'x' * 1000 }}{% endfor %}",
		"a macro that calls itself":   "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"macros that call each other": "{% macro a() %}{{ b() }}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}",
		"a list within itself":        "{% set ns = namespace(s=[]) %}{% for a in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
		"the JSON of such a list":     "{% set ns = namespace(s=[]) %}{% for a in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s | tojson }}",
		"such lists compared":         "{% set ns = namespace(s=[], u=[]) %}{% for a in range(9999) %}{% set ns.s = [ns.s] %}{% set ns.u = [ns.u] %}{% endfor %}{{ ns.s == ns.u }}",
		"brackets":                    "{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}",
		"nots":                        "{{ " + strings.Repeat("not ", 5000) + "1 }}",
		"signs":                       "{{ " + strings.Repeat("-", 5000) + "1 }}",
		"ifs":                         strings.Repeat("{% if 1 %}", 5000) + strings.Repeat("{% endif %}", 5000),
		"attributes":                  "{{ x" + strings.Repeat(".a", 5000) + " }}",
		"filters":                     "{{ x" + strings.Repeat("|list", 5000) + " }}",
		"sums":                        "{{ 1" + strings.Repeat("+1", 300_000) + " }}",
	} {
		t.Run(name, func(t *testing.T) {
			tpl, err := jinja.Compile(template, limits)
			if err == nil {
				_, err = tpl.Render(jinja.Env{})
			}
			require.Equal(t, jinja.Limited, jinja.KindOf(err), "%v", err)
		})
	}
	_, err := jinja.Compile(strings.Repeat("x", 100), jinja.Limits{SourceBytes: 99})
	require.Equal(t, jinja.Limited, jinja.KindOf(err))
	require.Zero(t, jinja.KindOf(errors.New("another")))
}

// TestEvaluationsNestToABound nests deep expressions in macros that call themselves, with a
// small stack.
func TestEvaluationsNestToABound(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(64 << 20))
	tpl, err := jinja.Compile("{% macro m() %}{{ "+deep("m()")+" }}{% endmacro %}{{ m() }}", jinja.Limits{})
	require.NoError(t, err)
	_, err = tpl.Render(jinja.Env{})
	require.Equal(t, jinja.Limited, jinja.KindOf(err), "%v", err)
}
