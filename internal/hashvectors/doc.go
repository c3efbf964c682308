// Package hashvectors reads the vectors of block hashes that another
// implementation computed, for the tests of every package that hashes.
//
// Contract. A file is a list of vectors with an empty line before each, in
// lines "key: value"; a line that begins with # is a comment. Every vector begins
// with its name (a multimodal object: its identifier), and has each key at most once. A key that is not known, a number that is
// none and a list of objects longer than that of blocks are refused, so that no
// vector is left out in silence.
//
// What it does not do: it computes nothing, so that what is compared with a
// vector cannot come from the same place.
package hashvectors
