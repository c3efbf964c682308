//go:build kube

package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/node"
)

// behind is what stands behind another's picker on a gateway with one leg: Baton, and an
// EnvoyFilter by which the gateway asks it once the pool's picker has chosen. It is
// examples/gateway-api/behind-one-leg.patch.yaml in Istio's words.
const behind = `
apiVersion: v1
kind: ConfigMap
metadata: {name: baton, namespace: NAMESPACE}
data:
  baton.yaml: |
    gateway: {enabled: true}
    probes: {listen: "0.0.0.0:9003"}
    routing: {headers: llm-d}
    discovery: {kubernetes: [{pool: llama, namespace: NAMESPACE, prefill_selector: "app=prefill"}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: baton, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app: baton}}
  template:
    metadata: {labels: {app: baton, app.kubernetes.io/name: baton}}
    spec:
      serviceAccountName: picker
      containers:
      - name: baton
        image: IMAGE
        imagePullPolicy: Never
        args: [serve, --config=/etc/baton/baton.yaml, "--listen=0.0.0.0:9004", --insecure-listen]
        readinessProbe: {grpc: {port: 9003, service: readiness}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/baton}]
      volumes: [{name: config, configMap: {name: baton}}]
---
apiVersion: v1
kind: Service
metadata: {name: baton, namespace: NAMESPACE}
spec: {selector: {app: baton}, ports: [{name: grpc, port: 9004, appProtocol: kubernetes.io/h2c}]}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: baton-behind, namespace: NAMESPACE}
spec:
  workloadSelector: {labels: {gateway.networking.k8s.io/gateway-name: models}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: &client {context: GATEWAY, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: strip
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
          mutations:
            request_mutations:
            - remove_on_match: {key_matcher: {prefix: x-baton-, ignore_case: true}}
            - remove_on_match: {key_matcher: {prefix: x-prefill, ignore_case: true}}
            - remove_on_match: {key_matcher: {prefix: x-gateway-destination, ignore_case: true}}
            - remove_on_match: {key_matcher: {prefix: x-worker-, ignore_case: true}}
            - remove_on_match: {key_matcher: {prefix: x-dynamo-, ignore_case: true}}
            - remove_on_match: {key_matcher: {prefix: x-data-parallel-, ignore_case: true}}
            - remove: x-dp-rank
  - applyTo: HTTP_FILTER
    match: &router {context: GATEWAY, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: picked
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
          mutations:
            request_mutations:
            - append: {header: {key: x-baton-picked-endpoint, value: "%REQ(x-gateway-destination-endpoint)%"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
            - remove: x-gateway-destination-endpoint
  - applyTo: HTTP_FILTER
    match: *router
    patch:
      operation: INSERT_BEFORE
      value:
        name: baton
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
          grpc_service:
            envoy_grpc: {cluster_name: outbound|9004||baton.NAMESPACE.svc.cluster.local}
            initial_metadata:
            - {key: x-baton-filter, value: main}
            - {key: x-baton-protocol, value: gateway-one-leg}
            - {key: x-baton-routing, value: prerouted}
            - {key: x-baton-routing-fields, value: refuse}
          message_timeout: 5s
          processing_mode:
            request_header_mode: SEND
            request_body_mode: FULL_DUPLEX_STREAMED
            request_trailer_mode: SEND
            response_header_mode: SEND
            response_body_mode: FULL_DUPLEX_STREAMED
            response_trailer_mode: SEND
          metadata_options:
            forwarding_namespaces: {untyped: [envoy.lb]}
            receiving_namespaces: {untyped: [envoy.lb]}
`

// reference is the form of the Deployment of the inference extension's own picker.
const reference = `args: [--pool-name=llama, --pool-namespace=NAMESPACE, --grpc-port=9002, --grpc-health-port=9003, --metrics-port=9090, --metrics-endpoint-auth=false, --tracing=false, --enable-pprof=false, --zap-encoder=json, "--v=3"]`

// TestBehindTheReferencePicker: the inference extension's own picker chooses the decode pod,
// and Baton behind it the prefill pod, which it tells llm-d's own sidecar.
func TestBehindTheReferencePicker(t *testing.T) {
	r := newRelease(t, "behind")
	text, err := json.Marshal(splits)
	require.NoError(t, err)
	r.apply(strings.ReplaceAll(theirs, "PLUGINS", string(text)))
	r.workersOf("prefill", "prefill", "prefill", 2, "--engine=vllm", "--side-channel-listen=$(POD_IP):5600", "--plain-handoff")
	r.sidecars("decode", 3)
	r.apply(strings.ReplaceAll(strings.ReplaceAll(deployment, "FORM", reference), "IMAGE", eppImage))
	r.apply(strings.ReplaceAll(behind, "IMAGE", node.BatonImage))
	r.ready()

	decodedBefore, prefilledBefore, picksBefore := r.decoded(), r.answered("part=prefill"), r.picks()
	for i := range 20 {
		require.NoError(t, r.complete(t.Context(), fmt.Sprintf("request %d behind the picker", i), 8))
	}
	require.Equal(t, 20, r.answered("part=prefill")-prefilledBefore, "each request has been prefilled apart")
	picked := map[string]int{}
	for _, p := range r.picks()[len(picksBefore):] {
		picked[p]++
	}
	decoded := map[string]int{}
	for endpoint, n := range r.decoded() {
		if n -= decodedBefore[endpoint]; n > 0 {
			decoded[endpoint] = n
		}
	}
	require.Equal(t, picked, decoded, "each request has been decoded where the picker has chosen")

	t.Run("its death", func(t *testing.T) {
		r := r.with(t)
		r.kubectl("scale", "deployment/picker", "--replicas=0")
		r.kubectl("wait", "--for=delete", "pod", "--selector=app=picker", "--timeout=110s")
		refused := func() bool {
			err := r.complete(t.Context(), "is anybody there", 1)
			return err != nil && strings.Contains(err.Error(), "status 5")
		}
		r.await("requests to fail", refused)
		before := r.answered("part=prefill")
		for range 20 {
			require.True(t, refused())
		}
		require.Equal(t, before, r.answered("part=prefill"), "nobody has been asked")
		r.kubectl("scale", "deployment/picker", "--replicas=1")
		r.ready()
	})
	t.Run("a pick of a prefill pod", func(t *testing.T) {
		r := r.with(t)
		r.kubectl("patch", "inferencepool", "llama", "--type=merge", `--patch={"spec": {"selector": {"matchLabels": {"app": "prefill"}}}}`)
		r.await("the pick to be refused", func() bool {
			err := r.complete(t.Context(), "where to", 1)
			return err != nil && strings.Contains(err.Error(), "worker_wrong_role") && strings.Contains(err.Error(), fmt.Sprint(http.StatusBadRequest))
		})
	})
}

// picks returns the endpoints that the reference picker has chosen, in order, by its log.
func (r *release) picks() (out []string) {
	r.t.Helper()
	for line := range strings.Lines(r.kubectl("logs", "deployment/picker", "--tail=-1")) {
		var said struct{ Msg, Endpoint string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "Request handled" {
			out = append(out, said.Endpoint)
		}
	}
	return out
}

// decoded returns how many requests each decode pod has answered, by its endpoint.
func (r *release) decoded() map[string]int {
	r.t.Helper()
	out := map[string]int{}
	for _, p := range r.pods("part=decode") {
		out[p.ip+":8000"] = r.state(p).OK
	}
	return out
}
