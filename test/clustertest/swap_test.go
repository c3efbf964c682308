//go:build kube

package clustertest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/node"
)

// splits is a scheduler's configuration that splits prefill from decode, with the plugins
// that KServe's controller and llm-d's guides name.
const splits = `apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: disagg-headers-handler}
- {type: prefill-filter}
- {type: decode-filter}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: max-score-picker}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 2}, {pluginRef: max-score-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer, weight: 3}, {pluginRef: max-score-picker}]}
`

// theirs is what KServe's controller makes around a picker, and llm-d's chart likewise.
const theirs = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: picker, namespace: NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: picker, namespace: NAMESPACE}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [get, list, watch]}
- {apiGroups: [inference.networking.x-k8s.io], resources: ["*"], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: picker, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: picker}
subjects: [{kind: ServiceAccount, name: picker, namespace: NAMESPACE}]
---
apiVersion: v1
kind: Service
metadata: {name: picker, namespace: NAMESPACE}
spec: {selector: {app: picker}, ports: [{name: grpc, port: 9002, appProtocol: kubernetes.io/h2c}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: picker, namespace: NAMESPACE}
spec: {host: picker, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app: llama}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: picker, port: {number: 9002}, failureMode: FailClose}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llama, namespace: NAMESPACE}
spec:
  parentRefs: [{name: models}]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}], timeouts: {request: 0s}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: plugins, namespace: NAMESPACE}
data: {default-plugins.yaml: PLUGINS}
`

// theirs writes these objects, and returns the scheduler's configuration as one line.
func (r *release) theirs() (plugins string) {
	r.t.Helper()
	text, err := json.Marshal(splits)
	require.NoError(r.t, err)
	r.apply(strings.ReplaceAll(theirs, "PLUGINS", string(text)))
	return string(text)
}

// TestTheImageTakesTheirPlace: in the Deployments that KServe and llm-d make for a picker, the
// image alone is Baton's. Prefill and decode are apart by llm-d's own sidecar, on a gateway
// with one leg.
func TestTheImageTakesTheirPlace(t *testing.T) {
	r := newRelease(t, "swap")
	plugins := r.theirs()
	r.workers("prefill", "prefill", 2, "--engine=vllm", "--side-channel-listen=$(POD_IP):5600", "--plain-handoff")
	r.sidecars("decode", 3)
	forms := map[string]string{
		// Empty arguments are conditions of a template that do not hold.
		"KServe": `command: [/app/epp, --pool-name, llama, --pool-namespace, NAMESPACE, --zap-encoder, json, --grpc-port, "9002", --grpc-health-port, "9003", "", "", "", "", --config-text, PLUGINS]
        lifecycle: {preStop: {exec: {command: [/bin/sleep, "15"]}}}`,
		"llm-d": `args: [--pool-name, llama, --pool-namespace, NAMESPACE, --pool-group, inference.networking.k8s.io, --zap-encoder, json, --config-file, /config/default-plugins.yaml, --tracing=false, --metrics-endpoint-auth=false, --v, "1"]`,
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			r := r.with(t)
			r.apply(strings.NewReplacer("PLUGINS", plugins, "IMAGE", node.BatonImage).Replace(strings.ReplaceAll(deployment, "FORM", form)))
			t.Cleanup(func() { r.kubectl("delete", "deployment/picker", "--wait=false") })
			r.ready()
			before := r.answered("part=prefill")
			for i := range 20 {
				require.NoError(t, r.complete(t.Context(), fmt.Sprintf("request %d of %s", i, name), 8))
			}
			require.Equal(t, 20, r.answered("part=prefill")-before, "each request has been prefilled apart")
			if name != "KServe" { // the other form does not wait before a picker stops
				return
			}
			t.Run("a rolling restart fails no request", func(t *testing.T) {
				r := r.with(t)
				before := r.answered("part=prefill")
				l := r.load(20)
				r.kubectl("rollout", "restart", "deployment/picker")
				r.kubectl("rollout", "status", "deployment/picker", "--timeout=110s")
				r.awaitGone("app=picker")
				sent, failed := l.stop()
				t.Logf("%d requests, %d failed", sent, len(failed))
				require.Empty(t, failed)
				require.Equal(t, sent, r.answered("part=prefill")-before, "none was served without a picker")
			})
			t.Run("a killed picker cuts answers", func(t *testing.T) { r.with(t).losesAPicker() })
		})
	}
}

// losesAPicker kills the picker under streamed answers of a gateway with one leg: they are
// cut, as the documentation says.
func (r *release) losesAPicker() {
	failed := r.streams(200, 10000, func() {
		r.await("the answers to run", func() bool { return r.running("part=decode") >= 200 })
		require.NoError(r.t, cluster.Kill(r.pods("app=picker")[0].uid, "extproc"))
	})
	require.Len(r.t, failed, 200)
	r.ready()
}

// deployment is a picker's, with what others write about its probes and rights.
const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: picker, namespace: NAMESPACE}
spec:
  replicas: 1
  selector: {matchLabels: {app: picker}}
  template:
    metadata: {labels: {app: picker}}
    spec:
      serviceAccountName: picker
      terminationGracePeriodSeconds: 60
      containers:
      - name: main
        image: IMAGE
        imagePullPolicy: IfNotPresent
        FORM
        ports: [{containerPort: 9002}, {containerPort: 9003}, {containerPort: 9090}]
        livenessProbe: {grpc: {port: 9003, service: liveness}, initialDelaySeconds: 5, periodSeconds: 10}
        readinessProbe: {grpc: {port: 9003, service: readiness}, initialDelaySeconds: 5, periodSeconds: 2}
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsNonRoot: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
        volumeMounts: [{name: plugins, mountPath: /config}]
      volumes: [{name: plugins, configMap: {name: plugins}}]
`

// sidecars makes decode pods as llm-d and KServe do: the sidecar has the pool's port, and the
// engine is behind it.
func (r *release) sidecars(name string, replicas int) {
	r.t.Helper()
	r.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: NAMESPACE}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: llama, part: %[1]s}}
  template:
    metadata: {labels: {app: llama, part: %[1]s, llm-d.ai/role: decode}}
    spec:
      initContainers:
      - name: llm-d-routing-sidecar
        image: %[3]s
        imagePullPolicy: Never
        restartPolicy: Always
        args: [--port=8000, --vllm-port=8001, --connector=nixlv2, --secure-proxy=false]
        ports: [{containerPort: 8000}]
      containers:
      - name: main
        image: %[4]s
        imagePullPolicy: Never
        args: [--role=decode, --engine=vllm, "--listen=0.0.0.0:8001", --kv-events-port=5557, --replay-port=5558, --decode-us-per-token=10000]
        ports: [{containerPort: 8001}]
        readinessProbe: {httpGet: {path: /health, port: 8001}, periodSeconds: 1, timeoutSeconds: 30}
        lifecycle: {preStop: {sleep: {seconds: 5}}}
`, name, replicas, sidecarImage, node.WorkerImage))
}

// answered returns how many requests the pods have answered.
func (r *release) answered(selector string) int {
	r.t.Helper()
	return r.sum(selector, func(s enginesim.State) int { return int(s.OK) })
}

// sum adds up what the pods say of themselves.
func (r *release) sum(selector string, of func(enginesim.State) int) (n int) {
	r.t.Helper()
	for _, p := range r.pods(selector) {
		n += of(r.state(p))
	}
	return n
}

// awaitGone waits until no pod with the labels is about to end.
func (r *release) awaitGone(selector string) {
	r.t.Helper()
	r.await("pods to end", func() bool {
		return !strings.Contains(r.kubectl("get", "pods", "--selector="+selector, "--output=jsonpath={.items[*].metadata.deletionTimestamp}"), "T")
	})
}

// ready waits until requests are answered through the gateway.
func (r *release) ready() {
	r.t.Helper()
	r.kubectl("wait", "--for=condition=Programmed", "gateway/models", "--timeout=90s")
	r.at = "http://" + r.kubectl("get", "gateway", "models", "--output=jsonpath={.status.addresses[0].value}")
	r.kubectl("wait", "--for=condition=Available", "deployment", "--all", "--timeout=110s")
	r.await("a prefill worker's first answer", func() bool {
		before := r.answered("part=prefill")
		return r.complete(r.t.Context(), "is it there?", 1) == nil && r.answered("part=prefill") > before
	})
}

// state is what a simulated worker says of itself.
func (r *release) state(p pod) enginesim.State {
	r.t.Helper()
	s, err := enginesim.Client{BaseURL: "http://" + p.ip + ":8000", HTTP: client()}.State(r.t.Context(), false)
	require.NoError(r.t, err)
	return s
}
