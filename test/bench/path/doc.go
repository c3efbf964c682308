// Command path is `make bench`: what the plugin adds to a request's path, next
// to what an external processor that decides nothing adds (test/bench/
// nothing), both over Envoy alone, in one run on the real Envoy.
//
// Cases, for each body size and number of clients:
//
//	alone     the configuration that mirrors prefill's leg, without its ext_proc
//	          filters: fixed destinations
//	nothing   the same configuration with a server that decides nothing
//	baton     the shipped configuration and the plugin: byte estimate, kv
//	          routing for both roles, SGLang's fields injected on both legs
//
// and, up to 16 clients, for engines whose decode needs prefill's answer (vLLM):
//
//	direct      no Envoy: a client asks prefill and then decode with the
//	            hand-off in its place, both requests made ahead
//	baton-sync  the shipped configuration and the same plugin, which asks
//	            prefill through its Envoy and then lets decode have the request
//
// and, at 2 KB, for streamed answers whose first token comes with their end:
//
//	baton-stream-unread  the shipped configuration and the same plugin, which does
//	                     not read first events
//	baton-stream         and which has them held until the first token
//
// All with a server run once with bodies buffered and once in full duplex. All
// cases have the same workers (test/bench/constant), which meet as an
// engine's halves do, so that both legs are in the client's time.
//
// Method. Everything is started once. The cases of a cell take turns, one slice
// each, in an order that rotates from repeat to repeat; figures are compared
// within a repeat, and the median over the repeats is reported with its range.
// Clients are closed loops: each sends its next request when it has its answer.
// "Added" is a percentile minus the same percentile of Envoy alone; of
// baton-sync, minus that of direct, and it is compared with what baton, whose
// two legs go at once, adds over the same direct calls. baton-stream is compared
// with baton-stream-unread. CPU is the
// server process's own clock, allocations are what its runtime counts.
//
// It listens and connects on loopback only, ends by itself, and takes every
// process it started with it, on an interrupt too. Exit code 1 says that
// something failed or that requests were lost; a missed aim is not an error.
package main
