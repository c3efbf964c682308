// Package blame says what a leg's end means: which worker is charged, and with what;
// whether a fresh attempt may do better, and which workers it avoids; and the request's
// outcome if there is no fresh attempt.
//
// # Words
//
// A sight is what was seen of one leg: who ended it, by which of Envoy's response flags,
// in which phase. A charge is what a worker counts as having done. A worker is charged
// only on evidence (E1 of the invariants below). A mate is another worker of the same
// pool.
//
// # Contract
//
// [Of] returns the row of a sight in the blame table. The table has one row for each
// possible pair of a sight and a leg. It is also the table in ARCHITECTURE.md (a test
// compares the two). [Suspects] holds what earlier attempts of a request have met, and
// says at the request's end what is charged: values in, values out.
//
// # Invariants
//
//	E1 No worker is charged without evidence against it: Envoy's word on its
//	   connection, its own answer, or its own silence while a request waits for it.
//	   A leg that was ended from above (by the client, the deadline, the owner, a
//	   drain, the other leg's failure) charges no worker.
//	   A connection that is neither made nor refused charges nobody, nor does one that
//	   is lost and was used before: a probe decides.
//	   At a rendezvous, silence may be the fault of either worker: prefill is not
//	   charged with it while decode may be at fault ([Suspects.Stalled]).
//	E3 Credit is given at an answer's end, and only if the answer served.
//	E4 A refusal, an error and a connection lost before an answer are charged once a
//	   mate has served the same request. If the mate fails in the same way, neither
//	   is charged: the fault is the request's.
//	E5 A fresh attempt avoids every worker of the failed one that may be at fault.
//	E6 Each row has one outcome.
//	E7 A request that has lost [MostLost] workers while they were to answer it gets
//	   no further one ([Row.Loses]): it may be what ended them. A worker that could
//	   not be reached was not lost.
//
// # What it does not do
//
// It keeps no history of workers: internal/health says how much a charge weighs. It
// starts no attempts and reads no clock.
package blame
