// Package register keeps one serving engine known to the plugins, from beside
// it: it reads what the engine tells of itself, announces that to a registry,
// takes it away when the engine dies and drains it when told to leave. It is
// `extproc register` without flags and without etcd.
//
// # Phases
//
//	away ──── healthy, and facts complete ────► announced
//	  ▲                                          │    │
//	  └── engine dead or ill, facts incomplete ──┘    │ told to leave (SIGTERM)
//	  │                                               ▼
//	  └── told to leave ──► gone ◄── drained, ── draining
//	                                 engine dead,
//	                                 time is over, told again
//
// (Told to leave, an announced worker that the registry never held is gone at
// once.)
//
//   - away: the registry has no record. Health is asked; facts are read as soon
//     as it is good, and again until they are complete.
//   - announced: the registry is given the record, and again whenever it
//     changes. That the registry holds it is told by [Registry.Sync]; until
//     then operators are shown "announcing", with the registry's last trouble.
//   - draining: the record says so, so that nobody picks the worker any more;
//     the requests that it has are waited for, also while its engine is ill.
//   - gone: [Runner.Run] ends.
//
// # Rules
//
//   - Nothing is announced before facts are complete and health is good.
//     What is missing is said once, and asked for again.
//   - A refused connection takes the worker away at once; other bad answers do
//     after a few in a row. The connection that health is asked over is kept:
//     when the engine closes it, health is asked at once, so that a process
//     that dies is gone in milliseconds.
//   - Facts, address and annotations are read again every so often and whenever
//     health comes back. What cannot be read for a while, while health is good,
//     is kept: all facts, or those of one page (see [engine.Unread]), as long as
//     nothing says that the process is another one. vLLM's metrics must have
//     been read once since it was down, since they alone tell its process.
//   - A life ends, and the worker gets a new instance id, when its engine's
//     process is another one, or when role, engine, endpoint, ranks or block
//     size change. By what processes are told apart: see [engine.Mark]. Where
//     the engine tells nothing, one that was seen down has a new life.
//   - While a worker drains, only a refused connection counts as its end: an
//     engine that is slow to answer has its requests still.
//   - A worker that the registry never held has been picked by nobody: told to
//     leave, it leaves.
//   - A drain ends when the engine has told three times in a row, 200 ms apart,
//     that it has no requests. Zeros count from when the registry holds that
//     the worker drains, since before that it is still picked; the settle time
//     counts from then, too. An engine that tells no count is given the whole
//     drain time-out: to leave earlier would cut its requests.
//
// # Invariants
//
//   - The machine is pure: time and answers are told to it, and it answers with
//     what is to be done. [Runner] does that, and holds nothing else.
//   - At most one question of each kind is under way; an answer to one that was
//     asked before the engine fell is not used.
//   - After the verb leave nothing follows, and a record that was announced has
//     been withdrawn before.
//
// What this package does not do: it starts and stops no engine, keeps no lease
// (the registry does), and chooses no instance id.
package register
