package leg

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// On a plain gateway the count of attempts comes from the client, and is not believed:
// the request counts as a first attempt.
func TestAClientsAttemptCountSaysNothing(t *testing.T) {
	for _, c := range []struct {
		way     Way
		attempt int
	}{{Way{Speaks: PlainGateway}, 1}, {Way{Speaks: Gateway}, 3}, {Way{}, 3}} {
		m := mainOf(testRules(), c.way)
		m.Step(testStart, &Event{Kind: EventRequestHeaders, Headers: &wire.Headers{Method: "POST", Path: "/v1/completions", AttemptCount: "3"}})
		require.Equal(t, c.attempt, m.req.Attempt, "%+v", c.way)
	}
}

// On a plain gateway, headers that only a listener of ours may set are forgotten, and
// removed from the request.
func TestWhatOnlyAListenerSaysIsForgotten(t *testing.T) {
	m := mainOf(testRules(), Way{Speaks: PlainGateway})
	m.Step(testStart, &Event{Kind: EventRequestHeaders, Headers: &wire.Headers{
		Method: "POST", Path: "/v1/completions", Start: "1", Leg: "token", LocalReply: "UT",
	}})
	require.Equal(t, mainAwaitBody, m.phase, "an old start is no deadline")
	require.Equal(t, []string{"", "", ""}, []string{m.req.Headers.Start, m.req.Headers.Leg, m.req.Headers.LocalReply})
	removed := m.req.leftover(nil, m.way)
	for _, name := range []string{prefill.HeaderStart, prefill.HeaderLeg, prefill.HeaderLocalReply} {
		require.Contains(t, removed, name)
	}
}
