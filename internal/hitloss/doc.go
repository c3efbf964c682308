// Package hitloss says why tokens of a prompt were computed although a cache held them, and
// which ranks hold less than their KV events say.
//
// # Contract
//
// [Split] takes what was known of a prompt when its worker was picked, and what the engine's
// usage told at the end. It gives each lost token exactly one [Cause]. [Judge] takes of each
// prompt how much of it the rank's events told, and how much was delivered; it says which
// ranks lie, and by how much their overlap is to count for less. Both are values in, values
// out: they read no clock and do no I/O. A Judge is not safe for concurrent use.
//
// # Invariants
//
//   - The tokens that Split gives to causes sum up to what the best rank held and the
//     engine computed, but for one block.
//   - Estimate and OtherReplica get at most what was no event's; StaleIndex, Evicted and
//     EngineSilent at most what was.
//   - A Judge keeps a few numbers for each rank of which it was told, until Keep leaves the
//     rank out.
//
// # What it does not do
//
// It finds no worker, asks no index, and makes nobody replay events.
package hitloss
