//go:build e2e

package envoytest

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// outlasted are workers whose decode answers 200 with another prompt's KV if it comes after the
// lease.
var outlasted = layoutOf(layout{
	prefill: 1, decode: 1, simArgs: []string{"--kv-lease", "6s", "--kv-load-failure", "unseen"},
	config: "prefill: {overdue_base: 30s, handoff_lease: 6s}\n",
}, worker.VLLM)

// standsStill stops the plugin while prefill runs, until the lease on what prefill has answered has
// run out.
func (f *fleet) standsStill(goOn func()) {
	f.t.Helper()
	expired := f.ledger().Expired
	require.NoError(f.t, f.plugin.Signal(syscall.SIGSTOP))
	goOn()
	f.await("the lease to run out", func() bool { return f.ledger().Expired == expired+1 })
	require.NoError(f.t, f.plugin.Signal(syscall.SIGCONT))
}

// extended returns how often Envoy has been told to wait for the plugin to a request's deadline.
func (f *fleet) extended() int64 {
	f.t.Helper()
	n, err := f.envoy.Stat(f.ctx, "http.main_leg.ext_proc.override_message_timeout_received")
	require.NoError(f.t, err)
	return n
}

// TestAHandOffIsNotSentAfterItsLease: the plugin stands still while prefill answers. Its timers
// and the answer come late, and prefill's date tells how late. The request gets a fresh attempt with
// a prefill of its own; decode never gets the old hand-off.
func TestAHandOffIsNotSentAfterItsLease(t *testing.T) {
	t.Parallel()
	both(t, outlasted, func(t *testing.T, f *fleet) {
		for i, q := range ask("the plugin stands still", 4)[2:] {
			goOn, extended := f.hold(f.prefill[0], enginesim.Mid), f.extended()
			l := f.begin(q)
			f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
			f.await("Envoy to wait for longer", func() bool { return f.fullDuplex || f.extended() > extended }) // in full duplex it waits by itself
			f.standsStill(goOn)
			q.require(t, <-l.reply)
			require.EqualValues(t, i+1, f.received(f.decode[0]), "decode gets the fresh hand-off alone")
			require.EqualValues(t, i+1, f.metric("baton_blame_total", `leg="decode"`, `seen="stale_handoff"`))
			require.EqualValues(t, i+1, f.metric("baton_fresh_picks_total", `reason="handoff_stale"`))
		}
		require.Zero(t, f.setAside())
		f.await("both ages to be measured", func() bool { return f.metric("baton_handoff_age_seconds_count", `kind="nixl_pull"`) == 2 })
		require.EqualValues(t, 2, f.metric("baton_handoff_age_seconds_bucket", `kind="nixl_pull"`, `le="5.12"`), "none is as old as the lease")
	})
}

// TestWhatIsHeldIsNotCollectedAfterItsLease is the same for a client that has left: a collecting
// leg would put another prompt's KV into decode's cache.
func TestWhatIsHeldIsNotCollectedAfterItsLease(t *testing.T) {
	t.Parallel()
	both(t, outlasted, func(t *testing.T, f *fleet) {
		goOn := f.hold(f.prefill[0], enginesim.Mid)
		l := f.begin(ask("the client leaves", 4)[0])
		f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
		f.leavesPrefill(l)
		f.standsStill(goOn)
		f.await("the attempt to end", func() bool { return f.metric("baton_prefill_legs_total", `outcome="collect_failed"`) == 1 })
		require.Zero(t, f.received(f.decode[0]))
	})
}

// TestWhatEnginesLoseIsOnThePage: prefill counts KV whose lease has run out.
func TestWhatEnginesLoseIsOnThePage(t *testing.T) {
	t.Parallel()
	l := layoutOf(layout{
		prefill: 1, decode: 1, prefillArgs: []string{"--kv-lease", "1s"}, noCheck: true,
		config: "engines: {report_interval: 200ms}\nprefill: {overdue_base: 30s}\n",
	}, worker.VLLM)
	f := newFleet(t, l)
	f.await("a first page", func() bool { return f.metric("baton_engine_reports_total", `outcome="ok"`) >= 4 })
	require.NotContains(t, strings.Join(f.trouble(), "\n"), "LOST")
	f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultRefuse}) // nobody can collect
	r := f.send(t.Context(), "/v1/completions", completion("it is not fetched", 4, false))
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	f.await("the lease to run out", func() bool { return f.ledger().Expired > 0 })
	f.await("that to be told", func() bool { return f.metric("baton_engine_handoff_losses_total", `reason="expired"`) > 0 })
	require.Contains(t, strings.Join(f.trouble(), "\n"), "LOST: The lease of hand-offs has ended before their KV was fetched: ")
}
