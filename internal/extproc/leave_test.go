package extproc

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// unsealable makes every leg token fail to be sealed.
func unsealable(c *Config) { c.Instance = strings.Repeat("x", 300) }

// TestAClientThatLeavesAfterAFailedSealLeavesNothingBooked: both picks are booked when the
// seal fails, or when the decision panics. The client may leave before it has its error, or
// after.
func TestAClientThatLeavesAfterAFailedSealLeavesNothingBooked(t *testing.T) {
	listener := func(c *Config) { unsealable(c); c.PrefillListener = "unix:///nowhere/prefill.sock" }
	silent := routetest.Workers()
	silent[0].KVEvents = worker.KVEvents{} // so that Tells is called
	for name, r := range map[string]*replica{
		"engines that meet":       newReplica(t, "a", unsealable),
		"engines that hand over":  newReplicaOf(t, "a", prefillFirst(t, nil), listener),
		"a panic after the picks": newReplicaOf(t, "a", fixed(silent), func(c *Config) { c.Tells = tellsTooMuch(c.Book) }),
	} {
		t.Run(name, func(t *testing.T) {
			waits := r.open(filterMain)
			require.EqualValues(t, 500, waits.ask(eightTokens).GetImmediateResponse().GetStatus().GetCode())
			waits.cancel()
			leaves := r.open(filterMain)
			leaves.requestHeaders()
			require.NotNil(t, leaves.recv().GetRequestHeaders())
			leaves.requestBody(eightTokens)
			leaves.cancel()
			r.requireIdle()
			require.Zero(t, r.book.Totals().PrefillTokens)
			require.Zero(t, r.book.Totals().DecodeBlocks)
		})
	}
}

// tellsTooMuch panics once both legs are booked.
func tellsTooMuch(b *load.Book) func(worker.Rank) bool {
	return func(worker.Rank) bool {
		if b.Totals().Held == 2 {
			panic("nobody knows what the rank tells")
		}
		return false
	}
}

// panics posts an event to the machine of an attempt that makes the machine panic.
func (r *replica) panics(set map[string]string) {
	r.t.Helper()
	nonce, err := strconv.ParseUint(set[prefill.HeaderAttempt], 10, 64)
	require.NoError(r.t, err)
	s := r.srv.attempts.find(nonce)
	require.NotNil(r.t, s)
	s.post(just(leg.Event{Kind: leg.EventPrefilled})) // without an answer
}

// TestAClientThatLeavesAPanickedStreamLeavesNothingBooked: in each phase of the stream, and
// whether the client leaves before the panic or after it.
func TestAClientThatLeavesAPanickedStreamLeavesNothingBooked(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.StartTimeout, c.OrphanGrace = time.Minute, time.Minute })
	legOf := func(set map[string]string) *proxy {
		leg := r.open(filterPrefill)
		leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
		require.NotNil(t, leg.recv().GetRequestHeaders())
		return leg
	}
	for name, until := range map[string]func(*proxy, map[string]string) *proxy{
		"routed":           func(*proxy, map[string]string) *proxy { return nil },
		"prefill has come": func(_ *proxy, set map[string]string) *proxy { return legOf(set) },
		"decode's headers are held": func(p *proxy, set map[string]string) *proxy {
			leg := legOf(set)
			p.responseHeaders("200")
			return leg
		},
	} {
		for _, leavesFirst := range []bool{false, true} {
			t.Run(name+", leaves first "+strconv.FormatBool(leavesFirst), func(t *testing.T) {
				p := r.open(filterMain)
				set := p.route(someBody)
				leg := until(p, set)
				require.Equal(t, 2, r.book.Totals().Held)
				if leavesFirst {
					p.cancel()
					require.Eventually(t, func() bool { return r.book.Totals().Held == 1 }, 20*time.Second, time.Millisecond, "decode is over")
				}
				r.panics(set)
				if !leavesFirst {
					require.EqualValues(t, 500, p.recv().GetImmediateResponse().GetStatus().GetCode())
					p.cancel()
				}
				r.requireIdle()
				if leg != nil {
					require.NotNil(t, leg.recv().GetImmediateResponse(), "its prefill is ended")
					leg.cancel()
				}
			})
		}
	}
}

// TestWhatIsBookedAfterAPanicIsGivenBack: an engine may still count tokens when the stream
// ends, so the decision comes later.
func TestWhatIsBookedAfterAPanicIsGivenBack(t *testing.T) {
	r := newReplica(t, "a", nil)
	params := r.srv.cfg.Prefill
	params.BlockSize = 4
	var b booked
	for _, to := range []struct {
		role worker.Role
		rank worker.Rank
		into **load.Reservation
	}{{worker.Prefill, worker.Rank{ID: 1}, &b.prefill}, {worker.Decode, worker.Rank{ID: 3}, &b.decode}} {
		req := &load.Request{Params: &params}
		req.Pick.Role, req.Pick.ISLTokens = to.role, 8
		*to.into = new(load.Reservation)
		require.NoError(t, r.book.Reserve(req, to.rank, 0, *to.into))
	}
	require.Equal(t, 2, r.book.Totals().Held)
	s := &mainStream{stream: stream{srv: r.srv, broken: true}}
	r.srv.attempts.add(7, s)
	s.handle(&notice{Event: leg.Event{Kind: leg.EventPicked, Plan: &leg.Plan{Nonce: 7}}, booked: &b})
	r.requireIdle()
}
