// Package trouble says what is wrong now, in one form: a kind, what it concerns, since when, what
// it does to requests and what to do about it.
//
// # Contract
//
// [Trouble] is a value. Its kind is one of [Kinds]; kind and subject together name it. What a
// kind does to requests, and what to do about it, is in the table of kinds, unless the trouble
// itself knows more.
//
// Troubles that can be read off the state of the workers are judged there (internal/plugin).
// A part that meets trouble which no state shows, as a file that cannot be written, puts it on a
// [Board], and takes it off when it is over.
//
// [Watch] compares the troubles of two moments: it knows since when each lasts, and which have
// begun and ended. A trouble that is away for less than [Calm] has not ended: what comes and goes
// is told once.
//
// # Invariants
//
//   - A trouble is shown as long as it is there, and not longer: nothing here has to be
//     confirmed or cleared by a person.
//   - A board and a watch hold at most [MostOfKind] troubles of a kind: what a kind's subject is
//     made of may come from outside.
//
// # What it does not do
//
// It finds nothing, logs nothing and keeps no history: who came and went in the last hour is in
// internal/plugin.
package trouble
