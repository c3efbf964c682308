package jinja_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// loops are templates whose loop over messages reads things from outside in many ways, and
// whether its turns are remembered.
var loops = []struct {
	name, source string
	remembered   bool
}{
	{"what depends on the message alone", "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}", true},
	{"the place in the loop", "{% for m in messages %}{{ 'first' if loop.first }}{{ m.content }}{% if loop.last %}last{% endif %}{% endfor %}", true},
	{"the index itself", "{% for m in messages %}{{ loop.index }}:{{ m.content }};{% endfor %}", true},
	{"the index from the end", "{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}", true},
	{"neighbours", "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == m.role %}+{% endif %}{{ m.content }}{% if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}.{% endif %}{% endfor %}", true},
	{"neighbours by number", "{% for m in messages %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}[{% endif %}{{ m.content }}{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}]{% endif %}{% endfor %}", true},
	{"a number found before", "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if loop.index0 > ns.last %}new{% else %}old{% endif %}{{ m.content }}{% endfor %}", true},
	{"a switch in a namespace", "{% set ns = namespace(tool=false) %}{% for m in messages %}{% if m.role == 'tool' %}{% if not ns.tool %}<{% endif %}{% set ns.tool = true %}{% elif ns.tool %}>{% set ns.tool = false %}{% endif %}{{ m.content }}{% endfor %}{{ ns.tool }}", true},
	{"a counter in a namespace", "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% endif %}{{ m.content }}{% endfor %}{{ ns.n }}", true},
	{"a counter that is written", "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}{% endfor %}", true},
	{"a text in a namespace", "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + m.role %}{{ m.content }}{% endfor %}{{ ns.s }}", true},
	{"an attribute that is new", "{% set ns = namespace() %}{% for m in messages %}{{ ns.seen is defined }}{{ m.content }}{% if m.role == 'tool' %}{% set ns.seen = m.content %}{% endif %}{% endfor %}{{ ns.seen }}", true},
	{"a name set from outside", "{% for m in messages %}{% set i = (messages | length - 1) - loop.index0 %}{% if i < 2 %}near{% endif %}{{ m.content }}{% endfor %}", true},
	{"names set from each other", "{% for m in messages %}{% set i = loop.index0 %}{% set j = i + 1 %}{% if j % 2 == 0 %}even{% endif %}{{ m.content }}{% endfor %}", true},
	{"a name set either way", "{% for m in messages %}{% if m.role == 'user' %}{% set i = loop.index0 %}{% else %}{% set i = 0 %}{% endif %}{{ m.content }}{% if i > 3 %}!{% endif %}{% endfor %}", true},
	{"a name set in one case", "{% for m in messages %}{% if m.role == 'user' %}{% set x = m.content %}{% endif %}{{ x if m.role == 'user' else '-' }}{% endfor %}", true},
	{"a name that may be from outside", "{% set x = 'out' %}{% for m in messages %}{% if m.role == 'user' %}{% set x = 'in' %}{% endif %}{{ x }}{{ m.content }}{% endfor %}", true},
	{"a text from outside", "{% for m in messages %}{{ bos }}{{ m.content }}{{ prefix if loop.first else '' }}{% endfor %}", true},
	{"a list from outside", "{% for m in messages %}{{ m.content }}{% if tools and loop.last %}{% for t in tools %}{{ t }}{% endfor %}{% endif %}{% endfor %}", true},
	{"a loop within", "{% for m in messages %}{% for p in m.parts %}{{ loop.index }}{{ p }}{% if not loop.last %},{% endif %}{% endfor %};{% endfor %}", true},
	{"a loop within that counts", "{% set ns = namespace(n=0) %}{% for m in messages %}{% for p in m.parts %}{% set ns.n = ns.n + 1 %}{{ p }}{% endfor %}{% if ns.n > 4 %}!{% endif %}{% endfor %}{{ ns.n }}", true},
	{"breaks and continues", "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.content }}{% if stop == loop.index %}{% break %}{% endif %}{% endfor %}", true},
	{"a part of the list", "{% for m in messages[1:] %}{{ m.content }}{{ loop.last }}{% endfor %}", true},
	{"the list backwards", "{% for m in messages[::-1] %}{{ m.content }}{{ loop.last }}{% endfor %}", true},
	{"chosen messages", "{% for m in messages if m.role != 'tool' %}{{ m.content }}{{ loop.last }}{% endfor %}", true},
	{"a macro", "{% macro say(m, x='') %}<{{ m.role }}{{ x }}>{{ m.content }}{% endmacro %}{% for m in messages %}{{ say(m) }}{{ say(m, loop.last) }}{% endfor %}", true},
	{"a macro that calls another", "{% macro a(s) %}({{ s }}){% endmacro %}{% macro b(m) %}{{ a(m.content) }}{% endmacro %}{% for m in messages %}{{ b(m) }}{% endfor %}", true},
	{"a macro that reads from outside", "{% macro say(m) %}{{ bos }}{{ m.content }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}", false},
	{"a macro that counts outside", "{% set ns = namespace(n=0) %}{% macro say(m) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}", false},
	{"a macro that is one of two", "{% if bos %}{% macro say(m) %}a{{ m.content }}{% endmacro %}{% else %}{% macro say(m) %}b{{ m.content }}{% endmacro %}{% endif %}{% for m in messages %}{{ say(m) }}{% endfor %}", false},
	{"a macro of the loop's own", "{% for m in messages %}{% macro say() %}{{ m.content }}{% endmacro %}{{ say() }}{% endfor %}", false},
	{"the namespace as a value", "{% set ns = namespace(a=1) %}{% macro bump(n) %}{% set n.a = n.a + 1 %}{% endmacro %}{% for m in messages %}{{ bump(ns) }}{{ m.content }}{{ ns.a }}{% endfor %}", true},
	{"a namespace by another name", "{% set ns = namespace(a=1) %}{% for m in messages %}{% set n = ns %}{% set n.a = n.a + 1 %}{{ m.content }}{% if n.a > 3 %}!{% endif %}{% endfor %}{{ ns.a }}", true},
	{"a namespace of the turn's own", "{% for m in messages %}{% set ns = namespace(a=m.role) %}{% set ns.a = ns.a + '!' %}{{ ns.a }}{% endfor %}", true},
	{"a generator from outside", "{% set g = messages | map(attribute='role') %}{% for m in messages %}{{ m.content }}{% for r in g %}{{ r }}{% endfor %}{% endfor %}", false},
	{"a set block", "{% for m in messages %}{% set c %}{{ m.content }}{{ '!' if loop.last }}{% endset %}{{ c | trim }}{% endfor %}", true},
	{"a set block in a namespace", "{% set ns = namespace() %}{% for m in messages %}{{ ns.c }}{% set ns.c %}{{ m.content }}{% endset %}{% endfor %}{{ ns.c }}", true},
	{"a with", "{% for m in messages %}{% with c = m.content, l = loop.last %}{{ c | trim }}{{ l }}{% endwith %}{% endfor %}", true},
	{"a message read by number", "{% for m in messages %}{{ m.content }}{{ messages[0].role }}{{ (messages[m.n] or m).role }}{% endfor %}", false},
	{"the message compared", "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}{% if m.role == 'user' and m == users[-1] %}last{% endif %}{{ m.content }}{{ m.n < messages | length - 2 }}{% endfor %}", true},
	{"a name that hides the message", "{% for m in messages %}{% for m in m.parts %}{% if m == bos %}x{% endif %}{{ m }}{% endfor %}{{ m.content }}{% endfor %}", true},
	{"the time", "{% for m in messages %}{{ m.content }}{{ strftime_now('%Y') }}{% endfor %}", true},
	{"the loop as a value", "{% macro end(l) %}{{ l.last }}{% endmacro %}{% for m in messages %}{{ m.content }}{{ end(loop) }}{% endfor %}", true},
	{"loops over the same messages", "{% for m in messages %}{{ m.role }}{% for k in messages %}{% if k.n == m.n %}{{ k.content }}{% endif %}{% endfor %}{% endfor %}", false},
}

func randomMessage(g *rand.Rand, n int) *jinja.Dict {
	pick := func(of ...string) string { return of[g.IntN(len(of))] }
	d := jinja.NewDict(4)
	d.Set("role", pick("user", "assistant", "tool", "system"))
	d.Set("content", pick("a", " b ", "", "c\n", "é"))
	d.Set("n", n)
	parts := jinja.NewList()
	for range g.IntN(3) {
		parts.Items = append(parts.Items, pick("p", "q"))
	}
	d.Set("parts", parts)
	return d.Remember(10_000)
}

// env is a rendering's variables; some of them differ from turn to turn.
func env(g *rand.Rand, messages []jinja.Value, turn int, plain bool) jinja.Env {
	return jinja.Env{Plain: plain, Now: func(string) (string, error) { return fmt.Sprint(turn), nil }, Vars: []jinja.Var{
		{Name: "messages", Value: jinja.NewList(messages...)},
		{Name: "bos", Value: map[bool]string{true: "<s>", false: ""}[turn%5 > 0]},
		{Name: "prefix", Value: "p"},
		{Name: "stop", Value: turn - 2},
		{Name: "tools", Value: jinja.NewList("t")},
	}}
}

// TestWhatIsRememberedChangesNothing lets conversations grow, shrink and fork, and renders
// each state twice with what is remembered and once without. In builds with the tag
// invariants each remembered piece is rendered again besides.
func TestWhatIsRememberedChangesNothing(t *testing.T) {
	for _, l := range loops {
		t.Run(l.name, func(t *testing.T) {
			tpl, err := jinja.Compile(l.source, jinja.Limits{})
			require.NoError(t, err)
			kept := 0
			for seed := range uint64(30) {
				g := rand.New(rand.NewPCG(seed, 3))
				var messages []jinja.Value
				for turn := range 14 {
					switch {
					case len(messages) > 2 && g.IntN(6) == 0:
						messages = messages[:g.IntN(len(messages))]
					case len(messages) > 2 && g.IntN(6) == 0:
						messages = append(append([]jinja.Value{}, messages[2:]...), messages[0])
					}
					for range 1 + g.IntN(2) {
						messages = append(messages, randomMessage(g, len(messages)))
					}
					want, err := tpl.Render(env(g, messages, turn, true))
					require.NoError(t, err)
					for range 2 {
						got, err := tpl.Render(env(g, messages, turn, false))
						require.NoError(t, err)
						require.Equal(t, want.Text(), got.Text(), "seed %d, turn %d", seed, turn)
						require.NotContains(t, got.Pieces, "")
						kept += got.Kept
					}
				}
			}
			require.Equal(t, l.remembered, kept > 0, "%d pieces were remembered", kept)
		})
	}
}

// TestPiecesOfAConversationThatGrowsAreTheSameStrings counts, turn by turn, the pieces that
// had to be made.
func TestPiecesOfAConversationThatGrowsAreTheSameStrings(t *testing.T) {
	tpl, err := jinja.Compile("head{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if loop.last %}.{% endif %}{% endfor %}tail", jinja.Limits{})
	require.NoError(t, err)
	g := rand.New(rand.NewPCG(1, 1))
	var messages []jinja.Value
	for turn := range 20 {
		messages = append(messages, randomMessage(g, turn))
		out, err := tpl.Render(env(g, messages, turn, false))
		require.NoError(t, err)
		require.Len(t, out.Pieces, turn+3)
		// The message before was the last one until now.
		require.Equal(t, max(0, turn-1), out.Kept)
		require.Equal(t, "head", out.Pieces[0])
		require.Equal(t, "tail", out.Pieces[len(out.Pieces)-1])
	}
}

func TestRememberedPiecesCountAgainstTheLimits(t *testing.T) {
	source := "{% for m in messages %}{% for i in range(50) %}{{ m.content }}{% endfor %}{% endfor %}"
	g := rand.New(rand.NewPCG(2, 1))
	var messages []jinja.Value
	for n := range 40 {
		messages = append(messages, randomMessage(g, n))
	}
	for _, limits := range []jinja.Limits{{Steps: 3000}, {Bytes: 1500}} {
		tpl, err := jinja.Compile(source, limits)
		require.NoError(t, err)
		for range 3 {
			_, err = tpl.Render(env(g, messages, 1, false))
			require.Equal(t, jinja.Limited, jinja.KindOf(err), "%v", err)
		}
	}
}

func TestRenderingsShareMessages(t *testing.T) {
	tpl, err := jinja.Compile(loops[7].source, jinja.Limits{})
	require.NoError(t, err)
	g := rand.New(rand.NewPCG(3, 1))
	var messages []jinja.Value
	for n := range 30 {
		messages = append(messages, randomMessage(g, n))
	}
	want, err := tpl.Render(env(g, messages, 1, true))
	require.NoError(t, err)
	var wg sync.WaitGroup
	texts := make([]string, 8)
	for i := range texts {
		wg.Go(func() {
			for n := 1; n <= len(messages); n++ {
				out, err := tpl.Render(jinja.Env{Vars: []jinja.Var{{Name: "messages", Value: jinja.NewList(messages[:n]...)}}})
				if err != nil {
					return
				}
				texts[i] = out.Text()
			}
		})
	}
	wg.Wait()
	for _, s := range texts {
		require.Equal(t, want.Text(), s)
	}
	require.True(t, strings.HasSuffix(want.Text(), "True") || strings.HasSuffix(want.Text(), "False"))
}

// TestRandomLoopsRememberNothingWrong does the same with random loops over messages, while
// what is outside of them changes.
func TestRandomLoopsRememberNothingWrong(t *testing.T) {
	kept := 0
	for seed := range uint64(4000) {
		a := author{rand.New(rand.NewPCG(seed, 11))}
		source := a.of("", "{% set ns = namespace(a=0) %}", "{% set x = 1 %}") +
			"{% for m in ms %}" + a.body(2) + "{% endfor %}{{ ns.a }}{{ x }}"
		tpl, err := jinja.Compile(source, small)
		if err != nil {
			continue
		}
		vars := varsOf(t, randomVars)
		var messages *jinja.List
		for _, v := range vars {
			if v.Name == "ms" {
				messages = v.Value.(*jinja.List)
			}
		}
		for _, m := range messages.Items {
			m.(*jinja.Dict).Remember(1 << 16)
		}
		for turn := range 6 {
			now := append(slices.Clip(vars),
				jinja.Var{Name: "i", Value: turn % 2}, jinja.Var{Name: "e", Value: []string{"", "x"}[turn%3%2]},
				jinja.Var{Name: "ms", Value: jinja.NewList(messages.Items[:1+turn%len(messages.Items)]...)})
			want, wrong := tpl.Render(jinja.Env{Vars: now, Plain: true})
			got, err := tpl.Render(jinja.Env{Vars: now})
			require.Equal(t, jinja.KindOf(wrong), jinja.KindOf(err), "seed %d, turn %d: %s: %v, %v", seed, turn, source, wrong, err)
			if err == nil {
				require.Equal(t, want.Text(), got.Text(), "seed %d, turn %d: %s", seed, turn, source)
				kept += got.Kept
			}
		}
	}
	require.Greater(t, kept, 500)
}
