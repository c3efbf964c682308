package extproc

import (
	"testing"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

func TestAnAttemptThatEnvoyDidNotRouteIsFoundByItsName(t *testing.T) {
	named := func(id string, attempt int) *mainStream {
		s := &mainStream{}
		s.m.hdr.requestID, s.m.attempt = id, attempt
		return s
	}
	srv := &Server{attempts: newRegistry(), unrouted: unrouted{m: make(map[attemptName]*mainStream)}}
	log := &accessLog{srv: srv}
	entry := func(id string, headers ...string) *datav3.HTTPRequestProperties {
		h := make(map[string]string)
		for i := 0; i < len(headers); i += 2 {
			h[headers[i]] = headers[i+1]
		}
		return &datav3.HTTPRequestProperties{RequestId: id, RequestHeaders: h}
	}
	first, second, nameless := named("a", 1), named("a", 2), named("", 1)
	for _, s := range []*mainStream{first, second, nameless} {
		srv.unrouted.add(s)
	}
	require.Same(t, first, log.find(entry("a", headerAttemptCount, "1")))
	require.Same(t, second, log.find(entry("a", headerAttemptCount, "2")))
	require.Nil(t, log.find(entry("a", headerAttemptCount, "3")))
	require.Nil(t, log.find(entry("b", headerAttemptCount, "1")))
	require.Nil(t, log.find(entry("a")), "a configuration that logs no count")
	require.Nil(t, log.find(entry("", headerAttemptCount, "1")))
	require.Nil(t, log.find(entry("a", headerAttemptCount, "1", prefill.HeaderAttempt, "7")), "it was routed, and is no attempt of ours")

	twin := named("a", 1)
	srv.unrouted.add(twin)
	require.Nil(t, log.find(entry("a", headerAttemptCount, "1")), "of two with one name neither")
	srv.unrouted.remove(first)
	srv.unrouted.remove(twin)
	srv.unrouted.remove(second)
	srv.unrouted.remove(nameless)
	require.Empty(t, srv.unrouted.m)
}
