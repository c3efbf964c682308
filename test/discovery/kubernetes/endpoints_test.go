package kubernetes_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
	"github.com/seed-60ae5743/baton/test/kubesim"
)

func TestThePodsOfAServiceAreListedReadyOrNot(t *testing.T) {
	simulated(t, "have EndpointSlices without a controller")
	slices := kubesim.Resource{Group: "discovery.k8s.io", Version: "v1", Plural: "endpointslices", Kind: "EndpointSlice"}
	k := newCluster(t, kubesim.Config{Resources: []kubesim.Resource{slices}})
	put := func(name, service string, ready bool, addresses ...any) {
		k.Put(slices, map[string]any{
			"metadata":  map[string]any{"namespace": "infra", "name": name, "uid": name, "labels": map[string]any{"kubernetes.io/service-name": service}},
			"endpoints": []any{map[string]any{"addresses": addresses, "conditions": map[string]any{"ready": ready}}},
		})
	}
	put("a", "pickers", true, "10.0.0.1")
	put("b", "pickers", false, "10.0.0.2")
	put("c", "others", true, "10.0.0.3")
	c, err := kubernetes.Dial(kubernetes.ClientConfig{Kubeconfig: k.kubeconfig(""), Agent: "test"})
	require.NoError(t, err)
	defer c.Close()
	got, err := c.Endpoints(t.Context(), "infra", "pickers")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"10.0.0.1", "10.0.0.2"}, got)
	got, err = c.Endpoints(t.Context(), "infra", "nobody's")
	require.NoError(t, err)
	require.Empty(t, got)
}
