// Package worker is Baton's vocabulary: what a worker is, how it is named and
// what a consistent view of all of them looks like. It imports only the
// standard library, and every other package of Baton may import it.
//
// A worker is one engine process that serves a model: it has an instance id, a
// role (prefill, decode, aggregated), one endpoint and one or more
// data-parallel ranks. The unit that is picked, booked and indexed is the
// [Rank]: worker and data-parallel rank together.
//
// The discovery identity of a worker is its [ID]. On the wire it is called
// "instance id" (x-prefill-instance-id); it is one number with two names. It
// is a full uint64, may exceed 2^53, and is therefore written in decimal and
// never passed through a float.
//
// A [Snapshot] is an immutable set of workers at one revision. Discovery
// builds a new one for each change and publishes it with one atomic store;
// readers load it once per request and see one consistent world until they
// load again.
//
// A worker may carry taints, its own and one for each of its topology domains
// ("dynamo.topology/zone=us-east-1a"), and may say that the KV which it computes
// is not to leave one of those domains: [KVTransfer]. A declared transfer domain
// without a value is a fault that makes it serve nothing ([Worker.TopologyFault]).
//
// What this package does not do: it talks to nobody, watches nothing and holds
// no state that changes. Load, health and cache contents of a worker live
// elsewhere, keyed by Rank or ID.
package worker
