//go:build e2e

package envoytest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// leaseTTL is the shortest that etcd grants.
const leaseTTL = time.Second

// etcdFleet is a fleet whose workers are found in etcd: beside each runs
// `extproc register`, as in a pod.
type etcdFleet struct {
	*fleet
	etcd      *stack.Etcd // the only member, or the first
	cluster   []*stack.Etcd
	endpoints []string
	store     *clientv3.Client
	config    string
	args      []string // of the plugin

	// tempted: decode workers could serve alone, and say so. With an aggregated
	// worker beside them, a fall to aggregated serving would go well: it must
	// not happen all the same.
	tempted bool

	mu      sync.Mutex
	members []*member // guarded by mu: all that ever were
	asked   []sent    // guarded by mu: every request
	next    int
}

// member is one pod: an engine and what registers it.
type member struct {
	role     string
	worker   *stack.Worker
	register *stack.Register
	got      []enginesim.Request // what it had been sent when it was killed
}

// withEtcd runs a test with workers that come and go by etcd (oneMode).
func withEtcd(t *testing.T, config string, test func(t *testing.T, f *etcdFleet)) {
	t.Helper()
	for _, duplex := range oneMode(t.Name()) {
		t.Run(modeName(duplex), func(t *testing.T) {
			t.Parallel()
			test(t, newEtcdFleet(t, duplex, config))
		})
	}
}

func newEtcdFleet(t *testing.T, fullDuplex bool, config string, args ...string) *etcdFleet {
	t.Helper()
	return newEtcdFleetOf(t, 1, fullDuplex, config, args...)
}

// newEtcdFleetOf is newEtcdFleet with an etcd of so many members.
func newEtcdFleetOf(t *testing.T, members int, fullDuplex bool, config string, args ...string) *etcdFleet {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &etcdFleet{
		fleet:  &fleet{t: t, dir: t.TempDir(), ctx: ctx, sent: new(atomic.Int64), fullDuplex: fullDuplex},
		config: "prefill: {orphan_grace: 200ms}\n" + config,
		args:   append([]string{"--log-level", "debug"}, args...),
	}
	t.Cleanup(func() {
		if t.Failed() && f.plugin != nil {
			f.dump()
			f.dumpRegisters()
		}
		cancel()
		f.end()
	})
	var err error
	f.cluster, err = stack.StartEtcdCluster(ctx, stack.EtcdOptions{BinDir: binDir, Dir: filepath.Join(f.dir, "etcd")}, members)
	require.NoError(t, err)
	f.etcd = f.cluster[0]
	for _, m := range f.cluster {
		f.endpoints = append(f.endpoints, m.Endpoints...)
	}
	f.store, err = clientv3.New(clientv3.Config{Endpoints: f.endpoints, DialTimeout: 2 * time.Second})
	require.NoError(t, err)
	f.fleet.plugin = f.newPlugin(f.dir, false)
	f.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{
		Path: envoyPath, Dir: f.dir, Params: envoy.Params{FullDuplex: fullDuplex, PluginSocket: f.plugin.Socket},
	})
	require.NoError(t, err)
	t.Cleanup(f.checkEtcdIdle)
	return f
}

// newPlugin starts a plugin over the fleet's etcd.
func (f *etcdFleet) newPlugin(dir string, notWait bool) *stack.Plugin {
	f.t.Helper()
	p, err := stack.StartPlugin(f.ctx, stack.PluginOptions{
		BinDir: binDir, Dir: dir, Etcd: f.endpoints, Config: f.config, Args: f.args, NotWait: notWait,
	})
	require.NoError(f.t, err)
	return p
}

// end waits for everything that the fleet's context has ended.
func (f *etcdFleet) end() {
	for _, m := range f.members {
		<-m.worker.Done()
		if m.register != nil {
			<-m.register.Done()
		}
	}
	if f.store != nil {
		_ = f.store.Close()
	}
	if f.plugin != nil {
		<-f.plugin.Done()
	}
	if f.envoy != nil {
		<-f.envoy.Done()
	}
	for _, m := range f.cluster {
		<-m.Done()
	}
}

func (f *etcdFleet) dumpRegisters() {
	for _, m := range f.members {
		if m.register != nil {
			f.t.Logf("register of %s:\n%s", m.worker.Name, lastLines(m.register.Log(), 12))
		}
	}
}

// engine starts an engine that nobody knows of yet.
func (f *etcdFleet) engine(role string, args ...string) *member {
	f.t.Helper()
	f.mu.Lock()
	f.next++
	id := 1000 + f.next
	f.mu.Unlock()
	args = append(args, "--log-requests", "20000")
	if f.tempted && role == "decode" {
		args = append(args, "--accepts-aggregated")
	}
	w, err := stack.StartWorker(f.ctx, binDir, append([]string{"--role", role, "--id", strconv.Itoa(id), "--model", "m"}, args...)...)
	require.NoError(f.t, err)
	m := &member{role: role, worker: w}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, m)
	f.workers = append(f.workers, w)
	return m
}

// announce starts `extproc register` beside an engine.
func (f *etcdFleet) announce(m *member, args ...string) {
	f.t.Helper()
	if f.tempted && m.role == "decode" {
		args = append(args, "--accepts-aggregated")
	}
	r, err := stack.StartRegister(f.ctx, stack.RegisterOptions{
		BinDir: binDir, EngineURL: "http://" + m.worker.Info.Endpoint.String(), Etcd: f.endpoints, TTL: leaseTTL,
		Args: append([]string{"--health-interval", "100ms", "--drain-settle", "100ms"}, args...),
	})
	require.NoError(f.t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	m.register = r
}

// pods starts n members of a role, at once, and waits until they are seen.
func (f *etcdFleet) pods(role string, n int, args ...string) []*member {
	f.t.Helper()
	ms := make([]*member, n)
	for i := range ms {
		ms[i] = f.engine(role, args...)
	}
	for _, m := range ms {
		f.announce(m)
	}
	f.awaitSeen(ms...)
	return ms
}

// kill is the death of a pod: nothing is said to anybody. In its last milliseconds the
// engine answers no new request, so that the test knows of each that it has answered.
func (f *etcdFleet) kill(ms ...*member) {
	f.t.Helper()
	for _, m := range ms {
		f.fault(m.worker, enginesim.Fault{Mode: enginesim.FaultHang})
		m.got = f.got(m.worker)
		if m.register != nil {
			require.NoError(f.t, m.register.Kill())
		}
		require.NoError(f.t, m.worker.Kill())
	}
	for _, m := range ms {
		<-m.worker.Done()
	}
}

// seen is what a plugin says of its workers and keys.
type seen struct {
	Problems []string `json:"problems"`
	View     struct {
		Stale  bool   `json:"stale"`
		Reason string `json:"stale_reason"`
	} `json:"view"`
	Keys []struct {
		Model      string `json:"model"`
		Activation string `json:"activation"`
		CanServe   bool   `json:"can_serve"`
	} `json:"keys"`
	Workers []struct {
		ID       string   `json:"worker_id"`
		Role     string   `json:"role"`
		Models   []string `json:"models"`
		Endpoint string   `json:"endpoint"`
		State    string   `json:"state"`
		Reason   string   `json:"reason"`
		Stale    string   `json:"stale_since"`
		Ranks    []struct {
			Requests      int   `json:"requests"`
			PrefillTokens int64 `json:"prefill_tokens"`
			DecodeBlocks  int64 `json:"decode_blocks"`
			IndexBlocks   int64 `json:"index_blocks"`
		} `json:"ranks"`
	} `json:"workers"`
}

func look(t *testing.T, p *stack.Plugin) (s seen) {
	t.Helper()
	resp, err := http.Get(p.Admin + "/debug/state")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&s))
	return s
}

func (s seen) at(endpoint string) bool {
	for _, w := range s.Workers {
		if w.Endpoint == endpoint {
			return true
		}
	}
	return false
}

func (s seen) activation() string {
	for _, k := range s.Keys {
		if k.Model == "m" {
			return k.Activation
		}
	}
	return "absent"
}

// awaitSeen waits until the plugin knows the members and nobody else that is
// dead.
func (f *etcdFleet) awaitSeen(ms ...*member) {
	f.t.Helper()
	f.await("the members to be seen", func() bool {
		s := look(f.t, f.plugin)
		return !slices.ContainsFunc(ms, func(m *member) bool { return !s.at(m.worker.Info.Endpoint.String()) })
	})
}

// awaitGone waits until the leases of the members have run out.
func (f *etcdFleet) awaitGone(ms ...*member) {
	f.t.Helper()
	f.await("the members' leases to run out", func() bool {
		s := look(f.t, f.plugin)
		return !slices.ContainsFunc(ms, func(m *member) bool { return s.at(m.worker.Info.Endpoint.String()) })
	})
}

// registrations tells when each endpoint's key was written.
type registrations struct {
	mu sync.Mutex
	at map[string]time.Time // guarded by mu: endpoint → when
}

// watchRegistrations looks at etcd itself, beside everything under test.
func (f *etcdFleet) watchRegistrations() *registrations {
	f.t.Helper()
	r := &registrations{at: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(f.ctx)
	events := f.store.Watch(ctx, "baton/v1/workers/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events
	done := make(chan struct{})
	go func() {
		defer close(done)
		for resp := range events {
			now := time.Now()
			for _, ev := range resp.Events {
				var rec struct {
					Endpoint string `json:"endpoint"`
				}
				if ev.IsCreate() && json.Unmarshal(ev.Kv.Value, &rec) == nil {
					r.mu.Lock()
					r.at[rec.Endpoint] = now
					r.mu.Unlock()
				}
			}
		}
	}()
	f.t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *registrations) of(m *member) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.at[m.worker.Info.Endpoint.String()]
	return at, ok
}

// models returns the answer to GET /v1/models.
func (f *etcdFleet) models() string {
	f.t.Helper()
	r := f.do(http.MethodGet, "/v1/models", nil, nil)
	require.Equal(f.t, http.StatusOK, r.status, r.body)
	return r.body
}

// probe returns the status of a page of the plugin's admin address.
func (f *etcdFleet) probe(path string) int {
	f.t.Helper()
	resp, err := http.Get(f.plugin.Admin + path)
	require.NoError(f.t, err)
	resp.Body.Close()
	return resp.StatusCode
}

// sent is one request of a sweep.
type sent struct {
	*reply
	prompt string
	at     time.Time
}

var prompts struct {
	sync.Mutex
	n int
}

// ask sends one short request with a prompt of its own.
func (f *etcdFleet) ask() sent {
	prompts.Lock()
	prompts.n++
	prompt := fmt.Sprintf("request number %d of a sweep", prompts.n)
	prompts.Unlock()
	s := sent{prompt: prompt, at: time.Now()}
	s.reply = f.send(f.ctx, "/v1/completions", completion(prompt, 2, false))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, s)
	return s
}

// burst sends n requests at once.
func (f *etcdFleet) burst(n int) []sent {
	out := make([]sent, n)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() { out[i] = f.ask() })
	}
	wg.Wait()
	return out
}

// requireServed checks a whole answer. How it was served is for
// requireNoneAggregated.
func (f *etcdFleet) requireServed(s sent, when string) {
	f.t.Helper()
	require.NoError(f.t, s.err, when)
	require.Equal(f.t, http.StatusOK, s.status, "%s: %s", when, s.body)
	requireAnswer(f.t, s.reply, s.prompt, 2)
}

// requireTyped checks a refusal: 503, ours, retryable.
func (f *etcdFleet) requireTyped(s sent, when string, codes ...string) {
	f.t.Helper()
	require.NoError(f.t, s.err, when)
	require.Equal(f.t, http.StatusServiceUnavailable, s.status, "%s: %s", when, s.body)
	require.NotEmpty(f.t, s.header.Get("Retry-After"), when)
	var e struct {
		Error struct{ Code string }
	}
	require.NoError(f.t, json.Unmarshal([]byte(s.body), &e), when)
	require.Contains(f.t, codes, e.Error.Code, when)
}

// requireNoneAggregated asks the engines, those that were killed included: each
// request that was served had a prefill and a decode leg with the same room, and
// no engine ever got one without a room.
func (f *etcdFleet) requireNoneAggregated() {
	f.t.Helper()
	type legs struct{ prefill, decode map[int64]bool }
	by := map[string]*legs{} // by prompt
	for _, m := range f.members {
		got := m.got
		if alive(m.worker) {
			got = f.got(m.worker)
			st, ok := f.state(m.worker)
			require.True(f.t, ok, m.worker.Name)
			require.Empty(f.t, st.Violations, m.worker.Name)
		}
		for _, r := range got {
			if r.Outcome != enginesim.OutcomeOK && !json.Valid([]byte(r.Body)) {
				continue // a leg that was ended before its body had come
			}
			require.NotEqual(f.t, int64(-1), r.Room, "%s got a request without a room: %s", m.worker.Name, r.Body)
			var body struct{ Prompt string }
			require.NoError(f.t, json.Unmarshal([]byte(r.Body), &body))
			l := by[body.Prompt]
			if l == nil {
				l = &legs{map[int64]bool{}, map[int64]bool{}}
				by[body.Prompt] = l
			}
			rooms := l.decode
			if m.role == "prefill" {
				rooms = l.prefill
			}
			rooms[r.Room] = true
		}
	}
	served := 0
	for _, s := range f.asked {
		if s.status != http.StatusOK {
			continue
		}
		served++
		l := by[s.prompt]
		require.NotNil(f.t, l, "nobody was sent %q, and yet it was answered", s.prompt)
		paired := false
		for room := range l.decode {
			paired = paired || l.prefill[room]
		}
		require.True(f.t, paired, "%q was answered without a pair of legs: %+v", s.prompt, l)
	}
	require.NotZero(f.t, served)
}

// checkEtcdIdle is checkIdle for workers that may be dead.
func (f *etcdFleet) checkEtcdIdle() {
	if f.t.Failed() {
		return
	}
	f.checkIdle()
	for _, m := range f.members {
		if m.register != nil {
			require.NotContains(f.t, m.register.Log(), "DATA RACE")
		}
	}
}

// stateLines is what two plugins must agree on.
func stateLines(s seen) string {
	var b strings.Builder
	for _, k := range s.Keys {
		fmt.Fprintf(&b, "%s %s %t\n", k.Model, k.Activation, k.CanServe)
	}
	for _, w := range s.Workers {
		fmt.Fprintf(&b, "%s %s %s\n", w.ID, w.Role, w.Endpoint)
	}
	return b.String()
}

// logLines returns the lines of a process's log that hold all of parts.
func logLines(log string, parts ...string) (out []string) {
	s := bufio.NewScanner(strings.NewReader(log))
lines:
	for s.Scan() {
		for _, p := range parts {
			if !strings.Contains(s.Text(), p) {
				continue lines
			}
		}
		out = append(out, s.Text())
	}
	return out
}
