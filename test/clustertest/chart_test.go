//go:build kube

package clustertest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestTheChart: two replicas on Istio, as the chart installs them. No request fails that has a
// worker, whatever happens to workers, pool and apiserver, and as long as no picker dies
// without a word. Then no answer is cut that runs.
func TestTheChart(t *testing.T) {
	r := newRelease(t, "chart")
	r.workers("prefill", "prefill", 2, "--bootstrap-listen=$(POD_IP):8998")
	r.workers("decode", "decode", 3, "--decode-us-per-token=40000")
	r.install("--set=router.epp.replicas=2")
	for _, e := range []struct {
		name string
		do   func(*release, *load)
	}{
		{"a rolling restart", func(r *release, _ *load) {
			r.kubectl("rollout", "restart", "deployment/llama-epp")
			r.kubectl("rollout", "status", "deployment/llama-epp", "--timeout=110s")
		}},
		{"a new configuration, and an eviction in the middle of its roll-out", func(r *release, _ *load) {
			old := r.pods("app.kubernetes.io/name=baton")
			// No pod of the new configuration starts before this is taken back: the evicted one comes again as it was.
			r.kubectl("patch", "deployment/llama-epp", "--type=json", `--patch=[{"op": "add", "path": "/spec/paused", "value": true}]`)
			r.helm("upgrade", "--set=router.epp.config.engines.report_interval=3s")
			r.evictAll("app.kubernetes.io/name=baton")
			r.kubectl("patch", "deployment/llama-epp", "--type=json", `--patch=[{"op": "remove", "path": "/spec/paused"}]`)
			r.kubectl("rollout", "status", "deployment/llama-epp", "--timeout=110s")
			for _, p := range old {
				require.NotContains(r.t, r.readyPods("app.kubernetes.io/name=baton"), p.name)
			}
			r.helm("upgrade")
			r.kubectl("rollout", "status", "deployment/llama-epp", "--timeout=110s")
		}},
		{"the eviction of each picker", func(r *release, _ *load) { r.evictAll("app.kubernetes.io/name=baton") }},
		{"the eviction of each worker", func(r *release, _ *load) { r.evictAll("app=llama") }},
		{"a worker of each role is killed", func(r *release, l *load) {
			for _, part := range []string{"prefill", "decode"} {
				require.NoError(r.t, cluster.Kill(r.pods("part=" + part)[0].uid, "main"))
				l.more(100)
			}
		}},
		{"the pool's selector changes", func(r *release, l *load) {
			pods := r.pods("app=llama")
			out := slices.IndexFunc(pods, func(p pod) bool { return strings.HasPrefix(p.name, "decode") })
			for i, p := range pods {
				if i != out {
					r.kubectl("label", "pod", p.name, "generation=2")
				}
			}
			r.kubectl("patch", "inferencepool", "llama", "--type=merge", `--patch={"spec": {"selector": {"matchLabels": {"app": "llama", "generation": "2"}}}}`)
			r.await("the pod that is not selected to get no request", func() bool {
				before := r.state(pods[out]).OK
				l.more(40)
				return r.state(pods[out]).OK == before
			})
			r.kubectl("label", "pod", pods[out].name, "generation=2")
		}},
		{"the apiserver is away", func(r *release, l *load) {
			require.NoError(r.t, cluster.StopAPI())
			l.more(400)
			require.NoError(r.t, cluster.StartAPI(r.t.Context()))
		}},
	} {
		t.Run(e.name, func(t *testing.T) {
			r := r.with(t)
			l := r.load(20)
			e.do(r, l)
			l.more(100)
			sent, failed := l.stop()
			t.Logf("%d requests, %d failed", sent, len(failed))
			require.Empty(t, failed)
		})
	}
	t.Run("a picker is killed under 200 streamed answers", func(t *testing.T) {
		r := r.with(t)
		victim := r.pods("app.kubernetes.io/name=baton")[0].uid
		failed := r.streams(200, 600, func() {
			r.await("the answers to run", func() bool { return r.running("part=decode") >= 200 })
			require.NoError(t, cluster.Kill(victim, "extproc"))
		})
		require.Empty(t, failed)
	})
	t.Run("the only picker is evicted", func(t *testing.T) {
		r := r.with(t)
		key := func() string { return r.kubectl("get", "secret", "llama-epp-legs", "--output=jsonpath={.data.key}") }
		before := key()
		r.helm("upgrade", "--set=router.epp.replicas=1")
		require.Equal(t, before, key(), "an upgrade keeps the replicas' key")
		r.await("one picker to be left", func() bool { return len(r.anyPods("app.kubernetes.io/name=baton")) == 1 })
		r.awaitGone("app.kubernetes.io/name=baton")
		l := r.load(20)
		r.evictAll("app.kubernetes.io/name=baton")
		l.more(100)
		sent, failed := l.stop()
		t.Logf("%d requests, %d failed", sent, len(failed))
		if len(failed) > 0 {
			t.Logf("from %s\nto %s", failed[0], failed[len(failed)-1])
		}
		for _, f := range failed {
			require.Contains(t, f, "status 503")
		}
		require.NoError(t, r.complete(t.Context(), "after it", 4))
	})
}

// with is the release for another test.
func (r *release) with(t *testing.T) *release {
	q := *r
	q.t = t
	return &q
}

type pod struct {
	name, uid, ip string
	ready         bool
}

// pods returns the pods with the labels that are not about to end. There has to be one.
func (r *release) pods(selector string) []pod {
	r.t.Helper()
	out := r.anyPods(selector)
	require.NotEmpty(r.t, out, selector)
	return out
}

func (r *release) anyPods(selector string) (out []pod) {
	r.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name, UID, DeletionTimestamp string }
			Status   struct {
				PodIP      string
				Conditions []struct{ Type, Status string }
			}
		}
	}
	require.NoError(r.t, json.Unmarshal([]byte(r.kubectl("get", "pods", "--selector="+selector, "--output=json")), &list))
	for _, p := range list.Items {
		if p.Metadata.DeletionTimestamp == "" {
			ready := false
			for _, c := range p.Status.Conditions {
				ready = ready || c.Type == "Ready" && c.Status == "True"
			}
			out = append(out, pod{p.Metadata.Name, p.Metadata.UID, p.Status.PodIP, ready})
		}
	}
	return out
}

// readyPods returns the names of those pods that are ready.
func (r *release) readyPods(selector string) (out []string) {
	r.t.Helper()
	for _, p := range r.anyPods(selector) {
		if p.ready {
			out = append(out, p.name)
		}
	}
	return out
}

// running returns how many requests the pods run.
func (r *release) running(selector string) int {
	r.t.Helper()
	return r.sum(selector, func(s enginesim.State) int { return s.Running })
}

// evictAll evicts each pod in turn, as draining a node does, once its disruption is allowed
// and the ones before it have been replaced.
func (r *release) evictAll(selector string) {
	r.t.Helper()
	all := r.pods(selector)
	for _, p := range all {
		var refused error
		r.await("the eviction of "+p.name+" to be allowed", func() bool {
			_, refused = cluster.Kubectl(r.t.Context(), `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "`+p.name+`", "namespace": "`+r.namespace+`"}}`,
				"create", "--raw=/api/v1/namespaces/"+r.namespace+"/pods/"+p.name+"/eviction", "-f", "-")
			return refused == nil
		})
		r.await("its replacement", func() bool {
			now := r.readyPods(selector)
			return len(now) == len(all) && !slices.Contains(now, p.name)
		})
	}
}
