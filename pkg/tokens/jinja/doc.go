// Package jinja runs chat templates: it renders, byte for byte, what Jinja2 renders as the
// transformers library sets it up (its immutable sandbox with trim_blocks, lstrip_blocks,
// loop controls, the generation tag, and its own tojson, raise_exception and strftime_now).
//
// Contract. [Compile] reads a template once; a [Template] is immutable and safe for
// concurrent use. [Template.Render] runs it over the [Value]s that Python would have. There
// are three kinds of failure, and none of them is a guess at an answer:
//
//   - [Refused]: the template, or the values it met, need something that this package does
//     not do exactly. It is named. Compile refuses what it can see; the rest is refused
//     when it is met (a method that is not written, case mapping beyond ASCII, …).
//   - [Raised]: Python would raise here too (raise_exception, an undefined value's
//     attribute, …).
//   - [Limited]: a limit of [Limits] was reached.
//
// Texts of errors hold names of the template and never a value.
//
// Values are Go's: nil, bool, int, float64, string, [*List], [*Dict], and a few kinds that
// only templates make. Lists and dictionaries are never changed once made (the sandbox
// forbids it); a dictionary keeps the order of its keys. Text is UTF-8, and is counted in
// code points as Python counts it. Integers are 64 bits; arithmetic beyond is refused.
//
// # Pieces
//
// A rendering is a row of pieces. A loop over messages ends a piece before and after each
// message, if the messages are marked ([Dict.Remember]). What one turn of the loop did for a
// message is remembered with the message, as a tree of what it read from outside of the
// message (whether it is the last one, where the last question is, …) and what came of it.
// The next rendering evaluates only what was read from outside. If all of it is as it was,
// the same string is the piece again, and nothing of the message is looked at.
//
// Invariants:
//
//   - J1: a rendering with what is remembered equals one without. Builds with the tag
//     invariants render each remembered piece again and compare.
//   - J2: what a turn of a loop reads is either the message, or recorded. A turn that reads
//     anything else from outside is not remembered.
//   - J3: a remembered piece counts as many steps and bytes as it took to make, so that what
//     goes beyond a limit does so whatever is remembered.
//   - J4: neither Compile nor Render recurses deeper than their limits.
//
// This package reads no file and no clock, knows nothing of requests or tokens, and has no
// include, import, extends, block, call, filter or raw blocks.
package jinja
