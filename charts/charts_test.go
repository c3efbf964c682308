//go:build kube

package charts

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/seed-60ae5743/baton/internal/kubesim"
	"github.com/seed-60ae5743/baton/internal/kubetest"
	"github.com/seed-60ae5743/baton/internal/stack"
)

var rewrite = flag.Bool("rewrite", false, "write examples/kubernetes from the chart")

var clusters kubetest.Clusters

func TestMain(m *testing.M) { goleak.VerifyTestMain(kubetest.Main{M: m, Clusters: &clusters}) }

// soon is far longer than anything here takes on an idle machine.
const soon = time.Minute

const baseFile = "../examples/kubernetes/base/baton.yaml"

// pods are the labels that the default values lack.
var pods = []string{"--set", "router.modelServers.matchLabels.app=llama"}

// variants are what the chart's README and values say that it can be.
func variants() map[string][]string {
	return map[string][]string{
		"as it is":        pods,
		"one replica":     append([]string{"--set", "router.epp.replicas=1"}, pods...),
		"a pool of yours": {"--set", "router.inferencePool.create=false,router.inferencePool.name=theirs"},
		"istio":           append([]string{"--set", "provider.name=istio"}, pods...),
		"all of it": append([]string{"--set-json", `router={
			"epp": {"image": {"registry": "registry.example:5000/a", "tag": "v1", "pullPolicy": "Always"}, "imagePullSecrets": [{"name": "s"}],
				"flags": {"log-level": "debug"}, "config": {"routing": {"debug_header": true}}, "env": [{"name": "A", "value": "b"}],
				"podAnnotations": {"a": "b"}, "podLabels": {"team": "x"}, "nodeSelector": {"kubernetes.io/arch": "amd64"},
				"tolerations": [{"key": "gpu", "operator": "Exists"}],
				"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}},
			"modelServers": {"targetPorts": [{"number": 8000}, {"number": 8001}]},
			"inferencePool": {"failureMode": "FailOpen", "name": "other"},
			"monitoring": {"serviceMonitor": {"create": true, "labels": {"release": "prometheus"}}},
			"tracing": {"enabled": true, "otelExporterEndpoint": "collector:4317"}}`,
			"--set-json", `provider={"name": "istio"}`,
			"--set-json", `httpRoute={"create": true, "parentRefs": [{"name": "gateway"}], "hostnames": ["llama.example"]}`,
			"--set-json", `serviceAccount={"name": "picker", "annotations": {"a": "b"}}`,
			"--set-json", `networkPolicy={"create": true, "gateways": [{"podSelector": {"matchLabels": {"app": "gateway"}}}], "metrics": [{"namespaceSelector": {}}]}`,
		}, pods...),
	}
}

func render(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return kubetest.Helm(t, append([]string{"template", "llama", "baton", "--namespace", "infra"}, args...)...)
}

// definitions has a cluster in which every kind is defined that a variant has.
func definitions(t *testing.T) kubetest.Cluster {
	k := clusters.New(t, kubesim.Config{})
	out, err := kubetest.Kubectl(t, k, "", "apply", "--server-side", "-f", kubetest.Definitions(t))
	require.NoError(t, err, out)
	out, err = kubetest.Kubectl(t, k, "{apiVersion: v1, kind: Namespace, metadata: {name: prod}}", "apply", "--server-side", "-f", "-")
	require.NoError(t, err, out)
	out, err = kubetest.Kubectl(t, k, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	require.NoError(t, err, out)
	return k
}

// accepted lets the apiserver judge objects as if they were written: no unknown field, no
// value that a schema or a rule of it forbids.
func accepted(t *testing.T, k kubetest.Cluster, objects string) {
	t.Helper()
	var out string
	var err error
	require.Eventually(t, func() bool { // kinds that have just been defined are found some time later
		out, err = kubetest.Kubectl(t, k, objects, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
		return !strings.Contains(out, "no matches for kind")
	}, soon, 100*time.Millisecond)
	require.NoError(t, err, out)
}

func TestEachVariantIsAccepted(t *testing.T) {
	k := definitions(t)
	for name, args := range variants() {
		t.Run(name, func(t *testing.T) {
			out, err := kubetest.Helm(t, append([]string{"lint", "--strict", "baton", "--namespace", "infra"}, args...)...)
			require.NoError(t, err, out)
			objects, err := render(t, args...)
			require.NoError(t, err, objects)
			accepted(t, k, objects)
		})
	}
}

// An apiserver that would accept anything judges nothing.
func TestAnUnknownFieldIsNotAccepted(t *testing.T) {
	k := definitions(t)
	objects, err := render(t, pods...)
	require.NoError(t, err, objects)
	for from, to := range map[string]string{"replicas: 2": "replica: 2", "failureMode: FailClose": "failureMode: Never", "number: 8000": "number: 0"} {
		broken := strings.Replace(objects, from, to, 1)
		require.NotEqual(t, objects, broken)
		out, err := kubetest.Kubectl(t, k, broken, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
		require.Error(t, err, out)
	}
}

func TestBadValuesAreRefusedByName(t *testing.T) {
	for set, text := range map[string]string{
		"":                                       "router.modelServers.matchLabels: expected the labels",
		"router.tracing.enabled=true":            "router.tracing.otelExporterEndpoint: expected host:port",
		"httpRoute.create=true":                  "httpRoute.parentRefs: expected the gateway",
		"networkPolicy.create=true":              "networkPolicy.gateways: expected the gateway's pods",
		"router.epp.replica=3":                   "'replica' not allowed",
		"router.epp.replicas=0":                  "minimum",
		"provider.name=envoy":                    "one of 'none', 'istio'",
		"router.inferencePool.failureMode=Never": "FailOpen",
	} {
		var args []string
		if set != "" {
			args = append([]string{"--set", set}, pods...)
		}
		out, err := render(t, args...)
		require.Error(t, err, set)
		require.Contains(t, out, text, set)
	}
}

// The picker may read pods and pools of its namespace, and nothing else.
func TestTheRightsAreExactlyThose(t *testing.T) {
	k := definitions(t)
	objects, err := render(t, append([]string{"--show-only", "templates/account.yaml"}, pods...)...)
	require.NoError(t, err, objects)
	out, err := kubetest.Kubectl(t, k, objects, "apply", "--server-side", "-f", "-")
	require.NoError(t, err, out)
	may := func(verb, resource, namespace string) bool {
		resource, part, _ := strings.Cut(resource, "/")
		out, _ := kubetest.Kubectl(t, k, "", "auth", "can-i", verb, resource, "--subresource="+part, "--namespace", namespace, "--as", "system:serviceaccount:infra:llama")
		answer := strings.TrimSpace(out)
		require.True(t, strings.HasSuffix(answer, "yes") || strings.HasSuffix(answer, "no"), answer)
		return strings.HasSuffix(answer, "yes")
	}
	for _, resource := range []string{"pods", "inferencepools.inference.networking.k8s.io"} {
		for _, verb := range []string{"get", "list", "watch"} {
			require.Eventually(t, func() bool { return may(verb, resource, "infra") }, soon, 100*time.Millisecond, "%s %s", verb, resource)
			require.False(t, may(verb, resource, "default"), "%s %s of another namespace", verb, resource)
		}
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection"} {
			require.False(t, may(verb, resource, "infra"), "%s %s", verb, resource)
		}
	}
	for _, resource := range []string{"pods/log", "pods/exec", "secrets", "configmaps", "events", "services", "leases.coordination.k8s.io"} {
		for _, verb := range []string{"get", "list", "create"} {
			require.False(t, may(verb, resource, "infra"), "%s %s", verb, resource)
		}
	}
}

// examples/kubernetes is what the chart renders.
func TestTheBaseIsTheCharts(t *testing.T) {
	k := definitions(t)
	out, err := kubetest.Helm(t, append([]string{"template", "baton", "baton"}, pods...)...)
	require.NoError(t, err, out)
	want := base(t, out)
	if *rewrite {
		require.NoError(t, os.WriteFile(baseFile, []byte(want), 0o644))
	}
	is, err := os.ReadFile(baseFile)
	require.NoError(t, err)
	require.Equal(t, want, string(is), "run `make charts`")
	for _, at := range []string{"base", "istio"} {
		objects, err := kubetest.Kubectl(t, k, "", "kustomize", filepath.Join("..", "examples", "kubernetes", at))
		require.NoError(t, err, objects)
		accepted(t, k, objects)
	}
}

// base is what was rendered, without what only a release of Helm has.
func base(t *testing.T, rendered string) string {
	var b strings.Builder
	b.WriteString("# Written by `make charts` from charts/baton.\n")
	for _, text := range strings.Split(rendered, "\n---\n") {
		object := map[string]any{}
		require.NoError(t, yaml.Unmarshal([]byte(text), &object))
		if len(object) == 0 {
			continue
		}
		strip(object)
		out, err := yaml.Marshal(object)
		require.NoError(t, err)
		b.WriteString("---\n" + string(out))
	}
	return b.String()
}

func strip(object map[string]any) {
	for _, drop := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "checksum/config"} {
		delete(object, drop)
	}
	for name, value := range object {
		if inner, ok := value.(map[string]any); ok {
			if name == "metadata" {
				delete(inner, "namespace")
			}
			if strip(inner); len(inner) == 0 && name == "annotations" {
				delete(object, name)
			}
		}
	}
}

// TestThePickerServesWithTheChartsArguments runs the picker as the chart's pod would, on the
// pool that the chart makes.
func TestThePickerServesWithTheChartsArguments(t *testing.T) {
	k := definitions(t)
	bin := t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./cmd/extproc"))
	ports, err := stack.FreePorts(4)
	require.NoError(t, err)
	objects, err := render(t, append([]string{"--set", fmt.Sprintf("router.epp.extProcPort=%d,router.epp.grpcHealthPort=%d,router.epp.metricsPort=%d,router.epp.flags.admin=127.0.0.1:%d", ports[0], ports[1], ports[2], ports[3])}, pods...)...)
	require.NoError(t, err, objects)
	out, err := kubetest.Kubectl(t, k, objects, "apply", "--server-side", "-f", "-")
	require.NoError(t, err, out)

	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, kubetest.Kubeconfig(k, ""), 0o600))
	command := arguments(t, objects)
	require.Equal(t, []string{"/extproc", "epp"}, command[:2])
	p, err := stack.StartProgram(t.Context(), stack.ProgramOptions{
		Name: "extproc", Path: filepath.Join(bin, "extproc"), Args: append(command[1:], "--pool-namespace=infra", "--kubeconfig="+kubeconfig), // no pod says them here
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	metrics := func() string {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", ports[2]))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return string(text)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	require.Eventually(t, func() bool { return strings.Contains(metrics(), "baton_view_stale 0") }, soon, 50*time.Millisecond, p.Log)
	k.Put(kubesim.Pods(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": "llama-0", "labels": map[string]any{"app": "llama"}},
		"status":   map[string]any{"phase": "Running", "podIP": "127.0.0.1", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	})
	require.Eventually(t, func() bool { return strings.Contains(metrics(), `state="healthy"} 1`) }, soon, 50*time.Millisecond, metrics)
}

// arguments are the command and the arguments of the picker's container.
func arguments(t *testing.T, objects string) []string {
	for _, text := range strings.Split(objects, "\n---\n") {
		var d struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct{ Command, Args []string }
					}
				}
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(text), &d))
		if d.Kind == "Deployment" {
			c := d.Spec.Template.Spec.Containers[0]
			return append(c.Command, c.Args...)
		}
	}
	require.Fail(t, "no Deployment")
	return nil
}
