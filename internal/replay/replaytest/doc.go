// Package replaytest makes fleets and traffic, for tests and benchmarks of ways to choose.
//
// # Contract
//
// [FleetOf], [Ask] and [Workload] make small ones. [Scenarios] makes those that ways to choose are
// compared on, by name; its numbers are stated, not measured on an engine, and String tells them.
// [Agents] is traffic whose prompts grow. Equal seeds give equal traffic.
//
// # What it does not do
//
// It plays nothing, and chooses nothing.
package replaytest
