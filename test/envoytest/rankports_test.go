//go:build e2e

package envoytest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// ownPorts is workers of three ranks, each with a port of its own.
func ownPorts(l layout) layout {
	l.simArgs = append([]string{"--dp-size", "3", "--port-per-rank"}, l.simArgs...)
	return l
}

// requireRank holds a request against where it should have gone. Workers record
// the rank by the port that was asked, and refuse to be told one.
func requireRank(t *testing.T, leg string, seen enginesim.Request, dp int) {
	t.Helper()
	require.Equal(t, dp, seen.DPRank, "the port that the %s leg went to", leg)
	require.Empty(t, seen.Headers.Get("X-Data-Parallel-Rank"), leg)
}

// Each rank is reached at its own port by both legs of a request, and has its
// turn.
func TestRanksAreReachedAtPortsOfTheirOwn(t *testing.T) {
	t.Parallel()
	either(t, ownPorts(layout{prefill: 1, decode: 1, config: modes("round-robin", "round-robin")}), func(t *testing.T, f *fleet) {
		prefills, decodes := map[int]int{}, map[int]int{}
		for i := range 6 {
			f.forget()
			prompt := fmt.Sprintf("rank by rank, %d", i)
			r := f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 1), "x-data-parallel-rank", "0", "x-dp-rank", "0")
			requireAnswer(t, r, prompt, 4)
			prefill, decode := f.legs()
			d := f.decisions()[0]
			requireRank(t, "prefill", prefill, d.Prefill.DPRank)
			requireRank(t, "decode", decode, d.Decode.DPRank)
			prefills[prefill.DPRank]++
			decodes[decode.DPRank]++
		}
		require.Equal(t, map[int]int{0: 2, 1: 2, 2: 2}, prefills)
		require.Equal(t, map[int]int{0: 2, 1: 2, 2: 2}, decodes)
	})
}

// The same where the plugin sends prefill's leg itself.
func TestRanksOfEnginesThatPrefillFirstAreReachedAtPortsOfTheirOwn(t *testing.T) {
	t.Parallel()
	l := ownPorts(layout{prefill: 1, decode: 1, config: modes("round-robin", "round-robin")})
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		for i := range 3 {
			for _, q := range ask(fmt.Sprintf("the sea is blue %d", i), 6) {
				f.forget()
				q.require(t, f.send(t.Context(), q.path, q.body))
				prefill, decode := f.legs()
				require.Equal(t, prefill.Handoff, decode.Handoff)
				d := f.decisions()[0]
				requireRank(t, "prefill", prefill, d.Prefill.DPRank)
				requireRank(t, "decode", decode, d.Decode.DPRank)
			}
		}
	})
}

// Another picker names a rank by its port, which is all that a Gateway API picker
// knows of ranks; an address that is nobody's is an error, not a guess.
func TestAnotherPickerNamesRanksByTheirPorts(t *testing.T) {
	t.Parallel()
	either(t, ownPorts(layout{prefill: 1, decode: 1, envoy: trusting("direct")}), func(t *testing.T, f *fleet) {
		p, d := f.prefill[0].Info, f.decode[0].Info
		for _, pair := range [][2]worker.DPRank{{0, 0}, {2, 1}, {1, 2}, {0, 2}} {
			f.forget()
			prompt := fmt.Sprintf("pair %d", pair)
			r := f.send(t.Context(), "/v1/completions", completion(prompt, 3, false),
				"x-prefiller-host-port", p.EndpointOf(pair[0]).String(), "x-gateway-destination-endpoint", d.EndpointOf(pair[1]).String())
			requireAnswer(t, r, prompt, 3)
			prefill, decode := f.legs()
			requireRank(t, "prefill", prefill, int(pair[0]))
			requireRank(t, "decode", decode, int(pair[1]))
		}
		f.forget()
		nobody := fmt.Sprintf("127.0.0.99:%d", d.EndpointOf(2).AddrPort().Port())
		r := f.send(t.Context(), "/v1/completions", completion("nobody", 3, false),
			"x-prefiller-host-port", p.Endpoint.String(), "x-gateway-destination-endpoint", nobody)
		require.Equal(t, 404, r.status)
		require.Contains(t, r.body, "worker_unknown")
		require.Empty(t, f.gotAll(f.workers))
	})
}
