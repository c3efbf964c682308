// Package kubernetes is the discovery source for the pods of an InferencePool, or of a
// label selector.
//
// Contract. An endpoint is a pod of the pool's namespace that has all labels of the
// pool's selector, is Ready, is not being deleted and has an address, at one of the
// pool's target ports. A pod that is not Ready only because its node's kubelet is silent is one,
// too. Each endpoint is a worker of its own: port i of the pool is rank i
// of the pod's engine ([worker.Worker.EngineRank]). The annotations of [ActivePorts] say
// which of the ports count. The worker's id is made from the pod's name, its UID and the
// port. So a pod that comes back at the same address is another worker.
//
// A second selector names pods outside of the pool that prefill. A data plane that falls
// back over the whole pool then never meets a prefill worker.
//
// A pod's role is what [Rule] values say of its labels; without a label that they know,
// the engine says it, and until then the worker serves whole requests. Annotations give
// facts that are known better than the engine knows them ([Annotations]). All other facts
// are unknown ([worker.Worker.FactsUnknown]); this package asks no engine.
//
// A label or an annotation that cannot be used is a fault of an entry of its own, which
// names the pod. It takes no other worker away. A role that Baton does not have takes the
// pod's workers away.
//
// Draining. A worker that has served and is no endpoint any more is draining while its
// pod is there: it gets no new requests, and those that run go on. It leaves the set when
// the pod is gone. Of a pod that the selector has ceased to match this is not known; then
// it leaves after [Linger].
//
// The pure parts: poolOf and podOf read objects; roleOf and readAnnotations read a pod's
// labels and annotations; join makes entries of a pool and its pods; [machine] takes what
// the watches tell, in order, and says which events the sink gets and which pods are to be
// watched. The edge (source.go, follow.go, client.go) is the apiserver: reflectors of
// client-go, whose store feeds the machine.
//
//	            pool listed                pods listed
//	reading ────────────────► pods unknown ───────────► watching ◄───┐ watches resumed,
//	    │                                                  │         │ or listed again
//	    │ no such pool                      a watch failed ▼         │
//	    └───────────► absent ◄──────────────────────────  stale ─────┘
//	                    │  pool deleted, or being deleted  (the last set is served)
//	                    └─ pool made: reading
//
// Invariants:
//
//   - The source sends no listing before the pool and its pods have been read, or the
//     pool is known to be absent.
//   - A set changes only by what the apiserver has told. While a watch is broken, for
//     whatever reason and however long, the last set is served, marked stale. A watch that
//     is resumed where it had ended has missed nothing; one that cannot be, because its
//     version has expired, is followed by a new listing.
//   - When the selector changes, the set stays as it was until the pods of the new
//     selector have been listed.
//   - A pool that does not exist, or is being deleted, is a fact: the set is empty and
//     fresh, and [Config.Presence] is told.
//   - What is wrong is told once for as long as it lasts. A refused question names its
//     verb and its resource.
//
// What this package does not do: it writes nothing to the apiserver, reads nothing but
// pools and pods, asks no engine, and judges no worker.
package kubernetes
