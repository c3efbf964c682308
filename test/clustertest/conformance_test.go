//go:build kube

package clustertest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/node"
	"github.com/seed-60ae5743/baton/test/stack"
)

// weighted is the suite's test that Istio does not pass: of a rule with two pools it keeps
// one picker.
const weighted = "GatewayWeightedAcrossTwoInferencePools"

// TestConformance runs the inference extension's suite as it is, with Baton's image under
// the name of the suite's own picker.
func TestConformance(t *testing.T) {
	suiteObjects(t)
	report := filepath.Join(t.TempDir(), "report.yaml")
	results, output := runSuite(t, 25*time.Minute, "-report-output", report)
	failed := []string{}
	for name, passed := range results {
		t.Logf("%s: passed %t", name, passed)
		if !passed {
			failed = append(failed, name)
		}
	}
	require.Len(t, results, 14, output)
	if len(failed) > 0 { // a gateway that asks each pool's picker passes this, too
		require.Equal(t, []string{weighted}, failed, output)
	}
	if *page {
		root, err := stack.Root()
		require.NoError(t, err)
		text, err := os.ReadFile(report)
		require.NoError(t, err)
		dir := filepath.Join(root, "docs", "conformance")
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "v1.6.0-istio.yaml"), text, 0o644))
	}
}

// suiteObjects writes the suite's objects, which it will find there, and what Istio has to
// know of them: that the pickers' certificates are their own.
func suiteObjects(t *testing.T) {
	t.Helper()
	dir, err := kubeparts.Conformance()
	require.NoError(t, err)
	base := filepath.Join(dir, "base.yaml")
	if _, err := cluster.Kubectl(t.Context(), "", "get", "namespace", suiteNamespace); err == nil {
		return // another test has written them, and the suite has set some of their fields since
	}
	_, err = cluster.Kubectl(t.Context(), "", "apply", "--server-side", "-f", base)
	require.NoError(t, err)
	text, err := os.ReadFile(base)
	require.NoError(t, err)
	for _, m := range picker.FindAllStringSubmatch(string(text), -1) {
		require.NoError(t, cluster.Apply(t.Context(), fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: %[2]s}
spec: {host: %[1]s, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
`, m[1], suiteNamespace)))
	}
}

const suiteNamespace = "inference-conformance-app-backend"

// picker is the reference of a pool to its picker's Service.
var picker = regexp.MustCompile(`endpointPickerRef:\n\s+name: (\S+)`)

// TestThePoolsOfARuleHaveTheirPickers shows that the test that fails on Istio fails by its
// gateway: the same test passes once a gateway asks, for each of the two pools, the pool's own
// picker. Istio writes that for the pool alone that a rule names last.
func TestThePoolsOfARuleHaveTheirPickers(t *testing.T) {
	suiteObjects(t)
	bothPools(t)
	require.NoError(t, cluster.Apply(t.Context(), fmt.Sprintf(`
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: own-pickers, namespace: inference-conformance-infra}
spec:
  workloadSelector: {labels: {gateway.networking.k8s.io/gateway-name: conformance-primary}}
  configPatches:
  - applyTo: HTTP_ROUTE
    match: {context: GATEWAY, routeConfiguration: {vhost: {name: "primary.example.com:80"}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: own-pickers
        match: {path_separated_prefix: /weighted-two-pools-test}
        route:
          weighted_clusters:
            clusters:
            - %s
            - %s
`, weightedCluster(t, "primary", 70), weightedCluster(t, "secondary", 30))))
	t.Cleanup(func() {
		_, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "envoyfilter", "own-pickers", "--namespace=inference-conformance-infra")
		require.NoError(t, err)
	})
	results, output := runSuite(t, 10*time.Minute, "-run-test="+weighted)
	require.Equal(t, map[string]bool{weighted: true}, results, output)
}

// bothPools makes a route to both pools: Istio has no cluster of a pool that no route names.
func bothPools(t *testing.T) {
	t.Helper()
	r := &release{t: t, namespace: suiteNamespace}
	r.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: both, namespace: NAMESPACE}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: both, namespace: NAMESPACE}
spec:
  parentRefs: [{name: both}]
  rules:
  - backendRefs:
    - {group: inference.networking.k8s.io, kind: InferencePool, name: primary-inference-pool}
    - {group: inference.networking.k8s.io, kind: InferencePool, name: secondary-inference-pool}
`)
	t.Cleanup(func() { r.kubectl("delete", "gateway/both", "httproute/both") })
	r.await("Istio to have both pools", func() bool {
		return strings.Count(r.kubectl("get", "services", "--output=name"), "ary-inference-pool-ip-") == 2
	})
}

// weightedCluster is a part of a route: a pool's cluster, as Istio names it, and its picker.
func weightedCluster(t *testing.T, pool string, weight int) string {
	t.Helper()
	var service string
	out, err := cluster.Kubectl(t.Context(), "", "get", "services", "--namespace="+suiteNamespace, "--output=name")
	require.NoError(t, err)
	for line := range strings.Lines(out) {
		if name := strings.TrimPrefix(strings.TrimSpace(line), "service/"); strings.HasPrefix(name, pool+"-inference-pool-ip-") {
			service = name
		}
	}
	require.NotEmpty(t, service, out)
	const domain = "." + suiteNamespace + ".svc.cluster.local"
	return fmt.Sprintf(`{name: "outbound|54321||%s%s", weight: %d, typed_per_filter_config: {envoy.filters.http.ext_proc: {`+
		`"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, overrides: {processing_mode: {`+
		`request_header_mode: SEND, response_header_mode: SEND, request_body_mode: FULL_DUPLEX_STREAMED, response_body_mode: FULL_DUPLEX_STREAMED, `+
		`request_trailer_mode: SEND, response_trailer_mode: SEND}, grpc_service: {envoy_grpc: {cluster_name: "outbound|9002||%s-endpoint-picker-svc%s"}}}}}}`,
		service, domain, weight, pool, domain)
}

// TestFailOpen is what the suite's own test means to show; that one takes the picker of
// another pool away. A pool with FailOpen serves while its picker has no endpoint. While an
// endpoint is told at which nobody is, only requests without a body are served.
func TestFailOpen(t *testing.T) {
	suiteObjects(t)
	r := &release{t: t, namespace: suiteNamespace}
	r.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: fail-open, namespace: NAMESPACE}
spec:
  parentRefs: [{name: open, namespace: NAMESPACE}]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: secondary-inference-pool}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: open, namespace: NAMESPACE}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
`)
	t.Cleanup(func() {
		r.kubectl("delete", "gateway/open", "httproute/fail-open")
		r.kubectl("scale", "deployment/secondary-app-endpoint-picker", "--replicas=1")
	})
	r.kubectl("wait", "--for=condition=Programmed", "gateway/open", "--timeout=90s")
	r.at = "http://" + r.kubectl("get", "gateway", "open", "--output=jsonpath={.status.addresses[0].value}")
	is := func(method string, want int, byPicker bool) bool {
		body := ""
		if method == http.MethodPost {
			body = `{"model": "m", "prompt": "p"}`
		}
		code, picked := r.status(method, body)
		return code == want && picked == byPicker
	}
	r.await("the pool to serve by its picker", func() bool { return is(http.MethodPost, http.StatusOK, true) })

	r.kubectl("scale", "deployment/secondary-app-endpoint-picker", "--replicas=0")
	r.kubectl("wait", "--for=delete", "pod", "--selector=app=secondary-app-backend-epp", "--timeout=110s")
	r.await("the pool to serve without a picker", func() bool { return is(http.MethodPost, http.StatusOK, false) })
	for range 20 {
		require.True(t, is(http.MethodPost, http.StatusOK, false))
		require.True(t, is(http.MethodGet, http.StatusOK, false))
	}

	const nobody = "10.88.0.250"
	r.apply(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: nobody, namespace: NAMESPACE, labels: {kubernetes.io/service-name: secondary-endpoint-picker-svc}}
addressType: IPv4
ports: [{port: 9002, protocol: TCP}]
endpoints: [{addresses: [` + nobody + `], conditions: {ready: true}}]
`)
	t.Cleanup(func() { r.kubectl("delete", "endpointslice/nobody") })
	r.await("a request with a body to fail", func() bool { return is(http.MethodPost, http.StatusInternalServerError, false) })
	require.True(t, is(http.MethodGet, http.StatusOK, false))
}

// result is a line of the suite's report of one test.
var result = regexp.MustCompile(`(?m)^\s+--- (PASS|FAIL|SKIP): TestConformance/(\w+) \(`)

// runSuite runs the suite and returns which of its tests have passed.
func runSuite(t *testing.T, limit time.Duration, args ...string) (map[string]bool, string) {
	t.Helper()
	dir, err := kubeparts.Conformance()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "conformance"), append([]string{
		"-test.v", "-test.timeout=" + limit.String(), "-test.run=TestConformance", "-gateway-class=istio", "-allow-crds-mismatch",
		"-cleanup-base-resources=false", "-organization=baton", "-project=baton", "-url=none", "-version=tree", "-contact=none",
	}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"HOME=" + node.Folder(), "KUBECONFIG=" + cluster.Kubeconfig(), "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}
	var out bytes.Buffer
	said, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	for lines := bufio.NewReader(said); ; { // lines may be long
		line, err := lines.ReadString('\n')
		out.WriteString(line)
		if name, ok := strings.CutPrefix(line, "=== RUN   TestConformance/"); ok && !strings.Contains(name, "/") {
			fmt.Print("running " + name)
		}
		if err != nil {
			break
		}
	}
	_ = cmd.Wait() // what failed is in its output
	results := map[string]bool{}
	for _, m := range result.FindAllStringSubmatch(out.String(), -1) {
		if m[1] != "SKIP" {
			results[m[2]] = m[1] == "PASS"
		}
	}
	text := out.String()
	return results, text[max(0, len(text)-20000):]
}
