// Package load is the book of in-flight work: how many prompt tokens, KV
// blocks and requests each rank has been given and has not finished.
//
// # Contract
//
// [Book.Update] tells the book which ranks there are. Call it before the
// snapshot is given to those who pick: a rank that the book does not know is
// not picked.
//
// [Book.PickAndReserve] picks a rank and books the request on it as one step
// under one lock, so that requests at the same moment see each other: 64
// identical ones spread as they would one after the other. It returns the
// booking in a [Reservation] that the caller owns.
//
// So that a pick over thousands of ranks is quick, the book keeps, for each list
// of ranks of the snapshot, the columns that the picker reads (table.go): a
// booking writes one element of each. Those of the snapshot before are kept for a
// round, for requests that have read it already. What a pick saw is put into an
// [Explanation] only where one is asked for.
//
// Where decode fetches what a rank lacks, ranks are preferred for what they hold. So
// that this leaves nobody without work, the columns say who has lately been picked far
// less often than others (share.go, picker.Candidates.Starved).
//
// Taints that requests ask for are looked up once for each list and snapshot, and
// kept as a set of positions (taint.go): a constrained pick costs little more than
// another, and allocates nothing but for a taint that is asked for anew.
//
// What a [Filter] says of workers is kept in the columns, too: a pick asks what
// has changed and looks at those workers alone (heed.go). One that recovers is
// tried by one request at a time, unless nobody of the list is free.
//
// Prompt tokens of the oldest request of a rank grow fewer as time passes, at
// the rate that it was booked with, since they are being prefilled (queue.go).
// Only what a pick sees decays: [Book.Load] has what is booked, and a leg that
// ends takes its whole booking off, whatever had decayed.
//
// [Reservation.Release] takes the booking off, exactly once, when the leg that
// it stands for has really ended. A second release changes nothing; it is
// counted, and panics in builds with invariants.
//
// [Reservation.Move] takes a booking to the rank that really serves the request,
// where a proxy's own retry has gone elsewhere.
//
// A rank that leaves loses its load at once, and one that comes back under the
// same id, at another endpoint too, starts clean: bookings carry the rank's
// generation, and the release of an older one is harmless
// (docs/behaviour.md#leaves-nothing).
//
// # Invariants
//
//   - The load of a rank is the sum of the held bookings of its generation, and
//     never negative. A column has what the entry has, decayed up to at most a
//     millisecond ago.
//   - The cursor of a pool moves once for each booking made in turn, never for
//     a preview or a failed pick, and goes back with one that is cancelled before
//     another pick (docs/behaviour.md#one-turn).
//
// # Lock order
//
// Book.mu is held while a [Filter] is asked and told (Changes, Standing, Begin), which
// therefore must not block or call the book. Nothing else is called under it.
//
// # What it does not do
//
// It weighs nothing (pkg/picker does), judges no health (internal/health does),
// reads no clock (time is an argument) and starts nothing.
package load
