// Package admin is the HTTP side for people and probes: metrics, health, JSON
// state, the latest decisions, and a status page to read at 3 a.m.
//
//	/                   status page
//	/healthz            200 while the process answers
//	/readyz             200 once ready, else 503 with the reason; with ?model=
//	                    and &namespace=, whether that model can be served
//	/metrics            Prometheus
//	/debug/state        JSON state
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
