// Package activation follows the view with one prefill.Activation a key and
// publishes both together: requests read one [World], in which the workers and
// the standing of each key belong to each other.
//
// Contract. [Board.Follow] is the view's subscriber: it is told each set, turns
// it into events (pure, in pkg/prefill), applies them and stores the new world
// with one atomic store. No request sees workers without their standing, nor a
// state between the removal of one endpoint and the arrival of the next
// (docs/behaviour.md#one-publication). The board is told after everything else that keeps something of a
// worker, so a worker that a request can see is one that can be booked.
//
// A key whose workers have all gone is remembered for a while: a request for it
// is to be told to come back, not that the model does not exist. One that its
// workers have unloaded is not.
//
// [Judge] says whether and how a model can be served, and why not, from its workers, the
// standing of its prefill workers, and the configuration. It is pure, and the one place
// where that is decided: requests, readiness, the list of models, pages and the command
// that checks a configuration ask it.
//
// What it does not do: it judges no worker's health, picks nothing, and knows
// nothing of the sources.
package activation
