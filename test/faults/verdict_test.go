package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatBecameOfATestIsRead(t *testing.T) {
	r := read([]byte(`{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"said\n"}
{"Action":"pass","Package":"p","Test":"TestGood"}
{"Action":"run","Package":"p","Test":"TestBad"}
{"Action":"run","Package":"p","Test":"TestBad/a_subtest"}
{"Action":"fail","Package":"p","Test":"TestBad/a_subtest"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"run","Package":"p","Test":"TestNotHere"}
{"Action":"skip","Package":"p","Test":"TestNotHere"}
{"Action":"run","Package":"p","Test":"TestHangs"}
{"Action":"fail","Package":"p"}
a word of the go command's own
`))
	require.True(t, r.built)
	for test, want := range map[string]how{
		"TestGood": passed, "TestBad": failed, "TestBad/a subtest": failed, "TestNotHere": skipped, "TestHangs": cutOff, "TestGone": notRun,
	} {
		require.Equal(t, want, r.of(test), test)
	}
	require.Equal(t, "said\na word of the go command's own", r.story(9))
	require.Equal(t, "a word of the go command's own", r.story(1))
}

func TestTheStoryBeginsWithTheFirstCheckThatHasFailed(t *testing.T) {
	r := &report{}
	r.output.WriteString("before\n  Error Trace: a.go:1\n  Error: it is 1\nits log\n  Error Trace: a.go:2\nthe end\n")
	require.Equal(t, "  Error Trace: a.go:1\n  Error: it is 1", r.story(2))
	require.Contains(t, r.story(99), "the end")
}

func TestWhatDoesNotCompileIsNoRedTest(t *testing.T) {
	r := read([]byte(`{"ImportPath":"p [p.test]","Action":"build-output","Output":"./a.go:3:1: expected declaration\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}
`))
	require.False(t, r.built)
	require.Equal(t, notRun, r.of("TestA"))
	require.Contains(t, r.story(1), "expected declaration")
}

func TestAPatternNamesItsTestsAndNoOther(t *testing.T) {
	require.Equal(t, "^(TestA|TestB)$", pattern("TestA", "TestB"))
	levels := strings.Split(pattern("TestA/it is (here)"), "/")
	require.Len(t, levels, 2)
	require.Regexp(t, levels[0], "TestA")
	require.NotRegexp(t, levels[0], "TestAll")
	require.Regexp(t, levels[1], "it_is_(here)")
	require.NotRegexp(t, levels[1], "it_is_(here)_too")
}

func TestTestsAreRunTogetherUnlessTheyHaveSubtests(t *testing.T) {
	got := groups([]fault{
		{pkg: "./a", tags: "x", tests: []string{"TestA", "TestB/one"}},
		{pkg: "./a", tags: "x", tests: []string{"TestC", "TestA", "TestB/two"}},
		{pkg: "./b", tags: "x", tests: []string{"TestA"}},
		{pkg: "./a", tags: "y", tests: []string{"TestA"}},
	})
	require.Equal(t, []*group{
		{"./a", "x", []string{"TestA", "TestC"}},
		{"./a", "x", []string{"TestB/one"}},
		{"./a", "x", []string{"TestB/two"}},
		{"./b", "x", []string{"TestA"}},
		{"./a", "y", []string{"TestA"}},
	}, got)
}
