package main

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// notProduct are the folders whose faults nobody would meet.
var notProduct = []string{"test", "examples"}

// TestTheListFitsTheTree: each line is there once, and each test. A change of the
// product that moves a line of the list takes the fault along, or another in its place.
func TestTheListFitsTheTree(t *testing.T) {
	faults, err := load("faults.txt", regexp.MustCompile(""))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(faults), 40)
	known := map[string]map[string]bool{}
	withEnvoy := 0
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			for _, dir := range notProduct {
				require.False(t, strings.HasPrefix(f.file, dir+"/"), "%s is no part of the product", f.file)
			}
			require.False(t, strings.HasSuffix(f.file, "_test.go"))
			src, err := os.ReadFile(filepath.Join(root, f.file))
			require.NoError(t, err)
			text, err := f.apply(string(src))
			require.NoError(t, err)
			if filepath.Ext(f.file) == ".go" {
				_, err = parser.ParseFile(token.NewFileSet(), f.file, text, parser.SkipObjectResolution)
				require.NoError(t, err)
			}
			if known[f.pkg+f.tags] == nil {
				known[f.pkg+f.tags] = testsOf(t, f.pkg, f.tags)
			}
			for _, test := range f.tests {
				top, _, _ := strings.Cut(test, "/")
				require.True(t, known[f.pkg+f.tags][top], "%s is no test of %s", top, f.pkg)
			}
		})
		if f.pkg == "./test/envoytest" {
			withEnvoy++
		}
	}
	require.GreaterOrEqual(t, withEnvoy, 26, "most are to be seen through a real Envoy")
}

// testsOf returns the tests of a package that are compiled with the tags.
func testsOf(t *testing.T, pkg, tags string) map[string]bool {
	t.Helper()
	c := build.Default
	c.BuildTags = strings.Split(tags, ",")
	dir := filepath.Join(root, pkg)
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, file := range files {
		in, err := c.MatchFile(dir, filepath.Base(file))
		require.NoError(t, err)
		if !in {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) { // a fuzz test's seeds run as a test
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}
