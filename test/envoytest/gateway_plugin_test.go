//go:build e2e

package envoytest

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/stack"
)

// The tests here have our plugin as the picker of a Gateway API data plane.

const pickerConfig = "gateway: {enabled: true}\n"

// eachGateway runs a test with a gateway as it is and with two legs, in both body
// modes.
func eachGateway(t *testing.T, l layout, f func(t *testing.T, fl *fleet, twoLegs bool)) {
	t.Helper()
	for _, two := range []bool{false, true} {
		name := "one leg"
		if two {
			name = "two legs"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := l
			l.twoLegs = two
			l.config = pickerConfig + l.config
			if l.gateway == nil {
				l.gateway = new(envoy.GatewayParams)
			}
			both(t, l, func(t *testing.T, fl *fleet) { f(t, fl, two) })
		})
	}
}

// TestAGatewaysRequestsAreServed by the worker that was picked, whole answers and
// streams, small bodies and large ones.
func TestAGatewaysRequestsAreServed(t *testing.T) {
	t.Parallel()
	eachGateway(t, layout{prefill: 1, decode: 2, decodeArgs: []string{"--accepts-aggregated"}}, func(t *testing.T, f *fleet, twoLegs bool) {
		for _, q := range ask("hello", 6) {
			r := f.send(t.Context(), q.path, q.body)
			require.NoError(t, r.err)
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Contains(t, r.body, "w5")
		}
		if twoLegs {
			require.NotEmpty(t, f.gotAll(f.prefill))
		} else {
			require.Empty(t, f.gotAll(f.prefill), "nothing carries a prefill leg")
		}
	})
}

// TestPicksStayWithinTheSubset that the data plane names, in each form, for prefill
// and decode alike.
func TestPicksStayWithinTheSubset(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 2, decodeArgs: []string{"--accepts-aggregated"}, gateway: &envoy.GatewayParams{SubsetHeader: subsetHeader}}
	eachGateway(t, l, func(t *testing.T, f *fleet, twoLegs bool) {
		at := func(w *stack.Worker) string { return w.Info.Endpoint.String() }
		q := ask("within", 2)[0]
		for i := range 2 {
			p, d := at(f.prefill[i]), at(f.decode[i])
			for _, hint := range []any{[]any{p, d}, p + "," + d, []any{d + ", " + p}, []any{"192.0.2.1:80", p, d, ""}} {
				f.forget()
				r := f.send(t.Context(), q.path, q.body, subsetHeader, subsetHint(t, hint))
				require.Equal(t, http.StatusOK, r.status, "%v: %s", hint, r.body)
				require.Len(t, f.gotAll(f.decode[i:i+1]), 1, "%v", hint)
				require.Len(t, f.gotAll(f.prefill), map[bool]int{true: 1}[twoLegs], "%v", hint)
				if twoLegs {
					require.Len(t, f.gotAll(f.prefill[i:i+1]), 1, "%v", hint)
				}
			}
		}
		f.forget()
		nobody := []any{[]any{}, "", nil, 7.0, map[string]any{}, []any{"192.0.2.1"}, []any{at(f.prefill[0])}}
		if twoLegs {
			nobody = append(nobody, []any{at(f.decode[0])}, "127.0.0.2")
		}
		for _, hint := range nobody {
			r := f.send(t.Context(), q.path, q.body, subsetHeader, subsetHint(t, hint))
			requireError(t, r, http.StatusServiceUnavailable, "no_endpoint_in_subset")
			require.Equal(t, "rejected-no-endpoints", r.header.Get("x-llm-d-request-dropped-reason"))
		}
		require.Empty(t, f.gotAll(f.workers))
		r := f.send(t.Context(), q.path, q.body, subsetHeader, subsetHint(t, "127.0.0.1"))
		require.Equal(t, http.StatusOK, r.status, "an entry without a port is every port: %s", r.body)
	})
}
