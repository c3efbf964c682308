//go:build e2e

package envoytest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/stack"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// forms are every rendering of one's own Envoy, whose parts must obey the rules
// below. Those of a gateway are in gateway_config_test.go.
func forms(t *testing.T) map[string][]byte {
	t.Helper()
	out, err := twolegs.Committed()
	require.NoError(t, err)
	maps.DeleteFunc(out, func(name string, _ []byte) bool { return !strings.HasPrefix(name, "standalone") })
	for name, p := range map[string]envoy.Params{
		"over tcp":                {PluginSocket: "-", PluginHost: "127.0.0.1", PluginPort: 9000},
		"mirrors":                 {Mirrors: true},
		"full duplex with traces": {FullDuplex: true, TracingHost: "127.0.0.1", TracingPort: 4317},
	} {
		b, err := envoy.Standalone(p)
		require.NoError(t, err)
		out[name] = b
	}
	return out
}

func TestTheCommittedConfigurationsAreThoseOfTheTemplate(t *testing.T) {
	t.Parallel()
	root, err := stack.Root()
	require.NoError(t, err)
	want, err := twolegs.Committed()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(root, "envoy", "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, len(want), "a file without a rendering, or a rendering without a file")
	for name, body := range want {
		got, err := os.ReadFile(filepath.Join(root, "envoy", name))
		require.NoError(t, err)
		require.Equal(t, string(body), string(got), "%s is not up to date: run `make envoy-configs`", name)
	}
	chart, err := twolegs.IstioForChart()
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(root, "charts", "baton", "files", "istio-two-legs.yaml"))
	require.NoError(t, err)
	require.Equal(t, string(chart), string(got), "the chart's filter is not up to date: run `make envoy-configs`")
}

func TestEnvoyItselfAcceptsEachConfiguration(t *testing.T) {
	t.Parallel()
	if stack.TooOldAsShipped() != "" {
		for _, duplex := range []bool{false, true} {
			body, err := envoy.Standalone(envoy.Params{Before137: envoyMinor() < 37, Before139: true, FullDuplex: duplex})
			require.NoError(t, err)
			require.NoError(t, stack.ValidateEnvoy(t.Context(), envoyPath, body, t.TempDir()))
		}
		return
	}
	for name, body := range forms(t) {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, stack.ValidateEnvoy(t.Context(), envoyPath, body, t.TempDir()))
		})
	}
	broken := bytes.Replace(forms(t)["standalone.yaml"], []byte("type: ORIGINAL_DST"), []byte("type: NOWHERE"), 1)
	require.Error(t, stack.ValidateEnvoy(t.Context(), envoyPath, broken, t.TempDir()), "validation finds nothing")
}

// TestFullDuplexDiffersFromBufferedInStatedLinesOnly: the two must not drift.
func TestFullDuplexDiffersFromBufferedInStatedLinesOnly(t *testing.T) {
	t.Parallel()
	buffered, err := envoy.Standalone(envoy.Params{Title: "one"})
	require.NoError(t, err)
	duplex, err := envoy.Standalone(envoy.Params{Title: "one", FullDuplex: true})
	require.NoError(t, err)
	gone, come := lineDiff(string(buffered), string(duplex))
	require.Equal(t, []string{
		// a body that is large, or of unknown size, has a route of its own
		`- match: {prefix: "/", headers: [{name: ":method", string_match: {exact: POST}}, {name: content-length, range_match: {start: 0, end: 4194305}, invert_match: true, treat_missing_header_as_empty: true}]}`, "route: *to_decode", "typed_per_filter_config:",
		"envoy.filters.http.ext_proc:", `"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute`, "overrides:", "processing_mode:",
		"request_header_mode: SEND", "request_body_mode: FULL_DUPLEX_STREAMED", "request_trailer_mode: SEND",
		"response_header_mode: SEND", "response_body_mode: NONE", "response_trailer_mode: SEND",
		`baton.first_token: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, disabled: true}`,
		"- {key: baton-errors, value: shown}", "allow_mode_override: true", // in full duplex Envoy lets nobody ask for the body of an error
		"request_body_mode: BUFFERED", "request_trailer_mode: SKIP",
	}, gone)
	require.Equal(t, []string{
		"request_body_mode: FULL_DUPLEX_STREAMED", "request_trailer_mode: SEND",
	}, come)
}

// lineDiff returns the lines that only one of two texts has, in order, without
// blanks and comments, by their longest common subsequence.
func lineDiff(a, b string) (gone, come []string) {
	as, bs := configLines(a), configLines(b)
	long := make([][]int, len(as)+1)
	for i := range long {
		long[i] = make([]int, len(bs)+1)
	}
	for i := len(as) - 1; i >= 0; i-- {
		for j := len(bs) - 1; j >= 0; j-- {
			if as[i] == bs[j] {
				long[i][j] = long[i+1][j+1] + 1
			} else {
				long[i][j] = max(long[i+1][j], long[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(as) && j < len(bs) {
		switch {
		case as[i] == bs[j]:
			i, j = i+1, j+1
		case long[i+1][j] >= long[i][j+1]:
			gone = append(gone, as[i])
			i++
		default:
			come = append(come, bs[j])
			j++
		}
	}
	return append(gone, as[i:]...), append(come, bs[j:]...)
}

func configLines(s string) (out []string) {
	for line := range strings.SplitSeq(s, "\n") {
		if at := strings.Index(line, " #"); at >= 0 {
			line = line[:at]
		}
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			out = append(out, line)
		}
	}
	return out
}

// node is a parsed configuration: a map, a list or a value.
type node struct{ v any }

func parseConfig(t *testing.T, b []byte) node {
	t.Helper()
	var v map[string]any
	require.NoError(t, yaml.Unmarshal(b, &v))
	return node{v}
}

func (n node) get(keys ...string) node {
	for _, k := range keys {
		m, _ := n.v.(map[string]any)
		n = node{m[k]}
	}
	return n
}

func (n node) list() (out []node) {
	l, _ := n.v.([]any)
	for _, v := range l {
		out = append(out, node{v})
	}
	return out
}

func (n node) text() string { return fmt.Sprint(n.v) }

// walk calls f for every map within n.
func (n node) walk(f func(node)) {
	switch v := n.v.(type) {
	case map[string]any:
		f(n)
		for _, x := range v {
			node{x}.walk(f)
		}
	case []any:
		for _, x := range v {
			node{x}.walk(f)
		}
	}
}

const connectionManager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"

// TestEveryPartOfEveryConfigurationHasItsLimits: Envoy's defaults (1,024
// requests a cluster, 1 MiB of body, a mirror dropped without a word) bite
// where one was forgotten.
func TestEveryPartOfEveryConfigurationHasItsLimits(t *testing.T) {
	t.Parallel()
	for name, body := range forms(t) {
		t.Run(name, func(t *testing.T) {
			c := parseConfig(t, body)
			clusters := c.get("static_resources", "clusters").list()
			require.GreaterOrEqual(t, len(clusters), 4)
			for _, cl := range clusters {
				requireClusterLimits(t, cl)
			}
			listeners := c.get("static_resources", "listeners").list()
			want := 3
			if name == "mirrors" { // over TCP the listener of the plugin's own legs has to be named
				want = 4
			}
			require.Len(t, listeners, want)
			managers, hosts := 0, 0
			for _, l := range listeners {
				requireBuffer(t, l.get("name").text(), l)
				l.walk(func(n node) {
					if n.get("@type").text() == connectionManager {
						managers++
						requireHeaderLimits(t, l.get("name").text(), n)
						require.NotNil(t, n.get("local_reply_config").v, "%s: its refusals are not in OpenAI's shape", l.get("name").text())
						require.Equal(t, "0s", n.get("stream_idle_timeout").text(), l.get("name").text())
					}
					for _, h := range n.get("virtual_hosts").list() {
						hosts++
						require.Equal(t, "67108864", h.get("request_body_buffer_limit").text(), "routes of %s", l.get("name").text())
					}
				})
			}
			require.Equal(t, want, managers)
			require.Equal(t, want, hosts)
		})
	}
}

func requireClusterLimits(t *testing.T, cl node) {
	t.Helper()
	name := cl.get("name").text()
	thresholds := cl.get("circuit_breakers", "thresholds").list()
	require.NotEmpty(t, thresholds, "cluster %s has no circuit breaker: 1,024 requests fill it", name)
	for _, th := range thresholds {
		for _, k := range []string{"max_connections", "max_pending_requests", "max_requests", "max_retries"} {
			require.Equal(t, "100000", th.get(k).text(), "cluster %s: %s", name, k)
		}
	}
	switch name {
	case "extproc", "picker", "otel_collector": // gRPC: messages have HTTP/2 windows
		require.NotEqual(t, "<nil>", cl.get("typed_extension_protocol_options").text(), name)
	case "decode", "prefill": // engines end idle connections after 5 s, maybe while a request is on its way
		idle := cl.get("typed_extension_protocol_options", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "common_http_protocol_options", "idle_timeout")
		require.Equal(t, "4s", idle.text(), name)
		requireBuffer(t, name, cl)
	default:
		requireBuffer(t, name, cl)
	}
}

// requireBuffer checks what a connection may hold: little on a request's way to the plugin,
// a whole body where it has been let in.
func requireBuffer(t *testing.T, name string, of node) {
	t.Helper()
	want := "67108864"
	if name == "client" || name == "main_leg" {
		want = "32768"
	}
	require.Equal(t, want, of.get("per_connection_buffer_limit_bytes").text(), name)
}

// requireHeaderLimits checks that a client's headers are judged once: a leg takes more of
// them than the client's listener, whose limits are Envoy's own.
func requireHeaderLimits(t *testing.T, name string, hcm node) {
	t.Helper()
	count, kb := "1100", "640"
	switch name {
	case "client":
		count, kb = "<nil>", "<nil>"
	case "main_leg":
		count, kb = "1000", "512"
	}
	require.Equal(t, count, hcm.get("common_http_protocol_options", "max_headers_count").text(), name)
	require.Equal(t, kb, hcm.get("max_request_headers_kb").text(), name)
}

// TestEveryExternalProcessorFailsAsItsLegNeedsAndByDestinationClosed: answers survive
// the plugin's death, and no cluster of workers has an address of its own. The
// prefill listener's filter and another picker's have nothing to survive.
func TestEveryExternalProcessorFailsAsItsLegNeedsAndByDestinationClosed(t *testing.T) {
	t.Parallel()
	for name, body := range forms(t) {
		t.Run(name, func(t *testing.T) {
			c := parseConfig(t, body)
			mirrors := name == "mirrors" || name == "over tcp"
			var legs []string
			c.walk(func(n node) {
				if !strings.HasSuffix(n.get("@type").text(), ".ext_proc.v3.ExternalProcessor") {
					return
				}
				metadata := n.get("grpc_service", "initial_metadata").list()
				open := "false"
				for _, m := range metadata {
					if k, v := m.get("key").text(), m.get("value").text(); k == "x-baton-filter" {
						legs = append(legs, v)
						open = strconv.FormatBool(v != "sync" && (v != "main" || mirrors))
					} else if legs[len(legs)-1] == "first_token" {
						require.Equal(t, []string{"x-baton-leg", "%DYNAMIC_METADATA(baton:leg)%"}, []string{k, v})
					} else {
						require.Contains(t, []string{"x-baton-routing", "x-baton-repick", "x-baton-routing-fields", "baton-errors", "x-baton-legs"}, k)
						require.Equal(t, k == "baton-errors", v == "shown")
						require.Equal(t, k == "x-baton-legs", v == "sent")
						require.Equal(t, "main", legs[len(legs)-1])
					}
				}
				require.Equal(t, open, n.get("failure_mode_allow").text())
				// 10 s where another replica may take a leg after 5 s.
				require.Contains(t, []string{"5s", "10s"}, n.get("message_timeout").text(), "the default of 200 ms is too short")
			})
			filters := []string{"main", "first_token", "prefill", "sync"}
			switch {
			case !mirrors:
				filters = filters[:2]
			case name == "over tcp":
				filters = filters[:3]
			}
			require.ElementsMatch(t, filters, legs)
			want := map[string]string{"decode": "x-gateway-destination-endpoint", "prefill": "x-prefill-destination-endpoint"}
			for _, cl := range c.get("static_resources", "clusters").list() {
				header, isWorkers := want[cl.get("name").text()]
				if !isWorkers {
					continue
				}
				delete(want, cl.get("name").text())
				require.Equal(t, "ORIGINAL_DST", cl.get("type").text())
				require.Equal(t, header, cl.get("original_dst_lb_config", "http_header_name").text())
				require.Nil(t, cl.get("load_assignment").v)
			}
			require.Empty(t, want)
		})
	}
}

// TestTheClientListenerStripsEveryHeaderThatARouteReads: what an upstream
// cluster or a mirror takes from a header must not come from a client. Where the
// client may name workers, what it names is moved away before the plugin's filter.
func TestTheClientListenerStripsEveryHeaderThatARouteReads(t *testing.T) {
	t.Parallel()
	for name, body := range forms(t) {
		t.Run(name, func(t *testing.T) {
			c := parseConfig(t, body)
			read := map[string]bool{}
			c.walk(func(n node) {
				for _, k := range []string{"http_header_name", "cluster_header"} {
					if h, ok := n.get(k).v.(string); ok {
						read[h] = true
					}
				}
				for _, h := range n.get("match", "headers").list() {
					read[h.get("name").text()] = true
				}
			})
			delete(read, "content-length") // these say how the body is read, not where it goes
			delete(read, ":method")
			reads := map[string]bool{"x-gateway-destination-endpoint": true, "x-prefill-destination-endpoint": true, "x-baton-first-token": true}
			if name == "mirrors" || name == "over tcp" {
				reads["x-prefill-cluster"] = true
			}
			require.Equal(t, reads, read)
			stripped := map[string]bool{}
			strip := func(mutations []node) {
				for _, m := range mutations {
					prefix := m.get("remove_on_match", "key_matcher", "prefix").text()
					for h := range read {
						if strings.HasPrefix(h, prefix) || m.get("remove").text() == h {
							stripped[h] = true
						}
					}
				}
			}
			for _, l := range c.get("static_resources", "listeners").list() {
				l.walk(func(n node) {
					switch l.get("name").text() {
					case "client":
						strip(n.get("mutations").list())
					case "main_leg":
						if name == "standalone-prerouted.yaml" {
							strip(n.get("request_mutations").list())
						}
					}
				})
			}
			require.Len(t, stripped, len(read), "%v", stripped)
		})
	}
}
