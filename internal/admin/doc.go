// Package admin is the HTTP side for people and probes: metrics, health, JSON
// state, the latest decisions, the last hour in pictures, and a status page to read at 3 a.m.
//
//	/                   status page; ?q= searches workers, ?sort= orders them, ?n= decisions
//	/decision/{seq}     one decision, with all of its candidates
//	/healthz            200 while the process answers
//	/readyz             200 once ready, else 503 with the reason; with ?model=
//	                    and &namespace=, whether that model can be served
//	/metrics            Prometheus
//	/debug/state        JSON state
//	/debug/hour         JSON, the last hour in steps of ten seconds
//	/debug/decisions    JSON decisions, newest first; ?n= bounds them
//	/debug/explain      POST a request body; ?path= names its path
//	/debug/index        POST tokens or hashes; who holds how many blocks of them
//	/debug/index/dump   the index as a file: extproc index shows what it has
//	/debug/pprof/       only if enabled
//
// # Contract
//
// [New] opens the listener. [Server.Run] serves until its context ends, and returns when
// all of its goroutines have ended. All that is shown comes from [Config]: functions for
// the state, for explain and for the index, one journal, and one handler for metrics. The
// package imports nothing of the hot path and is never on it.
//
// # The page
//
// The page needs no JavaScript: search and order are in its address, pictures are SVG, and
// what folds is HTML's. The script fetches the same page every three seconds and replaces the
// parts that have changed. All readers get the same bytes: a page is built at most once a
// second, and so seldom that this takes at most 1/300 of a processor, but is never older than
// 5 s.
//
// Workers are in pools of the same models, role and namespace, each with its sums. The tables
// have 200 workers in all, in trouble first, and at least 4 of each of 50 pools; search finds
// every worker, and the JSON state has them all.
//
// Text of others (models, hosts, errors) is escaped by the template, is cut where it is long,
// and cannot turn the direction of what stands around it.
//
// # Who may ask
//
// There is no login, so the default address is loopback. From outside, a browser on the
// same machine could still reach it, which two rules prevent. The Host header must be a
// loopback name or address, or a configured name; if the listener is not on loopback, any
// literal address is allowed, since DNS rebinding needs a name. And a request that
// changes or computes anything is refused if a browser marks it as coming from another
// site.
//
// # Asking the index
//
// The body of /debug/index is one JSON object with either of
//
//	{"tokens": [ids], "block_size": 16, "lora": "…", "cache_salt": "…"}
//	{"hashes": ["decimal", "0x…"]}
//
// Hashes are those of each block's tokens alone (kvindex.LocalHash), as strings, since
// they exceed what a JSON number holds; they are not an engine's own names of blocks.
// "model" limits the answer to the workers that serve it; tokens without a block size are
// cut by that of these workers. The answer has the number of whole blocks in the prompt,
// and for each rank how many leading ones it holds. Three counts are from its KV events:
// tree_blocks on the device, host_blocks beyond those in host memory, disk_blocks beyond
// both on disk. routed_blocks are those that were lately routed to it. The ranks that
// hold most come first.
//
// # What it does not do
//
// It changes no state of Baton: explain and index only ask. It shows no prompt: the types
// that it is given have no field for one. Config text is shown as it is given: the caller
// must keep secrets out of it.
package admin
