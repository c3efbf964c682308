package extproc

import (
	"strconv"
	"testing"
	"time"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry"

	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// names is an unrouted with a clock and an access log.
type names struct {
	t   *testing.T
	srv *Server
	now time.Time
}

func newNames(t *testing.T) *names {
	return &names{t, &Server{bodies: budget.New(0), attempts: newRegistry(), unrouted: newUnrouted(), cfg: Config{Telemetry: new(telemetry.Instruments)}}, testStart}
}

// come returns a main leg that has come.
func (n *names) come(id string, attempt int) *mainStream {
	s := &mainStream{m: leg.NewMain(testRules(), leg.Way{})}
	s.m.Step(testStart, &leg.Event{Kind: leg.EventRequestHeaders, Headers: &wire.Headers{RequestID: id, AttemptCount: strconv.Itoa(attempt)}})
	n.srv.unrouted.come(s, nameOfAttempt(s.m.Request()), n.now)
	return s
}

func (n *names) leave(s *mainStream, late bool) {
	n.srv.unrouted.leave(nameOfAttempt(s.m.Request()), late, n.now)
}

// logged returns the main leg that an entry of the access log finds.
func (n *names) logged(id string, headers ...string) *mainStream {
	h := make(map[string]string)
	for i := 0; i < len(headers); i += 2 {
		h[headers[i]] = headers[i+1]
	}
	e := wire.EntryOf(&datav3.HTTPAccessLogEntry{Request: &datav3.HTTPRequestProperties{RequestId: id, RequestHeaders: h}})
	return (&accessLog{srv: n.srv}).find(&e)
}

func TestAnAttemptThatEnvoyDidNotRouteIsFoundByItsName(t *testing.T) {
	n := newNames(t)
	first, second, other := n.come("a", 1), n.come("a", 2), n.come("b", 1)
	require.Same(t, first, n.logged("a", wire.HeaderAttemptCount, "1"))
	require.Same(t, second, n.logged("a", wire.HeaderAttemptCount, "2"))
	require.Nil(t, n.logged("a", wire.HeaderAttemptCount, "3"))
	require.Same(t, other, n.logged("b", wire.HeaderAttemptCount, "1"))
	require.Nil(t, n.logged("a"), "a configuration that logs no count")
	require.Nil(t, n.logged("", wire.HeaderAttemptCount, "1"))
	require.Nil(t, n.logged("a", wire.HeaderAttemptCount, "1", prefill.HeaderAttempt, "7"), "it was routed, and is no attempt of ours")
	for _, s := range []*mainStream{first, second, other} {
		n.leave(s, false)
	}
	require.Nil(t, n.logged("a", wire.HeaderAttemptCount, "1"))
	require.Empty(t, n.srv.unrouted.m)
}

// Clients may choose request ids. The log of an attempt that Envoy did not route must not
// prove that the decode worker of another attempt has not seen the hand-off.
func TestTheLogOfAnotherRequestOfTheSameNameIsNotBelieved(t *testing.T) {
	found := func(n *names) *mainStream { return n.logged("a", wire.HeaderAttemptCount, "1") }
	t.Run("while both are here", func(t *testing.T) {
		n := newNames(t)
		n.come("a", 1)
		n.come("a", 1)
		require.Nil(t, found(n))
	})
	t.Run("when the other has left and is still to be logged", func(t *testing.T) {
		n := newNames(t)
		n.come("a", 1)
		n.leave(n.come("a", 1), true)
		require.Nil(t, found(n))
	})
	t.Run("when one of two that leave was the last but one", func(t *testing.T) {
		n := newNames(t)
		first, second := n.come("a", 1), n.come("a", 1)
		n.leave(second, false)
		n.come("a", 1)
		require.Nil(t, found(n), "the first is still here")
		n.leave(first, false)
		require.Nil(t, found(n), "of three none")
	})
	t.Run("when the other left before, and its log may come late", func(t *testing.T) {
		for _, wait := range []time.Duration{0, leg.LogWait, nameWait} {
			n := newNames(t)
			n.leave(n.come("b", 1), true) // unrouted drops old names at some time
			n.now = n.now.Add(nameWait - time.Millisecond)
			n.leave(n.come("a", 1), true)
			n.now = n.now.Add(wait)
			n.come("a", 1)
			require.Nil(t, found(n), "%s", wait)
		}
	})
	t.Run("but not for ever", func(t *testing.T) {
		n := newNames(t)
		n.leave(n.come("a", 1), true)
		n.now = n.now.Add(2 * nameWait)
		s := n.come("a", 1)
		require.Same(t, s, found(n))
	})
	t.Run("and not where its log says that it was routed", func(t *testing.T) {
		n := newNames(t)
		n.leave(n.come("a", 1), false)
		s := n.come("a", 1)
		require.Same(t, s, found(n))
	})
}
