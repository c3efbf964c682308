// Package strictyaml reads a YAML file that people write into a struct, and tells
// of all mistakes in it at once: with the file, the line, the key, what stands
// there and what was expected.
//
// # Contract
//
//   - The struct has `yaml` tags, or else `json` tags, one for each key, and holds the defaults. A key
//     that is absent, or a mapping without content, leaves its default. A key that
//     is given has its value, 0 included: [Places] knows which keys were given.
//   - Values are booleans, numbers, text, durations (2s, 100ms, or 0), lists of
//     them, mappings of names to structs, and structs; pointers to them where absence
//     has a meaning of its own. A [Word] is a type that reads its text itself. A [Part]
//     is read later, as an item of a long list that has a name of its own in faults.
//   - A field of type any takes a value of any form, which is passed over.
//   - A key that a [Goner] has had is passed over. Any other key that does not exist is a
//     fault that names the nearest key that does, in
//     the same mapping or elsewhere.
//   - A byte order mark in front of the file is passed over.
//   - Anchors, aliases and merge keys (<<) mean what YAML says. A [Form] that is exact,
//     for files that programs write and read, has none of them.
//   - [Places.Explain] puts the file and the line in front of faults that are found
//     later, by their keys.
//
// # Invariants
//
//   - A fault is text for people: it names no type of Go, and shows at most 60
//     characters of what it has read, none of a file that is no text.
//   - What a file makes the reader allocate is bounded: its size, its depth, and how
//     often an alias is followed.
//   - After a fault the struct is not to be used.
//
// # What it does not do
//
// It does not know what a value means: ranges, and values that do not go together,
// are the caller's to judge. It writes nothing.
package strictyaml
