// Package policies has ways to choose ranks, for internal/replay; the plugin's own way is in
// internal/whatif, and the fleets and traffic on which they are compared are in
// internal/replay/replaytest.
//
// # Contract
//
// [Rivals] are others' ways, each written from its published description. They know what a
// router knows that has made every choice itself: what it sent where, and when it began and
// ended. Those that look at caches take a prompt for cached where it was sent, until a KV event
// says that a block is gone; cache-aware hears no events. They choose decode ranks by the fewest
// requests in flight.
//
// Choosers are used by one run each, and are not safe for concurrent use. Equal seeds give equal
// choices.
//
// # What it does not do
//
// Rivals are no copies of programs: the trees of texts of cache-aware routers are blocks here,
// and forget nothing.
package policies
