// Package pin reads which workers a request names, and finds out whether they can serve
// it.
//
// # Contract
//
// [Known] says which headers may name a worker. [Read] turns the request's headers, and
// the members of the body's nvext object that [ReadFields] has found, into [Pins]: for
// each leg an instance id, an address and a data-parallel rank, each with the name of the
// header or member that has it. [Pins.Resolve] finds the workers in a snapshot and checks
// that they can serve the request. Every fault is an [Error] of one [Kind], which callers
// switch on.
//
// The rules:
//
//   - Ids are decimal numbers up to 2^64-1, and are never converted to a float.
//   - Two headers for one thing must agree, and so must two members of nvext, and an id
//     and an address of the same leg.
//   - Headers override the body, each thing by itself. The body's rank is not read if it
//     belongs to another worker than the headers name. If the headers give an address and
//     the body an id, the snapshot says whether they are one worker.
//   - An address may be a list, as sent by pickers that have a second choice: the first
//     counts. It is looked up among the known workers, and never used as it is.
//   - 4294967295 as prefill's rank means that none is given, as in NVIDIA Dynamo
//     (x-dynamo-prefill-dp-rank).
//   - A rank without its worker is a fault: the router would have to guess the worker.
//
// The package does not decide whether the request may name workers at all: that depends
// on the filter through which it came ([Trust]), which the caller knows. It does not pick
// either: the caller picks what is not named.
//
// Everything is pure, and safe for concurrent use.
package pin
