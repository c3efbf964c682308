//go:build kube

package istiotest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/kubesim"
	"github.com/seed-60ae5743/baton/test/kubetest"
	"github.com/seed-60ae5743/baton/test/stack"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// Pods' addresses.
const (
	pickerIP  = "10.77.0.2"
	gatewayIP = "10.77.0.3"
)

// soon bounds each step.
const soon = time.Minute

// place is a namespace with a gateway of Istio, a pool, its picker and its workers.
type place struct {
	t       *testing.T
	api     kubetest.Cluster
	dir     string
	config  string // of the picker, besides the listener of its own legs
	istiod  *stack.Process
	gateway *stack.Process
	picker  *stack.Process
	workers []*stack.Worker
}

// newPlace starts the control plane, with everything defined that it wants to read.
func newPlace(t *testing.T) *place {
	p := &place{t: t, api: clusters.New(t, kubesim.Config{}), dir: t.TempDir()}
	require.NoError(t, stack.Build(p.dir, "invariants", false, "./cmd/extproc", "./test/cmd/enginesim"))
	p.kubectl("", "apply", "--server-side", "-f", kubetest.Tool(t, kubeparts.Definitions))
	p.kubectl("", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	p.apply(`{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}`)
	p.istiod = p.run("istiod", filepath.Join(kubetest.Tool(t, kubeparts.Istio), "pilot-discovery"), []string{
		"POD_NAME=istiod", "POD_NAMESPACE=istio-system", "SERVICE_ACCOUNT=istiod", "CLUSTER_ID=Kubernetes", "PILOT_CERT_PROVIDER=istiod",
		"ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true",
		"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false", // filters that only Istio's own proxy has
		"INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=", "PILOT_ENABLE_ANALYSIS=false",
	},
		"discovery", "--kubeconfig", p.file("admin", kubetest.AdminKubeconfig(t, p.api)), "--meshConfig", p.file("mesh.yaml", []byte(mesh)),
		"--monitoringAddr", "127.0.0.1:15014", "--httpAddr", "127.0.0.1:8080", "--httpsAddr", "", "--grpcAddr", "127.0.0.1:15010", "--secureGRPCAddr", "",
		"--domain", "cluster.local", "--log_output_level", "default:warn",
	)
	p.await("istiod to be ready", func() bool { return p.page("http://127.0.0.1:8080/ready") != "" || !p.istiod.Alive() })
	require.True(t, p.istiod.Alive(), "istiod: %s", p.istiod.Log())
	return p
}

// mesh is Istio's configuration: no certificates, and no filter of its own proxy.
const mesh = `
defaultConfig: {discoveryAddress: "127.0.0.1:15010"}
defaultProviders: {}
enablePrometheusMerge: false
enableAutoMtls: false
rootNamespace: istio-system
trustDomain: cluster.local
`

// run starts a program that ends with the test; what it said last is told where the test fails.
func (p *place) run(name, path string, env []string, args ...string) *stack.Process {
	p.t.Helper()
	proc, err := stack.StartProgram(context.Background(), stack.ProgramOptions{Name: name, Path: path, Env: env, Args: args, Dir: p.dir})
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		_ = proc.Kill()
		if p.t.Failed() {
			text := proc.Log()
			p.t.Logf("the last lines of %s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	return proc
}

func (p *place) file(name string, text []byte) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	require.NoError(p.t, os.WriteFile(path, text, 0o600))
	return path
}

func (p *place) kubectl(stdin string, args ...string) string {
	p.t.Helper()
	out, err := kubetest.Kubectl(p.t, p.api, stdin, args...)
	require.NoError(p.t, err)
	return out
}

// apply writes objects, some time after their kinds have been defined.
func (p *place) apply(objects string) {
	p.t.Helper()
	var err error
	ctx, cancel := context.WithTimeout(p.t.Context(), soon)
	defer cancel()
	late := stack.Await(ctx, "the objects' kinds to be found", func() bool {
		_, err = kubetest.Kubectl(p.t, p.api, objects, "apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-")
		return err == nil || !strings.Contains(err.Error(), "no matches for kind")
	})
	require.NoError(p.t, errors.Join(late, err))
}

func (p *place) await(what string, is func() bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), soon)
	defer cancel()
	require.NoError(p.t, stack.Await(ctx, what, is))
}

// page returns a page, or "" where there is none.
func (*place) page(url string) string {
	code, body := ask(url, "")
	if code != http.StatusOK {
		return ""
	}
	return body + " "
}

// slice is what a controller would write for a Service: its ready pods.
func slice(service, port string, number int, ips ...string) string {
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: infra, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: %[2]s, port: %[3]d, protocol: TCP}]
endpoints: [{addresses: [%[4]s], conditions: {ready: true, serving: true, terminating: false}}]
`, service, port, number, strings.Join(ips, ", "))
}

// pod writes a pod that is ready at its address.
func (p *place) pod(name, ip string, labels map[string]any) {
	p.t.Helper()
	p.api.Put(kubesim.Pods(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": name, "labels": labels},
		"status": map[string]any{
			"podIP": ip, "podIPs": []any{map[string]any{"ip": ip}}, "phase": "Running",
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
		},
	})
}

// objects are a gateway with the pool's route and one beside it, the pool, and the picker's
// Service as the chart has them.
const objects = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: my-gateway, namespace: infra}
spec:
  gatewayClassName: istio
  listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]
---
# An istiod that knows the template of the proxy's pods makes this one, and the pods.
apiVersion: v1
kind: Service
metadata: {name: my-gateway-istio, namespace: infra}
spec: {selector: {gateway.networking.k8s.io/gateway-name: my-gateway}, ports: [{name: http, port: 80, appProtocol: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llama, namespace: infra}
spec:
  parentRefs: [{name: my-gateway}]
  rules:
  - matches:
    - path: {type: PathPrefix, value: /v1/completions}
    - path: {type: PathPrefix, value: /v1/models}
    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]
    timeouts: {request: 0s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: other, namespace: infra}
spec:
  parentRefs: [{name: my-gateway}]
  rules: [{matches: [{path: {type: PathPrefix, value: /other}}], backendRefs: [{name: other, port: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: infra}
spec: {selector: {app: other}, ports: [{name: http, port: 8080}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama, namespace: infra}
spec:
  selector: {matchLabels: {app: llama}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: baton-epp, port: {number: 9002}, failureMode: FAILURE_MODE}
---
apiVersion: v1
kind: Service
metadata: {name: baton-epp, namespace: infra}
spec:
  selector: {app: baton}
  ports: [{name: grpc-ext-proc, port: 9002, appProtocol: kubernetes.io/h2c}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: baton-epp, namespace: infra}
spec: {host: baton-epp, trafficPolicy: {portLevelSettings: [{port: {number: 9002}, tls: {mode: SIMPLE, insecureSkipVerify: true}}]}}
`

// serve writes the objects and starts picker and gateway: with two legs, or as Istio alone
// makes the gateway.
func (p *place) serve(failureMode string, twoLegs bool) {
	p.t.Helper()
	p.apply(strings.ReplaceAll(objects, "FAILURE_MODE", failureMode))
	p.pod("baton", pickerIP, map[string]any{"app": "baton"})
	p.pod("gw", gatewayIP, map[string]any{"gateway.networking.k8s.io/gateway-name": "my-gateway"})
	p.apply(slice("baton-epp", "grpc-ext-proc", 9002, pickerIP))
	p.apply(slice("other", "http", 8080, "10.77.0.4"))
	p.apply(slice("my-gateway-istio", "http", 80, gatewayIP))
	if twoLegs {
		filter, err := twolegs.Istio(envoy.IstioParams{
			Params: envoy.Params{PluginHost: "baton-epp.infra.svc.cluster.local"},
			Name:   "baton-two-legs", Namespace: "infra", Gateway: "my-gateway", Route: "infra.llama.0",
		})
		require.NoError(p.t, err)
		p.apply(string(filter))
	}
	p.startPicker()
	p.startGateway()
}

// startPicker runs the picker as the chart does.
func (p *place) startPicker() {
	p.t.Helper()
	config := p.file("baton.yaml", []byte("prefill: {listener: \"http://"+gatewayIP+":9005\"}\n"+p.config))
	p.picker = p.run("picker", filepath.Join(p.dir, "extproc"), nil,
		"epp", "--pool-name=llama", "--pool-namespace=infra", "--kubeconfig="+p.file("kubeconfig", kubetest.Kubeconfig(p.api, "")),
		"--grpc-port=9002", "--grpc-health-port=9003", "--metrics-port=9090", "--baton-config="+config)
	p.await("the picker to be ready", func() bool { return p.page("http://127.0.0.1:9902/readyz") != "" || !p.picker.Alive() })
	require.True(p.t, p.picker.Alive(), "the picker has ended: %s", p.picker.Log())
}

// startGateway runs the gateway's Envoy, whose configuration comes from istiod.
func (p *place) startGateway() {
	p.t.Helper()
	path, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(p.t, err)
	p.gateway = p.run("the gateway", path, nil,
		"-c", p.file("envoy.yaml", []byte(bootstrap)), "--disable-hot-restart", "--concurrency", "2", "--log-level", "warning", "--drain-time-s", "1")
	p.await("the gateway to be ready", func() bool { return p.page("http://127.0.0.1:15000/ready") != "" || !p.gateway.Alive() })
	require.True(p.t, p.gateway.Alive(), "the gateway has ended: %s", p.gateway.Log())
}

// bootstrap is what pilot-agent would write for the gateway's pod.
const bootstrap = `
node:
  id: router~` + gatewayIP + `~gw.infra~infra.svc.cluster.local
  cluster: my-gateway-istio.infra
  metadata:
    {NAMESPACE: infra, NAME: gw, CLUSTER_ID: Kubernetes, SERVICE_ACCOUNT: my-gateway-istio, ISTIO_VERSION: 1.31.0, INSTANCE_IPS: ` + gatewayIP + `,
     LABELS: {gateway.networking.k8s.io/gateway-name: my-gateway}, WORKLOAD_NAME: my-gateway-istio}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15000}}}
bootstrap_extensions:
- name: envoy.bootstrap.internal_listener
  typed_config: {"@type": type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener}
dynamic_resources:
  lds_config: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
  cds_config: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, set_node_on_first_message_only: true, grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]}
static_resources:
  clusters:
  - name: xds-grpc
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: xds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 15010}}}}]}]}
`

// worker starts a simulated worker as a pod with a label app.
func (p *place) worker(n int, role, app string, args ...string) *stack.Worker {
	p.t.Helper()
	ip := fmt.Sprintf("10.77.0.%d", n)
	w, err := stack.StartWorker(context.Background(), p.dir, append([]string{
		"--role=" + role, "--listen=" + ip + ":8000", "--kv-events-port=-1", "--replay-port=-1",
	}, args...)...)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = w.Kill() })
	p.workers = append(p.workers, w)
	p.pod(fmt.Sprintf("%s-%d", role, n), ip, map[string]any{"app": app, "llm-d.ai/role": role})
	return w
}

// served returns how many requests a worker has answered, once it runs none.
func (p *place) served(w *stack.Worker) int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), soon)
	defer cancel()
	require.NoError(p.t, stack.Settled(ctx, w))
	st, err := w.Sim.State(p.t.Context(), false)
	require.NoError(p.t, err)
	require.Empty(p.t, st.Violations)
	return int(st.OK)
}

// stop ends what serve has started, and the workers.
func (p *place) stop() {
	for _, proc := range []*stack.Process{p.gateway, p.picker} {
		if proc != nil {
			_ = proc.Kill()
		}
	}
	for _, w := range p.workers {
		_ = w.Signal(syscall.SIGKILL)
		_ = w.Kill()
	}
	p.workers = nil
	p.kubectl("", "delete", "pods", "--all", "--namespace=infra", "--grace-period=0", "--force")
	p.kubectl("", "delete", "envoyfilters.networking.istio.io", "--all", "--namespace=infra")
}

// ask sends a body, or asks for a page where it is "". The code is 0 if nobody answers, or
// an answer breaks off.
func ask(url, body string) (code int, answer string) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// complete asks the gateway for a completion.
func complete(prompt string, tokens int) (code int, answer string) {
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": prompt, "max_tokens": tokens})
	if err != nil {
		return 0, err.Error()
	}
	return ask("http://"+gatewayIP+"/v1/completions", string(body))
}
