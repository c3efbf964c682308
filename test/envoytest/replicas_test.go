//go:build e2e

package envoytest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// apart sends the prefill legs, and first events, to another replica of the plugin,
// whose address Envoy calls so.
func apart(address string) func(string) string {
	return func(y string) string {
		looks := strings.Index(y, "- name: baton.first_token\n")
		y = y[:looks] + strings.Replace(y[looks:], "envoy_grpc: {cluster_name: extproc}", "envoy_grpc: {cluster_name: extproc_b}", 1)
		at := strings.Index(y, "  - name: prefill_leg\n    internal_listener")
		y = y[:at] + strings.Replace(y[at:], "envoy_grpc: {cluster_name: extproc}", "envoy_grpc: {cluster_name: extproc_b}", 1)
		at, end := strings.Index(y, "  - name: extproc\n"), strings.Index(y, "  - name: main_leg\n    type: STATIC")
		second := strings.ReplaceAll(y[at:end], "name: extproc\n", "name: extproc_b\n")
		second = strings.ReplaceAll(second, "&limits", "&limits_b")
		cut := strings.Index(second, "{address: {socket_address")
		second = second[:cut] + "{address: {" + address + "}}}]}]\n"
		return y[:end] + second + y[end:]
	}
}

// newApart makes a fleet whose main legs are one replica's and all else another's, the
// carrier's.
func newApart(t *testing.T, duplex bool) (f *fleet, carrying *stack.Plugin) {
	t.Helper()
	dir := t.TempDir()
	key := filepath.Join(dir, "leg.key")
	require.NoError(t, os.WriteFile(key, []byte("a key that both replicas have"), 0o600))
	ports, err := stack.FreePorts(t.Context(), 2)
	require.NoError(t, err)
	owner, carrier := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	common := quickFaults + "drain_timeout: 400ms\n" + fmt.Sprintf("leg: {key_file: %q", key)
	patch := apart(fmt.Sprintf("socket_address: {address: 127.0.0.1, port_value: %d}", ports[1]))
	l := layout{prefill: 2, decode: 2, fullDuplex: duplex, listen: owner, config: common + fmt.Sprintf(", advertise: %q}\n", owner)}
	l.patch = func(y string) string {
		y = patch(y)
		log := strings.Index(y, "            common_config:\n")
		return y[:log] + strings.Replace(y[log:], "envoy_grpc: {cluster_name: extproc}", "envoy_grpc: {cluster_name: extproc_b}", 1)
	}
	l.envoy.PluginSocket, l.envoy.PluginHost, l.envoy.PluginPort = "-", "127.0.0.1", ports[0]
	l.beforeEnvoy = func(f *fleet) {
		b, err := stack.StartPlugin(f.ctx, stack.PluginOptions{
			BinDir: binDir, Dir: dir, Workers: filepath.Join(f.dir, "workers.yaml"), Config: common + fmt.Sprintf(", advertise: %q}\n", carrier), Listen: carrier,
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Kill()) })
		carrying = b
	}
	return newFleet(t, l), carrying
}

// TestTheLegsOfARequestMayMeetTwoReplicas is docs/behaviour.md#one-decision through a
// real Envoy: the prefill leg, the answer's first events and its end are seen by a
// replica that knows nothing but the sealed token, and the owner hears of them.
func TestTheLegsOfARequestMayMeetTwoReplicas(t *testing.T) {
	t.Parallel()
	for _, duplex := range []bool{false, true} {
		t.Run(fmt.Sprintf("full duplex %t", duplex), func(t *testing.T) {
			t.Parallel()
			f, _ := newApart(t, duplex)
			requireTheOwnerHears(t, f)
		})
	}
}

func requireTheOwnerHears(t *testing.T, f *fleet) {
	t.Helper()
	for i := range 6 {
		prompt := fmt.Sprintf("two replicas serve request %d", i)
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
	}
	require.Zero(t, f.metric("baton_prefill_legs_total", `outcome="started"`), "no leg came to its owner's own streams")
	// A failure at another replica is a fresh attempt, too: the owner hears of the
	// failure and picks afresh.
	f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, Count: 1})
	for i := range 3 {
		prompt := fmt.Sprintf("one of the prefills fails, request %d", i)
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, true)), prompt, 4)
	}
	require.EqualValues(t, 1, f.metric("baton_fresh_picks_total"))
	// So does what the other replica has read of an answer's first events.
	f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.Begun, Count: 1})
	for i := range 3 {
		prompt := fmt.Sprintf("one of the decodes says no, request %d", i)
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, true)), prompt, 4)
	}
	require.Zero(t, f.firstEvents("token"), "none was read by the owner")
	require.EqualValues(t, 2, f.metric("baton_fresh_picks_total"))
	// And how answers end.
	f.awaitOutcomes(12, "ok")
	n, _ := f.measured("gen_ai_server_time_to_first_token_seconds")
	require.EqualValues(t, 9, n, "as many were streamed")
	f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid, DelayMS: 1000, Count: 1})
	for range 2 {
		f.send(t.Context(), "/v1/completions", completion("one breaks off", 8, true))
	}
	f.awaitOutcomes(1, "cut")
	f.awaitOutcomes(13, "ok")
	require.Zero(t, f.outcomes("unfinished"))
}
