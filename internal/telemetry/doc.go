// Package telemetry holds every name that Baton shows to machines (metrics,
// their labels, spans, their attributes, log keys) in one list, and the
// instruments behind them.
//
// # Contract
//
// [New] builds one [Telemetry]: [Instruments] on an OpenTelemetry meter that a
// private Prometheus registry reads ([Telemetry.Handler] serves it), and a
// [Tracer] that sends spans over OTLP gRPC where an endpoint is configured and
// does nothing, at no cost, where none is. Nothing global is read or set. The
// caller ends it with [Telemetry.Shutdown], which sends what is left.
//
// Core packages know nothing of this package: they offer hooks, and the wiring
// connects those to the methods of Instruments. All methods are safe for
// concurrent use, and all accept a nil receiver, which counts nothing.
//
// The names are in names.go and nowhere else; docs/metrics.md is generated
// from there ([MetricsDoc]), and a test compares both with what the registry
// really shows.
//
// # Invariants
//
//   - No label has values that a client can choose or that grow without bound.
//     The worker id is a label of per-worker gauges only, which follow the
//     workers of the present view. As a net under that rule, a counter keeps at
//     most 256 label combinations; what comes after is counted under "other".
//   - Counting on the hot path does not allocate once a combination was seen.
//
// # What it does not do
//
// It does not decide what is worth counting, keeps no history, and never sees a
// prompt.
package telemetry
