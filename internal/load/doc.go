// Package load is the book of in-flight work: how many prompt tokens, KV blocks and
// requests each rank has been given and has not finished.
//
// # Contract
//
// [Book.Update] tells the book which ranks exist. Call it before pickers get the
// snapshot: a rank that the book does not know is not picked.
//
// [Book.PickAndReserve] picks a rank and books the request on it in one step under one
// lock, so that simultaneous requests see each other: 64 identical ones spread as if they
// came one after the other. It returns the booking in a [Reservation] that belongs to the
// caller.
//
// To make a pick over thousands of ranks quick, the book keeps, for each list of ranks in
// the snapshot, the columns that the picker reads (table.go). A booking writes one
// element of each column. The columns of the previous snapshot are kept until the next
// one, for requests that have already read that snapshot. What a pick saw is written to
// an [Explanation] only if one is asked for.
//
// If decode fetches the blocks that a rank lacks, ranks are preferred for the blocks that
// they hold. To keep all ranks at work, the columns also say which ranks have lately been
// picked far less often than others (share.go, picker.Candidates.Starved).
//
// A taint that requests ask for is looked up once for each list and snapshot, and kept as
// a set of positions (taint.go). So a pick with constraints costs little more than one
// without, and allocates only for a taint that is new.
//
// The columns also have what a [Filter] says about workers: a pick asks what has changed
// and looks at the changed workers alone (heed.go). A recovering worker gets one request
// at a time, unless no worker of the list is free.
//
// How long a rank is believed to be busy shrinks with time, at the pace that is believed of
// it ([Book.SetPace]). [Book.Load] has what is booked, and a leg that ends takes its whole
// booking off.
//
// [Reservation.Release] takes the booking off, exactly once, when its leg has really
// ended. A second release changes nothing; it is counted, and panics in builds with
// invariants.
//
// [Reservation.Move] moves a booking to the rank that really serves the request, if a
// proxy's own retry has gone to another one.
//
// A rank that leaves loses its load at once. A rank that comes back under the same id,
// even at another endpoint, starts without load: bookings carry the rank's generation,
// and releasing one of an older generation does no harm
// (docs/behaviour.md#leaves-nothing).
//
// Several replicas pick as one if their books hear of each other (others.go). [Book.Tell]
// returns what this book has booked, as it is now, and [Book.Hear] takes what another has
// told: its prompts stand in the queues of ranks by when they were booked, and its answers
// are in the sums. They count in picks like this book's own, and in nothing that is
// called own: [Book.Load], [Book.Totals], gauges.
//
// # Invariants
//
//   - The load of a rank is the sum of the held bookings of its generation and of what
//     other replicas have told last, and never negative. A column has the same values as
//     the entry, and waits are at most a millisecond old.
//   - The cursor of a pool moves once for each round-robin pick that is booked, never for
//     a preview or a failed pick. It moves back if that booking is cancelled before
//     another pick (docs/behaviour.md#one-turn).
//
// # Lock order
//
// Book.mu is held while the book calls Changes, Standing and Begin of a [Filter], which
// therefore must not block or call the book. No other foreign code is called under it.
//
// # What it does not do
//
// It weighs nothing (pkg/picker does), judges no health (internal/health does), reads no
// clock (time is an argument) and starts no goroutine.
package load
