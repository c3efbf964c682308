package extproc

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func slowStart(c *Config) { c.StartTimeout = time.Minute }

// A request and its prefill leg go to the own port of the rank that was picked. The engine is
// told no rank, since it would look for the rank among those behind that port.
func TestALegGoesToItsRanksOwnPort(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(routetest.Ported()), func(c *Config) {
		slowStart(c)
		c.Prefill.Mode, c.Decode.Mode = picker.RoundRobin, picker.RoundRobin
	})
	var streams []*proxy
	ports := func(id, dp string) string { return "127.0.0.1:40" + id + "0" + dp }
	prefills, decodes := map[string]bool{}, map[string]bool{}
	for range 6 {
		p := r.open(filterMain)
		set := p.route(eightTokens)
		require.Equal(t, ports(set["x-worker-instance-id"], set["x-dp-rank"]), set[prefill.HeaderDestination])
		require.NotContains(t, set, "x-data-parallel-rank")
		decodes[set[prefill.HeaderDestination]] = true

		leg := r.open(filterPrefill)
		leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
		require.NotNil(t, leg.recv().GetRequestHeaders())
		leg.requestBody(eightTokens)
		to := setHeaders(leg.recv().GetRequestBody().GetResponse().GetHeaderMutation())
		require.Equal(t, ports(set["x-prefill-instance-id"], set["x-prefill-dp-rank"]), to[prefill.HeaderPrefillEndpoint])
		prefills[to[prefill.HeaderPrefillEndpoint]] = true

		d := r.srv.cfg.Journal.Recent(nil, 1)[0]
		require.Equal(t, set[prefill.HeaderDestination], d.Decode.Endpoint)
		require.Equal(t, to[prefill.HeaderPrefillEndpoint], d.Prefill.Endpoint)
		streams = append(streams, p, leg)
	}
	require.Len(t, prefills, 6, "each rank had its turn")
	require.Len(t, decodes, 6)
	for _, p := range streams {
		p.cancel()
	}
	r.forgetLegs()
	r.requireIdle()
}

// In direct mode the address says which rank is named.
func TestAnotherPickerNamesARankByItsPort(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(routetest.Ported()), slowStart)
	ask := func(headers ...string) *proxy {
		p := r.through(direct()...)
		t.Cleanup(p.cancel)
		p.requestHeaders(headers...)
		require.NotNil(t, p.recv().GetRequestHeaders())
		p.requestBody(eightTokens)
		return p
	}
	p := ask("x-gateway-destination-endpoint", "127.0.0.1:40402", "x-prefiller-host-port", "127.0.0.1:40201", "x-data-parallel-rank", "2")
	set, removed := routed(t, p.recv())
	require.Equal(t, "127.0.0.1:40402", set[prefill.HeaderDestination])
	require.Equal(t, []string{"4", "2", "2", "1"}, []string{set["x-worker-instance-id"], set["x-dp-rank"], set["x-prefill-instance-id"], set["x-prefill-dp-rank"]})
	require.Contains(t, removed, "x-data-parallel-rank", "of that port there is one")
	booked, _ := r.book.Load(worker.Rank{ID: 2, DPRank: 1})
	require.EqualValues(t, 1, booked.PrefillRequests)
	p.cancel()

	status, code, param := codeOf(t, ask("x-gateway-destination-endpoint", "127.0.0.1:40402", "x-dp-rank", "1", "x-prefiller-host-port", "127.0.0.1:40201").recv())
	require.Equal(t, []any{400, "routing_conflict", "x-dp-rank"}, []any{status, code, param})
	status, code, _ = codeOf(t, ask("x-gateway-destination-endpoint", "127.0.0.1:40403", "x-prefiller-host-port", "127.0.0.1:40201").recv())
	require.Equal(t, []any{404, "worker_unknown"}, []any{status, code})
	r.forgetLegs()
	r.requireIdle()
}

// A leg that the plugin sends itself goes to the rank's own port. A leg to a rank that its
// worker no longer has is refused.
func TestALegOfTheSynchronousWayGoesToItsRanksOwnPort(t *testing.T) {
	shared := prefillFirst(t, func(w *worker.Worker) { w.DPSize = 3 })
	own := routetest.Ported()
	for _, w := range own {
		w.Engine, w.Bootstrap = worker.VLLM, worker.Bootstrap{}
	}
	for name, tt := range map[string]struct {
		workers fixed
		rank    worker.DPRank
		want    string // "": refused
		told    bool
	}{
		"ranks that share a port":  {shared, 2, "127.0.0.1:40001", true},
		"a rank's own port":        {fixed(own), 2, "127.0.0.1:40202", false},
		"a rank that is not there": {fixed(own), 3, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplicaOf(t, "a", tt.workers, nil)
			token, err := r.srv.sealer.Seal(prefill.Leg{
				Kind: prefill.CollectLeg, Owner: r.srv.owner, Nonce: 1, Deadline: time.Now().Add(time.Minute),
				Prefill: worker.Rank{ID: 2, DPRank: tt.rank},
			})
			require.NoError(t, err)
			p := r.open(filterSync)
			defer p.cancel()
			p.requestHeaders(prefill.HeaderLeg, token)
			m := p.recv()
			if tt.want == "" {
				_, code, _ := codeOf(t, m)
				require.Equal(t, "leg_worker_gone", code)
				return
			}
			require.Equal(t, tt.want, setHeaders(m.GetRequestHeaders().GetResponse().GetHeaderMutation())[prefill.HeaderPrefillEndpoint])
			w := r.srv.view.Load().Worker(2)
			l := routedBy(new(leg.Plan))
			told := slices.Contains(l.LegHeaders(tt.rank, w.RanksPerPort(), token, ""), wire.Header{Name: "x-data-parallel-rank", Value: "2"})
			require.Equal(t, tt.told, told)
		})
	}
}
