//go:build e2e

package gatewayapi

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// node is a part of a configuration.
type node struct{ v any }

func read(t *testing.T, config []byte) node {
	t.Helper()
	b, err := twolegs.Patch(config, []byte("[]")) // resolves anchors as Envoy does
	require.NoError(t, err)
	var n node
	require.NoError(t, json.Unmarshal(b, &n.v))
	return n
}

// at follows keys; one of the form name=x finds the element of a list.
func (n node) at(keys ...string) node {
	for _, k := range keys {
		if name, ok := strings.CutPrefix(k, "name="); ok {
			var found any
			for _, e := range n.list() {
				if e.at("name").v == name {
					found = e.v
				}
			}
			n.v = found
			continue
		}
		m, _ := n.v.(map[string]any)
		n.v = m[k]
	}
	return n
}

func (n node) list() []node {
	l, _ := n.v.([]any)
	out := make([]node, len(l))
	for i := range l {
		out[i].v = l[i]
	}
	return out
}

// mainFilters returns the main leg's HTTP filters, but for those that read answers in
// one's own Envoy.
func (n node) mainFilters() []node {
	hcm := n.at("static_resources", "listeners", "name=main_leg", "filter_chains").list()[0].at("filters").list()[0]
	return slices.DeleteFunc(hcm.at("typed_config", "http_filters").list(), func(f node) bool {
		return f.at("name").v == "baton.usage" || f.at("name").v == "baton.first_token"
	})
}

// TestThePatchHasThePartsOfOnesOwnEnvoy, so that the example's own file does not
// fall behind the templates.
func TestThePatchHasThePartsOfOnesOwnEnvoy(t *testing.T) {
	two, err := twolegs.GatewayTwoLegs(envoy.GatewayParams{})
	require.NoError(t, err)
	patch, err := os.ReadFile("../../../examples/gateway-api/behind.patch.yaml")
	require.NoError(t, err)
	config, err := twolegs.Patch(two, patch)
	require.NoError(t, err)
	own, err := envoy.Standalone(envoy.Params{PickerPort: 9003, FullDuplex: true, Mirrors: true})
	require.NoError(t, err)
	is, should, was := read(t, config), read(t, own), read(t, two)

	require.Equal(t, "picker", is.mainFilters()[0].at("name").v)
	require.Equal(t, was.mainFilters()[0].at("typed_config", "processing_mode"), is.mainFilters()[0].at("typed_config", "processing_mode"))
	require.NotNil(t, is.mainFilters()[1].v)
	require.Equal(t, should.mainFilters()[1], is.mainFilters()[1], "the picked address goes under another name")
	var said []node
	for _, m := range is.mainFilters()[2].at("typed_config", "grpc_service", "initial_metadata").list() {
		if m.at("key").v != "x-baton-protocol" {
			said = append(said, m)
		}
	}
	require.Equal(t, should.mainFilters()[2].at("typed_config", "grpc_service", "initial_metadata").list(), said)

	ours, plugin := is.at("static_resources", "clusters", "name=baton"), was.at("static_resources", "clusters", "name=extproc")
	for _, part := range []string{"circuit_breakers", "typed_extension_protocol_options", "connect_timeout"} {
		require.NotNil(t, ours.at(part).v, part)
		require.Equal(t, plugin.at(part), ours.at(part), part)
	}
	require.Equal(t, 2, strings.Count(string(config), `"cluster_name": "extproc"`), "the cluster itself, and of the filters the other picker's alone")
}
