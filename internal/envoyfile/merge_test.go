package envoyfile_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/envoyfile"
)

func foreign(t *testing.T, name string) envoyfile.File {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "foreign", name))
	require.NoError(t, err)
	return envoyfile.File{Name: name, Data: data}
}

func TestAMergedFileHasAllAndMergingAgainChangesNothing(t *testing.T) {
	for name, o := range map[string]envoyfile.Options{
		"edge.yaml":    {Cluster: "llm"},
		"gateway.json": {Listener: "client"},
	} {
		for form, p := range forms() {
			t.Run(name+"/"+form, func(t *testing.T) {
				o.Params = p
				once, _, err := envoyfile.Merge(foreign(t, name), o)
				require.NoError(t, err)
				require.Equal(t, strings.HasSuffix(name, ".json"), json.Valid(once), "JSON stays JSON")
				found, err := envoyfile.Check(p, envoyfile.File{Name: name, Data: once})
				require.NoError(t, err)
				for _, f := range found {
					require.True(t, f.Part.Advised, "%s", f)
				}
				again, changed, err := envoyfile.Merge(envoyfile.File{Name: name, Data: once}, o)
				require.NoError(t, err)
				require.Equal(t, string(once), string(again))
				require.Empty(t, changed)
			})
		}
	}
}

func TestMergeKeepsWhatIsTheUsersAndTellsWhatItChanges(t *testing.T) {
	out, changed, err := envoyfile.Merge(foreign(t, "edge.yaml"), envoyfile.Options{Cluster: "llm"})
	require.NoError(t, err)
	for _, kept := range []string{
		"# Our edge: the web site and the models behind one listener. Owned by the platform team.\n", "# a socket, as our rules ask\n",
		"route: {cluster: web, timeout: 3s}\n", "# models\n", "connect_timeout: &soon 1s\n", "connect_timeout: *soon\n", "statPrefix: edge\n",
	} {
		require.Contains(t, string(out), kept)
	}
	require.NotContains(t, string(out), "use_remote_address", "who stands before it is not known")
	require.Equal(t, []string{
		"edge.yaml:24: cluster was llm, and is main_leg now",
		"edge.yaml:24: timeout was 15s, and is 0s now",
		"edge.yaml:24: retry_policy was {retryOn}, and is {retry_on, num_retries, retriable_headers, retry_back_off} now",
		"edge.yaml:24: idle_timeout was 30s, and is gone now",
		"edge.yaml:15: stream_idle_timeout was 60s, and is 0s now",
	}, changed)
}

// TestAnotherFormTakesThePlaceOfTheOneBefore: from one plugin at a socket to two at ports, and back.
func TestAnotherFormTakesThePlaceOfTheOneBefore(t *testing.T) {
	all := forms()
	one, _, err := envoyfile.Merge(foreign(t, "edge.yaml"), envoyfile.Options{Cluster: "llm", Params: all["plain"]})
	require.NoError(t, err)
	two, _, err := envoyfile.Merge(envoyfile.File{Name: "edge.yaml", Data: one}, envoyfile.Options{Params: all["replicas"]})
	require.NoError(t, err)
	require.Contains(t, string(two), "port_value: 9012")
	require.Contains(t, string(two), "- name: prefill_leg\n")
	back, _, err := envoyfile.Merge(envoyfile.File{Name: "edge.yaml", Data: two}, envoyfile.Options{Params: all["plain"]})
	require.NoError(t, err)
	require.NotContains(t, string(back), "- name: prefill_leg\n")
	found, err := envoyfile.Check(all["plain"], envoyfile.File{Name: "edge.yaml", Data: back})
	require.NoError(t, err)
	for _, f := range found {
		require.True(t, f.Part.Advised, "%s", f)
	}
}

func TestWhatIsInTheWayIsNamedAtOnce(t *testing.T) {
	clash := func(f envoyfile.File) envoyfile.File {
		f.Data = []byte(strings.ReplaceAll(string(f.Data), "name: web", "name: decode"))
		return f
	}
	routed := func(by string) envoyfile.File {
		f := foreign(t, "edge.yaml")
		f.Data = []byte(strings.ReplaceAll(string(f.Data), "cluster: llm,", by))
		return f
	}
	weighted := routed("weightedClusters: {clusters: [{name: llm, weight: 9}, {name: new, weight: 1}]},")
	for _, c := range []struct {
		name string
		file envoyfile.File
		o    envoyfile.Options
		want string
	}{
		{"weights", weighted, envoyfile.Options{}, "edge.yaml:13: which routes lead to models? Say --cluster with the cluster to which they lead now, one of: web, llm, new"},
		{"a route by weights", weighted, envoyfile.Options{Cluster: "llm"}, "edge.yaml:23: this route leads to llm by more than a name (weighted_clusters, cluster_header, …), which would be lost: write it with cluster alone, or as several routes"},
		{"a header", routed("cluster_header: x-to,"), envoyfile.Options{}, "edge.yaml:13: which routes lead to models? Say --cluster with the cluster to which they lead now, one of: web, cluster_header x-to"},
		{"several routes", foreign(t, "edge.yaml"), envoyfile.Options{}, "edge.yaml:13: which routes lead to models? Say --cluster with the cluster to which they lead now, one of: web, llm"},
		{"several listeners", foreign(t, "gateway.json"), envoyfile.Options{}, "gateway.json: which listener do clients of models reach? Say --client-listener with one of: metrics, client"},
		{"no such listener", foreign(t, "gateway.json"), envoyfile.Options{Listener: "x"}, `gateway.json: there is no listener "x" of HTTP: expected one of: metrics, client`},
		{"no such cluster", foreign(t, "edge.yaml"), envoyfile.Options{Cluster: "x"}, `edge.yaml:6: no route of listener client leads to cluster "x"`},
		{"served from elsewhere", foreign(t, "served.yaml"), envoyfile.Options{}, "served.yaml: it has no static_resources: expected Envoy's bootstrap file. For an Envoy that has its listeners and clusters from elsewhere use --parts"},
		{"a name is taken, and which routes", clash(foreign(t, "edge.yaml")), envoyfile.Options{}, "edge.yaml:13: which routes lead to models? Say --cluster with the cluster to which they lead now, one of: web, llm\nedge.yaml:29: the name decode in clusters is taken: Baton needs it; give yours another one"},
		{"not YAML", envoyfile.File{Name: "x.yaml", Data: []byte("a: [")}, envoyfile.Options{}, "x.yaml: yaml: line 1: did not find expected node content"},
		{"a list", envoyfile.File{Name: "x.yaml", Data: []byte("[1]")}, envoyfile.Options{}, "x.yaml: expected a mapping, as Envoy's configuration is"},
		{"a role that is wrong", foreign(t, "edge.yaml"), envoyfile.Options{Params: envoy.Params{Routing: "x"}}, `envoy: routing "x": expected prerouted, direct or nothing`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := envoyfile.Merge(c.file, c.o)
			require.EqualError(t, err, c.want)
		})
	}
}

// TestAClusterOfTheUsersIsNotTakenForBatons: whose name Baton needs, or may need.
func TestAClusterOfTheUsersIsNotTakenForBatons(t *testing.T) {
	tracing := envoy.Params{TracingHost: "127.0.0.1", TracingPort: 4317}
	for _, c := range []struct {
		cluster string
		p       envoy.Params
		taken   bool
	}{
		{"extproc", envoy.Params{}, true}, {"extproc", tracing, true},
		{"otel_collector", envoy.Params{}, false}, {"otel_collector", tracing, true},
		{"picker", envoy.Params{}, false}, {"picker", envoy.Params{PickerPort: 9003}, true},
	} {
		f := foreign(t, "edge.yaml")
		f.Data = []byte(strings.ReplaceAll(string(f.Data), "web", c.cluster))
		out, _, err := envoyfile.Merge(f, envoyfile.Options{Cluster: "llm", Params: c.p})
		if c.taken {
			require.EqualError(t, err, "edge.yaml:29: the name "+c.cluster+" in clusters is taken: Baton needs it; give yours another one")
			continue
		}
		require.NoError(t, err)
		_, own, _ := strings.Cut(string(f.Data), "  clusters:\n")
		require.Contains(t, string(out), own)
		again, _, err := envoyfile.Merge(envoyfile.File{Name: "edge.yaml", Data: out}, envoyfile.Options{Params: c.p})
		require.NoError(t, err)
		require.Equal(t, string(out), string(again))
	}
}

// TestHeadersThatTheUserRemovesStayRemoved: beside Baton's, in the extension of the same name; a header that is set
// otherwise is told of.
func TestHeadersThatTheUserRemovesStayRemoved(t *testing.T) {
	f := foreign(t, "edge.yaml")
	f.Data = []byte(strings.NewReplacer("          statPrefix: edge\n", `          statPrefix: edge
          earlyHeaderMutationExtensions:
          - name: envoy.http.early_header_mutation.header_mutation
            typedConfig:
              "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
              mutations: [{remove: x-internal-user}, {remove: x-attempt-id}]   # not for engines
`, "match: {prefix: /v1}", "match: {prefix: /v1}\n                requestHeadersToAdd: [{header: {key: Content-Type, value: text/plain}}]").Replace(string(f.Data)))
	out, changed, err := envoyfile.Merge(f, envoyfile.Options{Cluster: "llm"})
	require.NoError(t, err)
	require.Contains(t, string(out), "{remove: x-internal-user}")
	require.Equal(t, 1, strings.Count(string(out), "remove: x-attempt-id}"))
	require.Contains(t, changed, "edge.yaml:29: request_headers_to_add: content-type was another one, and is Baton's now")
	found, err := envoyfile.Check(envoy.Params{}, envoyfile.File{Name: f.Name, Data: out})
	require.NoError(t, err)
	for _, f := range found {
		require.True(t, f.Part.Advised, "%s", f)
	}
	again, changed, err := envoyfile.Merge(envoyfile.File{Name: f.Name, Data: out}, envoyfile.Options{})
	require.NoError(t, err)
	require.Equal(t, string(out), string(again))
	require.Empty(t, changed)
}

// TestAnAliasElsewhereStaysWhatItIs: of a virtual host, a route, headers, or all of HTTP, of the listener that is named
// or in it.
func TestAnAliasElsewhereStaysWhatItIs(t *testing.T) {
	type listeners struct {
		Static struct {
			Listeners []map[string]any `yaml:"listeners"`
		} `yaml:"static_resources"`
	}
	read := func(data []byte) (out listeners) {
		require.NoError(t, yaml.Unmarshal(data, &out))
		return out
	}
	in := foreign(t, "anchors.yaml")
	before := read(in.Data).Static.Listeners
	for i, l := range before {
		name := l["name"].(string)
		out, _, err := envoyfile.Merge(in, envoyfile.Options{Listener: name, Cluster: "llm"})
		require.NoError(t, err, name)
		after := read(out).Static.Listeners
		for j := range before {
			if j != i {
				require.Equal(t, before[j], after[j], "%s is changed, and %s is not alone", name, before[j]["name"])
			}
		}
		require.NotEqual(t, before[i], after[i], name)
		if name == "models" {
			require.NotContains(t, between(string(out), "match: {prefix: /up}", "http_filters"), "x-baton", "another route")
		}
		again, changed, err := envoyfile.Merge(envoyfile.File{Name: in.Name, Data: out}, envoyfile.Options{Listener: name})
		require.NoError(t, err)
		require.Equal(t, string(out), string(again))
		require.Empty(t, changed)
	}
}

func between(s, from, to string) string {
	_, s, _ = strings.Cut(s, from)
	s, _, _ = strings.Cut(s, to)
	return s
}

// TestAFileOfJSONSaysTheSameAsOneOfYAML: values keep their kinds.
func TestAFileOfJSONSaysTheSameAsOneOfYAML(t *testing.T) {
	in, o := foreign(t, "gateway.json"), envoyfile.Options{Listener: "client", Params: envoy.Params{PluginSocket: "/run/a&b.sock"}}
	asJSON, _, err := envoyfile.Merge(in, o)
	require.NoError(t, err)
	in.Data = append(in.Data, "\n# no JSON\n"...)
	asYAML, _, err := envoyfile.Merge(in, o)
	require.NoError(t, err)
	require.False(t, json.Valid(asYAML))
	var a, b any
	require.NoError(t, yaml.Unmarshal(asJSON, &a))
	require.NoError(t, yaml.Unmarshal(asYAML, &b))
	require.Equal(t, b, a)
	require.Contains(t, string(asJSON), `"/run/a&b.sock"`)
	require.Less(t, strings.Index(string(asJSON), `"admin"`), strings.Index(string(asJSON), `"static_resources"`), "the order stays")
}

// merged is a file with the parts in it; the check finds nothing that Baton needs, and another merge changes nothing.
func merged(t *testing.T, f envoyfile.File, o envoyfile.Options) (out string, changed []string) {
	t.Helper()
	data, changed, err := envoyfile.Merge(f, o)
	require.NoError(t, err)
	f.Data = data
	found, err := envoyfile.Check(o.Params, f)
	require.NoError(t, err)
	for _, f := range found {
		require.True(t, f.Part.Advised, "%s", f)
	}
	again, told, err := envoyfile.Merge(f, envoyfile.Options{Params: o.Params, Listener: o.Listener})
	require.NoError(t, err)
	require.Equal(t, string(data), string(again))
	require.Empty(t, told)
	return string(data), changed
}

// TestAKeyWithNothingBehindItIsNoKey: as Envoy reads it.
func TestAKeyWithNothingBehindItIsNoKey(t *testing.T) {
	f := foreign(t, "edge.yaml")
	before, _, _ := strings.Cut(string(f.Data), "  clusters:\n")
	f.Data = []byte("bootstrap_extensions:   # none\noverload_manager: ~\n" + strings.NewReplacer("          statPrefix: edge\n",
		"          statPrefix: edge\n          early_header_mutation_extensions:\n", "cluster: web, timeout: 3s", "cluster: llm, retryPolicy: null").Replace(before) + "  clusters:\n")
	out, _ := merged(t, f, envoyfile.Options{})
	require.Contains(t, out, "bootstrap_extensions: # none\n- name: envoy.bootstrap.internal_listener\n")
}

// TestARoutesOwnBoundOfABodyIsRaised: it goes before that of the virtual host.
func TestARoutesOwnBoundOfABodyIsRaised(t *testing.T) {
	f := foreign(t, "edge.yaml")
	out, changed := merged(t, envoyfile.File{Name: f.Name, Data: []byte(strings.Replace(string(f.Data), "- match: {prefix: /v1}", "- requestBodyBufferLimit: 65536\n                match: {prefix: /v1}", 1))}, envoyfile.Options{Cluster: "llm"})
	require.Contains(t, changed, "edge.yaml:23: request_body_buffer_limit was 65536, and is 67108864 now")
	found, err := envoyfile.Check(envoy.Params{}, envoyfile.File{Name: f.Name, Data: []byte(strings.Replace(out, "requestBodyBufferLimit: 67108864", "requestBodyBufferLimit: 65536", 1))})
	require.NoError(t, err)
	bound := slices.IndexFunc(found, func(f envoyfile.Finding) bool { return f.Part.ID == "body_kept" })
	require.GreaterOrEqual(t, bound, 0)
	require.Contains(t, found[bound].String(), "client/route/request_body_buffer_limit is 65536: expected 67108864")
}

// TestARouteLeadsToBatonByWeights: as somebody has it who moves his traffic little by little.
func TestARouteLeadsToBatonByWeights(t *testing.T) {
	f := foreign(t, "edge.yaml")
	const weights = "weightedClusters: {clusters: [{name: main_leg, weight: 1}, {name: llm, weight: 9}]}"
	f.Data = []byte(strings.Replace(string(f.Data), "cluster: llm,", weights+",", 1))
	for _, cluster := range []string{"", "llm"} {
		out, changed := merged(t, f, envoyfile.Options{Cluster: cluster})
		require.Contains(t, out, weights)
		require.Contains(t, changed, "edge.yaml:24: timeout was 15s, and is 0s now")
	}
}

// TestWhatIsWrittenAnewIsTold: of a listener or cluster of an earlier merge that somebody has changed.
func TestWhatIsWrittenAnewIsTold(t *testing.T) {
	out, _ := merged(t, foreign(t, "edge.yaml"), envoyfile.Options{Cluster: "llm"})
	out = strings.Replace(out, "  - name: decode\n", "  - name: decode\n    transport_socket: {name: ours}\n", 1)
	out, changed := merged(t, envoyfile.File{Name: "edge.yaml", Data: []byte(out)}, envoyfile.Options{})
	require.Len(t, changed, 1)
	require.Regexp(t, `^edge.yaml:\d+: decode in clusters was otherwise, and is as Baton writes it now$`, changed[0])
	require.NotContains(t, out, "name: ours")
}

// TestTheFilterChainThatLeadsToModelsIsTaken: of several, as of a listener with TLS for several names.
func TestTheFilterChainThatLeadsToModelsIsTaken(t *testing.T) {
	f := foreign(t, "edge.yaml")
	site := between(string(f.Data), "    filterChains:\n", "  clusters:\n")
	site = strings.NewReplacer("- filters:", "- filterChainMatch: {serverNames: [site.example]}\n      filters:", "cluster: llm", "cluster: web", "statPrefix: edge", "statPrefix: site").Replace(site)
	f.Data = []byte(strings.Replace(string(f.Data), "    filterChains:\n", "    filterChains:\n"+site, 1))
	_, _, err := envoyfile.Merge(f, envoyfile.Options{})
	require.ErrorContains(t, err, "one of: web, llm")
	out, _ := merged(t, f, envoyfile.Options{Cluster: "llm"})
	require.NotContains(t, between(out, "statPrefix: site", "statPrefix: edge"), "x-baton")
	require.NotContains(t, between(out, "- name: client", "filterChains"), "per_connection_buffer_limit_bytes", "the site's, too")
}

// TestAllListenersOfAnEarlierMergeAreBroughtUpToDate: as of HTTP/2 and HTTP/3.
func TestAllListenersOfAnEarlierMergeAreBroughtUpToDate(t *testing.T) {
	f := foreign(t, "edge.yaml")
	other := strings.Replace("  - name: client\n"+between(string(f.Data), "  - name: client\n", "  clusters:\n"), "name: client", "name: other", 1)
	f.Data = []byte(strings.Replace(string(f.Data), "  clusters:\n", other+"  clusters:\n", 1))
	for _, name := range []string{"client", "other"} {
		var err error
		f.Data, _, err = envoyfile.Merge(f, envoyfile.Options{Listener: name, Cluster: "llm"})
		require.NoError(t, err)
	}
	out, changed := merged(t, f, envoyfile.Options{})
	require.Equal(t, string(f.Data), out)
	require.Empty(t, changed)
	require.Equal(t, 2, strings.Count(out, "cluster: main_leg, timeout: 0s"))
	f.Data = []byte(strings.ReplaceAll(out, "cluster: main_leg, timeout: 0s", "cluster: main_leg, timeout: 9s"))
	again, changed := merged(t, f, envoyfile.Options{})
	require.Equal(t, out, again)
	require.Len(t, changed, 2)
}

// TestRoutesThatAreServedFromElsewhereAreNotMerged: nor found by the check.
func TestRoutesThatAreServedFromElsewhereAreNotMerged(t *testing.T) {
	f := foreign(t, "edge.yaml")
	before, _, _ := strings.Cut(string(f.Data), "          routeConfig:\n")
	_, after, _ := strings.Cut(string(f.Data), "          httpFilters:\n")
	f.Data = []byte(before + "          rds: {routeConfigName: routes, configSource: {ads: {}}}\n          httpFilters:\n" + after)
	_, _, err := envoyfile.Merge(f, envoyfile.Options{Cluster: "llm"})
	require.EqualError(t, err, "edge.yaml:13: the listener client has its routes served from elsewhere (rds): use --parts, and give them there what client.yaml says")
	found, err := envoyfile.Check(envoy.Params{}, f)
	require.NoError(t, err)
	require.Contains(t, found[slices.IndexFunc(found, func(f envoyfile.Finding) bool { return f.Part.ID == "route" })].String(), "are served from elsewhere: routes")
}
