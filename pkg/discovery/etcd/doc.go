// Package etcd writes workers to etcd and reads them from it.
//
// # The layout
//
// Each worker has one key:
//
//	<prefix>/workers/<instance id>     prefix: baton/v1 unless configured
//
// The id is decimal, from 1 to 2^64-1. The value is one JSON object on one line, with
// the keys that a worker has in a workers file (see pkg/discovery/record), for example:
//
//	{"id":7,"role":"prefill","engine":"sglang","models":["qwen"],"endpoint":"10.0.0.7:30000",
//	 "dp_size":1,"block_size":64,"bootstrap":{"host":"10.0.0.7","port":8998}}
//
// So a worker can be registered by hand:
//
//	lease=$(etcdctl lease grant 60 | awk '{print $2}')   # hexadecimal
//	id=$((16#$lease))
//	etcdctl put --lease=$lease baton/v1/workers/$id '{"id":'$id',"role":…}'
//	etcdctl lease keep-alive $lease
//
// A registrar adds lease_seconds, how long the key outlives it (10 s if that is missing).
// Whoever deletes a key under a lease writes "draining":true to it before: else plugins take
// it for one that has expired, and ask the worker (discovery.Expiry).
//
// Unknown keys of the value are ignored, since a newer version may have written them.
// Any other value that cannot be read is a fault of its entry: the fault is shown, and
// the entry keeps the worker that it had before.
//
// The id in the value must be the id in the key. A registrar attaches the key to a
// lease, and uses the lease's id as the worker's, since etcd gives no id twice. A key
// without a lease is read like any other, and stays until someone deletes it. An engine
// that is started again gets a new id.
//
// # Registrar
//
// [Registrar] keeps one worker registered. A pure machine (keeper) decides what to do
// next; deeds.go makes the requests to etcd, one at a time. Invariants:
//
//   - At most one lease is held, and its id is the worker's. A lease that is no longer
//     needed is revoked, however late, since only etcd knows whether it has ended.
//   - From its first registration on, a worker that is announced always has a key, as
//     seen from etcd: one transaction writes the key of a new lease and deletes the
//     keys of older ones. Someone else may still delete the key or revoke the
//     lease; a watch sees that, and the worker is registered again at once.
//   - A key that is deleted because the worker leaves says before that it drains. A
//     lease that runs out says nothing: that is how a plugin tells them apart.
//   - A key that someone else holds is never overwritten. A key under an id that this
//     worker had before belongs to the worker, whoever wrote it, and is deleted with
//     the id.
//   - However long etcd is away, the registrar first tries to renew the lease when etcd
//     is back. A new leader of etcd starts all leases with their whole time, so the worker
//     mostly keeps its id, and no other process sees a change.
//
// # Source
//
// [Source] lists the range of keys at one revision, page by page, and watches from the
// next revision on; each revision is one batch. All layouts share this loop (follower);
// for each layout there is a reader. Invariants:
//
//   - The set counts as fresh only while etcd confirms it: by an event, by progress, or
//     by a read that shows that nothing was written since. Without a confirmation
//     for Silence the watch is given up, since clientv3 reconnects a lost watch for ever
//     without reporting it. (Progress alone is not enough: etcd sends none for a watch
//     whose first revision has not come yet.) While the set is behind a revision that
//     such a read has seen, events do not confirm the set: they may be old ones, of
//     thousands that wait. If the set stays behind for Silence, it is listed again.
//   - Waiting revisions are sent as one event, so that thousands of workers that register
//     at once do not cause as many sets.
//   - A member of etcd that hangs is skipped. The time for a read or a watch is
//     divided among up to three members, which are asked in turn.
//   - A store that has lost its data is never mistaken for the store as it was, although
//     its cluster id is the same and its revision may be the same: what the set must
//     have at its revision is compared with what etcd says that it had then. If they
//     differ, the last good set is served, marked stale, until each of its endpoints
//     is registered again or Grace has passed.
//     If etcd cannot show that revision any more (it is compacted), a listing in which
//     workers are missing is handled in the same way.
//   - Workers that are missing after an outage have the time Return to come back. An
//     etcd that hung for longer than the leases ends all of them when it continues, and
//     registrars need a moment. Until then the last good set is served, marked
//     stale.
//   - Afterwards a listing of the same history is accepted, also an empty one.
//
// # Dynamo's layout
//
// [DynamoSource] reads the workers of a Dynamo fleet (1.6; see the scenarios in
// testdata/dynamo for the values):
//
//	v1/instances/<namespace>/<component>/<endpoint>/<id in hex>
//	v1/mdc/<namespace>/<component>/<endpoint>/<id in hex>[/<adapter>]
//
// A worker is an instance with its card. The pure joiner keeps both, and makes one
// entry of them under the instance's key. Since an entry depends on several keys, it
// has no version; the comparison described above finds lost writes as well. The workers
// are Fronted: they are shown and never picked. Their ranks are counted from 0:
// data_parallel_start_rank is ignored.
//
// A registrar's user needs read and write permission on <prefix>/workers/, a source's read
// permission; for Dynamo's layout, read permission from v1/instances/ to the end of
// v1/mdc/; [Replicas] read and write permission on <prefix>/replicas/. Leases need no permission of their own. A client asks for one token at a time
// and keeps it (tokens). If the password is changed in etcd, the password file must have the new one within the TTL: etcd refuses
// to renew a lease with a token from before the change.
//
// What this package does not do: it keeps no set (pkg/discovery does), asks no engine
// (the caller of the registrar does), and starts no etcd.
package etcd
