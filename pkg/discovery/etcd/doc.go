// Package etcd keeps workers in etcd and reads them from it.
//
// # The layout
//
// One key a worker:
//
//	<prefix>/workers/<instance id>     prefix: baton/v1 unless configured
//
// The id is decimal, from 1 to 2^64-1. The value is one JSON object on one line,
// with the keys of a worker in a workers file (see pkg/discovery/file), for
// example:
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
// Keys of the value that are not known are passed over, as a newer writer's;
// what cannot be read otherwise is a fault of that entry, shown, and the worker
// that the key held before stays.
//
// The id in the value is the id in the key. Whoever registers a worker attaches
// the key to a lease and takes the lease's id as the worker's, since etcd gives
// no id twice; a key without a lease is read like any other, and stays until
// somebody deletes it. A worker that starts anew takes a new id.
//
// # Registrar
//
// [Registrar] keeps one worker registered. What it does next is decided by a
// pure machine (keeper); deeds.go asks etcd for it, one thing at a time.
// Invariants:
//
//   - At most one lease is held, and its id is the worker's. A lease that is not
//     wanted any more is revoked, however late: only etcd knows that it has ended.
//   - From the first registration on there is no moment, seen from etcd, in which
//     a worker that is wanted has no key: the key of a new lease is written, and
//     those of older ones deleted, in one transaction. Losses by other hands are
//     excepted; they are seen by a watch and mended at once.
//   - Another's key is never overwritten. What is found under an id that was this
//     worker's is not another's: whoever wrote it, it goes with the id.
//   - However long etcd is away, the lease is tried first when it is back: etcd
//     gives leases their whole time again when it elects a leader, so the worker
//     mostly keeps its id, and nothing changes for anybody.
//
// # Source
//
// [Source] lists the range at one revision, page by page, and watches from the
// next; each revision is one batch. The loop is shared by all layouts
// (follower); a layout is a reader. Invariants:
//
//   - The set is taken for fresh only while etcd vouches for it: by an event, by
//     progress, or by a read that shows that nothing was written since. Without
//     that for Silence the watch is given up, as clientv3 connects a lost one
//     again for ever and says nothing of it. (Progress alone will not do: etcd
//     tells none to a watch that waits for a revision which has not come.) While
//     the set is behind a revision that such a read has seen, events do not vouch
//     for it: they may be old ones, of thousands that wait. What stays behind for
//     Silence is listed.
//   - Revisions that wait are sent as one event, so that thousands of workers that
//     register at once do not make as many sets.
//   - A member that stands still is passed over: reads and watches that it does
//     not answer in a third of their time are asked of the next.
//   - A store that has lost its data is never taken for the one it was, though
//     its cluster id is the same and its revision may be, too: what the set must
//     hold at its revision is compared with what etcd says it held. Then the last
//     good set is served on, marked stale, until each of its endpoints is there
//     again or Grace has passed.
//     Where etcd cannot show that revision any more (compacted), a listing in
//     which workers are missing is treated in the same way.
//   - The workers that are missing after an outage have Return to come back: an
//     etcd that stood still for longer than the leases ends them all when it goes
//     on, and registrars need a moment. Until then the last good set is served
//     on, marked stale.
//   - After that a listing of the same history is believed, also an empty one.
//
// # Dynamo's layout
//
// [DynamoSource] reads the workers of a Dynamo fleet (1.6; see the scenarios in
// testdata/dynamo for the values):
//
//	v1/instances/<namespace>/<component>/<endpoint>/<id in hex>
//	v1/mdc/<namespace>/<component>/<endpoint>/<id in hex>[/<adapter>]
//
// A worker is an instance with its card; the pure joiner keeps both and makes
// one entry of them, under the instance's key. Since several keys make an entry,
// entries have no version; the comparison above finds lost writes all the same.
// They are Fronted: shown, and never picked.
// Ranks are counted from 0: data_parallel_start_rank is not kept.
//
// A user with a password needs read and write permission on the prefix; for
// Dynamo's layout, read permission from v1/instances/ to the end of v1/mdc/. A
// password that is changed in etcd must be in the password file within the TTL:
// etcd then takes no renewal with a token from before.
//
// What this package does not do: it keeps no set (pkg/discovery does), asks no
// engine (who announces does), and starts no etcd.
package etcd
