//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// replica is one of two plugins behind one gateway. Both have the same workers and
// the same Envoy; its metrics are its own.
type replica struct {
	*fleet
	bearer string // the authorization whose requests' main legs come here; their other legs go to the other
	again  func() // starts it after its end
	blind  func() // starts it so, and its workers are not to be learnt of
}

// asked sends a question whose main leg comes to this replica.
func (r *replica) asked(q question, headers ...string) *reply {
	return r.send(r.t.Context(), q.path, q.body, append(headers, "Authorization", r.bearer)...)
}

// begun is asked for a client that can leave.
func (r *replica) begun(q question, headers ...string) *leaver {
	return r.beginWith(q, append(headers, "Authorization", r.bearer)...)
}

func (r *replica) started() float64 { return r.legs("started") }

func (r *replica) legs(outcome string) float64 {
	return r.metric("baton_prefill_legs_total", fmt.Sprintf("outcome=%q", outcome))
}

// awaitHeard waits until the owner of the newest request has heard that its leg has
// begun at the other replica.
func (r *replica) awaitHeard() {
	r.t.Helper()
	r.await("the owner to hear that the leg has begun", func() bool {
		d := r.decisions()
		return len(d) > 0 && d[0].Leg == "started"
	})
}

// operation is one of RFC 6902.
type operation struct {
	Op    string `json:"op"`
	From  string `json:"from,omitempty"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// replicated adds a second plugin to a gateway with two legs and forces the legs of
// each request apart. Who owns it, its authorization says: the only header of a
// client that a leg of the plugin's own carries too.
func replicated(t *testing.T, port int, bearer string) func(string) string {
	const clusters = "/static_resources/clusters"
	second := clusters + "/6"
	ops := []operation{
		{"test", "", clusters + "/0/name", "extproc"},
		{"copy", clusters + "/0", second, nil},
		{"replace", "", second + "/name", "extproc_b"},
		{"replace", "", second + "/load_assignment/cluster_name", "extproc_b"},
		{"replace", "", second + "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value", port},
	}
	byBearer := map[string]any{"name": "authorization", "string_match": map[string]any{"exact": bearer}}
	for i, name := range []string{"main_leg", "prefill_leg", "sync_leg"} {
		at := fmt.Sprintf("/static_resources/listeners/%d", i+1)
		hcm := at + "/filter_chains/0/filters/0/typed_config"
		filter, routes := hcm+"/http_filters/0", hcm+"/route_config/virtual_hosts/0/routes/0"
		override := routes + "/typed_per_filter_config"
		ours, theirs := "extproc", "extproc_b"
		if name != "main_leg" {
			ours, theirs = theirs, ours
		}
		ops = append(ops,
			operation{"test", "", at + "/name", name},
			operation{"test", "", filter + "/name", "envoy.filters.http.ext_proc"},
			operation{"replace", "", filter + "/typed_config/grpc_service/envoy_grpc/cluster_name", ours},
			operation{"copy", routes, routes, nil},
			operation{"add", "", routes + "/match/headers", []any{byBearer}},
			operation{"add", "", override, map[string]any{"envoy.filters.http.ext_proc": map[string]any{
				"@type":     "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
				"overrides": map[string]any{},
			}}},
			operation{"copy", filter + "/typed_config/grpc_service", override + "/envoy.filters.http.ext_proc/overrides/grpc_service", nil},
			operation{"replace", "", override + "/envoy.filters.http.ext_proc/overrides/grpc_service/envoy_grpc/cluster_name", theirs},
		)
	}
	// Each hears how the answers of its own requests end.
	logs := "/static_resources/listeners/1/filter_chains/0/filters/0/typed_config/access_log"
	not := map[string]any{"name": "authorization", "string_match": map[string]any{"exact": bearer}, "invert_match": true}
	ops = append(ops,
		operation{"copy", logs + "/0", logs + "/1", nil},
		operation{"replace", "", logs + "/1/typed_config/common_config/grpc_service/envoy_grpc/cluster_name", "extproc_b"},
		operation{"add", "", logs + "/0/filter", map[string]any{"header_filter": map[string]any{"header": not}}},
		operation{"add", "", logs + "/1/filter", map[string]any{"header_filter": map[string]any{"header": byBearer}}},
	)
	return patchedWith(t, ops)
}

func patchedWith(t *testing.T, ops []operation) func(string) string {
	return func(config string) string {
		patch, err := json.Marshal(ops)
		require.NoError(t, err)
		out, err := twolegs.Patch([]byte(config), patch)
		require.NoError(t, err)
		return string(out)
	}
}

// newReplicas runs a gateway with two plugins. prefill is members of both plugins'
// section of that name.
func newReplicas(t *testing.T, l layout, prefill string, patch func(port int, bearer string) func(string) string) (a, b *replica) {
	t.Helper()
	dir := t.TempDir()
	key, legs := filepath.Join(dir, "leg.key"), filepath.Join(dir, "prefill.sock")
	require.NoError(t, os.WriteFile(key, []byte("a key that both replicas have"), 0o600))
	ports, err := stack.FreePorts(t.Context(), 2)
	require.NoError(t, err)
	config := l.config
	at := func(i int) (listen, text string) {
		listen = fmt.Sprintf("127.0.0.1:%d", ports[i])
		return listen, fmt.Sprintf("%sprefill: {listener: %q, %s}\nleg: {key_file: %q, advertise: %q}\n", config, "unix://"+legs, prefill, key, listen)
	}
	l.listen, l.config = at(0)
	if l.gateway == nil {
		l.gateway = new(envoy.GatewayParams)
	}
	g := *l.gateway
	g.PluginSocket, g.PluginHost, g.PluginPort, g.PrefillSocket = "-", "127.0.0.1", ports[0], legs
	l.gateway = &g
	other := &fleet{}
	start := func(f *fleet, workers string, blind bool) {
		o := stack.PluginOptions{BinDir: binDir, Dir: dir, Workers: filepath.Join(f.dir, workers), Args: []string{"--log-level", "debug"}, NotWait: blind}
		o.Listen, o.Config = at(1)
		other.plugin, err = stack.StartPlugin(f.ctx, o)
		require.NoError(t, err)
	}
	l.beforeEnvoy = func(f *fleet) {
		start(f, "workers.yaml", false)
		t.Cleanup(func() { require.NoError(t, other.plugin.Kill()) })
	}
	l.patch = patch(ports[1], "Bearer b")
	f := newFleet(t, l)
	plugin := other.plugin
	*other = *f
	other.plugin = plugin
	other.listen, _ = at(1)
	t.Cleanup(other.checkIdle)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the second plugin's log:\n%s", lastLines(other.plugin.Log(), 60))
		}
	})
	again := func(workers string, blind bool) func() { return func() { start(f, workers, blind) } }
	return &replica{fleet: f, bearer: "Bearer a", again: f.startPlugin},
		&replica{fleet: other, bearer: "Bearer b", again: again("workers.yaml", false), blind: again("none.yaml", true)}
}

// eachReplica runs a test in both body modes, first with the one and then with the
// other replica as the owner of the requests.
func eachReplica(t *testing.T, l layout, prefill string, test func(t *testing.T, owner, other *replica)) {
	t.Helper()
	l.twoLegs = true
	bodyModes(t, l, func(t *testing.T, l layout) {
		a, b := newReplicas(t, l, prefill, func(port int, bearer string) func(string) string { return replicated(t, port, bearer) })
		for _, pair := range [][2]*replica{{a, b}, {b, a}} {
			pair[0].forget()
			test(t, pair[0], pair[1])
			for _, r := range pair {
				r.checkIdle()
			}
		}
	})
}

// requireApart checks that n legs more than before have come to the other replica,
// and none to the owner: mirrored ones have started there, ours were admitted.
func requireApart(t *testing.T, owner, other *replica, came string, legs func(), n float64) {
	t.Helper()
	at, there := owner.legs(came), other.legs(came)
	legs()
	require.Equal(t, at, owner.legs(came), "a leg came to its owner")
	require.GreaterOrEqual(t, other.legs(came)-there, n)
}

const takeTurns = "routing: {prefill: {mode: round-robin}, decode: {mode: round-robin}}\n"

// TestAGatewaysLegsMayMeetTwoReplicas is docs/behaviour.md#fresh-attempt, #booked-once
// and #one-decision where both replicas own requests at the same time: a leg is served
// by one who knows nothing but the seal, the owner hears how it went, and a failed
// prefill is nobody's business but theirs. Each books its own.
func TestAGatewaysLegsMayMeetTwoReplicas(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 2, config: takeTurns + "health: {server_errors: 100, probe_interval: 200ms}\n", prefillArgs: []string{"--prefill-base-us", "20000"}}
	eachReplica(t, l, "overdue_base: 2s, overdue_per_token: 0s, orphan_grace: 300ms, timeout: 3s", func(t *testing.T, owner, other *replica) {
		requireApart(t, owner, other, "started", func() {
			for _, q := range ask("two replicas serve", 4) {
				q.require(t, owner.asked(q))
			}
		}, 4)
		require.Len(t, owner.gotAll(owner.prefill), 4)
		require.Len(t, owner.gotAll(owner.decode), 4)
		for _, w := range owner.ended(owner.workers) {
			for name := range w.Headers {
				require.NotRegexp(t, "(?i)^x-baton-", name)
			}
		}

		for name, x := range map[string]enginesim.Fault{
			"500":            {Mode: enginesim.FaultError, Count: 1},
			"429":            {Mode: enginesim.FaultError, Status: http.StatusTooManyRequests, Count: 1},
			"abort":          {Mode: enginesim.FaultFinishAbort, When: enginesim.Mid, Count: 1},
			"breaks off":     {Mode: enginesim.FaultTruncate, When: enginesim.Mid, Count: 1},
			"hangs":          {Mode: enginesim.FaultHang, Count: 1},
			"port is closed": {Mode: enginesim.FaultRefuse, ForMS: 4000},
		} {
			owner.awaitServing()
			other.awaitServing()
			picks := owner.metric("baton_fresh_picks_total")
			owner.fault(owner.prefill[0], x)
			requireApart(t, owner, other, "started", func() {
				for i := range 2 { // in turn: the faulty worker is met
					q := ask(fmt.Sprintf("%s %d", name, i), 6)[(len(name)+i)%4]
					q.require(t, owner.asked(q))
				}
			}, 2)
			require.Equal(t, picks+1, owner.metric("baton_fresh_picks_total"), "%s: the fault was met, by the owner", name)
		}

		owner.awaitServing()
		owner.faultAll(owner.prefill, enginesim.Fault{Mode: enginesim.FaultHold, Count: 1})
		owner.awaitNothingBooked()
		other.awaitNothingBooked()
		q := ask("it is booked while it runs", 6)[3]
		c := owner.begun(q)
		owner.await("prefill to run", func() bool { return owner.running(owner.prefill) == 1 })
		require.EqualValues(t, 1, owner.metric("baton_worker_prefill_requests"), "prefill's booking is its owner's")
		require.EqualValues(t, 1, owner.metric("baton_worker_decode_requests"))
		require.Zero(t, other.metric("baton_worker_prefill_requests")+other.metric("baton_worker_decode_requests"))
		owner.faultAll(owner.prefill, enginesim.Fault{})
		q.require(t, <-c.reply)
	})
}

// TestReplicasReachEachOtherOverTLS: `extproc epp` serves with a certificate that it makes,
// and nobody has signed. Replicas call each other at the same port.
func TestReplicasReachEachOtherOverTLS(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, gateway: &envoy.GatewayParams{TLS: true}, config: "tls: {self_signed: true}\n"}
	eachReplica(t, l, "overdue_base: 30s", func(t *testing.T, owner, other *replica) {
		requireApart(t, owner, other, "started", func() {
			for _, q := range ask("replicas with certificates", 4) {
				q.require(t, owner.asked(q))
			}
		}, 4)
		require.Zero(t, other.metric("baton_prefill_legs_total", `outcome="report_lost"`))
	})
}

// awaitServing is awaitHealthy with requests that this replica owns: what is set
// aside is its own business too.
func (r *replica) awaitServing() {
	r.t.Helper()
	r.awaitNoSuspect()
	r.await("the prefill workers to be healthy", func() bool {
		if r.metric("baton_workers", `role="prefill"`, `state="healthy"`) == float64(len(r.prefill)) {
			return true
		}
		q := ask("in between", 1)[0]
		q.require(r.t, r.asked(q))
		return false
	})
}

// awaitNothingBooked waits for Envoy's word of how the last answer ended.
func (r *replica) awaitNothingBooked() {
	r.t.Helper()
	r.await("nothing to be booked", func() bool {
		return r.metric("baton_worker_prefill_requests")+r.metric("baton_worker_decode_requests") == 0
	})
}

// running is how many requests a group of workers runs.
func (f *fleet) running(ws []*stack.Worker) (n int) {
	for _, w := range ws {
		if s, ok := f.state(w); ok {
			n += s.Running
		}
	}
	return n
}

// TestAClientLeavesAGatewayWithTwoReplicas is docs/behaviour.md#client-leaves for
// engines that meet: decode is cancelled, prefill runs on. Its owner cannot end a leg
// at another replica: Envoy does, at the request's deadline, and until then it is
// booked.
func TestAClientLeavesAGatewayWithTwoReplicas(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, decodeArgs: []string{"--decode-us-per-token", "20000"}, prefillArgs: []string{"--prefill-base-us", "300000"}}
	eachReplica(t, l, "overdue_base: 30s, orphan_grace: 300ms", func(t *testing.T, owner, other *replica) {
		f := owner.fleet
		q := ask("leaves", 400)[2]
		state := func(w *stack.Worker) enginesim.State { s, _ := f.state(w); return s }
		begun := state(f.decode[0]).Canceled
		inTheMiddle := owner.begun(q)
		f.await("decode to stream", func() bool {
			return state(f.decode[0]).Running == 1 && state(f.prefill[0]).OK == 1
		})
		f.leaves(inTheMiddle)
		f.await("decode to be cancelled", func() bool { return state(f.decode[0]).Canceled == begun+1 })

		early := owner.begun(q, "x-request-timeout-ms", "2500")
		f.await("prefill to run", func() bool { return state(f.prefill[0]).Running == 1 })
		f.leaves(early)
		f.await("decode to be cancelled", func() bool { return state(f.decode[0]).Canceled == begun+2 })
		require.Equal(t, 1, state(f.prefill[0]).Running, "prefill runs on")
		require.EqualValues(t, 1, owner.metric("baton_worker_prefill_requests"), "booked until the leg has really ended")
		f.await("the orphan to be ended", func() bool { s := state(f.prefill[0]); return s.Running == 0 && s.KVHeldBlocks == 0 })
		require.Zero(t, other.metric("baton_worker_prefill_requests"))
	})
}

// TestAGatewaysOwnLegsMayMeetTwoReplicas is docs/behaviour.md#prefill-first,
// #first-prefill-fails, #collected and #one-decision for engines whose decode needs
// prefill's answer: another replica admits the owner's legs, those that collect
// included.
func TestAGatewaysOwnLegsMayMeetTwoReplicas(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.VLLM, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 2, decode: 2, config: takeTurns, prefillArgs: []string{"--prefill-base-us", "100000"}}, engine)
			eachReplica(t, l, "overdue_base: 30s", func(t *testing.T, owner, other *replica) {
				picks, was := owner.metric("baton_fresh_picks_total"), owner.ledger()
				requireApart(t, owner, other, "admitted", func() {
					for i, q := range ask("another replica admits", 4) {
						if i == 2 {
							owner.faultAll(owner.prefill, enginesim.Fault{Mode: enginesim.FaultError, Count: 1})
						}
						q.require(t, owner.asked(q))
					}
				}, 6)
				require.Equal(t, picks+2, owner.metric("baton_fresh_picks_total"))

				// It takes longer than a leg may take to start: the owner hears that it has.
				owner.faultAll(owner.prefill, enginesim.Fault{Mode: enginesim.FaultSlow, Factor: 13, Count: 1})
				long := ask("a long prefill", 4)[1]
				long.require(t, owner.asked(long))
				require.Equal(t, picks+2, owner.metric("baton_fresh_picks_total"))
				owner.faultAll(owner.prefill, enginesim.Fault{})
				owner.awaitNothingBooked()

				collected := func() float64 { return owner.metric("baton_prefill_legs_total", `outcome="collected"`) }
				before, first := collected(), owner.ledger().Given
				owner.faultAll(owner.prefill, enginesim.Fault{Mode: enginesim.FaultHold, Count: 1})
				c := owner.begun(ask("leaves", 300)[2])
				owner.await("prefill to run", func() bool { return owner.running(owner.prefill) == 1 })
				require.EqualValues(t, 1, owner.metric("baton_worker_prefill_requests"))
				require.Zero(t, other.metric("baton_worker_prefill_requests"))
				owner.leavesPrefill(c)
				owner.faultAll(owner.prefill, enginesim.Fault{})
				owner.await("prefill to end by itself", func() bool { return owner.ledger().Given == first+1 })
				owner.await("its KV to be collected", func() bool { return collected() == before+1 })
				owner.awaitCollected()
				h := owner.ledger()
				require.Equal(t, was.Expired, h.Expired)
				require.Zero(t, owner.metric("baton_prefill_legs_total", `outcome="refused"`)+other.metric("baton_prefill_legs_total", `outcome="refused"`))
			})
		})
	}
}
