package extproc

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
)

// TestWhatALegOfOursCarriesOfItsRequest says which headers of a request a leg of the plugin's
// own carries, which it does not, and which the plugin sets.
func TestWhatALegOfOursCarriesOfItsRequest(t *testing.T) {
	t.Parallel()
	ours := []wire.Header{{Name: "x-baton-leg", Value: "sealed"}, {Name: "content-type", Value: "application/json"}, {Name: "traceparent", Value: "00-ours"}}
	for _, c := range []struct {
		why, name, value string
		as               string // name on the leg; "": not carried
	}{
		{"a tenant", "x-tenant-id", "a", "x-tenant-id"},
		{"a key", "x-api-key", "k", "x-api-key"},
		{"credentials", "authorization", "Bearer s", "authorization"},
		{"baggage of a trace", "baggage", "a=b", "baggage"},
		{"the rest of a trace", "tracestate", "v=1", "tracestate"},
		{"who sent it", "x-forwarded-for", "10.0.0.1", "x-forwarded-for"},
		{"a client's deadline", "x-request-timeout-ms", "1000", "x-request-timeout-ms"},
		{"what is accepted", "accept", "text/event-stream", "accept"},
		{"a name in capitals", "X-Team", "t", "x-team"},
		{"bytes beyond ASCII", "x-name", "M\xc3\xbcller", "x-name"},
		{"an empty value", "x-empty", "", "x-empty"},
		{"the host", ":authority", "llm.example", "host"},
		{"set by us", "traceparent", "00-client", ""},
		{"set by us", "content-type", "application/json; charset=utf-8", ""},
		{"a pseudo header", ":path", "/v1/completions", ""},
		{"of the connection", "connection", "keep-alive", ""},
		{"of the connection", "transfer-encoding", "chunked", ""},
		{"of the connection", "te", "trailers", ""},
		{"of the message", "content-length", "17", ""},
		{"of the message", "accept-encoding", "gzip", ""},
		{"of the message", "expect", "100-continue", ""},
		{"with it Go sends a leg twice", "idempotency-key", "k", ""},
		{"with it Go sends a leg twice", "X-Idempotency-Key", "k", ""},
		{"the plugin's", "x-baton-start", "1", ""},
		{"the plugin's", "x-attempt-id", "1", ""},
		{"a destination", "x-gateway-destination-endpoint", "10.0.0.1:1", ""},
		{"a destination", "x-prefiller-host-port", "10.0.0.1:1", ""},
		{"a worker's name", "x-worker-instance-id", "7", ""},
		{"a rank", "x-data-parallel-rank", "7", ""},
		{"a rank", "x-dp-rank", "7", ""},
		{"a room", "x-bootstrap-room", "7", ""},
		{"Envoy's", "x-envoy-attempt-count", "2", ""},
		{"another router's", "x-kv-cache-source-host-port", "10.0.0.1:1", ""},
		{"another router's", "target-pod", "p", ""},
		{"not to be said in HTTP/1.1", "x-lines", "a\r\nx-baton-leg: b", ""},
		{"not to be said in HTTP/1.1", "x name", "a", ""},
	} {
		all, err := proto.Marshal(wiretest.HeaderMap(c.name, c.value))
		require.NoError(t, err)
		got := carried(ours, all)
		require.Equal(t, ours, got[:len(ours)])
		if c.as == "" {
			require.Empty(t, got[len(ours):], "%s: %s", c.why, c.name)
		} else {
			require.Equal(t, []wire.Header{{Name: c.as, Value: c.value}}, got[len(ours):], "%s: %s", c.why, c.name)
		}
	}
	all, err := proto.Marshal(wiretest.HeaderMap("x-many", "1", "x-many", "2"))
	require.NoError(t, err)
	require.Equal(t, []wire.Header{{Name: "x-many", Value: "1"}, {Name: "x-many", Value: "2"}}, carried(nil, all), "one that is there twice")
}
