// Package budget counts the bytes of request bodies that are in flight, over all
// streams, and says when a new one has no room.
//
// A body is in flight from its request's headers to the end of its answer: so long some
// of the processes that the request passes, Envoy above all, hold it. A share is the part
// of one stream. It is taken by what the headers announce, which the protocol does not
// let a client exceed, or grows as bytes come; taking a share takes no memory.
//
// Large bodies are let in while they fill at most three quarters of the budget. What has
// been let in is counted and never refused: a fresh attempt, the second leg, an answer that
// another leg has to be sent. Such shares may exceed the budget, but not take what is kept:
// a quarter of it is for small bodies, which are most, beside any number of large ones.
//
// The package is pure counting: it knows no request, no memory and no clock.
package budget
