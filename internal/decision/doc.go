// Package decision holds the record of one decision: which request came, what its prompt
// was counted as, which rank was picked and why, which were not and why, and what became
// of the request. There is one form of the record, and one function for each text that
// people read of it.
//
// # Contract
//
// A [Record] is a plain value: one attempt to serve one request. Its parts are the prompt
// as it was counted; a [Choice] for prefill and one for decode, each with the [Row] of
// the picked candidate and those of the cheapest others; the reason why one worker serves
// the request, or two; and the marks of what came after the decision: [Record.Mark],
// [Record.EndLeg] and [Record.End]. internal/route fills it in, internal/journal keeps
// it, and pages, commands and tests read it.
//
// A record is written and read as JSON, and has one text for each purpose: [Record.Line]
// for a header, [Record.Text] for a terminal, and [Choice.Why], the sentence that gives
// the reason of a pick beside each table of candidates. [Record.Legs] lists the picks for
// a page. Whoever fills in a record writes the notes that say why a candidate could not
// be picked.
//
// A record may be copied by assignment, and holds its rows in itself: keeping one
// allocates nothing. It is not safe for concurrent use.
//
// # Invariants
//
//   - A [Choice] holds the row of the picked rank if that row was offered, then the
//     cheapest of the others in order, with those last that could not be picked; Left
//     counts the rows that it does not hold.
//   - The first mark of an event and the first end stand: a late report does not hide the
//     cause.
//   - Callers give the time: a record reads no clock. Zero means that it has not happened.
//
// # What it does not do
//
// It decides nothing and does not import policies, loads or health: their reasons come as
// words. It has no field for prompt text, bodies, rooms or header values other than the
// request id.
package decision
