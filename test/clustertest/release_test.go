//go:build kube

package clustertest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/node"
	"github.com/seed-60ae5743/baton/test/stack"
)

// release is a namespace with a gateway of Istio, workers, and Baton as the chart installs it.
type release struct {
	t         *testing.T
	namespace string
	at        string // of the gateway, as http://IP
}

// newRelease makes the namespace, and the gateway. All of it goes with the test.
func newRelease(t *testing.T, namespace string) *release {
	t.Helper()
	r := &release{t: t, namespace: namespace}
	r.apply(`
apiVersion: v1
kind: Namespace
metadata: {name: NAMESPACE}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: models, namespace: NAMESPACE}
spec:
  gatewayClassName: istio
  listeners: [{name: http, port: 80, protocol: HTTP}]
`)
	t.Cleanup(func() {
		if t.Failed() {
			r.explain()
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
		defer cancel()
		if _, err := cluster.Kubectl(ctx, "", "delete", "namespace", namespace, "--wait=false"); err != nil {
			t.Error(err)
		}
		_, err := cluster.Kubectl(ctx, "", "delete", "pods", "--all", "--namespace="+namespace, "--grace-period=1", "--wait=false")
		if err != nil {
			t.Error(err)
		}
	})
	return r
}

// explain tells what a test that has failed has left.
func (r *release) explain() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), soon)
	defer cancel()
	for _, args := range [][]string{
		{"get", "pods", "--output=wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "--selector=app.kubernetes.io/name=baton", "--prefix", "--tail=30"},
		{"logs", "--selector=app=picker", "--prefix", "--tail=30"},
		{"logs", "deploy/models-istio", "--tail=30"},
		{"logs", "--selector=app=llama", "--prefix", "--tail=5"},
	} {
		out, err := cluster.Kubectl(ctx, "", append(args, "--namespace="+r.namespace)...)
		r.t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out[max(0, len(out)-5000):])
	}
}

// apply writes objects, in which NAMESPACE stands for the release's.
func (r *release) apply(objects string) {
	r.t.Helper()
	require.NoError(r.t, cluster.Apply(r.t.Context(), strings.ReplaceAll(objects, "NAMESPACE", r.namespace)))
}

func (r *release) kubectl(args ...string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), soon)
	defer cancel()
	out, err := cluster.Kubectl(ctx, "", append(args, "--namespace="+r.namespace)...)
	require.NoError(r.t, err)
	return out
}

func (r *release) await(what string, is func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), soon)
	defer cancel()
	require.NoError(r.t, stack.Await(ctx, what, is))
}

// workers makes a Deployment of simulated workers of one role. A pod serves at port 8000, and
// for some seconds after it has been told to stop, as the pods of engines have to.
func (r *release) workers(name, role string, replicas int, args ...string) {
	r.t.Helper()
	r.workersOf("llama", name, role, replicas, args...)
}

// workersOf is workers with a label app.
func (r *release) workersOf(app, name, role string, replicas int, args ...string) {
	r.t.Helper()
	quoted, err := json.Marshal(append([]string{"--role=" + role, "--listen=0.0.0.0:8000", "--kv-events-port=5557", "--replay-port=5558"}, args...))
	require.NoError(r.t, err)
	r.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: NAMESPACE}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[6]s, part: %[1]s}}
  template:
    metadata: {labels: {app: %[6]s, part: %[1]s, llm-d.ai/role: %[2]s}}
    spec:
      terminationGracePeriodSeconds: 20
      containers:
      - name: engine
        image: %[4]s
        imagePullPolicy: Never
        args: %[5]s
        env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
        ports: [{containerPort: 8000}]
        readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1, timeoutSeconds: 30}
        lifecycle: {preStop: {sleep: {seconds: 5}}}
`, name, role, replicas, node.WorkerImage, quoted, app))
}

// install installs the chart, and returns once prefill and decode are apart.
func (r *release) install(values ...string) {
	r.t.Helper()
	r.helm("install", values...)
	r.ready()
}

func (r *release) helm(what string, values ...string) {
	r.t.Helper()
	root, err := stack.Root()
	require.NoError(r.t, err)
	repository, tag, _ := strings.Cut(node.BatonImage, ":")
	_, err = cluster.Helm(r.t.Context(), append([]string{
		what, "llama", filepath.Join(root, "charts", "baton"), "--namespace=" + r.namespace,
		"--set=router.epp.image.repository=" + repository + ",router.epp.image.tag=" + tag + ",router.epp.image.pullPolicy=Never",
		"--set=router.epp.resources.requests.cpu=100m,router.epp.resources.requests.memory=64Mi", // two cores are all there is
		"--set=router.modelServers.matchLabels.app=llama",
		"--set=provider.name=istio,httpRoute.create=true,httpRoute.parentRefs[0].name=models",
	}, values...)...)
	require.NoError(r.t, err)
}

// client makes a connection of its own for each request, so that none meets one that the
// gateway has just closed.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}}
}

// complete asks for an answer of so many tokens, and returns what is wrong with it.
func (r *release) complete(ctx context.Context, prompt string, tokens int) error {
	return r.ask(ctx, prompt, tokens, false)
}

// status returns the status of an answer, 0 if there is none, and whether the pool's picker
// has seen it: with the suite's key it adds a header.
func (r *release) status(method, body string) (code int, picked bool) {
	ctx, cancel := context.WithTimeout(r.t.Context(), soon)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.at+"/any/path", strings.NewReader(body))
	require.NoError(r.t, err)
	resp, err := client().Do(req)
	if err != nil {
		return 0, false
	}
	_ = resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("X-Conformance-Test-Served-Endpoint") != ""
}

// ask is complete, by a streamed answer too.
func (r *release) ask(ctx context.Context, prompt string, tokens int, stream bool) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": prompt, "max_tokens": tokens, "stream": stream})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.at+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client().Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("status %d: %s", resp.StatusCode, said)
	}
	if stream {
		return whole(resp.Body, tokens)
	}
	answer, err := io.ReadAll(resp.Body)
	if err == nil && !strings.Contains(string(answer), fmt.Sprintf(`"completion_tokens":%d`, tokens)) {
		err = fmt.Errorf("an answer of other than %d tokens: %s", tokens, answer)
	}
	return err
}

// whole reads a streamed answer to its end, and returns what is missing in it.
func whole(body io.Reader, tokens int) error {
	events, done := 0, false
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "data: [DONE]":
			done = true
		case strings.HasPrefix(line, "data: "):
			events++
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("after %d events: %w", events, err)
	}
	if !done || events < tokens {
		return fmt.Errorf("cut after %d events of %d", events, tokens)
	}
	return nil
}

// load are requests that are sent steadily.
type load struct {
	r       *release
	cancel  context.CancelFunc
	running sync.WaitGroup
	sent    int // by the goroutine that sends

	mu     sync.Mutex
	ended  int      // guarded by mu
	failed []string // guarded by mu
}

// load sends requests until it is stopped.
func (r *release) load(perSecond int) *load {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	l := &load{r: r, cancel: cancel}
	l.running.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.sent++
				n := l.sent
				l.running.Go(func() {
					at := time.Now()
					err := r.complete(context.WithoutCancel(ctx), fmt.Sprintf("request %d under load", n), 16)
					l.mu.Lock()
					defer l.mu.Unlock()
					l.ended++
					if err != nil {
						l.failed = append(l.failed, at.Format("15:04:05.000 ")+err.Error())
					}
				})
			}
		}
	})
	return l
}

// more waits until so many more requests have ended.
func (l *load) more(n int) {
	l.r.t.Helper()
	ended := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.ended
	}
	enough := ended() + n
	l.r.await("requests to end", func() bool { return ended() >= enough })
}

// stop returns how many requests have been sent, and what has failed.
func (l *load) stop() (sent int, failed []string) {
	l.cancel()
	l.running.Wait()
	return l.sent, l.failed
}

// streams runs so many streamed answers at once, and during beside them. It returns what has
// failed.
func (r *release) streams(n, tokens int, during func()) (failed []error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			err := r.ask(context.WithoutCancel(r.t.Context()), fmt.Sprintf("a long answer %d", i), tokens, true)
			if err != nil {
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
		})
	}
	during()
	running.Wait()
	return failed
}
