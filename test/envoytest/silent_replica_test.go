//go:build e2e

package envoytest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// eachOfThree runs a test with three plugins that a gateway's streams go to in turn, for engines
// whose legs begin together and for such as prefill first.
func eachOfThree(t *testing.T, test func(t *testing.T, three [3]*replica)) {
	t.Helper()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{
				prefill: 2, decode: 2, twoLegs: true, config: takeTurns,
				prefillArgs: []string{"--prefill-base-us", "50000"}, decodeArgs: []string{"--decode-us-per-token", "10000"},
			}, engine)
			eitherMode(t, l, func(t *testing.T, l layout) {
				ports, err := stack.FreePorts(t.Context(), 1)
				require.NoError(t, err)
				a, b := newReplicas(t, l, "orphan_grace: 300ms", func(port int, _ string) func(string) string { return spread(t, ports[0], port) })
				test(t, [3]*replica{a, b, a.third(ports[0])})
			})
		})
	}
}

// third starts one more plugin, which Envoy already looks for at the port.
func (r *replica) third(port int) *replica {
	r.t.Helper()
	f := *r.fleet
	f.listen = fmt.Sprintf("127.0.0.1:%d", port)
	var err error
	f.plugin, err = stack.StartPlugin(f.ctx, stack.PluginOptions{
		BinDir: binDir, Dir: r.t.TempDir(), Workers: filepath.Join(f.dir, "workers.yaml"), Listen: f.listen,
		Config: strings.ReplaceAll(f.config, r.listen, f.listen), Args: []string{"--log-level", "debug"},
	})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, f.plugin.Kill()) })
	r.t.Cleanup(f.checkIdle)
	return &replica{fleet: &f}
}

// TestASilentReplicaIsLeftOut: one of three stands still. Envoy leaves it out, another serves what it
// has, and the others say so.
func TestASilentReplicaIsLeftOut(t *testing.T) {
	t.Parallel()
	eachOfThree(t, func(t *testing.T, three [3]*replica) { standStillOfThree(t, three, 8*time.Second, 17*time.Second, 1) })
}

// standStillOfThree sends six requests a second, and stops a replica for a while in the midst of
// them. So many may be lost, and none may take over ten seconds.
func standStillOfThree(t *testing.T, three [3]*replica, still, all time.Duration, most int) {
	t.Helper()
	const every = time.Second / 6
	a, silent := three[0], three[1]
	a.awaitReplicas(3)
	var mu sync.Mutex
	var lost []string
	var longest time.Duration
	var came int
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var load sync.WaitGroup
	load.Go(func() {
		a.steady(int(all/every), every, func(i int) {
			q := ask(fmt.Sprintf("one of three is silent, %d", i), 4)[i%4]
			r := a.send(ctx, q.path, q.body)
			mu.Lock()
			defer mu.Unlock()
			came++
			longest = max(longest, r.took)
			if r.err != nil || r.status != http.StatusOK || q.answer != strings.TrimSpace(r.text()) {
				lost = append(lost, fmt.Sprintf("request %d after %v: %d %v %.200s", i, r.took, r.status, r.err, r.body))
			}
		})
	})
	a.await("requests to be served", func() bool { mu.Lock(); defer mu.Unlock(); return came > 30 }) // meanwhile all have met

	require.NoError(t, silent.plugin.Signal(syscall.SIGSTOP))
	defer func() { require.NoError(t, silent.plugin.Signal(syscall.SIGCONT)) }()
	over := time.After(still)
	a.awaitReplicas(2)
	others := []*replica{a, three[2]}
	for _, r := range others {
		r.await("the others to show it", func() bool { return slices.ContainsFunc(r.trouble(), silent.named) })
	}
	<-over
	require.NoError(t, silent.plugin.Signal(syscall.SIGCONT))
	a.awaitReplicas(3)
	for _, r := range others {
		r.await("the others to show it no more", func() bool { return !slices.ContainsFunc(r.trouble(), silent.named) })
		for _, said := range []string{"a replica sends nothing", "a replica is heard again"} {
			n := 0
			for line := range strings.SplitSeq(r.plugin.Log(), "\n") {
				if strings.Contains(line, said) && silent.named(line) {
					n++
				}
			}
			require.Equal(t, 1, n, "said once: %s", said)
		}
	}
	load.Wait()
	t.Logf("%d of %d lost, the longest took %v", len(lost), came, longest)
	require.LessOrEqual(t, len(lost), most, strings.Join(lost, "\n"))
	require.Less(t, longest, 10*time.Second)
	for _, r := range three {
		require.Zero(t, r.setAside(), "no worker is to blame")
	}
}

// awaitReplicas waits until Envoy gives new streams to n replicas.
func (f *fleet) awaitReplicas(n int64) {
	f.t.Helper()
	f.await(fmt.Sprintf("Envoy to use %d replicas", n), func() bool {
		got, err := f.envoy.Stat(f.t.Context(), "cluster.extproc.membership_healthy")
		return err == nil && got == n
	})
}

// named reports whether a line names this replica.
func (r *replica) named(line string) bool { return strings.Contains(line, r.listen) }

// trouble is what the plugin's page says is wrong now.
func (f *fleet) trouble() []string {
	f.t.Helper()
	resp, err := http.Get(f.plugin.Admin + "/debug/state")
	require.NoError(f.t, err)
	defer resp.Body.Close()
	var d struct{ Trouble []string }
	require.NoError(f.t, json.NewDecoder(resp.Body).Decode(&d))
	return d.Trouble
}
