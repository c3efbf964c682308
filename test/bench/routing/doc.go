// Command routing is `make bench-routing`: what the ways to pick a prefill rank
// are worth on a conversation trace, in share of prompt tokens found in a cache
// and in time to first token. It has a simulated part and a live one, and says how far
// they agree.
//
// # Simulated
//
// The requests of the whole trace arrive at prefill ranks of internal/replay, in simulated time.
// Each is picked for by the parts that the plugin is made of, which test/bench/policies joins
// (what ranks told for exact modes, what was routed for the estimate), or by another's rule. A rank
// serves one prompt at a time in order of arrival, computes the tokens that its
// cache lacks at one constant speed, and keeps whole blocks in a
// least-recently-used cache of a stated size, evicted block by block as vLLM's (SGLang
// evicts a radix node at a time). As in engines, the last token is
// always computed, and with it its whole block. What a rank stores and evicts
// reaches the index as KV events after a stated delay; at the end of a run the
// index must equal the caches. The time to first token is queueing plus prefill.
//
// Equal flags give equal figures, but for the machine. Each mode runs with
// several seeds, which draw between equal costs; medians are printed, with the
// range of the p95. A block of the trace, 512 tokens, is a KV block here: the
// cost function only compares lengths, and a prefill pick knows no other unit.
// It opens no socket and starts no process.
//
// # What users feel
//
// With -fleet and -traffic, whole answers of a slice of the trace, or of generated traffic, are
// played over fleets by name: workers that serve requests alone, or pairs with a transfer between
// them; answers that run in steps, slow each other and prompts down, and can be preempted; slow,
// slowed and throttled ranks; four prompts at once; bursts; agents. All numbers are stated at the
// head of what is printed. Its tables have the time between tokens and the share of requests that keep a
// stated target, beside the first token. This part has nothing live beside it.
//
// # Live
//
// A slice of the trace, from its beginning, goes through the real Envoy and the
// real plugin to test/enginesim's workers, each a process with its own cache,
// its KV events over ZMQ and the rendezvous between prefill and decode. Each mode
// begins with fresh processes, and has the same requests at the same times. The
// generator waits for no answer before it sends the next request, and a time to
// first token counts from when the request was due.
//
// What is scaled, so that two processors carry it: arrivals and prefill are
// faster by -speedup, and a block of 512 tokens has -page. Speeds and overheads
// follow from the flags of the simulation, so that both parts are one model, and
// times are multiplied back into the trace's. That multiplies what the path takes
// as well, a few milliseconds a request: the time of a lone request is printed
// beside the figures. Prompts are words that begin alike where the trace says so
// (text.go), the same bytes in every mode: exact modes ask an engine for the
// tokens, the byte estimate sees bytes only, whose runs are not the engine's
// blocks.
//
// The hit rate is what the prefill workers counted, and must be what the answers
// told their clients. A request that failed, a fresh attempt, a leg too many or a
// broken rule makes the run an error, after the figures have been printed;
// requests sent late and prompts that had to be estimated are warnings.
//
// The simulation runs on the very same slice too, with the same rounded lengths
// and 20 seeds: their range is what runs differ by through ties alone, of which a
// live run has one draw. Beyond it, hit rates differ by the order of arrival at
// the pick, the delay of events and (by the estimate) where blocks begin; times,
// by the path and the processors' load.
//
// # Replicas
//
// With -replicas 1,2,3 each mode is played with each of these counts of the plugin, in both
// parts: kv ×2 is kv by two. Requests go to the replicas in turn. A replica books and predicts
// what it has picked itself, and knows of the others' picks only when KV events tell of
// them. Where ranks tell nothing, it never does.
//
// Live, replicas are processes behind the one Envoy, with one key and each with a port of its
// own; one replica has a port as well. All but the requests themselves (prefill legs, first
// events of answers) goes to the replicas in turn, too, so that a leg mostly meets another
// replica than its request, and the other tells the owner. A gateway has one cluster for both,
// in which the turns of requests are less even: 80 and 70 of 150 requests in one run with two
// replicas, 37, 63 and 50 with three.
//
// # The drill
//
// With -drill nothing of the above is done. Clients ask for whole answers at a steady rate, through Baton
// and through others' programs, before four simulated workers (apart: four that prefill and two that
// decode), and one thing goes wrong: a worker is killed, its page of health is slow, it stands still for
// 10 s, or five times as many requests come. Each row with each mode has fresh processes. The worker is
// the one that has most requests at that moment, and has at least one. All is measured at the clients, in
// the same way for all: what failed, and the time to the end of whole answers, over the same mode's own
// in the seconds before. Every other answer is streamed. One that breaks off in mid-stream is lost
// whatever stands before the workers: whether there was one on a worker that is killed is chance, so these
// are told apart.
// drill.json has what drill.md has, and the times themselves. It says of which cells
// the clients were late with their requests: the machine had too much else to do.
//
// Workers have the simulators' own costs: 20 µs for a token of a prompt that is not cached, 2 ms for one
// of an answer, and SGLang's page of health answers after a second at the earliest. But a worker
// computes one prompt after the other, so that it can have too much to do: four compute 130 prompts a
// second, and 150 come in the burst. Hand-offs of vLLM have the fields of its last version alone.
//
// Settings. Everybody runs with the defaults of the version that is installed:
//
//   - kv, kv-apart, kv-apart-vllm: the plugin with a list of workers in a file and no other setting, and
//     Envoy as envoy/ has it. It asks for /health only of workers that it has set aside or suspects;
//   - envoy-least-request: a cluster with LEAST_REQUEST and nothing else. Envoy's defaults have no retry,
//     no outlier detection and no check of health;
//   - sglang-gateway, sglang-gateway-apart (sglang-router): the workers' addresses; apart, --pd-disaggregation, --prefill URL PORT
//     and --decode URL, as its README says. cache_aware, 5 retries, a circuit breaker after 10 failures in
//     120 s, /health each 60 s with 5 s for an answer, and 3 failures;
//   - smg, smg-apart: the same flags and, in its help, the same defaults;
//   - vllm-cache-aware, vllm-apart (vllm-router): the workers' addresses; apart, --vllm-pd-disaggregation,
//     --prefill URL, --decode URL and --policy consistent_hash, as its README says: with its default,
//     cache_aware, 301 of 306 requests failed after a prefill worker's death. Retries, the breaker and
//     /health as above;
//   - vllm-kv-aware: --policy kv_aware, which has to be told of the model, the size of blocks and the
//     addresses of KV events;
//   - dynamo (ai-dynamo-runtime): the selection service has no part in what happens to a worker: it asks none
//     for its health, and whoever carries the requests has to tell it. It is played in the burst alone.
//
// A row is shorter than the 60 s between two looks at /health, so those three programs mostly do not see
// that it is slow; an answer after 3 s is within the 5 s that they give it.
//
// # Left out
//
// So that nobody takes the figures for those of a real fleet, of the first and the live part:
//
//   - decode takes no time: answers of one token, no decode load, no transfer of
//     KV, no answers entering the cache of a rank that served both;
//   - batches and chunked prefill, attention growing with the prompt, and a
//     prefix that one waiting request could share with the one before it other
//     than through the cache;
//   - host and disk tiers, data-parallel ranks that share an engine, and workers
//     that come, go, fail, refuse or cut their events;
//   - clients that wait for an answer before they ask again: arrivals are the
//     trace's. Its timestamps have steps of 3 s; requests of one step arrive evenly
//     over it, unless -spread=false;
//   - simulated, all that the plugin itself adds (make bench measures it), and
//     errors of the byte estimate in lengths and in where blocks begin: what is
//     shown of it there is that it sees routing instead of caches, and is weighed
//     less. A worker that publishes no events is weighed alike.
package main
