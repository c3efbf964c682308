//go:build e2e

package envoytest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/kubesim"
	"github.com/seed-60ae5743/baton/test/kubetest"
	"github.com/seed-60ae5743/baton/test/stack"
)

// poolFleet is a fleet whose workers are the pods of a pool. All of them have the address
// of this machine: each has a port of the pool for itself, as its annotation says.
type poolFleet struct {
	*fleet
	api kubetest.Cluster
	all []string // the workers' ports
}

func (p *poolFleet) pool(ports ...string) {
	var list []any
	for _, port := range ports {
		n, err := strconv.ParseInt(port, 10, 32)
		require.NoError(p.t, err)
		list = append(list, map[string]any{"number": n})
	}
	p.api.Put(kubesim.Pools(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": "primary", "uid": "p"},
		"spec":     map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "llama"}}, "targetPorts": list},
	})
}

// pod is a worker's pod. told: it says what its engine is.
func (p *poolFleet) pod(w *stack.Worker, told, ready, deleting bool) map[string]any {
	at := w.Info.Endpoint.AddrPort()
	notes := map[string]any{"llm-d.ai/active-ports": strconv.Itoa(int(at.Port()))}
	if told {
		notes["baton.dev/engine"], notes["baton.dev/models"] = string(w.Info.Engine), strings.Join(w.Info.Models, ",")
		notes["baton.dev/block-size"] = strconv.Itoa(int(w.Info.BlockSize))
	}
	m := map[string]any{
		"namespace": "infra", "name": "llama-" + w.Info.ID.String(), "uid": "uid-" + w.Info.ID.String(),
		"labels": map[string]any{"app": "llama"}, "annotations": notes,
	}
	if deleting {
		m["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	return map[string]any{"metadata": m, "status": map[string]any{
		"podIP": at.Addr().String(), "conditions": []any{map[string]any{"type": "Ready", "status": map[bool]string{true: "True", false: "False"}[ready]}},
	}}
}

func newPoolFleet(t *testing.T, l layout) *poolFleet {
	p := &poolFleet{api: clusters.New(t, kubesim.Config{Resources: []kubesim.Resource{kubesim.Pools()}})}
	l.aggregated, l.workers, l.config = 3, "none.yaml", "gateway: {unknown_models: pass}\n"
	l.describe = func(f *fleet) {
		p.fleet = f
		for _, w := range f.workers {
			p.all = append(p.all, strconv.Itoa(int(w.Info.Endpoint.AddrPort().Port())))
			p.api.Put(kubesim.Pods(), p.pod(w, false, true, false))
		}
		p.pool(p.all...)
		kubeconfig := filepath.Join(f.dir, "kubeconfig")
		require.NoError(t, os.WriteFile(kubeconfig, kubetest.Kubeconfig(p.api, ""), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, "none.yaml"), []byte("workers: []\n"), 0o600))
		f.pools = fmt.Sprintf("{pool: primary, namespace: infra, kubeconfig: %q}", kubeconfig)
	}
	p.fleet = newFleet(t, l)
	p.await("the pods to be workers", func() bool { return p.metric("baton_workers") == 3 })
	return p
}

// TestThePodsOfAPoolServeWhateverTheApiserverDoes: requests go on while the apiserver is
// away and comes back, pods tell their facts, pods are deleted, and the pool is edited.
// None of them fails: each has a worker.
func TestThePodsOfAPoolServeWhateverTheApiserverDoes(t *testing.T) {
	t.Parallel()
	bodyModes(t, layout{}, func(t *testing.T, l layout) {
		p := newPoolFleet(t, l)
		stop := make(chan struct{})
		var clients sync.WaitGroup
		failed := make(chan *reply, 1)
		for c := range 2 {
			clients.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					r := p.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("client %d, request %d", c, n), 3, n%2 == 0))
					if r.err != nil || r.status != 200 {
						select {
						case failed <- r:
						default:
						}
						return
					}
				}
			})
		}
		served := p.metric("baton_requests_total")
		some := func(what string) {
			t.Helper()
			served = p.metric("baton_requests_total")
			p.await("requests "+what, func() bool { return p.metric("baton_requests_total") > served+10 || len(failed) > 0 })
		}
		some("of workers that have told nothing")
		p.api.Stop()
		p.await("the view to be stale", func() bool { return p.metric("baton_view_stale") == 1 })
		some("without an apiserver")
		for _, w := range p.workers {
			p.api.Put(kubesim.Pods(), p.pod(w, true, true, false))
		}
		require.NoError(t, p.api.Start())
		p.await("the view to be fresh", func() bool { return p.metric("baton_view_stale") == 0 })
		some("of workers that have told what they are")

		leaving := p.workers[0]
		p.api.Put(kubesim.Pods(), p.pod(leaving, true, false, true))
		p.await("it to drain", func() bool { return p.metric("baton_workers", `state="draining"`) == 1 })
		some("while a pod is being deleted")
		p.api.Delete(kubesim.Pods(), "infra", "llama-"+leaving.Info.ID.String(), p.pod(leaving, true, false, true))
		p.await("it to be gone", func() bool { return p.metric("baton_workers") == 2 })
		some("when it is gone")

		p.pool(p.all[1])
		p.await("the other one to drain", func() bool { return p.metric("baton_workers", `state="draining"`) == 1 })
		some("when the pool has one port")
		p.pool(p.all...)
		p.await("both to serve", func() bool { return p.metric("baton_workers", `state="healthy"`) == 2 })
		some("when it has all of them")
		close(stop)
		clients.Wait()
		select {
		case r := <-failed:
			require.Fail(t, "a request has failed", "%v %d %s", r.err, r.status, r.body)
		default:
		}
	})
}
