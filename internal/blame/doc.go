// Package blame says what a leg's end means: which worker is charged with it, with
// what, whether a fresh attempt may do better, whom that attempt avoids, and what
// the request's outcome is if there is none.
//
// # Words
//
// A sight is what was seen of one leg: who ended it, by which of Envoy's response
// flags, in which phase. A charge is what a worker is told to have done; a worker is
// charged only on evidence (E1 of the invariants below). A mate is another worker of
// the same pool.
//
// # Contract
//
// [Of] looks a sight up in the table and returns its row. The table has one row for
// each pair of a sight and a leg that can be; it is also the table of ARCHITECTURE.md
// (a test compares the two). [Suspects] carries what earlier attempts of a request
// met, and says at its end what is charged: values in, values out.
//
// # Invariants
//
//	E1 Nobody is charged without evidence on the worker: Envoy's word on its
//	   connection, its own answer, or its own silence while somebody waits for it.
//	   What was ended from above (by the client, the deadline, the owner, a drain,
//	   the other leg's failure) charges nobody.
//	   At a rendezvous the silence of two is that of either: prefill is not charged
//	   with it while decode may be at fault ([Suspects.Stalled]).
//	E3 Credit is given at an answer's end, and only for an answer that served.
//	E4 A refusal, an error and a connection lost before an answer are charged once a
//	   mate has served the same request. A mate that fails alike clears both: the
//	   fault is the request's.
//	E5 A fresh attempt avoids every worker of the failed one that may be at fault.
//	E6 Each row has one outcome.
//
// # What it does not do
//
// It knows no worker's history: how much a charge weighs is internal/health's to say.
// It starts no attempts and reads no clock.
package blame
