// Package shadow says what a second policy would have made of the latest requests, while the first one serves.
//
// # Contract
//
// A [Shadow] reads the newest part of what the recorder has in memory ([record.Memory]), and plays it twice in the
// simulation of internal/whatif: with the policy in force and with the second one. The difference of the two
// simulations is what the second one would have changed; how far the simulation of the recorded picks is off from
// what was measured is the stated error. [Shadow.Latest] returns both. The second policy is never acted on, and no
// request waits for it.
//
// # What holds
//
//   - It takes at most a [share] of a core: it works for some milliseconds, or reads one file of 4 MiB, and then
//     pauses.
//   - It plays at most [mostRequests] requests of the last [window], of which the first half fills caches and counts in
//     no figure; and prompts of at most [mostBlocks] blocks together.
//
// # What it does not do
//
// It records nothing itself, and keeps no history. What the simulation leaves out is in internal/whatif's doc.go.
package shadow
