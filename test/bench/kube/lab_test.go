//go:build kube

package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/kubesim"
	"github.com/seed-60ae5743/baton/test/kubetest"
	"github.com/seed-60ae5743/baton/test/stack"
)

// soon bounds each step.
const soon = 3 * time.Minute

// lab is what all rows share.
type lab struct {
	t          *testing.T
	root       string
	api        kubetest.Cluster
	dir        string
	kubeconfig string
	envoy      *stack.Envoy
	ports      ports
	pods       int
	round      int // of changes of the pods
}

// ports are the same for all pickers.
type ports struct {
	pods, events, replay         int
	requests, probes, page, more int // of the picker
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, api: clusters.New(t, kubesim.Config{Resources: []kubesim.Resource{kubesim.Pools()}}), dir: t.TempDir()}
	var err error
	l.root, err = stack.Root()
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(l.root, ".run", "bench"), 0o750))
	path, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	require.NoError(t, stack.Build(l.dir, "", false, "./cmd/extproc", "./test/cmd/enginesim"))
	l.kubeconfig = filepath.Join(l.dir, "kubeconfig")
	require.NoError(t, os.WriteFile(l.kubeconfig, kubetest.Kubeconfig(l.api, ""), 0o600))
	free, err := stack.FreePorts(t.Context(), 7)
	require.NoError(t, err)
	l.ports = ports{free[0], free[1], free[2], free[3], free[4], free[5], free[6]}
	l.envoy, err = stack.StartEnvoy(t.Context(), stack.EnvoyOptions{Path: path, Dir: l.dir, Gateway: &envoy.GatewayParams{
		TLS: true, OriginalDst: true,
		Params: envoy.Params{PluginSocket: "-", PluginHost: "127.0.0.1", PluginPort: l.ports.requests, FullDuplex: true},
	}})
	require.NoError(t, err)
	l.api.Put(kubesim.Pools(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": "llama"},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "llama"}}, "targetPorts": []any{map[string]any{"number": l.ports.pods}},
		},
	})
	return l
}

// fleet has the pool have n pods.
func (l *lab) fleet(n int) {
	for i := l.pods; i < n; i++ {
		l.put(i)
	}
	l.pods = n
}

// change changes each pod once.
func (l *lab) change() {
	l.round++
	for i := range l.pods {
		l.put(i)
	}
}

// put writes a pod as an engine's Deployment makes them: some 6 KB.
func (l *lab) put(i int) {
	env := make([]any, 40)
	for n := range env {
		env[n] = map[string]any{"name": fmt.Sprintf("VLLM_SETTING_%d", n), "value": strings.Repeat("x", 60)}
	}
	ip := fmt.Sprintf("127.77.%d.%d", i/250, i%250+1)
	l.api.Put(kubesim.Pods(), map[string]any{
		"metadata": map[string]any{
			"namespace": "infra", "name": fmt.Sprintf("llama-%d", i),
			"labels":      map[string]any{"app": "llama", "llm-d.ai/role": "both", "pod-template-hash": "5d4f8c7b9"},
			"annotations": map[string]any{"round": strconv.Itoa(l.round), "cni.projectcalico.org/podIPs": ip + "/32"},
		},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "vllm", "image": "vllm/vllm-openai:v0.12.0", "env": env}}},
		"status": map[string]any{
			"phase": "Running", "podIP": ip, "podIPs": []any{map[string]any{"ip": ip}},
			"conditions": []any{map[string]any{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}},
			"containerStatuses": []any{map[string]any{
				"name": "vllm", "ready": true, "restartCount": int64(0), "image": "vllm/vllm-openai:v0.12.0", "imageID": strings.Repeat("a", 100),
			}},
		},
	})
}

// worker is the process that answers for all pods.
type worker struct {
	*stack.Process
	sim enginesim.Client
}

// worker starts it. stack.StartWorker would not have a worker at all addresses.
func (l *lab) worker(events bool) worker {
	on := [2]int{-1, -1}
	if events {
		on = [2]int{l.ports.events, l.ports.replay}
	}
	p, err := stack.StartProgram(l.t.Context(), stack.ProgramOptions{
		Name: "the worker", Path: filepath.Join(l.dir, "enginesim"), Dir: l.dir,
		Args: []string{
			"--role=aggregated", "--engine=vllm", "--model=m", fmt.Sprintf("--listen=0.0.0.0:%d", l.ports.pods),
			fmt.Sprintf("--kv-events-port=%d", on[0]), fmt.Sprintf("--replay-port=%d", on[1]),
		},
	})
	require.NoError(l.t, err)
	w := worker{p, enginesim.Client{BaseURL: fmt.Sprintf("http://127.0.0.1:%d", l.ports.pods)}}
	l.await("the worker to serve", p, func(ctx context.Context) bool {
		_, err := w.sim.State(ctx, false)
		return err == nil
	})
	return w
}

// contender is a way to run a picker.
type contender struct {
	name    string
	path    func(l *lab) string
	args    func(l *lab) []string
	knows   func(m stack.Metrics) (pods int) // by them
	follows bool                             // the pods publish KV events, and the picker follows them
}

func contenders() []contender {
	baton := contender{
		name: "Baton",
		path: func(l *lab) string { return filepath.Join(l.dir, "extproc") },
		args: func(l *lab) []string {
			return []string{
				"epp", "--pool-name=llama", "--pool-namespace=infra", "--kubeconfig=" + l.kubeconfig, "--discovery-networks=127.0.0.0/8",
				fmt.Sprintf("--grpc-port=%d", l.ports.requests), fmt.Sprintf("--grpc-health-port=%d", l.ports.probes),
				fmt.Sprintf("--metrics-port=%d", l.ports.page), fmt.Sprintf("--admin=127.0.0.1:%d", l.ports.more),
			}
		},
		knows: func(m stack.Metrics) int {
			known, _ := m.Sum("baton_worker_facts", `state="known"`)
			healthy, _ := m.Sum("baton_workers", `state="healthy"`)
			return int(min(known, healthy))
		},
	}
	follows := baton
	follows.name, follows.follows = "Baton, following KV events", true
	reference := contender{
		name: "reference",
		path: func(l *lab) string { return kubetest.Tool(l.t, kubeparts.EPP) },
		args: func(l *lab) []string { // the last three as its own chart has them
			return []string{
				"--pool-name=llama", "--pool-namespace=infra", "--metrics-endpoint-auth=false",
				fmt.Sprintf("--grpc-port=%d", l.ports.requests), fmt.Sprintf("--grpc-health-port=%d", l.ports.probes), fmt.Sprintf("--metrics-port=%d", l.ports.page),
				"--zap-encoder=json", "--tracing=false", "--v=1",
			}
		},
		knows: func(m stack.Metrics) int {
			n, _ := m.Sum("inference_pool_ready_pods")
			return int(n)
		},
	}
	slow := reference
	slow.name += ", reading every 2 s"
	slow.args = func(l *lab) []string { return append(reference.args(l), "--refresh-metrics-interval=2s") }
	return []contender{baton, follows, reference, slow}
}
