package main

import (
	"context"
	"flag"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write sizes.txt anew, if it no longer holds")

const root = "../.."

// weighed is the tree's own table, which is made once.
var weighed = sync.OnceValues(func() (table, error) { return weigh(context.Background(), root) })

// TestNothingGrowsUnseen compares the table with the tree. -rewrite writes the table, but
// leaves one that holds alone: else each rewriting of other golden files would change it.
func TestNothingGrowsUnseen(t *testing.T) {
	now, err := weighed()
	require.NoError(t, err)
	was, err := read(root)
	changes := was.changes(now, tolerance)
	if *rewrite && (err != nil || len(changes) > 0) {
		require.NoError(t, write(t.Context(), root))
		return
	}
	require.NoError(t, err, "%s is damaged: run `make sizes`", golden)
	require.Empty(t, changes, "these are not as %s has them: run `make sizes`, and say in the commit what has grown or gone, and why", golden)
}

func TestTheTableIsReadAsItIsWritten(t *testing.T) {
	files := map[string]lines{
		"a.go": {n: 1}, "pkg/b/b.go": {n: 20}, "pkg/b/c.go": {n: 3}, "pkg/b/b_test.go": {n: 40}, "pkg/b/check.go": {n: 7, apart: true},
		"internal/c/c.go": {n: 5}, "internal/c/c_test.go": {n: 6},
	}
	tab := tabulate(files, map[string]bool{".": true, "pkg/b": true})
	text := head + `product  .  1
product  pkg/b  23
tooling  internal/c  5
tooling  pkg/b  7
tests  internal/c  6
tests  pkg/b  40

product  total  24
tooling  total  12
tests  total  46
`
	require.Equal(t, text, tab.String())
	got, err := parse(text)
	require.NoError(t, err)
	require.Equal(t, tab, got)
}

func TestADamagedTableIsSeen(t *testing.T) {
	sums := "product total 1\ntooling total 0\ntests total 0\n"
	for _, c := range []struct{ text, says string }{
		{"", ""}, // no rows, no sums
		{"product a 1\n" + sums, ""},
		{"product a 1\n", "product: the total is 0, and its rows have 1"},
		{"product a 2\n" + sums, "product: the total is 1, and its rows have 2"},
		{"product a 1\nproduct a 1\n" + sums, "line 2: product a comes twice"},
		{"<<<<<<< HEAD\n" + sums, "line 1: \"<<<<<<< HEAD\": expected a kind, a package and a number"},
		{"product a b\n" + sums, "line 1: "},
	} {
		_, err := parse(c.text)
		if c.says == "" {
			require.NoError(t, err, c.text)
			continue
		}
		require.ErrorContains(t, err, c.says)
	}
}

func TestSmallChangesAreTolerated(t *testing.T) {
	was := table{{product, "a"}: 1000, {product, "b"}: 10_000, {product, "c"}: 10_000, {tests, "d"}: 50, {tooling, "e"}: 1}
	now := table{{product, "a"}: 1100, {product, "b"}: 9_800, {product, "c"}: 10_201, {tests, "d"}: 151, {product, "e"}: 1}
	require.Equal(t, []string{
		"product  c: 10201 lines, it had 10000",
		"product  e: new, 1 lines",
		"tooling  e: gone, it had 1 lines",
		"tests  d: 151 lines, it had 50",
	}, was.changes(now, tolerance))
	require.Len(t, was.changes(now, exactly), 6)
	require.Empty(t, now.changes(now, exactly))
}

// TestWhatIsLinkedIsTheProduct: the command and what it imports, pkg, and nothing besides.
func TestWhatIsLinkedIsTheProduct(t *testing.T) {
	now, err := weighed()
	require.NoError(t, err)
	for p, kind := range map[string]string{
		".": product, "cmd/extproc": product, "internal/leg": product, "pkg/openai": product,
		"test/cmd/enginesim": tooling, "test/sizes": tooling, "test/stack": tooling, "pkg/kvindex/oracle": tooling,
	} {
		require.Positive(t, now[row{kind, p}], p)
	}
	for r := range now {
		require.False(t, strings.HasPrefix(r.pkg, "test/kubeparts/"), "modules of their own")
	}
}
