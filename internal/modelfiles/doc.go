// Package modelfiles brings the files of models from workers to plugins, so that a plugin
// can make the tokens of prompts itself without a folder of its own: `extproc register
// --model-path` serves them beside the worker, and the worker's record has their digest
// (worker.ModelFiles).
//
// Contract. [Handler] serves one set of files, packed (local.Files.Pack), under its digest.
// [Wanted] says which sets the workers' records name, and for which models. A [Follower]
// is told of each new set of workers ([Follower.Changed]). It reads the sets that are
// wanted, from its folder or from a worker that serves them, and gives each model of them
// to [Config.Use].
//
// Invariants:
//
//   - What is used has the digest of the record, whoever served it. A set is asked for only
//     at the address of a worker that names it.
//   - Workers of one model that name different sets make none of them used: tokens that are
//     right for one worker would be wrong for the other.
//   - At most [Config.Most] sets are held, in memory and in the folder. A model whose workers
//     have all left keeps its set until another one needs the place: it is used again when
//     they are restarted.
//   - A set is read one at a time, within [Config.Timeout] for each worker that is asked. One
//     that cannot be read is asked for again, after [Config.Again].
//   - A set that is not understood is not read again.
//
// What this package does not do: it judges no set. Whether the files give an engine's
// tokens is found by a trial (pkg/tokens). It reads no model's folder, and asks no hub.
package modelfiles
