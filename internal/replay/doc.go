// Package replay plays requests over a simulated fleet of engines, in simulated time: what a
// way to choose ranks is worth to the users of that fleet.
//
// # Contract
//
// [Run] takes a [Fleet], a [Workload] and a [Chooser], and returns what became of each request.
// It asks the Chooser for the ranks of each request as it arrives, and tells it what a router
// of such a fleet could know: when legs begin, have their first token and end, what the ranks'
// KV events say, and what the engines report that they run. Each comes with the delay that the
// Fleet states.
//
// The package is pure: it does no I/O, reads no clock and starts no goroutine. Equal arguments
// and an equally seeded Chooser give equal results on every machine. Run keeps the Workload's
// slices only for as long as it runs; the Chooser may keep what it is told.
//
// Workloads come from [ParseTrace], or are made by the caller, and may be changed by [Spread] and
// [Scale].
//
// # What is simulated
//
// A rank works in steps, as engines do. A step computes a part of up to [Rank].Prompts prompts,
// at most Chunk tokens of all of them together, and one token of each running answer. It takes
// the sum of what both take alone, divided by the rank's speed when it begins. So answers slow
// prompts down and the other way round, and an answer is the slower the more others run and the
// more blocks they hold. Prompts begin in the order in which they came to the rank.
//
// A prompt lacks what the rank's prefix cache does not hold when it begins. The last token is
// always computed, and with it its whole block. Once computed, the prompt's whole blocks are in
// the cache; the least recently used block goes first, and of a prompt its end.
//
// Running answers, and prompts that are being computed, hold blocks of a room of their own. A
// leg for which there is no room waits, and so do those behind it. When answers have outgrown the
// room, the youngest answer is preempted: its blocks are free, it is the first to wait, and its
// prompt and the answer so far are computed again, without the cache, since others have
// overwritten it.
//
// Of a pair, decode gets the prompt's KV when prefill has ended and the transfer has passed; its
// next step makes the first token. A whole request has its first token when its prompt is
// computed, and a request of a fleet without decode ranks ends there.
//
// # Invariants
//
//   - A block that counts as cached was stored at that rank before, and not evicted since.
//   - Requests begin on one rank in the order of their arrival there, but for preempted ones.
//   - Every request ends, and was told to have begun once and ended once on each of its ranks.
//   - Two runs with equal arguments do the same in the same order.
//
// # What it does not do
//
// It chooses nothing, and knows no policy: internal/whatif has the plugin's own, test/bench/policies others.
// Workers do not come, go or fail. Prompts wait for no memory other than the room above;
// a prompt that waits shares nothing with the one before it but by the cache. There are no tiers
// below the device, answers do not enter the prefix cache, and the time of a token does not grow
// with its place in the prompt. The router takes no time.
package replay
