// Package prefill knows what the two legs of a disaggregated request say to
// each other: the bootstrap room, the leg token that lets the decision travel
// with the request, and the names of the headers.
//
// # The leg token
//
// Envoy mirrors the main leg's request to the prefill leg, and a second stream
// of the plugin sees it there, possibly at another replica. Everything that
// stream needs is in one header, x-baton-leg, sealed with a keyed MAC: version,
// owner, attempt nonce, prefill worker and rank, room and deadline. A leg
// without a token, or with one that was not sealed with our key, reaches no
// worker. The header is removed before any byte leaves for a worker.
//
// # The room
//
// SGLang finds the two halves of a request by their room, a number from 0 to
// 2^63-1 that must be unique in flight per prefill worker. With dp_size > 1 the
// prefill rank is room mod dp_size (load_balance_method follow_bootstrap_room),
// so a room also pins the rank.
//
// # What it does not do
//
// It picks nothing, sends nothing and keeps nothing: it is given the chosen
// ranks and returns names and values. Bodies are the business of the handoff
// subpackage.
package prefill
