//go:build e2e && kube

package envoytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/kubesim"
	"github.com/seed-60ae5743/baton/test/kubetest"
	"github.com/seed-60ae5743/baton/test/stack"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// reference is a fleet behind the inference extension's own picker. Picker and plugin follow
// one pool of a real apiserver: the picker chooses among its pods, and the plugin finds the
// prefill pods beside it by a selector.
type reference struct {
	*fleet
	api    kubetest.Cluster
	engine worker.Engine
	port   int // the pool's, of each worker at an address of its own
	meets  int // where prefill hands its KV over
	epp    *stack.Process
	ports  [4]int // of the picker: requests, health, metrics; and of the plugin's own legs
}

// behindReference starts one. Its layout says how many workers there are.
func behindReference(t *testing.T, engine worker.Engine, l layout) *reference {
	t.Helper()
	r := &reference{api: clusters.New(t, kubesim.Config{Resources: []kubesim.Resource{kubesim.Pools()}}), engine: engine}
	prefill, decode, alone := l.prefill, l.decode, l.aggregated
	l.prefill, l.decode, l.aggregated, l.workers, l.fullDuplex, l.twoLegs = 0, 0, 0, "none.yaml", true, alone == 0
	held, err := stack.FreePorts(t.Context(), 7)
	require.NoError(t, err)
	r.port, r.meets, r.ports = held[0], held[1], [4]int(held[2:6])
	l.listen = fmt.Sprintf("127.0.0.1:%d", held[6])
	l.config += fmt.Sprintf("prefill: {listener: \"http://127.0.0.1:%d\"}\n", r.ports[3])
	l.gateway = &envoy.GatewayParams{TLS: true, Params: envoy.Params{
		PluginSocket: "-", PluginHost: "127.0.0.1", PluginPort: r.ports[0], PrefillPort: r.ports[3],
	}}
	patch := "behind.patch.yaml"
	if alone > 0 {
		patch = "behind-one-leg.patch.yaml"
	}
	l.patch = func(config string) string { return behind(t, patch, config, l.listen) }
	l.describe = func(f *fleet) {
		r.fleet = f
		r.pool()
		for n := range prefill {
			f.prefill = append(f.prefill, r.worker(11+n, worker.Prefill, "prefill"))
		}
		for n := range decode {
			f.decode = append(f.decode, r.worker(21+n, worker.Decode, "llama"))
		}
		for n := range alone {
			f.decode = append(f.decode, r.worker(31+n, worker.Aggregated, "llama"))
		}
		f.workers = slices.Concat(f.prefill, f.decode)
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, "none.yaml"), []byte("workers: []\n"), 0o600))
		f.pools = fmt.Sprintf("{pool: llama, namespace: infra, prefill_selector: \"app=prefill\", kubeconfig: %q}", r.kubeconfig("plugin", false))
		r.startPicker(decode + alone)
	}
	r.fleet = newFleet(t, l)
	r.await("the plugin to know its workers", func() bool { return r.metric("baton_workers", `state="healthy"`) == float64(prefill+decode+alone) })
	return r
}

// behind is the example's patch with the plugin at its address. This picker names no prefill
// worker, so the plugin picks that.
func behind(t *testing.T, name, config, plugin string) string {
	t.Helper()
	patch, err := os.ReadFile("../../examples/gateway-api/" + name)
	require.NoError(t, err)
	_, port, _ := strings.Cut(plugin, ":")
	text := strings.NewReplacer(
		"port_value: 9004", "port_value: "+port,
		"{key: x-baton-routing, value: direct}", "{key: x-baton-routing, value: prerouted}",
	).Replace(string(patch))
	out, err := twolegs.Patch([]byte(config), []byte(text))
	require.NoError(t, err)
	return string(out)
}

func (r *reference) pool() { r.poolOf("llama") }

// poolOf has the pool select the pods of an app.
func (r *reference) poolOf(app string) {
	r.api.Put(kubesim.Pools(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": "llama"},
		"spec": map[string]any{
			"selector":    map[string]any{"matchLabels": map[string]any{"app": app}},
			"targetPorts": []any{map[string]any{"number": r.port}},
		},
	})
}

// worker starts a worker and its pod, which is ready.
func (r *reference) worker(n int, role worker.Role, app string) *stack.Worker {
	ip := fmt.Sprintf("127.0.77.%d", n)
	args := []string{
		"--role", role.String(), "--engine", string(r.engine), "--model", "m", "--kv-events-port=-1", "--replay-port=-1",
		fmt.Sprintf("--listen=%s:%d", ip, r.port),
	}
	if role == worker.Prefill {
		meets := "--side-channel-listen"
		if r.engine == worker.SGLang {
			meets = "--bootstrap-listen"
		}
		args = append(args, fmt.Sprintf("%s=%s:%d", meets, ip, r.meets))
	}
	w, err := stack.StartWorker(r.ctx, binDir, args...)
	require.NoError(r.t, err)
	r.pod(w, app)
	return w
}

func (r *reference) pod(w *stack.Worker, app string) {
	ip := w.Info.Endpoint.AddrPort().Addr().String()
	labels := map[string]any{"app": app}
	if w.Info.Role != worker.Aggregated {
		labels["llm-d.ai/role"] = w.Info.Role.String()
	}
	r.api.Put(kubesim.Pods(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": podOf(w), "labels": labels},
		"status": map[string]any{
			"podIP": ip, "podIPs": []any{map[string]any{"ip": ip}}, "phase": "Running",
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
		},
	})
}

func podOf(w *stack.Worker) string {
	return w.Info.Role.String() + "-" + strings.ReplaceAll(w.Info.Endpoint.AddrPort().Addr().String(), ".", "-")
}

// kubeconfig writes a file for a client: of the apiserver that may hang, or of the other one.
func (r *reference) kubeconfig(name string, front bool) string {
	text := kubetest.AdminKubeconfig(r.t, r.api)
	if front {
		text = kubetest.Kubeconfig(r.api, "")
	}
	file := filepath.Join(r.dir, name+".kubeconfig")
	require.NoError(r.t, os.WriteFile(file, text, 0o600))
	return file
}

// startPicker runs the picker with its own defaults, and waits until it knows n pods.
func (r *reference) startPicker(n int) {
	var err error
	r.epp, err = stack.StartProgram(r.ctx, stack.ProgramOptions{
		Name: "the reference picker", Path: kubetest.Tool(r.t, kubeparts.EPP), Dir: r.dir,
		Env: []string{"KUBECONFIG=" + r.kubeconfig("picker", true)},
		Args: []string{
			"--pool-name=llama", "--pool-namespace=infra",
			fmt.Sprintf("--grpc-port=%d", r.ports[0]), fmt.Sprintf("--grpc-health-port=%d", r.ports[1]), fmt.Sprintf("--metrics-port=%d", r.ports[2]),
			"--metrics-endpoint-auth=false", "--tracing=false", "--enable-pprof=false", "--zap-encoder=json", "--v=3", // 3: what it has picked
		},
	})
	require.NoError(r.t, err)
	epp := r.epp
	r.epp.KeepLog(4 << 20)
	r.t.Cleanup(func() {
		_ = epp.Kill()
		if r.t.Failed() {
			r.t.Logf("the picker's log:\n%s", lastLines(epp.Log(), 30))
		}
	})
	r.await("the picker to know its pods", func() bool {
		log := r.epp.Log()
		return strings.Count(log, `"starting collection"`) >= n && strings.Contains(log, `"gRPC server listening","name":"ext-proc"`) || !r.epp.Alive()
	})
	require.True(r.t, r.epp.Alive(), "the picker has ended")
}

// picks returns the endpoints that the picker has chosen, in order, by its own log.
func (r *reference) picks() (out []string) {
	for line := range strings.SplitSeq(r.epp.Log(), "\n") {
		var said struct{ Msg, Endpoint string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "Request handled" {
			out = append(out, said.Endpoint)
		}
	}
	return out
}

// decodedAt returns the endpoint of the only request that has been decoded.
func (r *reference) decodedAt() string {
	r.t.Helper()
	require.Len(r.t, r.ended(r.decode), 1)
	i := slices.IndexFunc(r.decode, func(w *stack.Worker) bool { return len(r.got(w)) == 1 })
	return r.decode[i].Info.Endpoint.String()
}

// TestBehindTheReferencePickerItsPickDecodes: each request is decoded at exactly the endpoint
// that the picker has chosen, and prefilled by another worker.
func TestBehindTheReferencePickerItsPickDecodes(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			r := behindReference(t, engine, layout{prefill: 2, decode: 3})
			var decoded []string
			for i := range 12 {
				r.forget()
				prompt := fmt.Sprintf("request %d of the reference picker", i)
				requireAnswer(t, r.send(t.Context(), "/v1/completions", completion(prompt, 6, i%2 == 0)), prompt, 6)
				require.Len(t, r.ended(r.prefill), 1)
				decoded = append(decoded, r.decodedAt())
			}
			require.Equal(t, r.picks(), decoded)
		})
	}
}

// sendUntil sends requests one after the other until the last picks of the picker satisfy it,
// and returns the answers.
func (r *reference) sendUntil(what string, enough func(answers []*reply) bool) (answers []*reply) {
	r.t.Helper()
	r.await(what, func() bool {
		prompt := fmt.Sprintf("request %d", len(answers))
		answers = append(answers, r.send(r.t.Context(), "/v1/completions", completion(prompt, 4, len(answers)%2 == 0)))
		return enough(answers)
	})
	return answers
}

// requireServedOr requires that each answer is whole, or the error that follows from three
// picks of the same kind.
func requireServedOr(t *testing.T, answers []*reply, status int, code string) (served int) {
	t.Helper()
	for _, a := range answers {
		require.NoError(t, a.err)
		if a.status == http.StatusOK {
			served++
			continue
		}
		requireError(t, a, status, code)
	}
	return served
}

// TestBehindTheReferencePickerADeadPickIsAskedAgain: the picker goes on to choose a worker
// that has died while its pod is still said to be ready. Each attempt asks the picker, and the
// next choice serves.
func TestBehindTheReferencePickerADeadPickIsAskedAgain(t *testing.T) {
	t.Parallel()
	r := behindReference(t, worker.VLLM, layout{prefill: 1, decode: 2, noCheck: true})
	dead := r.decode[0]
	require.NoError(t, dead.Kill())
	picked := func(w *stack.Worker) (n int) {
		for _, p := range r.picks() {
			if p == w.Info.Endpoint.String() {
				n++
			}
		}
		return n
	}
	answers := r.sendUntil("a request whose first pick was dead, and which was served", func(answers []*reply) bool {
		return len(answers) >= 8 && picked(dead) > 0 && len(r.picks()) > len(answers)
	})
	served := requireServedOr(t, answers, http.StatusServiceUnavailable, "decode_unreachable")
	require.Len(t, r.ended(r.decode[1:]), served, "by the other one")
	require.Equal(t, len(r.picks()), picked(dead)+served)
}

// TestBehindTheReferencePickerAPickThatHasLeftIsAskedAgain: the picker's view is old, and it
// chooses a pod that the plugin knows to be gone.
func TestBehindTheReferencePickerAPickThatHasLeftIsAskedAgain(t *testing.T) {
	t.Parallel()
	r := behindReference(t, worker.VLLM, layout{prefill: 1, decode: 2})
	left := r.decode[0]
	goOn := r.api.Hang()
	r.api.Delete(kubesim.Pods(), "infra", podOf(left), nil)
	r.await("the plugin to know that it is gone", func() bool { return r.metric("baton_workers", `role="decode"`) == 1 })
	answers := r.sendUntil("a pick of the pod that has left", func(answers []*reply) bool {
		return len(answers) >= 8 && len(r.picks()) > len(answers)
	})
	served := requireServedOr(t, answers, http.StatusServiceUnavailable, "worker_gone")
	require.Positive(t, served)
	require.Empty(t, r.got(left))
	require.Len(t, r.ended(r.decode[1:]), served)

	goOn()
	r.await("the picker to know it, too", func() bool {
		before := len(r.picks())
		for i := range 8 {
			requireAnswer(t, r.send(t.Context(), "/v1/completions", completion(fmt.Sprint("later ", i), 4, false)), fmt.Sprint("later ", i), 4)
		}
		return len(r.picks()) == before+8
	})
}

// TestBehindTheReferencePickerAPickOfAPrefillPodServesNothing: the pool's selector matches
// prefill pods as well.
func TestBehindTheReferencePickerAPickOfAPrefillPodServesNothing(t *testing.T) {
	t.Parallel()
	r := behindReference(t, worker.VLLM, layout{prefill: 1, decode: 1})
	r.poolOf("prefill")
	r.await("the picker to know the prefill pod", func() bool { return strings.Count(r.epp.Log(), `"starting collection"`) == 2 })
	prompt := "where to"
	before := len(r.picks())
	requireError(t, r.send(t.Context(), "/v1/completions", completion(prompt, 4, false)), http.StatusBadRequest, "worker_wrong_role")
	require.Len(t, r.picks(), before+3, "each attempt asks the picker")
	require.Empty(t, r.gotAll(r.prefill))
	require.Empty(t, r.gotAll(r.decode))
	r.poolOf("llama")
	r.await("the picker to choose a decode pod again", func() bool {
		return r.send(t.Context(), "/v1/completions", completion(prompt, 4, false)).status == http.StatusOK
	})
}

// TestBehindTheReferencePickerItsDeathServesNothing, and says so; it is served again once the
// picker is back.
func TestBehindTheReferencePickerItsDeathServesNothing(t *testing.T) {
	t.Parallel()
	r := behindReference(t, worker.SGLang, layout{prefill: 1, decode: 1})
	prompt := "is anybody there"
	requireAnswer(t, r.send(t.Context(), "/v1/completions", completion(prompt, 4, true)), prompt, 4)
	r.forget()
	require.NoError(t, r.epp.Kill())
	a := r.send(t.Context(), "/v1/completions", completion(prompt, 4, true))
	requireError(t, a, http.StatusServiceUnavailable, "router_unavailable")
	require.Empty(t, r.gotAll(r.workers))
	r.startPicker(1)
	r.await("requests to be served again", func() bool {
		return r.send(t.Context(), "/v1/completions", completion(prompt, 4, true)).status == http.StatusOK
	})
}

// TestBehindTheReferencePickerWithOneLeg: on a gateway as its control plane makes it, each
// request is served whole by the worker that the picker has chosen, and a worker that has left
// by none.
func TestBehindTheReferencePickerWithOneLeg(t *testing.T) {
	t.Parallel()
	r := behindReference(t, worker.VLLM, layout{aggregated: 2})
	var served []string
	for i := range 8 {
		r.forget()
		prompt := fmt.Sprintf("request %d of one leg", i)
		// A client's own names are stripped: they would be obeyed behind the picker.
		requireAnswer(t, r.send(t.Context(), "/v1/completions", completion(prompt, 6, i%2 == 0),
			"x-baton-picked-endpoint", "127.0.0.1:1", "X-Worker-Instance-Id", "1", "x-prefiller-host-port", "127.0.0.1:1"), prompt, 6)
		served = append(served, r.decodedAt())
	}
	require.Equal(t, r.picks(), served)

	left := r.decode[0]
	r.forget()
	goOn := r.api.Hang()
	defer goOn()
	r.api.Delete(kubesim.Pods(), "infra", podOf(left), nil)
	r.await("the plugin to know that it is gone", func() bool { return r.metric("baton_workers") == 1 })
	gone := 0
	r.sendUntil("a pick of the pod that has left", func(answers []*reply) bool {
		last := answers[len(answers)-1]
		if last.status != http.StatusOK {
			requireError(t, last, http.StatusServiceUnavailable, "worker_gone")
			gone++
		}
		return gone > 0
	})
	require.Empty(t, r.got(left))
}
