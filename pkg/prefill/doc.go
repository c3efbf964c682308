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
// # Activation
//
// [Activation] is the state machine of one key (model and namespace): which
// prefill endpoints are ready, which decode sides use them. A decode side is
// the decode workers of one deployment, which come and go together.
//
//	absent ──── decode ───► decode-waiting
//	  │                        │
//	  │ seen                   │ seen            prefill-pending: an endpoint is
//	  ▼                        ▼                 known, its facts are not
//	prefill-pending ◄──────────┘
//	  │ ready
//	  ▼                     last endpoint gone
//	prefill-ready ─────────────────────────► deactivated (decode-waiting or
//	  ▲                                      absent, where no side was active)
//	  └────────────── ready ─────────────────┘
//
// An endpoint that is ready stays cached while it lives, whether a decode side
// is there or not: a decode side that returns is active at once
// (docs/behaviour.md#decode-returns). That all sides are active if and only if an
// endpoint is ready (docs/behaviour.md#all-or-none) is invariant A1.
//
// # What it does not do
//
// It picks nothing and sends nothing: it is given the chosen ranks and returns
// names and values. An Activation is told events; who watches workers, and who
// publishes what came of it, is internal/activation. Bodies are the business of the handoff
// subpackage.
package prefill
