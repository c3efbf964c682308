// Package capture compares the simulated engines with real ones. It sends a fixed list of
// requests ([Systems]) to engines and writes down their answers, without what differs
// from run to run. enginesim/testdata/captures has the answers of real engines (`make
// real-capture` writes them). A test sends the same requests to the simulators and
// compares the answers.
//
// # What is written down
//
// Of each answer: the status, the Content-Type, and the JSON with a line for each member,
// which has its path and its value. Only the strings that are names of the protocol are
// written (finish reasons, roles, objects, types of errors), and only the numbers that
// Baton relies on (counts of tokens, codes). Of other values only the type is written. No
// sentence of an engine is written. Of a stream each event is written in this way, with
// the bytes that frame it.
//
// Of each case also the KV events that it caused: frames, sequence, encoding, and members
// in their order. Hashes are named h1, h2, … in the order in which they appear, so that
// equal hashes can be seen. A case ends with a request of its own, the marker. The event
// of the marker's block ends the case's events.
//
// Of metrics: names, types and labels.
//
// # Deviations
//
// The file deviations in testdata/captures names the differences between the simulators
// and the engines, with a reason and the lines that each concerns. A deviation that
// concerns no line fails the test, so the list stays up to date. In streams, equal events
// in a row count as one: the number of tokens in an event depends on the engine's speed.
//
// # What it does not do
//
// It compares no text, no speed and no order of members in JSON. It starts no engine.
package capture
