// Package register announces one serving engine to the plugins, from beside it. It reads
// the engine's facts, announces them to a registry, withdraws them when the engine dies,
// and drains the engine when it is told to leave. It is `extproc register` without flags
// and without etcd.
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
// (An announced worker that the registry has never held is gone at once when it is told
// to leave.)
//
//   - away: the registry has no record. Health is asked for. Facts are read as soon as it
//     is good, and again until they are complete.
//   - announced: the registry is given the record, and again whenever the record changes.
//     [Registry.Sync] returns when the registry holds it; until then operators are shown
//     "announcing", with the registry's last error.
//   - draining: the record says so, so that the worker is picked no more. Its running
//     requests are waited for, even while its engine does not answer well.
//   - gone: [Runner.Run] ends.
//
// # Rules
//
//   - Nothing is announced before facts are complete and health is good. Missing facts are
//     logged once, and read again.
//   - A refused connection withdraws the worker at once; other bad answers do so after a
//     few in a row. The connection for health is kept. When the engine closes it, health
//     is asked for at once: so a process that dies is withdrawn within milliseconds.
//   - Facts, address and annotations are read again at intervals, when health comes back,
//     and after the engine has closed that connection. If some cannot be read while
//     health is good, the earlier ones are kept: all facts, or those of one page (see
//     [engine.Unread]), as long as nothing shows that the process is another one. vLLM's
//     metrics must have been read once since it was down, since only they identify its
//     process.
//   - A life ends, and the worker gets a new instance id, when the engine's process is
//     another one, or when role, engine, endpoint, ranks or block size change.
//     [engine.Mark] tells processes apart. If the engine gives no mark, one that was seen
//     down has a new life.
//   - While a worker drains, only a refused connection counts as its end: an engine that
//     is slow to answer still has its requests.
//   - A worker that the registry has never held has never been picked: told to leave, it
//     leaves at once.
//   - A drain ends when the engine has reported three times in a row, 200 ms apart, that
//     it has no requests. Reports count from when the registry holds that the worker
//     drains, since the worker is still picked before that; the settle time counts from
//     then, too. An engine that does not count its requests gets the whole drain
//     time-out, since to leave earlier would cut them off.
//
// # Invariants
//
//   - The machine is pure: it is given time and answers, and returns actions. [Runner]
//     carries the actions out, and keeps no other state of the worker.
//   - At most one question of each kind is under way. An answer to a question from before
//     the engine went down is not used.
//   - No action follows the verb leave, and an announced record is withdrawn before it.
//
// What this package does not do: it starts and stops no engine, keeps no lease (the
// registry does), and chooses no instance id.
package register
