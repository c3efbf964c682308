// Package prefill has what the two legs of a disaggregated request share: the bootstrap
// room, the leg token with which the decision travels, and the names of the headers.
//
// # The leg token
//
// A prefill leg may come to a second stream of the plugin, possibly at another replica:
// where Envoy mirrors the main leg's request, or where a port takes the legs that the plugin
// sends. Everything that the second stream needs is in one header, x-baton-leg, sealed with a keyed MAC: version, owner, attempt
// nonce, prefill worker and rank, room and deadline. A leg without a token, or with a
// token that was not sealed with our key, reaches no worker. The header is removed
// before anything is sent to a worker.
//
// # The room
//
// SGLang finds the two halves of a request by their room, a number from 0 to 2^63-1. No
// two requests in flight at one prefill worker may have the same room. If dp_size is
// more than 1, the prefill rank is room mod dp_size (load_balance_method
// follow_bootstrap_room), so the room also chooses the rank.
//
// # Activation
//
// [Activation] is the state machine of one key (model and namespace): which prefill
// endpoints are ready, and which decode sides use them. A decode side is the decode
// workers of one deployment, which come and go together.
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
// An endpoint that is ready stays cached while it lives, whether or not there is a
// decode side: a decode side that returns is active at once
// (docs/behaviour.md#decode-returns). Invariant A1: all sides are active if and only if
// an endpoint is ready (docs/behaviour.md#all-or-none).
//
// # What it does not do
//
// It picks nothing and sends nothing: it is given the chosen ranks and returns names
// and values. An Activation is given events; internal/activation watches the workers
// and publishes the states. The subpackage handoff makes the bodies.
package prefill
