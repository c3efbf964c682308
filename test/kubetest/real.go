//go:build kube

package kubetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/test/kubesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// Real says which of the two the clusters of this build are.
const Real = true

// Clusters gives the tests of a package their clusters. The zero value is ready.
type Clusters struct {
	busy sync.Mutex // held by the test that has the cluster
	mu   sync.Mutex // guards the fields below
	at   *control
}

// whole returns what all tests share. The first call starts it.
func (c *Clusters) whole(t testing.TB) *control {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		at, err := startControl(t.Context())
		require.NoError(t, err)
		c.at = at
	}
	return c.at
}

func (c *Clusters) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at != nil {
		c.at.close()
		c.at = nil
	}
}

// soon bounds each step: an apiserver starts in some seconds.
const soon = 2 * time.Minute

// cluster is the shared cluster as one test has it.
type cluster struct {
	*control
	t       testing.TB
	refused map[right]bool
}

// New returns the cluster, without pods and pools, that serves until the test ends. It
// waits until another test that has it has ended.
func (c *Clusters) New(t testing.TB, cfg kubesim.Config) Cluster {
	c.busy.Lock()
	t.Cleanup(c.busy.Unlock)
	k := &cluster{c.whole(t), t, map[right]bool{}}
	if !k.front.alive() {
		require.NoError(t, k.Start())
	}
	k.resources(cfg.Resources)
	k.empty(append([]kubesim.Resource{kubesim.Pods()}, cfg.Resources...))
	k.grant()
	k.Requests()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		t.Logf("the apiserver's last lines:\n%s", k.front.last())
	})
	return k
}

// URL is where clients reach the apiserver.
func (k *cluster) URL() string { return k.front.url() }

// Token is what clients authenticate with.
func (k *cluster) Token() string { return clientToken }

// Start starts the front apiserver at its address, and returns once it is ready.
func (k *cluster) Start() error {
	if k.front.alive() {
		return errors.New("kubetest: the apiserver is started again while it runs")
	}
	ctx, cancel := k.step()
	defer cancel()
	return k.front.start(ctx)
}

// Stop kills the front apiserver.
func (k *cluster) Stop() { require.NoError(k.t, k.front.process.Kill()) }

// Hang stops the front apiserver's process until the function that it returns is called.
func (k *cluster) Hang() (goOn func()) {
	require.NoError(k.t, k.front.process.Signal(syscall.SIGSTOP))
	goOn = sync.OnceFunc(func() { require.NoError(k.t, k.front.process.Signal(syscall.SIGCONT)) })
	k.t.Cleanup(goOn)
	return goOn
}

// Compact makes etcd forget all versions before the present one. An apiserver that runs
// still has them in its memory, so it is started anew.
func (k *cluster) Compact() {
	ctx, cancel := context.WithTimeout(k.t.Context(), soon)
	defer cancel()
	runs := k.front.alive()
	if runs {
		k.Stop()
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: k.etcd.Endpoints, DialTimeout: soon})
	require.NoError(k.t, err)
	defer client.Close()
	now, err := client.Put(ctx, "/baton-test", "")
	require.NoError(k.t, err)
	_, err = client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(k.t, err)
	if runs {
		require.NoError(k.t, k.Start())
	}
}

// Refuse takes the right to a verb of a resource from the clients.
func (k *cluster) Refuse(verb, plural string) {
	k.refused[right{verb, plural}] = true
	k.grant()
}

// Allow takes a Refuse back.
func (k *cluster) Allow(verb, plural string) {
	delete(k.refused, right{verb, plural})
	k.grant()
}

// Requests returns what clients have asked for since the last call, from the audit log.
func (k *cluster) Requests() (out []kubesim.Request) {
	f, err := os.Open(k.front.audit())
	require.NoError(k.t, err)
	defer f.Close()
	_, err = f.Seek(k.front.told, 0)
	require.NoError(k.t, err)
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if err != nil { // a line that is being written is read by the next call
			return out
		}
		k.front.told += int64(len(line))
		if q, ok := asked(bytes.TrimSpace(line)); ok {
			out = append(out, q)
		}
	}
}

// asked reads a line of the audit log: a client's question for pods or pools.
func asked(line []byte) (kubesim.Request, bool) {
	var e struct {
		Verb       string
		RequestURI string
		User       struct{ Username string }
		ObjectRef  struct{ Resource, Namespace string }
	}
	if json.Unmarshal(line, &e) != nil || e.User.Username != clientUser || !slices.Contains([]string{"pods", "inferencepools"}, e.ObjectRef.Resource) {
		return kubesim.Request{}, false
	}
	at, err := url.Parse(e.RequestURI)
	if err != nil {
		return kubesim.Request{}, false
	}
	q := at.Query()
	return kubesim.Request{
		Verb: e.Verb, Resource: e.ObjectRef.Resource, Namespace: e.ObjectRef.Namespace, ResourceVersion: q.Get("resourceVersion"),
		LabelSelector: q.Get("labelSelector"), ContinueToken: q.Get("continue"), Limit: q.Get("limit"), Initial: q.Get("sendInitialEvents") == "true",
	}, true
}

// step bounds one step. It may be one of the test's end, when the test's context has ended.
func (k *cluster) step() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(k.t.Context()), soon)
}

// await waits until is says yes.
func (k *cluster) await(what string, is func(ctx context.Context) bool) {
	k.t.Helper()
	ctx, cancel := k.step()
	defer cancel()
	require.NoError(k.t, stack.Await(ctx, what, func() bool { return is(ctx) }))
}

// may reports whether clients have the right, as this apiserver sees it.
func (a *apiserver) may(ctx context.Context, verb, plural string) bool {
	group := ""
	if plural == "inferencepools" {
		group = kubesim.Pools().Group
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]any{"namespace": namespace, "verb": verb, "group": group, "resource": plural}},
	})
	if err != nil {
		return false
	}
	code, answer := a.ask(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", clientToken, body)
	var review struct{ Status struct{ Allowed bool } }
	return code == http.StatusCreated && json.Unmarshal(answer, &review) == nil && review.Status.Allowed
}
