package kubernetes_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/kubesim"
	"github.com/seed-60ae5743/baton/test/kubetest"
)

// soon is far longer than anything here takes on an idle machine.
const soon = 30 * time.Second

// cluster is an apiserver with a pool and the means to change its objects.
type cluster struct {
	kubetest.Cluster
	t *testing.T
}

func newCluster(t *testing.T, c kubesim.Config) *cluster {
	c.Resources = append(c.Resources, kubesim.Pools())
	return &cluster{clusters.New(t, c), t}
}

// simulated skips a test of what only a simulated apiserver can be made to do.
func simulated(t *testing.T, what string) {
	if kubetest.Real {
		t.Skip("a real apiserver cannot be made to " + what)
	}
}

// kubeconfig writes a file by which the cluster is reached.
func (k *cluster) kubeconfig(token string) string {
	path := filepath.Join(k.t.TempDir(), "kubeconfig")
	require.NoError(k.t, os.WriteFile(path, kubetest.Kubeconfig(k, token), 0o600))
	return path
}

func (k *cluster) pool(name string, labels map[string]any, ports ...int) {
	var list []any
	for _, p := range ports {
		list = append(list, map[string]any{"number": p})
	}
	k.Put(kubesim.Pools(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": name, "uid": "pool-" + name},
		"spec":     map[string]any{"selector": map[string]any{"matchLabels": labels}, "targetPorts": list},
	})
}

func llama() map[string]any { return map[string]any{"app": "llama"} }

// podObject is a pod as an apiserver has it, with much that is not read.
func podObject(n int, labels map[string]any, change ...func(o map[string]any)) map[string]any {
	o := map[string]any{
		"metadata": map[string]any{
			"namespace": "infra", "name": fmt.Sprintf("p-%d", n), "uid": fmt.Sprintf("uid-%d", n), "labels": labels,
			"managedFields": []any{map[string]any{"manager": "kubelet"}},
		},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "engine", "image": "vllm"}}},
		"status": map[string]any{
			"phase": "Running", "podIP": fmt.Sprintf("10.0.%d.%d", n/250, 1+n%250), "hostIP": "192.168.0.1",
			"conditions": []any{map[string]any{"type": "Initialized", "status": "True"}, map[string]any{"type": "Ready", "status": "True"}},
		},
	}
	for _, c := range change {
		c(o)
	}
	return o
}

func deleting(o map[string]any) {
	o["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
}

func (k *cluster) pods(numbers ...int) {
	for _, n := range numbers {
		k.Put(kubesim.Pods(), podObject(n, llama()))
	}
}

// quick is a pace without long pauses. answer is long: a busy machine is no apiserver
// that hangs.
func quick() kubernetes.Pace {
	return kubernetes.Pace{Least: 5 * time.Millisecond, Most: 50 * time.Millisecond, Answer: soon, Silence: time.Hour, Page: 3}
}

// watched1 is a view of sources that run, and what was told of presence.
type running struct {
	t    *testing.T
	view *discovery.View

	mu       sync.Mutex
	presence []string
	causes   []string
	problems []string
	notices  []string
}

// follow runs a view of the sources until the test ends.
func (k *cluster) follow(change func(c *kubernetes.Config), more ...func(c *kubernetes.Config)) *running {
	r := &running{t: k.t}
	client, err := kubernetes.Dial(kubernetes.ClientConfig{Kubeconfig: k.kubeconfig(""), Agent: "baton/test"})
	require.NoError(k.t, err)
	var sources []discovery.Named
	for i, f := range append([]func(c *kubernetes.Config){change}, more...) {
		c := kubernetes.Config{Client: client, Namespace: "infra", Pool: "primary", Pace: quick()}
		c.Presence = func(exists bool, why string) { r.note(&r.presence, fmt.Sprint(exists, why)) }
		c.Notice = func(text string) { r.note(&r.notices, text) }
		if f != nil {
			f(&c)
		}
		s, err := kubernetes.New(c)
		require.NoError(k.t, err)
		sources = append(sources, discovery.Named{Name: fmt.Sprint("kubernetes ", i, " ", c.Ref()), Source: s})
	}
	r.view, err = discovery.New(discovery.Config{Sources: sources, Hooks: discovery.Hooks{
		Transition: func(t discovery.Transition) { r.note(&r.causes, t.Cause) },
		Problem:    func(p discovery.Problem) { r.note(&r.problems, p.Key+": "+p.Text) },
	}})
	require.NoError(k.t, err)
	ctx, cancel := context.WithCancel(k.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.view.Run(ctx) }()
	k.t.Cleanup(func() {
		cancel()
		<-done
		_ = client.Close()
	})
	return r
}

func (r *running) note(to *[]string, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, text)
}

func (r *running) told(of *[]string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(*of)
}

// set is the workers as text: their endpoints, those that drain with a minus before.
func (r *running) set() (out []string) {
	for _, w := range r.view.Load().Workers() {
		text := w.Endpoint.String()
		if w.Draining {
			text = "-" + text
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

func (r *running) eventually(what string, is func() bool) {
	r.t.Helper()
	require.Eventually(r.t, is, soon, 2*time.Millisecond, "%s: %v, %+v", what, r.set(), r.view.Status())
}

func (r *running) has(endpoints ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprint(endpoints), func() bool {
		return r.view.Ready() && slices.Equal(r.set(), endpoints) && !r.view.Load().Stale()
	})
}

func (r *running) stale(why string) {
	r.t.Helper()
	r.eventually(why, func() bool {
		return r.view.Load().Stale() && strings.Contains(r.view.Status().Sources[0].LastError, why)
	})
}

// Each test of watches runs on an apiserver that tells all objects in a watch, and on an
// older one, which lists them.
func onBoth(t *testing.T, test func(t *testing.T, k *cluster)) {
	for name, old := range map[string]bool{"watch-list": false, "list": true} {
		t.Run(name, func(t *testing.T) {
			if old {
				simulated(t, "be an old one")
			}
			test(t, newCluster(t, kubesim.Config{NoWatchList: old, Bookmarks: 20 * time.Millisecond}))
		})
	}
}

func TestAPoolAndItsPodsAreFollowed(t *testing.T) {
	onBoth(t, func(t *testing.T, k *cluster) {
		k.pool("primary", llama(), 8000, 8001)
		k.pool("other", llama(), 9)
		k.pods(1, 2)
		k.Put(kubesim.Pods(), podObject(9, map[string]any{"app": "other"}))
		r := k.follow(nil)
		r.has("10.0.0.2:8000", "10.0.0.2:8001", "10.0.0.3:8000", "10.0.0.3:8001")
		k.pods(3)
		k.Put(kubesim.Pods(), podObject(1, llama(), deleting))
		k.Delete(kubesim.Pods(), "infra", "p-2", podObject(2, llama(), deleting))
		r.has("-10.0.0.2:8000", "-10.0.0.2:8001", "10.0.0.4:8000", "10.0.0.4:8001")
		k.Delete(kubesim.Pods(), "infra", "p-1", podObject(1, llama(), deleting))
		k.pool("primary", llama(), 8001)
		r.has("-10.0.0.4:8000", "10.0.0.4:8001")
		require.Equal(t, []string{"true"}, r.told(&r.presence))
		for _, q := range k.Requests() {
			if q.Resource == "pods" {
				require.Equal(t, "app=llama", q.LabelSelector)
			}
			require.Equal(t, "infra", q.Namespace)
		}
	})
}

// A fleet is listed in pages when it is listed from the store, and is whole.
func TestAListComesInPages(t *testing.T) {
	simulated(t, "list where it can watch")
	k := newCluster(t, kubesim.Config{NoWatchList: true})
	k.pool("primary", llama(), 8000)
	var want []string
	for n := range 11 {
		k.pods(n)
		want = append(want, fmt.Sprintf("10.0.0.%d:8000", 1+n))
	}
	slices.Sort(want)
	r := k.follow(nil)
	r.has(want...)
	k.Requests()
	k.Compact()
	limited := 0
	r.eventually("listed again", func() bool {
		for _, q := range k.Requests() {
			if q.Verb == "list" && q.Resource == "pods" && q.Limit == "3" {
				limited++
			}
		}
		return limited >= 4
	})
	r.has(want...)
}

// Whatever happens to the apiserver, the set stays, marked stale; afterwards it is what a
// fresh listing would be.
func TestAnOutageLeavesTheSetAsItWas(t *testing.T) {
	for name, meanwhile := range map[string]func(k *cluster){
		"nothing happens":              func(*cluster) {},
		"the versions have expired":    func(k *cluster) { k.Compact() },
		"pods come, change and go":     func(k *cluster) { k.pods(5); k.Delete(kubesim.Pods(), "infra", "p-1", nil) },
		"and the versions expire, too": func(k *cluster) { k.pods(5); k.Delete(kubesim.Pods(), "infra", "p-1", nil); k.Compact() },
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, k *cluster) {
				k.pool("primary", llama(), 8000)
				k.pods(1, 2)
				r := k.follow(nil)
				r.has("10.0.0.2:8000", "10.0.0.3:8000")
				k.Stop()
				r.stale("connection refused")
				require.Equal(t, []string{"10.0.0.2:8000", "10.0.0.3:8000"}, r.set())
				meanwhile(k)
				require.NoError(t, k.Start())
				if strings.Contains(name, "pods") || strings.Contains(name, "too") {
					// A pod that was removed without a word may still end what it has begun.
					r.eventually("fresh", func() bool {
						set := slices.DeleteFunc(r.set(), func(s string) bool { return s == "-10.0.0.2:8000" })
						return !r.view.Load().Stale() && slices.Equal(set, []string{"10.0.0.3:8000", "10.0.0.6:8000"})
					})
					return
				}
				r.has("10.0.0.2:8000", "10.0.0.3:8000")
			})
		})
	}
}

// A watch that has reached its time limit goes on where it was: that is no outage.
func TestAWatchThatEndsGoesOn(t *testing.T) {
	simulated(t, "end a watch before its time")
	onBoth(t, func(t *testing.T, k *cluster) {
		k.pool("primary", llama(), 8000)
		k.pods(1)
		r := k.follow(nil)
		r.has("10.0.0.2:8000")
		// A watch that ends within its first second counts as refused.
		require.Eventually(t, func() bool { return len(k.Requests()) == 0 }, soon, 1100*time.Millisecond)
		k.Cluster.(interface{ EndWatches() }).EndWatches()
		k.pods(2)
		r.has("10.0.0.2:8000", "10.0.0.3:8000")
		require.Zero(t, r.view.Status().Sources[0].Losses)
	})
}

func TestAnApiserverThatDoesNotAnswerIsAnOutage(t *testing.T) {
	k := newCluster(t, kubesim.Config{Bookmarks: time.Hour})
	k.pool("primary", llama(), 8000)
	k.pods(1)
	hung := k.Hang()
	r := k.follow(func(c *kubernetes.Config) { c.Pace.Answer, c.Pace.Silence = 300*time.Millisecond, 300*time.Millisecond })
	r.eventually("told", func() bool { return strings.Contains(r.view.Status().Sources[0].LastError, "no answer within 300ms") })
	require.False(t, r.view.Ready())
	hung()
	r.eventually("ready", func() bool { return slices.Equal(r.set(), []string{"10.0.0.2:8000"}) })
	hung = k.Hang()
	r.stale("no answer within 300ms")
	require.Equal(t, []string{"10.0.0.2:8000"}, r.set())
	k.pods(2)
	hung()
	r.eventually("fresh", func() bool { return slices.Equal(r.set(), []string{"10.0.0.2:8000", "10.0.0.3:8000"}) })
}

// What is refused is named by verb and resource, and told once however often it is asked.
func TestAMissingRightIsNamed(t *testing.T) {
	for _, tt := range []struct{ verb, resource string }{{"watch", "pods"}, {"list", "pods"}, {"watch", "inferencepools"}, {"list", "inferencepools"}} {
		t.Run(tt.verb+" "+tt.resource, func(t *testing.T) {
			if tt.verb == "list" {
				simulated(t, "list where it can watch")
			}
			k := newCluster(t, kubesim.Config{NoWatchList: tt.verb == "list"})
			k.pool("primary", llama(), 8000)
			k.pods(1)
			k.Refuse(tt.verb, tt.resource)
			r := k.follow(nil)
			why := fmt.Sprintf("cannot %s resource %q", tt.verb, tt.resource)
			r.eventually(why, func() bool { return strings.Contains(r.view.Status().Sources[0].LastError, why) })
			asked := 0
			require.Eventually(t, func() bool {
				for _, q := range k.Requests() {
					if q.Verb == tt.verb && q.Resource == tt.resource {
						asked++
					}
				}
				return asked > 5
			}, soon, time.Millisecond)
			said := 0
			for _, c := range r.told(&r.causes) {
				if strings.Contains(c, why) {
					said++
				}
			}
			require.LessOrEqual(t, said, 2, "once before there is a set, and once after")
			if tt.verb == "watch" {
				r.eventually("what can be listed to be served", r.view.Ready)
			} else {
				require.False(t, r.view.Ready())
			}
			k.Allow(tt.verb, tt.resource)
			r.has("10.0.0.2:8000")
		})
	}
}

func TestAClusterWithoutTheResourceIsTold(t *testing.T) {
	r := (&cluster{clusters.New(t, kubesim.Config{}), t}).follow(nil)
	r.eventually("told", func() bool {
		return strings.Contains(r.view.Status().Sources[0].LastError, "CustomResourceDefinition of InferencePool")
	})
	require.False(t, r.view.Ready())
}

// That there is no pool is a fact: the set is empty, and not stale.
func TestAPoolComesAndGoes(t *testing.T) {
	onBoth(t, func(t *testing.T, k *cluster) {
		k.pods(1)
		r := k.follow(nil)
		r.has()
		require.Equal(t, []string{"falsedoes not exist"}, r.told(&r.presence))
		k.pool("primary", llama(), 8000)
		r.has("10.0.0.2:8000")
		k.Delete(kubesim.Pools(), "infra", "primary", nil)
		r.has()
		k.pool("primary", llama(), 8001)
		r.has("10.0.0.2:8001")
		r.eventually("each is told", func() bool { return len(r.told(&r.presence)) == 4 })
		require.Equal(t, []string{"falsedoes not exist", "true", "falsewas deleted", "true"}, r.told(&r.presence))
	})
}

func TestASelectorThatChangesIsListedAnew(t *testing.T) {
	onBoth(t, func(t *testing.T, k *cluster) {
		qwen := map[string]any{"app": "qwen"}
		k.pool("primary", llama(), 8000)
		k.pods(1)
		k.Put(kubesim.Pods(), podObject(7, qwen))
		r := k.follow(nil)
		r.has("10.0.0.2:8000")
		k.pool("primary", qwen, 8000)
		r.has("-10.0.0.2:8000", "10.0.0.8:8000")
		k.Put(kubesim.Pods(), podObject(8, qwen))
		r.has("-10.0.0.2:8000", "10.0.0.8:8000", "10.0.0.9:8000")
	})
}

func TestTwoPoolsAndASelectorStandBesideEachOther(t *testing.T) {
	k := newCluster(t, kubesim.Config{})
	k.pool("primary", llama(), 8000)
	k.pods(1)
	k.Put(kubesim.Pods(), podObject(7, map[string]any{"app": "qwen"}))
	k.Put(kubesim.Pods(), podObject(8, map[string]any{"app": "phi"}))
	k.Put(kubesim.Pods(), podObject(9, map[string]any{"tier": "prefill"}))
	r := k.follow(
		func(c *kubernetes.Config) {
			c.PrefillSelector, c.PrefillPorts = map[string]string{"tier": "prefill"}, []uint16{9000}
		},
		func(c *kubernetes.Config) { c.Pool = "second" },
		func(c *kubernetes.Config) {
			c.Pool, c.Selector, c.Ports = "", map[string]string{"app": "phi"}, []uint16{1, 2}
		},
	)
	r.has("10.0.0.10:9000", "10.0.0.2:8000", "10.0.0.9:1", "10.0.0.9:2")
	k.pool("second", map[string]any{"app": "qwen"}, 8000)
	r.has("10.0.0.10:9000", "10.0.0.2:8000", "10.0.0.8:8000", "10.0.0.9:1", "10.0.0.9:2")
	roles := map[string]worker.Role{}
	for _, w := range r.view.Load().Workers() {
		roles[w.Endpoint.String()] = w.Role
	}
	require.Equal(t, worker.Prefill, roles["10.0.0.10:9000"])
	require.Equal(t, worker.Aggregated, roles["10.0.0.2:8000"])
}

// What other pickers read and Baton does not is told, once, where it is there.
func TestResourcesThatAreNotReadAreNamed(t *testing.T) {
	for name, has := range map[string][]kubesim.Resource{
		"none": nil,
		"both": {{Group: "llm-d.ai", Version: "v1alpha2", Plural: "inferenceobjectives", Kind: "InferenceObjective"}, {Group: "llm-d.ai", Version: "v1alpha2", Plural: "others", Kind: "Other"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newCluster(t, kubesim.Config{Resources: has})
			k.pool("primary", llama(), 8000)
			r := k.follow(nil)
			r.has()
			if has == nil { // that it was looked for, the package's own test holds
				require.Empty(t, r.told(&r.notices))
				return
			}
			r.eventually("told", func() bool { return len(r.told(&r.notices)) > 0 })
			require.Equal(t, []string{"the cluster has resources that are not read here: InferenceObjective (llm-d.ai/v1alpha2)"}, r.told(&r.notices))
		})
	}
}

// The token is read from its file: the kubelet replaces it.
func TestTheTokenIsThatOfTheFile(t *testing.T) {
	k := newCluster(t, kubesim.Config{Token: func() string { return "secret" }})
	k.pool("primary", llama(), 8000)
	k.pods(1)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(k.Token()+"\n"), 0o600))
	client, err := kubernetes.Dial(kubernetes.ClientConfig{Kubeconfig: k.kubeconfig(file)})
	require.NoError(t, err)
	r := k.follow(func(c *kubernetes.Config) { c.Client = client })
	r.has("10.0.0.2:8000")
	t.Cleanup(func() { _ = client.Close() })
}
