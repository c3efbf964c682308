//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/enginesim"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// halfSent is a request the second half of whose body waits for a word.
type halfSent struct {
	rest  func() // sends it
	reply chan *reply
}

func (f *fleet) beginHalf(q question) *halfSent {
	f.t.Helper()
	r, w := io.Pipe()
	half := len(q.body) / 2
	h := &halfSent{reply: make(chan *reply, 1)}
	h.rest = func() {
		_, err := io.WriteString(w, q.body[half:])
		require.NoError(f.t, err)
		require.NoError(f.t, w.Close())
	}
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.envoy.URL+q.path, struct{ io.Reader }{r})
	require.NoError(f.t, err)
	req.Header.Set("Content-Type", "application/json")
	go func() {
		got := &reply{}
		defer func() { h.reply <- got }()
		resp, err := client.Do(req)
		if err != nil {
			got.err = err
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		got.status, got.header, got.body, got.err = resp.StatusCode, resp.Header, string(b), err
	}()
	_, err = io.WriteString(w, q.body[:half])
	require.NoError(f.t, err)
	return h
}

// TestADrainServesWhatHasBegun: the plugin is told to end while requests are at
// their start, and both legs of each are still to come. Requests that come later are
// served as long as those run, and then Envoy finds nobody.
func TestADrainServesWhatHasBegun(t *testing.T) {
	l := layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s}\n", noCheck: true}
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			both(t, layoutOf(l, engine), func(t *testing.T, f *fleet) {
				qs := ask("begun before the end", 6)
				var begun []*halfSent
				for _, q := range qs {
					begun = append(begun, f.beginHalf(q))
				}
				f.await("the plugin to know of them", func() bool {
					return f.metric("baton_streams_in_flight", `leg="main"`) == float64(len(qs))
				})
				stopped := make(chan error, 1)
				go func() { stopped <- f.plugin.Stop(25 * time.Second) }()
				f.await("the drain to begin", func() bool { return strings.Contains(f.plugin.Log(), "draining") })
				for _, q := range qs {
					q.require(t, f.send(t.Context(), q.path, q.body))
				}
				for i, h := range begun {
					h.rest()
					qs[i].require(t, <-h.reply)
				}
				require.NoError(t, <-stopped)
				require.NoError(t, f.plugin.Err(), "it ends with exit code 0")
				f.settled()
				requireUnavailable(t, f.send(t.Context(), qs[0].path, qs[0].body))
				if engine != worker.SGLang {
					require.Zero(t, f.ledger().Expired)
				}
			})
		})
	}
}

// TestADrainCollectsWhatItsClientsHaveLeft is row C9 at SIGTERM.
func TestADrainCollectsWhatItsClientsHaveLeft(t *testing.T) {
	l := layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s}\n", noCheck: true}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultSlow, Factor: 1, DelayMS: 1500, Count: 1})
		c := f.begin(ask("left before the end", 6)[2])
		f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		stopped := make(chan error, 1)
		go func() { stopped <- f.plugin.Stop(25 * time.Second) }()
		f.await("the drain to begin", func() bool { return strings.Contains(f.plugin.Log(), "draining") })
		f.leaves(c)
		select {
		case err := <-stopped:
			require.NoError(t, err)
		case <-ctx.Done():
			require.NoError(t, ctx.Err())
		}
		require.NoError(t, f.plugin.Err())
		f.settled()
		h := f.ledger()
		require.Equal(t, [4]uint64{1, 1, 0, 0}, [4]uint64{h.Given, h.Taken, h.Released, h.Expired})
	})
}

// TestReplicasAreReplacedWithoutALostRequest: of two plugins behind one Envoy, each
// is told to end and is started again, under load.
func TestReplicasAreReplacedWithoutALostRequest(t *testing.T) {
	l := layout{prefill: 2, decode: 2, twoLegs: true, prefillArgs: []string{"--prefill-base-us", "20000"}, decodeArgs: []string{"--decode-us-per-token", "5000"}}
	for _, duplex := range []bool{false, true} {
		t.Run(map[bool]string{false: "buffered", true: "full-duplex"}[duplex], func(t *testing.T) {
			l := l
			l.fullDuplex = duplex
			a, b := newReplicas(t, l, "start_timeout: 3s, overdue_base: 30s", func(port int, _ string) func(string) string { return spread(t, port) })
			stop := a.load(8)
			for _, r := range []*replica{a, b} {
				require.NoError(t, r.plugin.Stop(25*time.Second))
				require.NoError(t, r.plugin.Err(), "it ends with exit code 0")
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
