//go:build e2e

package envoytest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestAGatewayWithTwoLegsServesAsOnesOwnEnvoyDoes: both legs, headers of a client's
// choosing, and a failed prefill that nobody sees.
func TestAGatewayWithTwoLegsServesAsOnesOwnEnvoyDoes(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, config: takeTurns, gateway: &envoy.GatewayParams{}, twoLegs: true}, func(t *testing.T, f *fleet) {
		for i := range 4 {
			prompt := fmt.Sprintf("request %d through a gateway", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0), destination, f.prefill[0].Info.Endpoint.String()), prompt, 4)
		}
		require.Len(t, f.gotAll(f.prefill), 4)
		require.Len(t, f.gotAll(f.decode), 4)
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, Count: 1})
		for i := range 3 {
			prompt := fmt.Sprintf("one of the prefills fails, request %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, true)), prompt, 4)
		}
		require.EqualValues(t, 1, f.metric("baton_fresh_picks_total"))
		f.serveManyHeaders()
	})
}
