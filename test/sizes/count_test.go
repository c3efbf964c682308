package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestALineCountsIfATokenStandsOnIt(t *testing.T) {
	for _, c := range []struct {
		what, src string
		lines     int
	}{
		{"nothing", "", 0},
		{"comments and blanks alone", "// Package a.\n\n/* is\n\n   long */\n", 0},
		{"code, with a comment behind it", "package a // and why\n\nvar x = 1 /* one\nor two */\n", 2},
		{"two statements, one line", "package a; var x = 1\n", 1},
		{"a brace of its own", "package a\nfunc f() {\n\n\t// nothing yet\n}", 3},
		{"code behind a comment of several lines", "package a\n/* x\n*/ var x = 1\n", 2},
		{"a raw string, of which one line is blank", "package a\nvar x = `one\n\n// no comment\n`\n", 4},
		{"a line that says that it is another", "package a\n//line b.go:1\nvar x = 1\n", 2},
	} {
		n, err := linesOf([]byte(c.src))
		require.NoError(t, err, c.what)
		require.Equal(t, c.lines, n, c.what)
	}
	_, err := linesOf([]byte("package a\nvar x = \"open\n"))
	require.Error(t, err)
}

func TestWhatIsNoPackageOfTheModuleIsNotCounted(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	fsys := fstest.MapFS{
		"go.mod": file("module a"), "a.go": file("package a"), "pkg/b/b.go": file("package b\nvar x = 1"), "pkg/b/b_test.go": file("package b"),
		"pkg/b/check.go": file("//go:build invariants\n\npackage b\nvar y = 1"), "pkg/b/arena.go": file("//go:build !invariants || linux\n\npackage b"),
		"pkg/b/b.c": file("int x;"), "pkg/b/testdata/c.go": file("no Go"), ".tools/d.go": file("package d"), "_old/e.go": file("package e"),
		"other/go.mod": file("module f"), "other/f.go": file("package f"),
		"test/go.mod": file("module g"), "test/h/h.go": file("package h"), "test/other/go.mod": file("module i"), "test/other/i.go": file("package i"),
	}
	files, err := count(fsys)
	require.NoError(t, err)
	require.Equal(t, map[string]lines{
		"a.go": {n: 1}, "pkg/b/b.go": {n: 2}, "pkg/b/b_test.go": {n: 1},
		"pkg/b/check.go": {n: 2, apart: true}, "pkg/b/arena.go": {n: 1}, "test/h/h.go": {n: 1},
	}, files)
	fsys["pkg/g/g.go"] = file("package g\nvar x = 'open")
	_, err = count(fsys)
	require.ErrorContains(t, err, "pkg/g/g.go: ")
}
