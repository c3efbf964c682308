// Package kube is `make bench-kube`: the memory and the CPU of a picker whose workers are
// pods, at 100 and at 1,000 pods, for Baton and for the inference extension's own picker, in
// one run against one real apiserver (test/kubetest).
//
// Contract. The bench is a test with the build tag kube, and prints one table. Each row is
// one start of one picker, alone, with its own defaults, through five steps:
//
//	start    until it says that it knows all pods, and for settle
//	change   each pod gets another annotation, once; and settle
//	idle     its CPU over a span without requests
//	load     its CPU over a span with requests at a fixed rate, through a real Envoy
//	end      the most memory that it has ever had
//
// The pods have the size of real ones and an address each of 127.0.0.0/8, where one
// simulated worker answers for all of them. Its CPU stands apart, since a picker that reads
// its pods' metrics often makes it work. How often each pod was read is counted there.
//
// The CPU of a request is what the load adds to the idle picker. It is left out if the pods
// were read at another rate meanwhile: then the machine was full.
//
// A reading of CPU is the kernel's clock of the process. A failed step fails the test; a
// failed request is counted and printed. All processes end with the test. It asserts
// nothing about the figures.
//
// What it does not do: the worker's page of metrics has 1 KiB, and an engine's has some 100,
// so a picker's readings cost more in life. Where the picker follows KV events, no requests
// are sent: every pod would publish the events of all.
package kube
