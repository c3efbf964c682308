//go:build e2e

package envoytest

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/stack"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// gateways are the renderings of a gateway's data plane.
var gateways = map[string]envoy.GatewayParams{
	"as committed":  {},
	"original dst":  {OriginalDst: true},
	"buffered":      {Buffered: true},
	"fail open":     {FailOpen: true},
	"tls":           {TLS: true},
	"with a subset": {SubsetHeader: "x-subset"},
	"older envoy":   {NoServed: true},
	"unix socket":   {Params: envoy.Params{PluginSocket: "/run/baton/extproc.sock"}},
	"ipv6":          {Pool: []string{"[2001:db8::1]:8000"}},
}

func TestEnvoyItselfAcceptsEachGateway(t *testing.T) {
	t.Parallel()
	for name, p := range gateways {
		t.Run(name, func(t *testing.T) {
			p.NoServed, p.Before137 = p.NoServed || !saysServed(), envoyMinor() < 37
			one, err := twolegs.GatewayAPI(p)
			require.NoError(t, err)
			require.NoError(t, stack.ValidateEnvoy(t.Context(), envoyPath, one, t.TempDir()))
			two, err := twolegs.GatewayTwoLegs(p)
			require.NoError(t, err)
			require.NoError(t, stack.ValidateEnvoy(t.Context(), envoyPath, two, t.TempDir()))
		})
	}
}

func TestAGatewayRefusesWhatIsNotOfIt(t *testing.T) {
	t.Parallel()
	for _, p := range []envoy.Params{{Routing: "direct"}, {PickerPort: 1}, {TracingHost: "127.0.0.1"}} {
		_, err := twolegs.GatewayAPI(envoy.GatewayParams{Params: p})
		require.Error(t, err)
		_, err = twolegs.GatewayTwoLegs(envoy.GatewayParams{Params: p})
		require.Error(t, err)
	}
	_, err := twolegs.GatewayAPI(envoy.GatewayParams{Pool: []string{"10.0.0.1"}})
	require.ErrorContains(t, err, "10.0.0.1")
}

// TestIstiosFilterIsRefusedWithAllThatItLacks: what YAML or Istio would read otherwise is no
// name either.
func TestIstiosFilterIsRefusedWithAllThatItLacks(t *testing.T) {
	t.Parallel()
	_, err := twolegs.Istio(envoy.IstioParams{Name: "a b", Gateway: "{}", Route: "prod.models.0"})
	for _, want := range []string{"Name \"a b\"", "Gateway \"{}\"", "Namespace \"\"", "PluginHost \"\": expected the picker's Service"} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "Route")
}

// TestThePatchIsRefusedWhereItsResourcesAreNot: an operation by place must not
// change what stands there by chance.
func TestThePatchIsRefusedWhereItsResourcesAreNot(t *testing.T) {
	t.Parallel()
	config, err := twolegs.GatewayAPI(envoy.GatewayParams{})
	require.NoError(t, err)
	patch, err := twolegs.GatewayPatch(envoy.GatewayParams{})
	require.NoError(t, err)
	_, err = twolegs.Patch(config, patch)
	require.NoError(t, err)
	for _, swap := range [][2]string{
		{"- name: client", "- name: health"},
		{"- name: extproc", "- name: pool_a"},
		{"cluster: pool", "cluster: other"},
		{"- name: envoy.filters.http.ext_proc", "- name: envoy.filters.http.rbac"},
	} {
		other := strings.Replace(string(config), swap[0], swap[1], 1)
		require.NotEqual(t, string(config), other)
		_, err = twolegs.Patch([]byte(other), patch)
		require.ErrorContains(t, err, "test", swap[0])
	}
}

// TestEachOperationOfThePatchTouchesOneResource, which a `test` has named before:
// what patches a control plane's resources knows them by type and name.
func TestEachOperationOfThePatchTouchesOneResource(t *testing.T) {
	t.Parallel()
	patch, err := twolegs.GatewayPatch(envoy.GatewayParams{Params: envoy.Params{Before137: true}, SubsetHeader: "x-subset"})
	require.NoError(t, err)
	named := map[string]bool{}
	for _, op := range parseConfig(t, []byte("operations:\n"+indentLines(string(patch)))).get("operations").list() {
		path := op.get("path").text()
		require.Contains(t, []string{"add", "replace", "remove", "test"}, op.get("op").text(), "move and copy have two places")
		require.Nil(t, op.get("from").v, path)
		resource := path
		if parts := strings.SplitN(path, "/", 5); len(parts) >= 4 {
			resource = strings.Join(parts[:4], "/")
		}
		switch {
		case op.get("op").text() == "test" && path == resource+"/name":
			named[resource] = true
		case path == "/bootstrap_extensions", path == "/layered_runtime", path == "/overload_manager":
		case strings.HasSuffix(path, "/-"):
			require.Equal(t, resource, path)
			require.Equal(t, "add", op.get("op").text())
			require.NotEmpty(t, op.get("value", "name").text())
		default:
			require.True(t, named[resource], "%s: nothing says that it is the right one", path)
		}
	}
	require.Len(t, named, 2)
}

func indentLines(s string) string { return "  " + strings.ReplaceAll(s, "\n", "\n  ") }

// resources are the listeners and clusters of a configuration by name.
func resources(t *testing.T, config []byte) map[string]any {
	t.Helper()
	// Through Patch, since it resolves anchors as Envoy does.
	b, err := twolegs.Patch(config, []byte("[]"))
	require.NoError(t, err)
	var c struct {
		Static struct {
			Listeners []map[string]any `json:"listeners"`
			Clusters  []map[string]any `json:"clusters"`
		} `json:"static_resources"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	require.NoError(t, d.Decode(&c))
	out := map[string]any{}
	for _, l := range c.Static.Listeners {
		out["listener "+l["name"].(string)] = l
	}
	for _, cl := range c.Static.Clusters {
		out["cluster "+cl["name"].(string)] = cl
	}
	return out
}

// TestThePatchedGatewayHasTheLegsOfOnesOwnEnvoy: beside the pool's own filter
// nothing differs, so what the tests of one's own Envoy show holds here too.
func TestThePatchedGatewayHasTheLegsOfOnesOwnEnvoy(t *testing.T) {
	t.Parallel()
	for name, p := range gateways {
		t.Run(name, func(t *testing.T) {
			p.PluginSocket, p.TLS = "/run/baton/extproc.sock", false
			patched, err := twolegs.GatewayTwoLegs(p)
			require.NoError(t, err)
			own, err := envoy.Standalone(envoy.Params{PluginSocket: p.PluginSocket, FullDuplex: !p.Buffered, Mirrors: true})
			require.NoError(t, err)
			got, want := resources(t, patched), resources(t, own)
			mine := takeFilters(t, got["listener main_leg"])
			theirs := takeFilters(t, want["listener main_leg"])
			require.Equal(t, theirs[len(theirs)-1], mine[len(mine)-1], "the router")
			// First events come through the pool's filter: no other is on their way.
			routes := takeRoutes(t, want["listener main_leg"])
			onlyRoute := routes[len(routes)-1].(map[string]any)
			require.Contains(t, onlyRoute["typed_per_filter_config"], theirs[len(theirs)-2].(map[string]any)["name"])
			delete(onlyRoute, "typed_per_filter_config")
			require.Equal(t, []any{onlyRoute}, takeRoutes(t, got["listener main_leg"]))
			// Of a gateway's prefill legs the size says nothing: all are read as one's own buffered Envoy reads the others.
			routes = takeRoutes(t, want["listener prefill_leg"])
			require.Len(t, routes, map[bool]int{true: 2, false: 1}[p.Buffered])
			require.Equal(t, routes[len(routes)-1:], takeRoutes(t, got["listener prefill_leg"]))
			hcm, standalone := managerOf(t, got["listener client"]), managerOf(t, want["listener client"])
			for _, k := range []string{"early_header_mutation_extensions", "local_reply_config", "route_config", "stream_idle_timeout", "delayed_close_timeout", "always_set_request_id_in_response"} {
				require.Equal(t, standalone[k], hcm[k], k)
			}
			require.Len(t, hcm["http_filters"], 1, "the router alone")
			delete(got, "listener client")
			delete(want, "listener client")
			require.Contains(t, got, "cluster pool")
			delete(got, "cluster pool")
			require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(got)))
			for k := range want {
				require.Equal(t, want[k], got[k], k)
			}
		})
	}
}

// TestTheMovedFilterIsThePools: what its control plane says of bodies, metadata
// and attributes holds on the main leg.
func TestTheMovedFilterIsThePools(t *testing.T) {
	t.Parallel()
	for name, p := range gateways {
		t.Run(name, func(t *testing.T) {
			one, err := twolegs.GatewayAPI(p)
			require.NoError(t, err)
			two, err := twolegs.GatewayTwoLegs(p)
			require.NoError(t, err)
			pools, moved := takeFilters(t, resources(t, one)["listener client"]), takeFilters(t, resources(t, two)["listener main_leg"])
			require.Len(t, moved, len(pools))
			last := len(pools) - 2
			for i := range last {
				require.Equal(t, pools[i], moved[i])
			}
			was := pools[last].(map[string]any)["typed_config"].(map[string]any)
			is := moved[last].(map[string]any)["typed_config"].(map[string]any)
			require.Equal(t, p.FailOpen, was["failure_mode_allow"])
			require.NotContains(t, was["grpc_service"], "initial_metadata", "no implementation sends any")
			metadata, added := []any{
				map[string]any{"key": "x-baton-filter", "value": "main"},
				map[string]any{"key": "x-baton-protocol", "value": "gateway"},
			}, []string{"status_on_error", "max_message_timeout", "mutation_rules"}
			if p.Buffered { // else Envoy lets nobody ask for the body of an error
				metadata, added = append(metadata, map[string]any{"key": "baton-errors", "value": "shown"}), append(added, "allow_mode_override")
			}
			require.Equal(t, metadata, is["grpc_service"].(map[string]any)["initial_metadata"])
			require.Contains(t, is["grpc_service"], "retry_policy", "another replica is asked")
			require.NotContains(t, was["grpc_service"], "retry_policy")
			for _, added := range []string{"initial_metadata", "retry_policy"} {
				delete(is["grpc_service"].(map[string]any), added)
			}
			for _, added := range added {
				require.Contains(t, is, added)
				require.NotContains(t, was, added)
				delete(is, added)
			}
			require.Equal(t, true, is["failure_mode_allow"])
			delete(is, "failure_mode_allow")
			delete(was, "failure_mode_allow")
			require.Equal(t, was, is)
		})
	}
}

// managerOf returns a listener's connection manager.
func managerOf(t *testing.T, listener any) map[string]any {
	t.Helper()
	chains := listener.(map[string]any)["filter_chains"].([]any)
	filters := chains[0].(map[string]any)["filters"].([]any)
	return filters[0].(map[string]any)["typed_config"].(map[string]any)
}

// takeFilters returns a listener's HTTP filters and removes them.
func takeFilters(t *testing.T, listener any) []any {
	t.Helper()
	hcm := managerOf(t, listener)
	out := hcm["http_filters"].([]any)
	delete(hcm, "http_filters")
	return out
}

// takeRoutes returns a listener's routes and removes them.
func takeRoutes(t *testing.T, listener any) []any {
	t.Helper()
	config := managerOf(t, listener)["route_config"].(map[string]any)
	host := config["virtual_hosts"].([]any)[0].(map[string]any)
	out := host["routes"].([]any)
	delete(host, "routes")
	return out
}

func TestEveryPartOfAGatewayHasItsLimits(t *testing.T) {
	t.Parallel()
	for name, p := range gateways {
		t.Run(name, func(t *testing.T) {
			for _, render := range []func(envoy.GatewayParams) ([]byte, error){twolegs.GatewayAPI, twolegs.GatewayTwoLegs} {
				b, err := render(p)
				require.NoError(t, err)
				for name, r := range resources(t, b) {
					if strings.HasPrefix(name, "cluster ") {
						requireClusterLimits(t, node{r})
						continue
					}
					hcm := node{managerOf(t, r)}
					require.Equal(t, "0s", hcm.get("stream_idle_timeout").text(), name)
					requireHeaderLimits(t, strings.TrimPrefix(name, "listener "), hcm)
					requireBuffer(t, strings.TrimPrefix(name, "listener "), node{r})
					hosts := hcm.get("route_config", "virtual_hosts").list()
					require.Len(t, hosts, 1)
					require.Equal(t, "67108864", hosts[0].get("request_body_buffer_limit").text(), name)
				}
			}
		})
	}
}
