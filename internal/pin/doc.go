// Package pin reads which workers a request names for itself, and finds out
// whether they can serve it.
//
// # Contract
//
// [Known] says which headers may name a worker; [Read] turns those that came,
// and the members of the body's nvext object that [ReadFields] has found, into
// [Pins]: for each leg an instance id, an address, a data-parallel rank, each
// with the name of the header or member that said it. [Pins.Resolve] finds the
// workers in a snapshot and checks that they can serve the request. Every fault
// is an [Error] of one [Kind], which callers switch on.
//
// The rules:
//
//   - Ids are decimal numbers up to 2^64-1 and never pass through a float.
//   - Two headers for one thing must agree, and so must two members of nvext, and
//     an id and an address of the same leg.
//   - Headers win over the body, for each thing by itself. Only the rank of a
//     worker that the headers replace by another is not read; whether an address
//     and an id are one worker, the snapshot tells.
//   - An address may be a list, as pickers send it that know a second best: the
//     first counts. It is looked up among known workers, never believed.
//   - 4294967295 as prefill's rank means that none is said, as NVIDIA Dynamo
//     has it (x-dynamo-prefill-dp-rank).
//   - A rank without its worker is a fault: the router would have to guess.
//
// Whether the request may name workers at all is not decided here: that is a
// property of the filter it came through ([Trust]), which the caller knows. Nor
// does anybody here pick: what was not named is the caller's to choose.
//
// Everything is pure, and safe for concurrent use.
package pin
