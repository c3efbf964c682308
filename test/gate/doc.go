// Command gate is `make gate`: what has to be seen before a version is given out. It runs the
// judges that we did not write, and those of ours that take long, one after another: real engines, real clients,
// a real cluster, others' pickers and proxies. Then it writes docs/gate.md, which says for each claim of
// README.md what was seen.
//
//	make gate                               all steps, two hours
//	make gate GATE_ARGS=-list               the steps, with what each judges
//	make gate GATE_ARGS="-only real,drill"  some of them; what others have left stays
//	make gate GATE_ARGS=-page               the page from what steps have left
//
// # Contract
//
// A step is a target of the Makefile, a limit of time, and the files that the target leaves. The files
// and a record (commit, begin, how long, how it ended) go to .run/gate/NAME, so a later run of the target does
// not change what the gate has seen. A step that fails or takes too long stops no other.
//
// A claim is a text of README.md, word for word, and its judges: tests of a step by name, or figures
// that a step has left. A judge says what was seen, and whether the claim held. A test that did not run is
// told as not seen, or as failed, never as passed. Each sentence of the first page is a claim, or is listed with the
// reason why nothing can judge it: a test compares the page with both lists.
//
// The exit code is 0 if every claim held in steps of the product that is checked out. What a step has seen counts
// until the product changes: a judge that was mended is run again, and the others need not be. The page says
// which commit each step is of.
//
// # What it does not do
//
// It has no judge of its own: what a step means is the step's. It releases nothing.
package main
