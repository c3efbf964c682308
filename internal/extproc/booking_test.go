package extproc

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// unequal starts a replica with four prefill and four decode workers of two ranks each. They
// have different loads, so that no two costs are ever equal. Costs are in blocks, since seconds
// go by the clock.
func unequal(t *testing.T) (r *replica, done func()) {
	var ws []*worker.Worker
	for _, role := range []worker.Role{worker.Prefill, worker.Decode} {
		for range 4 {
			w := *routetest.Workers()[0]
			w.ID, w.Role, w.DPSize = worker.ID(len(ws)+1), role, 2
			w.Endpoint, _ = worker.ParseEndpoint("127.0.0.1:" + string(rune('1'+len(ws))))
			ws = append(ws, &w)
		}
	}
	r = newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.Prefill.InSeconds, c.Decode.InSeconds = false, false })
	held := make([]load.Reservation, 16)
	for i := range held {
		w := ws[i/2]
		req := &load.Request{Params: &r.srv.cfg.Prefill}
		req.Pick.Role, req.Pick.ISLTokens = w.Role, 16*(1+i*7)+i
		require.NoError(t, r.book.Reserve(req, worker.Rank{ID: w.ID, DPRank: worker.DPRank(i % 2)}, 0, &held[i]))
	}
	return r, func() {
		for i := range held {
			held[i].Release(time.Now())
		}
		r.forgetLegs()
		r.requireIdle()
	}
}

// From Envoy's messages to the book: to read the bookings, to choose and to book is one step
// for both legs, also if requests come at the same time.
func TestEqualRequestsAtOnceAreRoutedAsOneByOne(t *testing.T) {
	const n = 64
	spread := func(atOnce bool) map[worker.Rank]load.Load {
		r, done := unequal(t)
		streams := make([]*proxy, n)
		for i := range streams {
			streams[i] = r.open(filterMain)
			streams[i].requestHeaders()
			require.NotNil(t, streams[i].recv().GetRequestHeaders())
		}
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i, p := range streams {
			// Of equal length, with no block in common: what a rank may hold is asked before a pick.
			body := fmt.Sprintf(`{"model":"m","prompt":[%d,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`, 100+i)
			route := func() {
				p.requestBody(body)
				if m, err := p.s.Recv(); err != nil || m.GetRequestBody() == nil {
					t.Errorf("not routed: %v %v", m, err)
				}
			}
			if !atOnce {
				route()
				continue
			}
			wg.Go(func() { <-start; route() })
		}
		close(start)
		wg.Wait()
		loads := make(map[worker.Rank]load.Load)
		for i := range 16 {
			rank := worker.Rank{ID: worker.ID(1 + i/2), DPRank: worker.DPRank(i % 2)}
			loads[rank], _ = r.book.Load(rank)
		}
		r.accessLog()
		for _, p := range streams {
			p.cancel()
		}
		done()
		return loads
	}
	want := spread(false)
	var prefills, decodes int32
	for _, l := range want {
		prefills, decodes = prefills+l.PrefillRequests, decodes+l.DecodeRequests
	}
	require.EqualValues(t, n+8, prefills)
	require.EqualValues(t, n+8, decodes)
	for range 3 {
		require.Equal(t, want, spread(true))
	}
}

// docs/behaviour.md#booked-once: prefill's booking goes when its leg ends, decode's
// when the answer does.
func TestEachBookingGoesWithItsOwnLeg(t *testing.T) {
	r := newReplica(t, "a", nil)
	main := r.open(filterMain)
	set := main.route(eightTokens)
	require.Equal(t, load.Load{PrefillTokens: 8, PrefillBlocks: 2, PrefillRequests: 1, DecodeBlocks: 2, DecodeRequests: 1}, r.book.Totals().Load)
	leg := r.open(filterPrefill)
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	leg.recv()
	leg.requestBody(eightTokens)
	leg.recv()
	leg.responseHeaders("200")
	leg.recv()
	leg.responseBody(`{"choices":[{"finish_reason":"length"}]}`)
	leg.recv()
	require.EqualValues(t, 8, r.book.Totals().PrefillTokens, "well, but not ended")
	leg.cancel()
	decodeOnly := load.Load{DecodeBlocks: 2, DecodeRequests: 1}
	require.Eventually(t, func() bool { return r.book.Totals().Load == decodeOnly }, 20*time.Second, time.Millisecond)
	main.responseHeaders("200")
	require.NotNil(t, main.recv().GetResponseHeaders())
	require.Equal(t, decodeOnly, r.book.Totals().Load)
	main.cancel()
	r.accessLog()
	r.requireIdle()
}
