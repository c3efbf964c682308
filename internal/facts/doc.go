// Package facts asks engines what they are, in place of a process beside each: it turns
// the bare addresses of a source (pods, a file's) into workers whose models, blocks and
// KV events are known.
//
// # Contract
//
// A [Source] wraps another source. It passes the inner source's workers on at once. It
// asks a worker's engine for its facts if the inner source leaves some open
// ([worker.Worker.FactsUnknown]) or says which of them it has set
// ([worker.Worker.Fixed]); other workers are passed on as they are. It asks over HTTP,
// with the reader that `extproc register` uses (internal/register/engine). When an answer
// changes a worker, or the inner set changes, the Source sends a listing of its own, at
// most one in 200 ms.
//
// Until its facts are known, a worker is what the inner source says. Nothing waits for an
// answer: readiness, other workers and the inner source's events do not.
//
// # Who is asked when
//
//	           answers
//	unknown ────────────► known ──┐ answers, every Refresh
//	   │  ▲                 │  ▲  └──┘
//	   │  │ no answer       │  │ answers
//	   └──┘                 ▼  │
//	                      failing (the facts from before are kept)
//
// A new worker is asked at a random time, so that a thousand that come together are
// spread; a known one every [Config.Refresh], give or take a fifth. [Source.Ask] asks for
// one to be asked soon: its health came back, or its KV events began anew. One that does
// not answer is asked less and less often. At most [Config.AtOnce] questions run at a
// time, [Config.PerHost] of them at one address, half of them to workers that did not
// answer the last time, and at most [Config.PerSecond] begin in a second. Each takes at
// most [Config.Timeout]; each page of it has at most [maxPage] bytes.
//
// # What an answer means
//
// [Merge] is pure. A fact that the inner source has set counts, then what the engine says,
// then [Defaults]. Where the engine contradicts what is set, a note says so. If the engine
// does not say whether it publishes KV events, as older versions do not, the default port
// is tried: a publisher shows itself by the first bytes that it sends.
//
// If the answer is of another process than before ([engine.Mark], or other facts that the
// index depends on), the worker leaves and comes back under its id: what was known of the
// process before (cached blocks, loads, health) goes with it. It keeps its id, since each
// replica has to know it by the same one.
//
// # Invariants
//
//   - The core ([Merge], subject, agenda) is pure: it is given time and answers.
//   - All events go to the sink from one goroutine. Begin and Broken pass at once, in
//     their place. While the inner set is stale, so are the listings that facts cause.
//   - What is fixed is never changed. A worker that cannot be read stays in the set.
//   - A worker that cannot be read, and a contradiction, are each an [discovery.Entry.Note]
//     of the worker: shown on the page, told once in the log.
//   - Run returns when each question has ended.
//
// What this package does not do: it withdraws no worker whose engine is dead
// (internal/health sets it aside), drains none, keeps no connection open, and knows of no
// cluster.
package facts
