//go:build kube

package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/node"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// baton is Baton as it stands behind another's picker: it follows the same pool, and finds the
// prefill pods by a selector.
const baton = `
apiVersion: v1
kind: ConfigMap
metadata: {name: baton, namespace: NAMESPACE}
data:
  baton.yaml: |
    discovery: {kubernetes: [{prefill_selector: "app=prefill"}]}
    CONFIG
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
        args: [--pool-name=llama, --pool-namespace=NAMESPACE, --grpc-port=9004, --grpc-health-port=9003, --baton-config=/etc/baton/baton.yaml]
        readinessProbe: {grpc: {port: 9003, service: readiness}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/baton}]
      volumes: [{name: config, configMap: {name: baton}}]
---
apiVersion: v1
kind: Service
metadata: {name: baton, namespace: NAMESPACE}
spec: {selector: {app: baton}, ports: [{name: grpc, port: 9004, appProtocol: kubernetes.io/h2c}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: baton, namespace: NAMESPACE}
spec: {host: baton, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
`

// behindOneLeg has the gateway ask Baton once the pool's picker has chosen: it is
// examples/gateway-api/behind-one-leg.patch.yaml in Istio's words.
const behindOneLeg = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: baton-behind, namespace: NAMESPACE}
spec:
  workloadSelector: {labels: {gateway.networking.k8s.io/gateway-name: models}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: GATEWAY, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
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
	r.workersOf("prefill", "prefill", "prefill", 2, "--engine=vllm", "--side-channel-listen=$(POD_IP):5600", "--plain-handoff")
	r.sidecars("decode", 3)
	r.behindReference("routing: {headers: llm-d}", behindOneLeg)

	r.requireItsPicks()
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

// TestBehindTheReferencePickerWithTwoLegs: the gateway carries both legs. It asks the other
// picker on each attempt, and then Baton, as examples/gateway-api/behind.patch.yaml has it.
func TestBehindTheReferencePickerWithTwoLegs(t *testing.T) {
	r := newRelease(t, "behind-two")
	r.workersOf("prefill", "prefill", "prefill", 2, "--engine=vllm", "--side-channel-listen=$(POD_IP):5600")
	r.workers("decode", "decode", 3, "--engine=vllm", "--decode-us-per-token=10000")
	r.apply(`
apiVersion: v1
kind: Service
metadata: {name: legs, namespace: NAMESPACE}
spec: {selector: {gateway.networking.k8s.io/gateway-name: models}, ports: [{name: http-legs, port: 9005}]}
`)
	r.behindReference("prefill: {listener: \"http://legs.NAMESPACE.svc:9005\"}", behindTwoLegs(t, r.namespace))
	r.requireItsPicks()
	t.Run("a worker that dies is asked of it again", func(t *testing.T) {
		r := r.with(t)
		l := r.load(20)
		require.NoError(t, cluster.Kill(r.pods("part=decode")[0].uid, "main"))
		l.more(100)
		sent, failed := l.stop()
		t.Logf("%d requests, %d failed", sent, len(failed))
		for _, f := range failed { // three picks in turn were the dead one, which is then said to drain
			require.Regexp(t, `status 503: .*"(decode_unreachable|worker_draining)"`, f)
		}
		require.Less(t, len(failed), sent/10)
	})
}

// behindTwoLegs is the EnvoyFilter of two legs with the other picker before Baton.
func behindTwoLegs(t *testing.T, namespace string) string {
	t.Helper()
	const domain = ".svc.cluster.local"
	text, err := twolegs.Istio(envoy.IstioParams{
		Params: envoy.Params{PluginHost: "baton." + namespace + domain, PluginPort: 9004, FullDuplex: true},
		Name:   "behind", Namespace: namespace, Gateway: "models", Route: namespace + ".llama.0",
	})
	require.NoError(t, err)
	before := `
              - name: picker
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                  grpc_service: {envoy_grpc: {cluster_name: outbound|9002||picker.` + namespace + domain + `}}
                  status_on_error: {code: 511}
                  message_timeout: 5s
                  processing_mode: {request_header_mode: SEND, request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, response_header_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND}
                  metadata_options: {forwarding_namespaces: {untyped: [envoy.lb]}, receiving_namespaces: {untyped: [envoy.lb]}}
              - name: envoy.filters.http.header_mutation
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
                  mutations:
                    request_mutations:
                    - append: {header: {key: x-baton-picked-endpoint, value: "%REQ(x-gateway-destination-endpoint)%"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
                    - remove: x-gateway-destination-endpoint
                    - remove: x-prefill-cluster
                    - remove: x-prefill-destination-endpoint
`
	var filter map[string]any
	require.NoError(t, yaml.Unmarshal(text, &filter))
	var filters []any
	require.NoError(t, yaml.Unmarshal([]byte(before), &filters))
	patched := 0
	for _, p := range at(filter, "spec", "configPatches").([]any) {
		if at(p, "applyTo") != "LISTENER" || at(p, "patch", "value", "name") != "main_leg" {
			continue
		}
		chain := at(p, "patch", "value", "filter_chains").([]any)[0]
		manager := at(at(chain, "filters").([]any)[0], "typed_config").(map[string]any)
		own := manager["http_filters"].([]any)
		asks := at(own[0], "typed_config", "grpc_service").(map[string]any)
		asks["initial_metadata"] = append(asks["initial_metadata"].([]any),
			map[string]any{"key": "x-baton-routing", "value": "prerouted"}, map[string]any{"key": "x-baton-repick", "value": "true"},
			map[string]any{"key": "x-baton-routing-fields", "value": "refuse"})
		manager["http_filters"] = append(filters, own...)
		patched++
	}
	require.Equal(t, 1, patched)
	out, err := yaml.Marshal(filter)
	require.NoError(t, err)
	return string(out)
}

// at returns the value at a path of an object.
func at(o any, path ...string) any {
	for _, name := range path {
		m, _ := o.(map[string]any)
		o = m[name]
	}
	return o
}

// behindReference installs the inference extension's picker, and Baton with an EnvoyFilter
// behind it.
func (r *release) behindReference(config, filter string) {
	r.t.Helper()
	r.theirs()
	r.apply(strings.ReplaceAll(strings.ReplaceAll(deployment, "FORM", reference), "IMAGE", eppImage))
	r.apply(strings.NewReplacer("IMAGE", node.BatonImage, "CONFIG", config).Replace(baton))
	r.apply(filter)
	r.ready()
}

// requireItsPicks requires that each request is decoded where the picker has chosen, and
// prefilled apart.
func (r *release) requireItsPicks() {
	r.t.Helper()
	decodedBefore, prefilledBefore, picksBefore := r.decoded(), r.answered("part=prefill"), r.picks()
	for i := range 20 {
		require.NoError(r.t, r.complete(r.t.Context(), fmt.Sprintf("request %d behind the picker", i), 8))
	}
	require.Equal(r.t, 20, r.answered("part=prefill")-prefilledBefore, "each request has been prefilled apart")
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
	require.Equal(r.t, picked, decoded, "each request has been decoded where the picker has chosen")
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
		out[p.ip+":8000"] = int(r.state(p).OK)
	}
	return out
}
