// Package extproc has the tests of internal/extproc that need engines: simulated ones serve,
// publish their KV events and lie, and the tests stand in Envoy's place.
//
// Contract. The tests use what internal/extproc exports, and real parts around it: gRPC, the
// access log, the subscriber of KV events. It has no code but tests.
//
// What it does not do: it starts no process. Tests through a real Envoy are in
// test/envoytest, and those of one stream in internal/extproc.
package extproc
