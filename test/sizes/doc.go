// Command sizes weighs the tree: how many lines of Go each package has that are neither
// blank nor comment. `make sizes` writes them to sizes.txt, so that what grows is seen in a
// commit, which says why.
//
// # The table
//
// One row a package and kind, and the sum of each kind at the end:
//
//	product  internal/leg  2345
//
// The kinds:
//
//   - product: what cmd/extproc and the packages of pkg link, on Linux.
//   - tooling: all else that is no test: the module of test/, what tests share, examples, and
//     of the product's packages the files that only a tag of tests (invariants, example) builds.
//   - tests: the files *_test.go, of whatever package.
//
// A line counts if a token stands on it, whatever the file's other build tags are, and whoever
// wrote it: a generated table is linked, too. Blank lines in a raw string do not count.
//
// # Contract
//
// TestNothingGrowsUnseen fails if a package has more or fewer lines than its row, by more
// than 100 and by more than 2 %, or if one has no row, or a row no package. So most commits
// leave the table alone, and two branches seldom meet in it. The sums are those of the rows.
//
// TestSizesThatDecisionsQuoteHold reads docs/decisions. "Some 4,000 lines" behind the name of
// a package or file, as in `pkg/tokens/jinja` has some 4,000 lines, says what there is today,
// without tests, and may be off by a tenth.
//
// # What it does not do
//
// It says not how large a package may be, and counts no other language, no other module
// (below test/kubeparts) and nothing in testdata.
package main
