//go:build e2e

package envoytest

import (
	"cmp"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
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
	go func() { h.reply <- f.sendFrom(f.t.Context(), q.path, struct{ io.Reader }{r}) }()
	_, err := io.WriteString(w, q.body[:half])
	require.NoError(f.t, err)
	return h
}

// drains tells the plugin to end and returns when it drains; the channel says how it
// has ended.
func (f *fleet) drains() <-chan error {
	f.t.Helper()
	plugin, stopped := f.plugin, make(chan error, 1)
	go func() { stopped <- cmp.Or(plugin.Stop(25*time.Second), plugin.Err()) }()
	f.await("the drain to begin", func() bool { return strings.Contains(plugin.Log(), "draining") })
	return stopped
}

// TestADrainServesWhatHasBegun: the plugin is told to end while requests are at
// their start, and both legs of each are still to come. Requests that come later are
// served as long as those run, and then Envoy finds nobody.
func TestADrainServesWhatHasBegun(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s}\n", noCheck: true}
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.VLLMMooncake, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			either(t, layoutOf(l, engine), func(t *testing.T, f *fleet) {
				qs := ask("begun before the end", 6)
				var begun []*halfSent
				for _, q := range qs {
					begun = append(begun, f.beginHalf(q))
				}
				f.await("the plugin to know of them", func() bool {
					return f.metric("baton_streams_in_flight", `leg="main"`) == float64(len(qs))
				})
				stopped := f.drains()
				for _, q := range qs {
					q.require(t, f.send(t.Context(), q.path, q.body))
				}
				for i, h := range begun {
					h.rest()
					qs[i].require(t, <-h.reply)
				}
				require.NoError(t, <-stopped, "it ends with exit code 0")
				f.settled()
				requireUnavailable(t, f.send(t.Context(), qs[0].path, qs[0].body))
				if engine != worker.SGLang {
					require.Zero(t, f.ledger().Expired)
				}
			})
		})
	}
}

// TestADrainServesTheFreshAttemptsOfWhatHasBegun: a worker is lost while the plugin ends.
func TestADrainServesTheFreshAttemptsOfWhatHasBegun(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 2, decode: 2, prefillArgs: []string{"--bootstrap-timeout", "3s", "--kv-lease", "2s"}, config: "prefill: {overdue_base: 30s}\n", noCheck: true}, engine)
			either(t, l, func(t *testing.T, f *fleet) {
				f.hold(f.decode[0], enginesim.After)
				f.hold(f.decode[1], enginesim.After)
				q := ask("its decode is lost", 6)[0]
				c := f.begin(q)
				has := 0
				f.await("decode to have it", func() bool {
					for i, w := range f.decode {
						if s, _ := f.state(w); s.Running == 1 {
							has = i
							return true
						}
					}
					return false
				})
				stopped := f.drains()
				f.fault(f.decode[1-has], enginesim.Fault{})
				require.NoError(t, f.decode[has].Kill())
				q.require(t, <-c.reply)
				require.NoError(t, <-stopped, "it ends with exit code 0")
			})
		})
	}
}

// TestADrainCollectsWhatItsClientsHaveLeft is docs/behaviour.md#collected at SIGTERM.
func TestADrainCollectsWhatItsClientsHaveLeft(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s}\n", noCheck: true}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		goOn := f.hold(f.prefill[0], enginesim.Before)
		c := f.begin(ask("left before the end", 6)[2])
		f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
		stopped := f.drains()
		f.leavesPrefill(c)
		f.await("nothing else to be waited for", func() bool { return strings.Contains(f.plugin.Log(), "new requests are refused") })
		goOn()
		require.NoError(t, <-stopped, "it ends with exit code 0")
		f.settled()
		h := f.ledger()
		require.Equal(t, [4]uint64{1, 1, 0, 0}, [4]uint64{h.Given, h.Taken, h.Released, h.Expired})
	})
}

// TestASecondSignalEndsThePluginAtOnce: who does not want to wait for what has begun
// says so twice.
func TestASecondSignalEndsThePluginAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, config: "drain_timeout: 10m\n", noCheck: true})
	h := f.beginHalf(ask("it is not waited for", 6)[0])
	f.await("the plugin to know of it", func() bool { return f.metric("baton_streams_in_flight", `leg="main"`) == 1 })
	require.NoError(t, f.plugin.Signal(unix.SIGTERM))
	f.await("the drain to begin", func() bool { return strings.Contains(f.plugin.Log(), "draining") })
	require.NoError(t, f.plugin.Signal(unix.SIGTERM))
	f.await("it to have ended", func() bool { return !f.plugin.Alive() })
	require.ErrorContains(t, f.plugin.Err(), "terminated")
	requireUnavailable(t, <-h.reply) // before the rest of its body: Envoy closes the connection, and who writes then may not read any more
}
