// Package budget counts the bytes of request bodies that are in flight, over all streams,
// and says when there is no room for another one.
//
// A body is in flight from its request's headers to the end of its answer, since the
// processes that the request passes, Envoy above all, hold it for that long. A share is
// the part of one stream. It is taken in the size that the headers announce, which the
// protocol does not let a client exceed, or it grows as bytes come. Taking a share takes
// no memory.
//
// A large body is let in while the large ones fill at most three quarters of the budget. A
// request that has been let in is not refused later: its fresh attempt, its second leg, and
// an answer that another leg has to be sent are only counted. Such shares may exceed the
// budget. A quarter of it is always kept for small bodies, which are most, however many
// large ones there are.
//
// The package only counts: it knows no request, no memory and no clock.
package budget
