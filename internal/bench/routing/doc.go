// Command routing is `make bench-routing`: what the ways to pick a prefill rank
// are worth on a conversation trace, in share of prompt tokens found in a cache
// and in time to first token.
//
// Method. The requests of the trace arrive when it says, at prefill ranks that
// are simulated event by event, in simulated time. Each is picked for by the
// parts that the plugin is made of: internal/overlap asks pkg/kvindex (what
// ranks told for exact modes, what was routed for the estimate), internal/load books what pkg/picker
// decides. A rank serves one prompt at a time in order of arrival, computes the
// tokens that its cache lacks at one constant speed, and keeps whole blocks in a
// least-recently-used cache of a stated size. What it stores and evicts reaches
// the index as KV events after a stated delay; at the end of a run the index
// must equal the caches. The time to first token is queueing plus prefill.
//
// Equal flags give equal figures, but for the machine. Each mode runs with
// several seeds, which draw between equal costs; medians are printed, with the
// range of the p95.
//
// A block of the trace, 512 tokens, is a KV block here: the cost function only
// compares lengths, and a prefill pick knows no other unit.
//
// Left out, so that nobody takes the figures for those of a real fleet:
//
//   - decode: its legs, its pool, the transfer of KV, and answers entering the
//     cache of a rank that served both;
//   - batches and chunked prefill, attention growing with the prompt, and a
//     prefix that one waiting request could share with the one before it other
//     than through the cache;
//   - host and disk tiers, data-parallel ranks that share an engine, and workers
//     that come, go, fail, refuse or cut their events;
//   - all that the plugin itself adds (make bench measures it), and clients that
//     wait for an answer before they ask again: arrivals are the trace's;
//   - errors of the byte estimate in lengths and in where blocks begin: what is
//     shown of it is that it sees routing instead of caches, and is weighed less.
//     A worker that publishes no events is weighed alike.
//
// It opens no socket and starts no process.
package main
