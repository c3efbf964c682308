// Package edits says whether one word may be a slip of the pen for another.
//
// Contract. [Within] counts the bytes that are added, dropped or replaced. It allocates nothing, and
// is for a few edits: its time grows with the words' length, and threefold with each edit.
//
// What it does not do: it knows no words, and not how many edits are few.
package edits
