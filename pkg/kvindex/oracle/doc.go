// Package oracle has a plain implementation of [kvindex.Index], which says what a
// [kvindex.Tree] should answer.
//
// # Contract
//
// A [Map] is made of Go maps behind one lock. It is simple enough to be obviously
// correct: it has each block by its whole prefix, and walks whatever it needs. Tests give
// the same calls to a Tree and to a Map, and compare the answers, errors, counts and
// slots. The Map numbers ranks by itself ([Numbers]), by the same rules as
// [kvindex.Slots].
//
// # Invariants
//
// Map.Check verifies I1 to I7 of package kvindex, as far as a Map has what they name.
//
// # What it does not do
//
// It has no budget of memory, drops nothing by itself apart from routed prompts, and has
// none of Copy, Reserve, Removals and Kept. The product does not import it.
package oracle
