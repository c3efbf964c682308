// Package picktable writes the costs of a pick as a table, for golden files.
//
// Contract. [Format] is a function of its arguments.
//
// What it does not do: it computes no cost. The rows come from pkg/picker.
package picktable
