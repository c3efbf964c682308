// Package worker is Baton's vocabulary: what a worker is, how it is named, and what a
// consistent view of all workers looks like. It imports only the standard library, and
// every other package of Baton may import it.
//
// A worker is one engine process that serves a model: it has an instance id, a
// role (prefill, decode, aggregated), one endpoint and one or more
// data-parallel ranks. The unit that is picked, booked and indexed is the
// [Rank]: worker and data-parallel rank together.
//
// Discovery identifies a worker by its [ID], a full uint64. On the wire the ID is
// called "instance id" (x-prefill-instance-id). Since an ID may exceed 2^53, it is
// written in decimal and never passed through a float.
//
// A [Snapshot] is an immutable set of workers at one revision. Discovery builds a new
// Snapshot for each change and publishes it with one atomic store. A reader loads the
// Snapshot once per request, and sees the same workers until it loads again.
//
// A worker may carry taints: its own, and one for each of its topology domains
// ("dynamo.topology/zone=us-east-1a"). It may declare that the KV which it computes
// must not leave one of those domains: [KVTransfer]. A worker that declares a transfer
// domain without a value is not eligible ([Worker.TopologyFault]).
//
// What this package does not do: it opens no connection, watches nothing and holds no
// state that changes. Other packages keep the load, health and cache contents of a
// worker, keyed by Rank or ID.
package worker
