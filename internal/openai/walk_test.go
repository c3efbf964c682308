package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWholeObjectTakesOneObjectAndNothingElse(t *testing.T) {
	for _, s := range []string{`{}`, " {\"a\":[1]}\n"} {
		at, ok := WholeObject([]byte(s))
		require.True(t, ok)
		require.Equal(t, strings.TrimSpace(s), string(at.Of([]byte(s))))
	}
	for _, s := range []string{``, ` `, `[]`, `1`, `{"a":}`, `{} {}`, `{`} {
		_, ok := WholeObject([]byte(s))
		require.False(t, ok, s)
	}
}

func TestMembersAndElementsComeAsTheyStand(t *testing.T) {
	b := []byte(` {"a" : 1.50,"b":[ 1 , {"c":2}],"d":{}}`)
	root, ok := WholeObject(b)
	require.True(t, ok)
	var got []string
	note := func(key, val Span) bool {
		got = append(got, string(key.Of(b))+"="+string(val.Of(b)))
		EachElement(b, val, func(v Span) { got = append(got, string(v.Of(b))) })
		return string(key.Of(b)) != `"b"`
	}
	EachMember(b, root, note)
	require.Equal(t, []string{`"a"=1.50`, `"b"=[ 1 , {"c":2}]`, `1`, `{"c":2}`}, got, "false ends the walk")
	got = nil
	EachMember(b, Span{}, note)
	EachMember(b, Span{7, 11}, note)
	EachElement(b, Span{}, func(Span) { got = append(got, "none") })
	EachElement(b, root, func(Span) { got = append(got, "none") })
	b = []byte(`["",":1,"]`) // read as an object, the first text would have a member
	EachMember(b, Span{1, 3}, note)
	require.Empty(t, got, "what is no object or array has nothing in it")
}

func TestKeysAreComparedAfterUnescaping(t *testing.T) {
	b := []byte(`{"ab":1,"\u0061b":2,"a\u0062":3,"aB":4}`)
	var keys []Span
	EachMember(b, Span{0, len(b)}, func(key, _ Span) bool { keys = append(keys, key); return true })
	for i, s := range keys {
		for j, u := range keys {
			require.Equal(t, i == j || i < 3 && j < 3, SameKey(b, s, u), "%d %d", i, j)
		}
		require.Equal(t, i < 3, IsKey(b, s, "ab"))
	}
}

func TestADepthCountsTheObjectItself(t *testing.T) {
	for depth, s := range []string{``, `{"a":1,"b":"[[["}`, `{"a":[1]}`, `{"b":{},"a":{"b":[]}}`} {
		b := []byte(s)
		for d := 1; d <= MaxDepth && depth > 0; d++ {
			n := 0
			ok := EachMemberWithin(b, Span{0, len(b)}, d, func(_, _ Span) bool { n++; return true })
			require.Equal(t, d >= depth, ok, "%s within %d", s, d)
			require.True(t, !ok || n > 0)
		}
	}
	b := []byte(`{"a":1,"b":[[]]}`)
	require.True(t, EachMemberWithin(b, Span{0, len(b)}, 1, func(_, _ Span) bool { return false }), "a walk that was ended saw no fault")
}
