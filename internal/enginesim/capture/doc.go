// Package capture holds the simulated engines to the real ones: it says a fixed list of
// requests ([Systems]) to engines, and writes down what they answer with all that differs
// from run to run left out. enginesim/testdata/captures has what real engines have answered
// (`make real-capture` writes it); a test says the same to the simulators and compares.
//
// # What is written down
//
// Per answer: status, Content-Type, and the JSON as one line a member, the path and what
// is there. Of strings only names of the protocol are kept (finish reasons, roles,
// objects, types of errors), of numbers only those that Baton relies on (counts of
// tokens, codes); of all others their kind. No sentence of an engine's is kept. Of a
// stream each event is written so, with the bytes that frame it.
//
// Per case also the KV events that came of it: frames, sequence, encoding and members in
// their order. Hashes are named h1, h2, … in the order in which they come, so that what
// follows from what shows. A case ends with a prompt of its own, whose block is the last to
// be told of.
//
// Of metrics the names, kinds and labels.
//
// # Deviations
//
// The file deviations there names what the simulators do otherwise, with a reason and the lines
// that it concerns. One that concerns no line fails the test, so the list cannot go stale.
// In streams, equal events that follow each other count as one: how many tokens an event
// brings is the engine's pace.
//
// # What it does not do
//
// It compares no text, no speed and no order of members in JSON. It starts no engine.
package capture
