package extproc

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// An answer from the own port of a rank is that of this rank, whatever rank was picked.
func TestAnAnswerFromARanksOwnPortIsThatRanks(t *testing.T) {
	r := newReplicaOf(t, "a", aggregated(routetest.Ported()), enabled)
	p := r.plainly()
	defer p.cancel()
	require.Equal(t, "127.0.0.1:40100", setHeaders(p.get(allowing("127.0.0.1:40100")))[prefill.HeaderDestination])
	p.answered("127.0.0.1:40302", ":status", "200")
	requests := func(id worker.ID, dp worker.DPRank) int32 {
		l, ok := r.book.Load(worker.Rank{ID: id, DPRank: dp})
		require.True(t, ok)
		return l.DecodeRequests
	}
	require.EqualValues(t, 1, requests(3, 2))
	require.Zero(t, requests(3, 0))
	require.Zero(t, requests(1, 0))
}

// An address that no worker has may be a tunnel in front of the picked worker. Its answers
// count for the picked worker, good or bad, and no worker counts as unreachable.
func TestATunnelInFrontOfWhomWePickedBlamesNobody(t *testing.T) {
	r := newReplicaOf(t, "a", aggregated(routetest.Workers()[:2]), enabled)
	ask := func(status string) {
		p := r.plainly()
		p.get(allowing("127.0.0.1:40000"))
		p.answered("127.0.0.1:15008", ":status", status)
		p.cancel()
		r.requireIdle() // the end of an answer is what counts
	}
	for _, status := range []string{"200", "200", "200", "200", "500", "500", "200", "500", "500"} {
		ask(status)
		require.False(t, r.srv.cfg.Health.Aside(worker.Rank{ID: 1}))
	}
	for i := 0; i < 20 && !r.srv.cfg.Health.Aside(worker.Rank{ID: 1}); i++ { // no other worker has been sent a request, so a short run may be the requests' fault
		ask("500")
	}
	require.True(t, r.srv.cfg.Health.Aside(worker.Rank{ID: 1}), "it is charged with what the tunnel answers")
	require.False(t, r.srv.cfg.Health.Aside(worker.Rank{ID: 2}))
}

// Which worker has answered is found by the address, in each way in which a worker may have
// that address.
func TestWhoHasAnsweredIsReadOfTheAddress(t *testing.T) {
	ws := aggregated(routetest.Workers())
	ws[1].DPSize, ws[2].DPSize, ws[3].DPSize, ws[3].PortPerRank = 4, 2, 3, true // 40001; 40002; 40003 to 40005
	r := newReplicaOf(t, "a", ws, enabled)
	s := &mainStream{stream: stream{srv: r.srv}}
	s.decided.take(&booked{others: []route.Destination{{Address: "127.0.0.1:40000", Rank: worker.Rank{ID: 1}}}}, 0)
	s.m = *routedBy(&leg.Plan{Decode: worker.Rank{ID: 2, DPRank: 3}, DecodeAddr: "127.0.0.1:40001,127.0.0.1:40000", Several: true})
	for at, want := range map[string]*leg.Answerer{
		"":                nil,
		"127.0.0.1:40001": nil, // the picked worker
		"worker-2:80":     nil,
		"127.0.0.1:40000": {Rank: worker.Rank{ID: 1}, Known: true},
		"127.0.0.1:40002": {Rank: worker.Rank{ID: 3}, Known: true}, // the worker has no rank 3
		"127.0.0.1:40004": {Rank: worker.Rank{ID: 4, DPRank: 1}, Known: true},
		"127.0.0.1:40009": {},
	} {
		require.Equal(t, want, s.answererOf(&notice{hints: &wire.Hints{Upstream: at}}), at)
		require.Equal(t, at, s.answered.servedBy)
	}
	s.m.Plan().Decode.DPRank = 1 // the worker has this rank behind its port, and the header names the rank
	require.Equal(t, &leg.Answerer{Rank: worker.Rank{ID: 3, DPRank: 1}, Known: true}, s.answererOf(&notice{hints: &wire.Hints{Upstream: "127.0.0.1:40002"}}))
	require.Equal(t, &leg.Answerer{}, s.answererOf(&notice{hints: &wire.Hints{Served: "9.9.9.9:9", Upstream: "127.0.0.1:40000"}}), "the protocol's word goes first")
	require.Nil(t, s.answererOf(&notice{}))
	s.m = leg.NewMain(testRules(), leg.Way{})
	require.Nil(t, s.answererOf(&notice{hints: &wire.Hints{Upstream: "127.0.0.1:40000"}}), "nobody was picked")
}

// The endpoints to try next are those that the data plane allows and whose workers read the
// header with the rank as the picked worker does.
func TestAListIsOfWhomTheDataPlaneAllowsAndTheRankFits(t *testing.T) {
	const a, b, c, d = "127.0.0.1:40000", "127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:40003"
	for _, row := range []struct {
		allow     string
		endpoints int
		ranks     [4]uint32
		want      [][]string // one of these, in any order
	}{
		{endpoints: 8, ranks: [4]uint32{1, 1, 1, 1}, want: [][]string{{a, b, c, d}}},
		{endpoints: 3, ranks: [4]uint32{1, 1, 1, 1}, want: [][]string{{a, b, c}, {a, b, d}, {a, c, d}, {b, c, d}}},
		{allow: b + "," + d, endpoints: 3, ranks: [4]uint32{1, 1, 1, 1}, want: [][]string{{b, d}}},
		{allow: b, endpoints: 3, ranks: [4]uint32{1, 1, 1, 1}, want: [][]string{{b}}},
		{endpoints: 8, ranks: [4]uint32{2, 3, 3, 2}, want: [][]string{{a, d}, {b, c}}},
		{allow: a + "," + c + "," + d, endpoints: 8, ranks: [4]uint32{2, 3, 3, 2}, want: [][]string{{a, d}, {c}}},
	} {
		ws := aggregated(routetest.Workers())
		for i, n := range row.ranks {
			ws[i].DPSize = n
		}
		r := newReplicaOf(t, "a", ws, func(c *Config) { c.Gateway = Gateway{Enabled: true, Endpoints: row.endpoints} })
		md := allowing(row.allow)
		if row.allow == "" {
			md = nil
		}
		for range 8 { // costs are equal, so each endpoint may be the first
			p := r.plainly()
			set := setHeaders(p.get(md))
			list := strings.Split(set[prefill.HeaderDestination], ",")
			_, named := set["x-worker-instance-id"]
			require.Equal(t, len(list) == 1, named, "of several, the proxy finds who gets it")
			slices.Sort(list)
			require.Contains(t, row.want, list)
			p.cancel()
		}
	}
}
