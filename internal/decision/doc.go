// Package decision is the record of one decision: which request came, what it
// was taken to be, who was picked over whom and why, who could not be picked and
// why, and what became of it. There is this one shape of it, and one writer of
// each text that people read of it.
//
// # Contract
//
// A [Record] is a plain value, one attempt to serve one request. Its parts are
// the prompt as it was counted, a [Choice] for prefill and one for decode, each
// with the [Row] of the picked candidate and of the cheapest others, why one
// worker serves it or two do, and the marks of what came after: [Record.Mark],
// [Record.EndLeg] and [Record.End]. Who decides fills it; the journal keeps it;
// pages, commands and tests read it.
//
// A record is written and read as JSON by itself, and has one text for each purpose:
// [Record.Line] for a header, [Record.Text] for a terminal, and the sentence why
// somebody was picked, [Choice.Why], in all that shows a table. [Record.Legs] has what
// a page walks over. What a record is filled with in words, why somebody could not be
// picked, comes from who decides.
//
// A record may be copied by assignment and holds its rows in itself, so that to
// keep one allocates nothing. It is not safe for concurrent use.
//
// # Invariants
//
//   - A [Choice] holds the row of the picked rank whenever that was offered,
//     then the cheapest of the others in order, those last that could not be
//     picked; Left counts the ones not held.
//   - The first mark of an event, and the first end, stand: what is told late
//     does not hide the cause.
//   - Time is told: a record reads no clock. Zero is what has not happened.
//
// # What it does not do
//
// It decides nothing, and knows neither policies, loads nor health: reasons come
// to it in words. It holds no prompt text, bodies, rooms or header values other
// than the request id: there is no field for them.
package decision
