// Package invariants holds checks that are too dear or too harsh for
// production. They are compiled in by the build tag "invariants" (which
// `make test` sets) and by the race detector, and cost nothing otherwise.
//
// A broken invariant panics: it is a fault of ours, never of the input.
//
// What it does not do: it checks nothing by itself; packages call it.
package invariants
