package eppconfig

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
)

// fate says what becomes of a plugin.
type fate uint8

const (
	same    fate = iota // Baton does the same in its own way
	lacking             // Baton does something else, which the warning says
	refused             // a configuration with it is refused
)

// row says what becomes of some types of plugins.
type row struct {
	types  []string // "*-scorer": those that end so and stand in no other row
	fate   fate
	text   string // what Baton does, or why the configuration is refused
	splits bool   // with it prefill and decode are on separate workers
	judge  judge  // its parameters may say more than the row; nil: they do not
}

// judge says what becomes of a plugin whose parameters decide that. An empty text: the row's.
type judge func(d *strictyaml.Document, c *Config, p *plugin) (fate, string)

// table lists the plugins that are known: those that the charts of llm-d-router (v0.8 to
// v0.10) and of the inference extension (v1.5), llm-d's samples and KServe's controller
// (v0.17 to v0.20) write, with their options, and those kinds of which no plugin can leave
// a worker out, by the interface that it implements there. docs/gateway-api.md shows it.
func table() []row { return slices.Concat(accepted(), restricting()) }

func accepted() []row {
	return []row{
		{types: []string{"single-profile-handler", "max-score-picker"}, text: "the lowest cost wins"},
		{types: []string{"label-selector-filter", "by-label-selector", "by-label"}, text: "only the pods of the pool that it selects are workers, by rules in discovery.kubernetes[].roles"},
		{
			types: []string{"disagg-profile-handler", "pd-profile-handler", "disagg-headers-handler", "prefill-header-handler", "always-disagg-pd-decider"},
			text:  "prefill and decode are picked for each request if there are workers for both", splits: true,
		},
		{types: []string{"prefill-filter", "decode-filter"}, text: "a worker's role"},
		{
			types: []string{"prefix-cache-scorer", "approx-prefix-cache-producer", "precise-prefix-cache-producer", "precise-prefix-cache-scorer"},
			text:  "overlap, from KV events, else from what was routed",
		},
		{types: []string{"token-producer", "tokenizer"}, text: "engines are asked for a prompt's tokens"},
		{
			types: []string{"queue-scorer", "active-request-scorer", "running-requests-size-scorer", "kv-cache-utilization-scorer", "token-load-scorer", "load-aware-scorer", "inflight-load-producer"},
			text:  "what is booked on a worker",
		},
		{types: []string{"local-syncer", "*-syncer"}, text: ownReplicas},
		{types: []string{"metrics-data-source", "core-metrics-extractor"}, text: "engines' reports of what they run"},
		{types: []string{"endpoint-notification-source", "k8s-notification-source"}, text: "the pool's pods are watched"},
		{types: []string{"lora-affinity-scorer"}, text: "an adapter's requests go to the workers that have loaded it"},
		{types: []string{"openai-parser"}, text: "the paths that are read"},
		{types: []string{"prefix-based-pd-decider", "*-decider"}, fate: lacking, text: "each request is split, unless routing.conditional has one worker serve what costs less there"},
		{types: []string{"no-hit-lru-scorer"}, fate: lacking, text: "a prompt of which nothing is cached goes by load"},
		{types: []string{"data-parallel-profile-handler"}, fate: lacking, text: "a rank is picked by its own port, one of the pool's"},
		{types: []string{"session-affinity-scorer", "session-affinity-filter", "multicluster-session-affinity-filter"}, fate: lacking, text: "a conversation goes where its blocks are, and by load"},
		{types: []string{"weighted-random-picker"}, fate: lacking, text: "the lowest cost wins, unless routing.ROLE.temperature draws by cost"},
		{types: []string{"random-picker"}, fate: lacking, text: "the lowest cost wins, unless routing.ROLE.mode is random"},
		{types: []string{"prefix-cache-affinity-filter"}, fate: lacking, text: "overlap lowers a worker's cost, and leaves no worker out"},
		{types: []string{"predicted-latency-producer", "latency-scorer", "slo-headroom-tier-filter"}, text: "the cost is in seconds, and a request's x-llm-d-slo-ttft-ms is heeded (docs/config.md, targets)"},
		{
			types: []string{"topology-affinity-filter"}, fate: lacking,
			text: "prefill and decode are paired in any domain, unless the prefill worker binds its KV to one of its own",
		},
		{
			types: []string{"encode-filter", "always-disagg-multimodal-decider"}, fate: lacking,
			text: "who prefills a prompt encodes its pictures: a pod that only encodes is no worker",
		},
		{types: []string{"latency-slo-admitter"}, fate: lacking, text: "no request is refused for its latency: prefill.max_queued_isl_tokens bounds what waits"},
		{types: []string{"*-admitter", "*-detector"}, fate: lacking, text: noDetector},
		{types: []string{"agent-identity", "program-aware-fairness", "sheddable-eviction-filter", "*-policy"}, fate: lacking, text: noPriorities},
		{types: []string{"request-attribute-reporter"}, fate: lacking, text: "no use of tokens is told to the gateway, so a rate limit by it counts nothing"},
		{
			types: []string{"anthropic-parser", "vertexai-parser", "vllmhttp-parser", "sglanghttp-parser", "passthrough-parser", "*-parser"}, fate: lacking,
			text: otherPaths,
		},
		{types: []string{"*-scorer", "*-producer", "*-source", "*-extractor"}, fate: lacking, text: unknownOrder},
	}
}

// restricting lists those that can leave workers out, or requests unserved, and some of which
// parameters say that they do not.
func restricting() []row {
	return []row{
		{types: []string{"vllmgrpc-parser"}, fate: refused, text: "requests over gRPC are not read here: remove it if all come over HTTP"},
		{types: []string{"*-picker"}, fate: lacking, text: "the lowest cost wins"},
		{types: []string{"destination-endpoint-served-verifier"}, fate: lacking, text: "no answer says by a header who served it"},
		{
			types: []string{"utilization-filter"}, fate: refused, judge: unlessFallback,
			text: "it leaves workers out by what they report: use active_prefill_tokens_threshold and active_decode_blocks_threshold of routing.ROLE, and remove it",
		},
		{
			types: []string{"endpoint-attribute-filter"}, fate: refused,
			text: "it leaves workers out by what they report: have the pool, a label-selector-filter or the thresholds of routing.ROLE choose who may serve, and remove it",
		},
		{
			types: []string{"context-length-aware"}, fate: lacking, judge: ifFiltering,
			text: "a prompt's length only raises its cost: workers for long prompts are not preferred",
		},
		{
			types: []string{"disaggregatedset-rollout-screener"}, fate: refused,
			text: "it keeps prefill and decode of two revisions apart: name the label of the revision in discovery.kubernetes[].kv_group_label (--baton-config), by which only equals are paired, and remove it",
		},
		{
			types: []string{"header-profile-handler"}, fate: refused, judge: ifOneProfile,
			text: "a client's header chooses who may serve: Baton picks prefill and decode of each request itself: use disagg-profile-handler, with a filter for each role",
		},
		{
			types: []string{"*-profile-handler"}, fate: refused, judge: ifOneProfile,
			text: "which profile a request gets is not known here: use single-profile-handler or disagg-profile-handler",
		},
		{
			types: []string{"header-based-testing-filter"}, fate: refused,
			text: "clients choose their endpoints by it: set gateway.selection_header (--baton-config), for the conformance suite alone, and remove it",
		},
		{
			types: []string{"file-discovery", "multicluster-file-discovery"}, fate: refused,
			text: "its workers would not serve: list them for --workers, and remove it",
		},
	}
}

// What Baton does instead of what a configuration turns on beside its plugins.
const (
	noPriorities = "requests have no priorities here and do not wait in the picker: prefill.max_queued_isl_tokens refuses what would wait too long"
	unknownOrder = "nothing is known here of it: load and overlap decide"
	otherPaths   = "requests on other paths than OpenAI's completions and SGLang's /generate go to one worker, by load"
	ownReplicas  = "replicas tell each other what they have booked, with one leg.key_file"
	noDetector   = "prefill.max_queued_isl_tokens says when requests are refused"
)

// unlessFallback: with fallbackOnEmpty such a filter prefers workers, as the cost does.
func unlessFallback(d *strictyaml.Document, _ *Config, p *plugin) (fate, string) {
	var x struct {
		Conditions any  `yaml:"conditions"`
		Producer   any  `yaml:"inFlightLoadProducerName"`
		Fallback   bool `yaml:"fallbackOnEmpty"`
	}
	d.ReadPart(p.Parameters, p.Type+": parameters: ", &x)
	if x.Fallback {
		return lacking, "a worker's load raises its cost, and leaves it out only by the thresholds of routing.ROLE"
	}
	return refused, ""
}

// ifFiltering: it orders workers unless it is told to filter.
func ifFiltering(d *strictyaml.Document, _ *Config, p *plugin) (fate, string) {
	var x struct {
		Label   any  `yaml:"label"`
		Filters bool `yaml:"enableFiltering"`
	}
	d.ReadPart(p.Parameters, p.Type+": parameters: ", &x)
	if !x.Filters {
		return lacking, ""
	}
	return refused, "with enableFiltering it leaves workers out by a prompt's length: give the pods for each length a pool and a route of their own, or set enableFiltering: false"
}

// ifOneProfile: of one profile no header can choose another one.
func ifOneProfile(_ *strictyaml.Document, c *Config, _ *plugin) (fate, string) {
	if c.profiles <= 1 {
		return same, ""
	}
	return refused, ""
}

// rowOf returns the row of a type, and whether the type is known.
func rowOf(kind string) (row, bool) {
	all := table()
	i := slices.IndexFunc(all, func(r row) bool { return slices.Contains(r.types, kind) })
	if i < 0 {
		i = slices.IndexFunc(all, func(r row) bool {
			return slices.ContainsFunc(r.types, func(t string) bool {
				end, isEnd := strings.CutPrefix(t, "*")
				return isEnd && strings.HasSuffix(kind, end)
			})
		})
	}
	if i < 0 {
		return row{}, false
	}
	return all[i], true
}
