//go:build e2e

package envoytest

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/enginesim/sidecar"
)

// prefiller is the header by which a decode pod's sidecar learns the prefill worker.
const prefiller = "x-prefiller-host-port"

// sidecars puts a sidecar before each decode worker, where the pool has its endpoint, as in
// llm-d's decode pods.
type sidecars map[worker.ID]*sidecar.Sidecar

func (s sidecars) describe(f *fleet) {
	for _, w := range f.decode {
		car := sidecar.New(w.Info.Endpoint.String())
		srv := httptest.NewServer(car)
		f.t.Cleanup(srv.Close)
		e, err := worker.ParseEndpoint(strings.TrimPrefix(srv.URL, "http://"))
		require.NoError(f.t, err)
		w.Info.Endpoint, w.Info.AcceptsAggregated = e, true
		s[w.Info.ID] = car
	}
}

// seen returns the headers that all sidecars have seen.
func (s sidecars) seen() (all []string) {
	for _, car := range s {
		all = append(all, car.Seen()...)
	}
	return all
}

// besideSidecars is a fleet behind a gateway with one leg, with sidecars before its decode
// workers. No listener of the plugin's own is there.
func besideSidecars(s sidecars) layout {
	return layout{
		prefill: 2, decode: 2, simArgs: []string{"--engine", "vllm"}, describe: s.describe,
		config: "routing: {headers: llm-d, prefill: {mode: round-robin}, decode: {mode: round-robin}}\ngateway: {enabled: true}\n", gateway: &envoy.GatewayParams{},
	}
}

// eachBodyMode runs f in both body modes, with sidecars of its own each time.
func eachBodyMode(t *testing.T, f func(t *testing.T, fl *fleet, s sidecars)) {
	t.Helper()
	bodyModes(t, layout{}, func(t *testing.T, l layout) {
		s := sidecars{}
		own := besideSidecars(s)
		own.fullDuplex = l.fullDuplex
		f(t, newFleet(t, own), s)
	})
}

// TestDecodesSidecarIsToldThePrefillWorker: a gateway with one leg splits prefill from
// decode, with nothing patched and nothing of Baton's beside it. A client's own header is
// nobody's word, and no worker sees one.
func TestDecodesSidecarIsToldThePrefillWorker(t *testing.T) {
	t.Parallel()
	eachBodyMode(t, func(t *testing.T, f *fleet, s sidecars) {
		for i := range 6 {
			prompt := fmt.Sprintf("request %d by a sidecar", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0), prefiller, f.decode[0].Info.Endpoint.String()), prompt, 4)
		}
		named := map[string]int{}
		for _, v := range s.seen() {
			named[v]++
		}
		require.Equal(t, map[string]int{f.prefill[0].Info.Endpoint.String(): 3, f.prefill[1].Info.Endpoint.String(): 3}, named)
		prefills, decodes := f.ended(f.prefill), f.ended(f.decode)
		require.Len(t, prefills, 6)
		require.Len(t, decodes, 6)
		for _, r := range prefills {
			require.Contains(t, r.Body, `"max_tokens":1,`)
			require.Empty(t, r.Headers.Values(prefiller))
		}
		for _, r := range decodes {
			require.Contains(t, r.Body, `"do_remote_prefill":true`)
			require.Empty(t, r.Headers.Values(prefiller))
		}
		f.awaitCollected()
		require.Contains(t, f.newestPage(), `"prefill_leg": "by_sidecar"`)
	})
}

// TestOneWorkersRequestNamesNoPrefill: what cannot be split, and what is not read, goes to a
// decode pod without the header, a client's own included.
func TestOneWorkersRequestNamesNoPrefill(t *testing.T) {
	t.Parallel()
	eachBodyMode(t, func(t *testing.T, f *fleet, s sidecars) {
		two := `{"model":"m","prompt":"two of it","n":2,"max_tokens":3}`
		r := f.send(t.Context(), "/v1/completions", two, prefiller, f.prefill[0].Info.Endpoint.String())
		require.Equal(t, 200, r.status, r.body)
		require.Equal(t, []string{""}, s.seen())
		require.Empty(t, f.gotAll(f.prefill))
		require.Len(t, f.gotAll(f.decode), 1)
	})
}

// TestAPrefillThatASidecarCannotReachIsSetAside: the clients that meet it get the sidecar's
// error; it is probed and not charged, and the picks that follow name another.
func TestAPrefillThatASidecarCannotReachIsSetAside(t *testing.T) {
	t.Parallel()
	eachBodyMode(t, func(t *testing.T, f *fleet, s sidecars) {
		dead := f.prefill[0]
		require.NoError(t, dead.Kill())
		failed := 0
		f.await("the dead to be set aside", func() bool {
			r := f.send(t.Context(), "/v1/completions", completion("who prefills this", 3, false))
			if r.status != 200 {
				require.Equal(t, 502, r.status, r.body)
				failed++
			}
			return f.metric("baton_workers", `state="aside"`) == 1
		})
		require.Positive(t, failed)
		before := len(s.seen())
		for i := range 4 {
			prompt := fmt.Sprintf("after it %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 3, i%2 == 0)), prompt, 3)
		}
		for _, v := range s.seen() {
			require.NotEmpty(t, v)
		}
		require.Len(t, s.seen(), before+4)
		require.Zero(t, f.metric("baton_worker_charges_total", fmt.Sprintf("worker_id=%q", dead.Info.ID.String())), "nobody has seen that it is at fault, but the probe")
	})
}

// TestAPrefillThatAnswersWithAnErrorIsNotCharged, since a sidecar does not say whose error
// it passes on: the worker stays, and so does decode.
func TestAPrefillThatAnswersWithAnErrorIsNotCharged(t *testing.T) {
	t.Parallel()
	eachBodyMode(t, func(t *testing.T, f *fleet, s sidecars) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, Count: 1})
		codes := map[int]int{}
		for i := range 6 {
			r := f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("one of these fails %d", i), 3, false))
			codes[r.status]++
		}
		require.Equal(t, 5, codes[200], codes)
		require.Zero(t, f.metric("baton_workers", `state="aside"`))
		require.Zero(t, f.metric("baton_worker_prefill_requests"), "its booking has gone with the error")
	})
}

// TestASidecarsPrefillIsBookedUntilTheAnswerBegins.
func TestASidecarsPrefillIsBookedUntilTheAnswerBegins(t *testing.T) {
	t.Parallel()
	eachBodyMode(t, func(t *testing.T, f *fleet, s sidecars) {
		var goOn []func()
		for _, w := range f.prefill {
			goOn = append(goOn, f.hold(w, enginesim.Before))
		}
		done := make(chan *reply, 1)
		go func() { done <- f.send(t.Context(), "/v1/completions", completion("booked meanwhile", 40, true)) }()
		f.await("a prefill to be booked", func() bool { return f.metric("baton_worker_prefill_requests") == 1 })
		for _, w := range f.decode {
			f.hold(w, enginesim.Mid)
		}
		for _, g := range goOn {
			g()
		}
		f.await("prefill's booking to end with the head of the answer", func() bool {
			return f.metric("baton_worker_prefill_requests") == 0 && f.metric("baton_worker_decode_requests") == 1
		})
		for _, w := range f.decode {
			f.fault(w, enginesim.Fault{})
		}
		requireAnswer(t, <-done, "booked meanwhile", 40)
	})
}
