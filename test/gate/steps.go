package main

import "time"

// step is a target of the Makefile that judges.
type step struct {
	name, what string
	target     []string // of make, with its variables
	takes      time.Duration
	limit      time.Duration
	// leaves are the files that the target writes, from the root; those that are not there are not kept.
	leaves []string
	root   bool // only root can run it
}

// benchOut is where benchmarks put what they have measured when the gate runs them, and benchTable
// the table in it.
const (
	benchOut   = ".run/gate/bench"
	benchTable = benchOut + "/routing" + ".md"
)

// steps are in the order in which they run: what fails soon comes first.
func steps() []step {
	return []step{
		{
			name: "demo", what: "the first thing that a user runs: a story that checks itself",
			target: []string{"demo"}, takes: time.Minute, limit: 10 * time.Minute,
		},
		{
			name: "test", what: "what CI runs, through a real Envoy, with simulated engines",
			target: []string{"test"}, takes: 8 * time.Minute, limit: 40 * time.Minute,
			leaves: []string{".run/test/unit.json", ".run/test/examples.json", ".run/test/envoy.json"},
		},
		{
			name: "real", what: "real vLLM and SGLang, apart and alone: tokens, caches, hand-offs",
			target: []string{"real", "RUN=TestVLLMApart$$|TestSGLangApart$$|TestVLLMConversations|TestSGLangConversations|ApartIsAsAlone"},
			takes:  15 * time.Minute, limit: 60 * time.Minute, leaves: []string{".run/real.json"},
		},
		{
			name: "beside", what: "real vLLM and SGLang with their own defaults and real clients, beside kills, stops, restarts and a rolling update",
			target: []string{"real", "RUN=TestClientsBesideFaults", "REAL_ARGS=-gate"},
			takes:  35 * time.Minute, limit: 90 * time.Minute, leaves: []string{".run/real.json", ".run/gate/beside.json"},
		},
		{
			name: "clients", what: "the clients that people use, on all they can ask, apart and alone",
			target: []string{"clients"}, takes: 15 * time.Minute, limit: 40 * time.Minute, leaves: []string{".run/clients.json"},
		},
		{
			name: "drill", what: "every picker and proxy of bench-rivals when something fails",
			target: []string{"bench-drill"}, takes: 15 * time.Minute, limit: 40 * time.Minute, leaves: []string{".run/bench/drill.json"},
		},
		{
			name: "routing", what: "a published conversation trace, live, by three ways to pick",
			target: []string{"bench-routing", "BENCH_ARGS=-live-modes kv,least-loaded,round-robin -capacity 4000 -rate 1 -repeats 1 -out " + benchOut},
			takes:  5 * time.Minute, limit: 20 * time.Minute, leaves: []string{benchTable},
		},
		{
			name: "rivals", what: "the same trace through others' pickers and proxies",
			target: []string{"bench-rivals", "BENCH_ARGS=-out " + benchOut},
			takes:  10 * time.Minute, limit: 30 * time.Minute, leaves: []string{benchTable},
		},
		{
			name: "kube", what: "the chart, the conformance suite and others' places on a real cluster of one node with Istio",
			target: []string{"test-kube"}, takes: 15 * time.Minute, limit: 60 * time.Minute,
			leaves: []string{".run/test-kube.json"}, root: true,
		},
	}
}
