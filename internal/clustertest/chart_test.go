//go:build kube

package clustertest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheChart: two replicas on Istio, as the chart installs them. No request fails that has a
// worker, whatever happens to pickers, workers, pool and apiserver, as long as nothing dies
// without a word.
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
		{"the eviction of each picker", func(r *release, _ *load) { r.evictAll("app.kubernetes.io/name=baton") }},
		{"the eviction of each worker", func(r *release, _ *load) { r.evictAll("app=llama") }},
		{"the pool's selector changes", func(r *release, _ *load) {
			r.kubectl("label", "pods", "--selector=app=llama", "generation=2")
			r.kubectl("patch", "inferencepool", "llama", "--type=merge", `--patch={"spec": {"selector": {"matchLabels": {"app": "llama", "generation": "2"}}}}`)
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
		failed := r.streams(200, 400, func() {
			r.await("the answers to run", func() bool { return r.running("part=decode") >= 200 })
			require.NoError(t, cluster.Kill(r.pods("app.kubernetes.io/name=baton")[0].uid, "extproc"))
		})
		require.Empty(t, failed)
	})
}

// with is the release for another test.
func (r *release) with(t *testing.T) *release {
	q := *r
	q.t = t
	return &q
}

type pod struct{ name, uid, ip string }

// pods returns the pods with the labels that are not about to end.
func (r *release) pods(selector string) (out []pod) {
	r.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name, UID, DeletionTimestamp string }
			Status   struct{ PodIP string }
		}
	}
	require.NoError(r.t, json.Unmarshal([]byte(r.kubectl("get", "pods", "--selector="+selector, "--output=json")), &list))
	for _, p := range list.Items {
		if p.Metadata.DeletionTimestamp == "" {
			out = append(out, pod{p.Metadata.Name, p.Metadata.UID, p.Status.PodIP})
		}
	}
	require.NotEmpty(r.t, out, selector)
	return out
}

// running returns how many requests the pods run.
func (r *release) running(selector string) (n int) {
	r.t.Helper()
	for _, p := range r.pods(selector) {
		n += r.state(p).Running
	}
	return n
}

// evictAll evicts each pod in turn, as draining a node does, once its disruption is allowed
// and the ones before it have been replaced.
func (r *release) evictAll(selector string) {
	r.t.Helper()
	for _, p := range r.pods(selector) {
		r.await("the eviction of "+p.name+" to be allowed", func() bool {
			_, err := cluster.Kubectl(r.t.Context(), `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "`+p.name+`", "namespace": "`+r.namespace+`"}}`,
				"create", "--raw=/api/v1/namespaces/"+r.namespace+"/pods/"+p.name+"/eviction", "-f", "-")
			return err == nil
		})
		r.kubectl("wait", "--for=condition=Available", "deployment", "--all", "--timeout=110s")
	}
}
