package plugin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed-60ae5743/baton/test/kubesim"
)

const (
	serving    = healthv1.HealthCheckResponse_SERVING
	notServing = healthv1.HealthCheckResponse_NOT_SERVING
)

// startInCluster serves the pool infra/primary of an apiserver until the test ends.
func startInCluster(t *testing.T, k *kubesim.Server) *running {
	t.Helper()
	require.NoError(t, k.Start())
	t.Cleanup(k.Stop)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, kubesim.Kubeconfig(k.URL(), ""), 0o600))
	return serve(t, fmt.Sprintf(`listen: "127.0.0.1:0"
probes: {listen: "127.0.0.1:0"}
discovery: {networks: [127.0.0.0/8], kubernetes: [{pool: primary, namespace: infra, kubeconfig: %q}]}
`, kubeconfig))
}

func putPool(k *kubesim.Server) {
	k.Put(kubesim.Pools(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": "primary", "uid": "p"},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "llama"}}, "targetPorts": []any{map[string]any{"number": 8000}},
		},
	})
}

func putPod(k *kubesim.Server, n int, annotations map[string]any) {
	k.Put(kubesim.Pods(), map[string]any{
		"metadata": map[string]any{
			"namespace": "infra", "name": fmt.Sprintf("p-%d", n), "uid": fmt.Sprintf("uid-%d", n),
			"labels": map[string]any{"app": "llama"}, "annotations": annotations,
		},
		"status": map[string]any{"podIP": fmt.Sprintf("127.0.9.%d", n), "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	})
}

func newCluster() *kubesim.Server {
	return kubesim.New(kubesim.Config{Resources: []kubesim.Resource{kubesim.Pools()}})
}

func (r *running) isReady(want int, why string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		code, text := r.ready()
		return code == want && strings.Contains(text, why)
	}, 30*time.Second, 5*time.Millisecond, "%d %s\n%s", want, why, r.log.String())
}

// What the plugin may not read is named to a probe, and in the log; what is alive says so.
func TestWithoutARightThePluginIsNotReadyAndSaysWhich(t *testing.T) {
	k := newCluster()
	putPool(k)
	putPod(k, 1, nil)
	for _, verb := range []string{"list", "watch"} {
		k.Refuse(verb, "pods")
	}
	r := startInCluster(t, k)
	is := r.probed()
	r.isReady(503, `cannot list resource "pods" in API group "" in the namespace "infra"`)
	require.Equal(t, notServing, is("readiness"))
	require.Equal(t, serving, is("liveness"))
	require.Contains(t, r.log.String(), `cannot list resource \"pods\"`)
	for _, verb := range []string{"list", "watch"} {
		k.Allow(verb, "pods")
	}
	r.isReady(200, "")
	require.Eventually(t, func() bool { return is("readiness") == serving }, 30*time.Second, 5*time.Millisecond)
	require.Equal(t, 1, strings.Count(r.log.String(), "watch of pods in namespace infra: pods is forbidden")-strings.Count(r.log.String(), "; watch of pods in namespace infra: pods is forbidden"), r.log.String())
}

// That there is no pool is a fact: nobody is sent here until there is one.
func TestWithoutAPoolThePluginIsNotReady(t *testing.T) {
	k := newCluster()
	putPod(k, 1, nil)
	r := startInCluster(t, k)
	is := r.probed()
	r.isReady(503, "pool infra/primary does not exist")
	require.Equal(t, notServing, is(""))
	putPool(k)
	r.isReady(200, "")
	require.Eventually(t, func() bool { return is("") == serving }, 30*time.Second, 5*time.Millisecond)
	require.Eventually(t, func() bool { return len(r.shown().Workers) == 1 }, 30*time.Second, 5*time.Millisecond)
	k.Delete(kubesim.Pools(), "infra", "primary", nil)
	r.isReady(503, "pool infra/primary was deleted")
	require.Equal(t, notServing, is(""))
	require.Equal(t, serving, is("liveness"))
	require.Eventually(t, func() bool { return len(r.shown().Workers) == 0 }, 30*time.Second, 5*time.Millisecond)
}

// An outage is none: what is known is served.
func TestWithoutItsApiserverThePluginStaysReady(t *testing.T) {
	k := newCluster()
	putPool(k)
	putPod(k, 1, nil)
	r := startInCluster(t, k)
	r.isReady(200, "")
	k.Stop()
	require.Eventually(t, func() bool { return r.shown().View.Stale }, 30*time.Second, 5*time.Millisecond)
	code, _ := r.ready()
	require.Equal(t, 200, code)
	require.Contains(t, r.shown().View.StaleReason, "connection refused")
	require.Len(t, r.shown().Workers, 1)
	require.NoError(t, k.Start())
	require.Eventually(t, func() bool { return !r.shown().View.Stale }, 60*time.Second, 5*time.Millisecond)
}

// What one pod's labels and annotations say never ends the process; each fault is a line of
// the page.
func TestWhatAPodSaysIsThePodsProblemAlone(t *testing.T) {
	k := newCluster()
	putPool(k)
	putPod(k, 1, map[string]any{"baton.dev/role": "prefill", "baton.dev/engine": "vllm", "baton.dev/models": "m", "baton.dev/block-size": "16"})
	putPod(k, 2, map[string]any{"baton.dev/engine": "cobol"})
	r := startInCluster(t, k)
	r.isReady(200, "")
	problems := func() string { return strings.Join(r.shown().Problems, "\n") }
	require.Eventually(t, func() bool { return strings.Contains(problems(), "set prefill.listener") }, 30*time.Second, 5*time.Millisecond, "%s", problems())
	require.Contains(t, problems(), `pod infra/p-2 annotation baton.dev/engine: "cobol"`)
	require.Len(t, r.shown().Workers, 2)
	select {
	case err := <-r.ended:
		require.Fail(t, "the plugin has ended", "%v", err)
	default:
	}
}
