// Package activation keeps one prefill.Activation for each key, follows the discovery
// view with them, and publishes them together with the workers. Requests read one
// [World], in which the workers and the standings belong together.
//
// Contract. The view calls [Board.Follow] with each worker set. Follow turns the set into
// events (pure, in pkg/prefill), applies them, and stores the new world with one atomic
// store. So no request sees workers without their standings, or a state between the
// removal of one endpoint and the arrival of the next
// (docs/behaviour.md#one-publication). The board comes after all other parts that keep
// facts about workers: a worker that a request can see can also be booked.
//
// A key whose workers have all left is remembered for a while. A request for it is told
// to come back, and not that the model does not exist. A key that its workers have
// unloaded is not remembered.
//
// [Judge] says whether and how a model can be served, and why not, from its workers, the
// standing of its prefill workers, and the configuration. It is pure, and the only place
// that decides this. Requests, readiness, the list of models, pages and the command that
// checks a configuration call it.
//
// What it does not do: it judges no worker's health, picks nothing, and does not import
// the discovery sources.
package activation
