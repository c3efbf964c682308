// Package plugin is the process that `extproc serve` and `extproc epp` run: it makes every
// part from a configuration, connects the parts, opens the addresses, serves and drains.
//
// # Contract
//
// [Serve] runs until its context ends, then drains for at most drain_timeout, and returns
// when every goroutine has ended. It returns an error if an address cannot be opened or a
// part fails. An error in the configuration is a config.ErrUsage. [Check] makes the parts
// and runs none of them, so that a check finds the faults that a start would find.
// [Sized] sets how many bytes bodies may take, from this machine's memory.
//
// A change of the workers reaches the parts in this order:
//
//	view → book, health, engines' reports, KV events → board → registry of attempts → log, page
//
// Requests see a worker once the board has it. Only the hooks of this package pass on
// what one part reports to another: parts do not import each other for that.
//
// Addresses, by their keys:
//
//	listen           Envoy's streams, access logs, messages of replicas; gRPC health
//	admin.listen     the status page, its JSON, metrics
//	probes.listen    only gRPC health
//	metrics.listen   only /metrics and /healthz
//
// # Invariants
//
//   - A plugin runs when all its addresses can be opened; if one cannot, none stays open.
//   - Nobody listens at listen before there is a view of the workers, but behind a gateway
//     and at a port that the system chooses. A socket that systemd passes on takes no
//     connection before: what comes waits. So Envoy tries again, waits, or goes to another
//     replica, where an answer would have been a refusal.
//   - Liveness is SERVING as long as the process runs. Readiness begins with the first
//     view of the workers, and ends for good when a drain begins.
//   - During a drain the listener accepts connections, since legs of requests that have
//     begun still come in, and the parts run until these requests have ended.
//   - The index is dumped after the last event; a dump is written whole or not at all.
//   - A socket on which another process answers is not replaced.
//
// # What it does not do
//
// It decides nothing about a request; internal/extproc does. It reads no flags and no
// configuration file. Only the command imports it.
package plugin
