//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/test/stack"
)

// lettingGo is how often Envoy has left a replica alone.
func (f *fleet) lettingGo() int64 {
	f.t.Helper()
	n, err := f.envoy.Stat(f.t.Context(), "cluster.extproc.outlier_detection.ejections_enforced_total")
	require.NoError(f.t, err)
	return n
}

// foundAway is how often a stream or a health check has met a replica that is away.
func (f *fleet) foundAway() int64 {
	f.t.Helper()
	n, err := f.envoy.Stat(f.t.Context(), "cluster.extproc.health_check.failure")
	require.NoError(f.t, err)
	return n + f.lettingGo()
}

// inLoad is members of the plugins' section prefill: what a slow machine does late is
// no fault.
const inLoad = "start_timeout: 5s, overdue_base: 30s"

// quickWorkers are behind two legs, and an Envoy with so many threads.
func quickWorkers(threads int) layout {
	return layout{
		prefill: 2, decode: 2, twoLegs: true, threads: threads,
		prefillArgs: []string{"--prefill-base-us", "5000"}, decodeArgs: []string{"--decode-us-per-token", "1000"},
	}
}

// TestAReplicaThatIsAwayCostsNoRequest: many requests at once, from several threads of
// Envoy, and a replica that is away for a while. Envoy tries it again and again.
func TestAReplicaThatIsAwayCostsNoRequest(t *testing.T) {
	t.Parallel()
	l := quickWorkers(4)
	eachSpread(t, l, inLoad, func(t *testing.T, a, b *replica) {
		stop := a.load(24)
		for _, r := range []*replica{a, b} {
			require.NoError(t, r.plugin.Stop(25*time.Second))
			require.NoError(t, r.plugin.Err(), "it ends with exit code 0")
			before := r.foundAway()
			r.await("Envoy to have tried it again", func() bool { return r.foundAway() >= before+6 })
			r.again()
			r.awaitReplicas(2)
		}
		stop()
		require.Zero(t, a.saw(blame.Mirrored, blame.CarrierLost), "a replica that is back is not taken for dead")
	})
}

// TestAReplicaThatKnowsNothingYetCostsNoRequest: it runs, and its workers are not to be learnt of for a
// while. It does not listen then, so Envoy meets it as one that is away.
func TestAReplicaThatKnowsNothingYetCostsNoRequest(t *testing.T) {
	t.Parallel()
	l := quickWorkers(1)
	eachSpread(t, l, inLoad, func(t *testing.T, a, b *replica) {
		require.NoError(t, b.plugin.Stop(25*time.Second))
		b.blind()
		b.await("it to run", func() bool { return strings.Contains(b.plugin.Log(), "baton has started") })
		before := a.foundAway()
		stop := a.load(8)
		a.await("Envoy to have tried it again", func() bool { return a.foundAway() >= before+3 })
		stop()
		require.NoError(t, b.plugin.Kill())
		b.again()
	})
}

// TestOneOfThreeReplicasIsEnough: two are dead, and Envoy leaves but one alone.
func TestOneOfThreeReplicasIsEnough(t *testing.T) {
	t.Parallel()
	ports, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	l := quickWorkers(2)
	eachSpread(t, l, inLoad, func(t *testing.T, a, b *replica) {
		require.NoError(t, b.plugin.Kill())
		before := a.foundAway()
		stop := a.load(8)
		a.await("Envoy to have tried them again", func() bool { return a.foundAway() >= before+10 })
		stop()
		b.again()
	}, ports[0])
}

// TestNoReplicaCanServe: one is dead, one knows nothing yet. Clients are told at once,
// and served as soon as one can.
func TestNoReplicaCanServe(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, twoLegs: true}
	eachSpread(t, l, inLoad, func(t *testing.T, a, b *replica) {
		require.NoError(t, a.plugin.Kill())
		require.NoError(t, b.plugin.Kill())
		b.blind()
		b.await("it to run", func() bool { return strings.Contains(b.plugin.Log(), "baton has started") })
		for _, q := range ask("nobody can", 6) {
			requireUnavailable(t, b.send(t.Context(), q.path, q.body))
		}
		infos, err := os.ReadFile(filepath.Join(b.dir, "workers.yaml"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(b.dir, "none.yaml"), infos, 0o600))
		b.await("it to serve", func() bool {
			q := ask("it knows now", 6)[2]
			r := b.send(t.Context(), q.path, q.body)
			return r.status == http.StatusOK && r.err == nil
		})
		a.again()
	})
}

// TestAPluginAloneIsUsedAsSoonAsItIsBack: nobody else could be used in its place.
func TestAPluginAloneIsUsedAsSoonAsItIsBack(t *testing.T) {
	t.Parallel()
	either(t, layout{prefill: 1, decode: 1, noCheck: true}, func(t *testing.T, f *fleet) {
		qs := ask("it is alone", 6)
		for i := range restarts {
			q := qs[i%len(qs)]
			require.NoError(t, f.plugin.Kill())
			for range 4 {
				requireUnavailable(t, f.send(t.Context(), q.path, q.body))
			}
			f.startPlugin()
			r := f.send(t.Context(), q.path, q.body)
			require.Equal(t, http.StatusOK, r.status, r.body)
			q.require(t, r)
		}
		require.Zero(t, f.lettingGo())
	})
}

// loaded is a request of a load, and what its client got.
type loaded struct {
	prompt string
	*reply
}

// load has clients ask, each one request after the other, until stop is called,
// which requires that all were served.
func (f *fleet) load(clients int) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	got := make([][]loaded, clients)
	for c := range clients {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				prompt := fmt.Sprintf("client %d request %d", c, i)
				got[c] = append(got[c], loaded{prompt, f.send(f.t.Context(), "/v1/completions", completion(prompt, 6, i%2 == 0))})
				select {
				case <-time.After(loadPause):
				case <-ctx.Done():
				}
			}
		})
	}
	return func() {
		f.t.Helper()
		cancel()
		wg.Wait()
		all := slices.Concat(got...)
		f.t.Logf("%d requests", len(all))
		for _, r := range all {
			requireAnswer(f.t, r.reply, r.prompt, 6)
		}
	}
}
