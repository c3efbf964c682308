// Command faults holds the tests to account: it changes one line of the product,
// runs the tests that have to turn red for it, and says whether they did. What is
// made faster or merged in the suite must not lose one of them.
//
//	make faults                                    all of them, about half an hour
//	make faults FAULTS_ARGS="-run '^drain-' -v"    some, with the checks that failed
//	go -C test run ./faults -list                 the table
//
// # The list
//
// faults.txt has one block a fault, with a blank line between two of them:
//
//	fault   booking-of-a-left-answer-stays     its name
//	area    bookings                           what of the product is broken
//	file    internal/leg/attempt.go            where, from the root
//	in      attempt.endMain                    optional: the function, or {{define}}
//	- a.releaseDecode()                        the line as it is
//	+                                          as it becomes; nothing: it is gone
//	package ./test/envoytest               where its tests are
//	test    TestX                              one a line, each has to turn red:
//	test    TestY/a subtest                    a test, or one of its subtests
//	tags    invariants,e2e,long                optional: other build tags
//	why:    what goes wrong for whom
//
// Space at the beginning and at the end of a line does not count. The old line has
// to be there exactly once: in the file, or in the function. A line that begins with
// # is a comment.
//
// # Contract
//
//   - The tree is not touched. The changed file lies in a temporary folder, and go
//     takes it by -overlay, in GOFLAGS: the commands that tests build get it, too,
//     and so does what is embedded.
//   - A fault is caught by a test of its own that has run and failed, and was well
//     without the fault (-control). What does not compile, a test that is not there,
//     is skipped, or is red anyway, is an error of the list.
//   - Exit code 0: all were caught. 1: one was not, or could not be judged. 2: the
//     list cannot be read, or an option. 130: an interrupt, or the time is over.
//
// TestTheListFitsTheTree holds, with every run of the tests, that each line and each
// test is still there.
//
// What it does not do: it makes up no faults, and does not look for lines that no
// test cares for. A red test of the list may be red for another reason than the one
// that was meant: who adds a fault reads the failure once (-v).
package main
