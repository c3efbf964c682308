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

	"github.com/seed-60ae5743/baton/internal/stack"
)

// spreadOf is how a gateway's legs go to both plugins in turn.
func spreadOf(t *testing.T) func(port int, _ string) func(string) string {
	return func(port int, _ string) func(string) string { return spread(t, port) }
}

// lettingGo is how often Envoy has left a replica alone.
func (f *fleet) lettingGo() int64 {
	f.t.Helper()
	n, err := f.envoy.Stat(f.t.Context(), "cluster.extproc.outlier_detection.ejections_enforced_total")
	require.NoError(f.t, err)
	return n
}

// awaitUsed waits until Envoy uses both replicas.
func (f *fleet) awaitUsed() {
	f.t.Helper()
	f.await("Envoy to use both replicas", func() bool {
		n, err := f.envoy.Stat(f.t.Context(), "cluster.extproc.membership_healthy")
		return err == nil && n == 2
	})
}

// TestAReplicaThatIsAwayCostsNoRequest: many requests at once, from several threads of
// Envoy, and a replica that is away for a while. Envoy tries it again and again.
func TestAReplicaThatIsAwayCostsNoRequest(t *testing.T) {
	l := layout{prefill: 2, decode: 2, twoLegs: true, threads: 4, prefillArgs: []string{"--prefill-base-us", "5000"}, decodeArgs: []string{"--decode-us-per-token", "1000"}}
	for _, duplex := range []bool{false, true} {
		t.Run(map[bool]string{false: "buffered", true: "full-duplex"}[duplex], func(t *testing.T) {
			l := l
			l.fullDuplex = duplex
			a, b := newReplicas(t, l, "start_timeout: 5s, overdue_base: 30s", spreadOf(t))
			stop := a.load(24)
			for _, r := range []*replica{a, b} {
				before := r.lettingGo()
				require.NoError(t, r.plugin.Stop(25*time.Second))
				require.NoError(t, r.plugin.Err(), "it ends with exit code 0")
				r.await("Envoy to have tried it again", func() bool { return r.lettingGo() >= before+3 })
				r.again()
				r.awaitUsed()
			}
			all := stop()
			t.Logf("%d requests", len(all))
			for _, r := range all {
				requireAnswer(t, r.reply, r.prompt, 6)
			}
		})
	}
}

// TestAReplicaThatKnowsNothingYetCostsNoRequest: it listens, and its workers are not to
// be learnt of for a while.
func TestAReplicaThatKnowsNothingYetCostsNoRequest(t *testing.T) {
	l := layout{prefill: 2, decode: 2, twoLegs: true, prefillArgs: []string{"--prefill-base-us", "5000"}, decodeArgs: []string{"--decode-us-per-token", "1000"}}
	for _, duplex := range []bool{false, true} {
		t.Run(map[bool]string{false: "buffered", true: "full-duplex"}[duplex], func(t *testing.T) {
			l := l
			l.fullDuplex = duplex
			a, b := newReplicas(t, l, "start_timeout: 5s, overdue_base: 30s", spreadOf(t))
			require.NoError(t, b.plugin.Stop(25*time.Second))
			b.blind()
			b.await("it to listen", func() bool { return strings.Contains(b.plugin.Log(), "baton listens") })
			before := a.lettingGo()
			stop := a.load(8)
			a.await("Envoy to have tried it again", func() bool { return a.lettingGo() >= before+3 })
			all := stop()
			t.Logf("%d requests", len(all))
			for _, r := range all {
				requireAnswer(t, r.reply, r.prompt, 6)
			}
			require.NoError(t, b.plugin.Kill())
			b.again()
		})
	}
}

// TestOneOfThreeReplicasIsEnough: two are dead, and Envoy leaves but one alone.
func TestOneOfThreeReplicasIsEnough(t *testing.T) {
	ports, err := stack.FreePorts(1)
	require.NoError(t, err)
	l := layout{prefill: 2, decode: 2, twoLegs: true, threads: 2, prefillArgs: []string{"--prefill-base-us", "5000"}, decodeArgs: []string{"--decode-us-per-token", "1000"}}
	for _, duplex := range []bool{false, true} {
		t.Run(map[bool]string{false: "buffered", true: "full-duplex"}[duplex], func(t *testing.T) {
			l := l
			l.fullDuplex = duplex
			a, b := newReplicas(t, l, "start_timeout: 5s, overdue_base: 30s", func(port int, _ string) func(string) string {
				two, three := spread(t, port), spread(t, ports[0])
				return func(config string) string { return three(two(config)) }
			})
			require.NoError(t, b.plugin.Kill())
			before := a.lettingGo()
			stop := a.load(8)
			a.await("Envoy to have tried them again", func() bool { return a.lettingGo() >= before+3 })
			all := stop()
			t.Logf("%d requests", len(all))
			for _, r := range all {
				requireAnswer(t, r.reply, r.prompt, 6)
			}
			b.again()
		})
	}
}

// TestNoReplicaCanServe: one is dead, one knows nothing yet. Clients are told at once,
// and served as soon as one can.
func TestNoReplicaCanServe(t *testing.T) {
	l := layout{prefill: 1, decode: 1, twoLegs: true}
	for _, duplex := range []bool{false, true} {
		t.Run(map[bool]string{false: "buffered", true: "full-duplex"}[duplex], func(t *testing.T) {
			l := l
			l.fullDuplex = duplex
			a, b := newReplicas(t, l, "start_timeout: 5s, overdue_base: 30s", spreadOf(t))
			require.NoError(t, a.plugin.Kill())
			require.NoError(t, b.plugin.Kill())
			b.blind()
			b.await("it to listen", func() bool { return strings.Contains(b.plugin.Log(), "baton listens") })
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
}

// TestAPluginAloneIsUsedAsSoonAsItIsBack: nobody else could be used in its place.
func TestAPluginAloneIsUsedAsSoonAsItIsBack(t *testing.T) {
	both(t, layout{prefill: 1, decode: 1, noCheck: true}, func(t *testing.T, f *fleet) {
		qs := ask("it is alone", 6)
		for i := range 6 {
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
// which returns all that they got.
func (f *fleet) load(clients int) (stop func() []loaded) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	got := make([][]loaded, clients)
	for c := range clients {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				prompt := fmt.Sprintf("client %d request %d", c, i)
				got[c] = append(got[c], loaded{prompt, f.send(f.t.Context(), "/v1/completions", completion(prompt, 6, i%2 == 0))})
			}
		})
	}
	return func() []loaded {
		cancel()
		wg.Wait()
		return slices.Concat(got...)
	}
}
