// Package telemetry has every name that Baton shows to machines (metrics, their labels,
// spans, their attributes) in one list, and the instruments behind the names. The keys of log
// lines are in the package logkey within, which imports nothing.
//
// # Contract
//
// [New] makes one [Telemetry]: [Instruments] on an OpenTelemetry meter, which a
// Prometheus registry of its own reads ([Telemetry.Handler] serves that), and a [Tracer].
// The Tracer sends spans over OTLP gRPC if an endpoint is configured; else it does
// nothing and costs nothing. No global state is read or set. The caller must call
// [Telemetry.Shutdown], which sends the spans that are left.
//
// Core packages do not import this package: they offer hooks, which internal/plugin
// connects to the methods of Instruments. All methods are safe for concurrent use. The
// zero Instruments counts nothing.
//
// Only names.go has the names, and logkey the keys. TestMetricsDocIsUpToDate generates
// docs/metrics.md from both, and from what metricsdoc_test.go says of labels and spans;
// another test compares the names with what the registry shows.
//
// # Invariants
//
//   - No label has values that a client can choose, or that grow without bound. The
//     worker id is a label of gauges, which follow the workers of the present view, and
//     of two counters, which count at most 256 workers by name. As a second bound, every
//     other counter keeps at most 256 label combinations, the one of prompt tokens 256
//     for each kind; further ones are counted as "other".
//   - Counting on the hot path does not allocate for a label combination that was seen
//     before.
//
// # What it does not do
//
// It does not decide what is counted, keeps no history, and is never given a prompt.
package telemetry
