package plugin

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/test/kubesim"
)

// startInCluster serves the pool infra/primary of an apiserver until the test ends.
func startInCluster(t *testing.T, k *kubesim.Server, settings string) *running {
	t.Helper()
	require.NoError(t, k.Start())
	t.Cleanup(k.Stop)
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, kubesim.Kubeconfig(k.URL(), ""), 0o600))
	r := &running{t: t, log: &syncbuf.Buffer{}, ended: make(chan error, 1)}
	file := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0"}
probes: {listen: "127.0.0.1:0"}
discovery: {networks: [127.0.0.0/8], kubernetes: [{pool: primary, namespace: infra, kubeconfig: %q}]}
%s`, kubeconfig, settings), 0o600))
	c, err := config.Read(file)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	r.plugin, err = newPlugin(c, r.log)
	require.NoError(t, err)
	r.doors, err = r.plugin.open()
	require.NoError(t, err)
	r.listener, r.page = r.doors.main, r.doors.page
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.ended <- r.plugin.run(ctx, r.doors) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-r.ended)
		http.DefaultClient.CloseIdleConnections()
	})
	return r
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
	r := startInCluster(t, k, "")
	conn := dialGRPC(t, r.doors.probes.Addr().String(), nil)
	r.isReady(503, `cannot list resource "pods" in API group "" in the namespace "infra"`)
	require.Equal(t, notServing, checkHealth(t, conn, "readiness"))
	require.Equal(t, serving, checkHealth(t, conn, "liveness"))
	require.Contains(t, r.log.String(), `cannot list resource \"pods\"`)
	for _, verb := range []string{"list", "watch"} {
		k.Allow(verb, "pods")
	}
	r.isReady(200, "")
	require.Eventually(t, func() bool { return checkHealth(t, conn, "readiness") == serving }, 30*time.Second, time.Millisecond)
	require.Equal(t, 1, strings.Count(r.log.String(), "watch of pods in namespace infra: pods is forbidden")-strings.Count(r.log.String(), "; watch of pods in namespace infra: pods is forbidden"), r.log.String())
}

// That there is no pool is a fact: nobody is sent here until there is one.
func TestWithoutAPoolThePluginIsNotReady(t *testing.T) {
	k := newCluster()
	putPod(k, 1, nil)
	r := startInCluster(t, k, "")
	conn := dialGRPC(t, r.doors.probes.Addr().String(), nil)
	r.isReady(503, "pool infra/primary does not exist")
	require.Equal(t, notServing, checkHealth(t, conn, ""))
	putPool(k)
	r.isReady(200, "")
	require.Eventually(t, func() bool { return checkHealth(t, conn, "") == serving }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return len(r.plugin.board.Load().Workers()) == 1 }, 30*time.Second, time.Millisecond)
	k.Delete(kubesim.Pools(), "infra", "primary", nil)
	r.isReady(503, "pool infra/primary was deleted")
	require.Equal(t, notServing, checkHealth(t, conn, ""))
	require.Equal(t, serving, checkHealth(t, conn, "liveness"))
	require.Eventually(t, func() bool { return len(r.plugin.board.Load().Workers()) == 0 }, 30*time.Second, time.Millisecond)
}

// An outage is none: what is known is served.
func TestWithoutItsApiserverThePluginStaysReady(t *testing.T) {
	k := newCluster()
	putPool(k)
	putPod(k, 1, nil)
	r := startInCluster(t, k, "")
	r.isReady(200, "")
	k.Stop()
	require.Eventually(t, func() bool { return r.plugin.board.Load().Stale() }, 30*time.Second, time.Millisecond)
	code, _ := r.ready()
	require.Equal(t, 200, code)
	require.Contains(t, r.plugin.state().View.StaleReason, "connection refused")
	require.Len(t, r.plugin.board.Load().Workers(), 1)
	require.NoError(t, k.Start())
	require.Eventually(t, func() bool { return !r.plugin.board.Load().Stale() }, 60*time.Second, time.Millisecond)
}

// What one pod's labels and annotations say never ends the process; each fault is a line of
// the page.
func TestWhatAPodSaysIsThePodsProblemAlone(t *testing.T) {
	k := newCluster()
	putPool(k)
	putPod(k, 1, map[string]any{"baton.dev/role": "prefill", "baton.dev/engine": "vllm", "baton.dev/models": "m", "baton.dev/block-size": "16"})
	putPod(k, 2, map[string]any{"baton.dev/engine": "cobol"})
	r := startInCluster(t, k, "")
	r.isReady(200, "")
	problems := func() (all string) {
		for _, x := range r.plugin.state().Problems {
			all += x.Text + "\n"
		}
		return all
	}
	require.Eventually(t, func() bool { return strings.Contains(problems(), "set prefill.listener") }, 30*time.Second, time.Millisecond, problems())
	require.Contains(t, problems(), `pod infra/p-2 annotation baton.dev/engine: "cobol"`)
	require.Len(t, r.plugin.board.Load().Workers(), 2)
	select {
	case err := <-r.ended:
		require.Fail(t, "the plugin has ended", "%v", err)
	default:
	}
}

func TestOnePoolOfSeveralIsEnough(t *testing.T) {
	var absent bool
	p := pools{all: 2, told: func(a bool) { absent = a }}
	require.Empty(t, p.why())
	p.note("a", false, "does not exist")
	require.False(t, absent)
	p.note("b", false, "was deleted")
	require.True(t, absent)
	require.Equal(t, "pool a does not exist; pool b was deleted", p.why())
	p.note("a", true, "")
	require.False(t, absent)
	beside := pools{all: 1, beside: true, told: func(a bool) { absent = a }}
	beside.note("a", false, "does not exist")
	require.False(t, absent, "the workers of a file are served")
}
