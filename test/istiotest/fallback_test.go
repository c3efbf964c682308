//go:build kube

package istiotest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/kubetest"
)

// TestAGatewayOfIstioFallsBackOnNoPrefillPod: with one leg Istio falls back over the whole
// pool, when a pick refuses the connection and when no picker answers. Prefill pods are out
// of its reach where they are not in the pool, and the picker finds them by a selector.
func TestAGatewayOfIstioFallsBackOnNoPrefillPod(t *testing.T) {
	p := newPlace(t)
	defer p.stop()
	p.config = "discovery: {kubernetes: [{prefill_selector: app=prefill}]}\nrouting: {headers: llm-d}\n"
	prefill := p.worker(31, "prefill", "prefill", "--engine=vllm")
	// A decode worker without a sidecar computes the whole request.
	dies, lives := p.worker(32, "decode", "llama", "--engine=vllm"), p.worker(33, "decode", "llama", "--engine=vllm")
	p.serve("FailOpen", false)
	p.endpoints(dies.Info.Endpoint.AddrPort().Addr().String(), lives.Info.Endpoint.AddrPort().Addr().String())
	served := func() bool {
		code, _ := complete("is it there?", 1)
		return code == http.StatusOK
	}
	p.await("the route of the models", served)
	require.Contains(t, p.page("http://127.0.0.1:9090/metrics"), `role="prefill"`, "the picker knows the prefill pod")

	require.NoError(t, dies.Kill())
	before := p.served(lives)
	for range 20 {
		code, answer := complete("a prompt that one worker serves", 4)
		require.Equal(t, http.StatusOK, code, answer)
	}
	require.Equal(t, 20, p.served(lives)-before)

	require.NoError(t, p.picker.Kill())
	models := func() int {
		code, _ := ask("http://"+gatewayIP+"/v1/models", "")
		return code
	}
	p.await("the pool to serve without a picker", func() bool { return models() == http.StatusOK })
	for range 20 {
		require.Equal(t, http.StatusOK, models())
	}
	st, err := prefill.Sim.State(t.Context(), false)
	require.NoError(t, err)
	require.Zero(t, st.Requests, "a request came to the prefill pod")
}

// endpoints writes the slice of the Service that istiod makes for the pool.
func (p *place) endpoints(ips ...string) {
	p.t.Helper()
	var name, port string
	p.await("istiod to make the pool's Service", func() bool {
		out, err := kubetest.Kubectl(p.t, p.api, "", "get", "services", "--namespace=infra", "--output=json")
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Spec     struct{ Ports []struct{ Name string } }
			}
		}
		if err != nil || json.Unmarshal([]byte(out), &list) != nil {
			return false
		}
		for _, s := range list.Items {
			if strings.HasPrefix(s.Metadata.Name, "llama-ip-") && len(s.Spec.Ports) > 0 {
				name, port = s.Metadata.Name, s.Spec.Ports[0].Name
			}
		}
		return name != ""
	})
	p.apply(slice(name, port, 8000, ips...))
}
