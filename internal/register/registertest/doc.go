// Package registertest runs a register in tests: with a registry in memory, and the
// intervals of a test.
//
// Contract. What [Start] and [StartRunner] start has ended when the test ends.
//
// What it does not do: it is no engine. Tests bring theirs.
package registertest
