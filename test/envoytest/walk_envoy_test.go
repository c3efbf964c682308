//go:build e2e

package envoytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// The tests here bring about the rows of the blame table that need another Envoy, another
// replica, or much time.

// inCluster changes the configuration of one of Envoy's clusters of workers.
func inCluster(name, from, to string) func(string) string {
	return func(y string) string {
		at := strings.Index(y, "  - name: "+name+"\n    type: ORIGINAL_DST")
		return y[:at] + strings.Replace(y[at:], from, to, 1)
	}
}

// modifiable lets limits of Envoy's be changed while it runs. Before 1.37 the configuration has
// a layer of its own.
func modifiable(y string) string {
	if before, after, found := strings.Cut(y, "layered_runtime:"); found {
		at := strings.Index(after, "- {name: baton,")
		return before + "layered_runtime:" + after[:at] + "- {name: admin, admin_layer: {}}\n  " + after[at:]
	}
	return "layered_runtime: {layers: [{name: admin, admin_layer: {}}]}\n" + y
}

// noRoom has one of Envoy's clusters take no request, until undo is called.
func (f *fleet) noRoom(cluster string) (undo func()) {
	set := func(to string) {
		_, err := f.envoy.Ask(f.ctx, http.MethodPost, "/runtime_modify?circuit_breakers."+cluster+".default.max_requests="+to)
		require.NoError(f.t, err)
	}
	set("0")
	return func() { set("") }
}

func noRoomAtWorkers(f *fleet, l blame.Leg) (undo func()) {
	if l.Prefill() {
		return f.noRoom("prefill")
	}
	return f.noRoom("decode")
}

// noRoomForLegs has Envoy drop what is mirrored, without a word.
func noRoomForLegs(f *fleet, _ blame.Leg) (undo func()) { return f.noRoom("prefill_leg") }

// gate is before the listener of Envoy's for the legs that the plugin sends itself.
type gate struct {
	mu    sync.Mutex
	open  chan struct{}         // closed while it is open
	conns map[net.Conn]struct{} // that have come through
}

const gateSocket = "gate.sock"

func newGate(t *testing.T, socket, behind string) *gate {
	t.Helper()
	g := &gate{open: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(g.open)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go g.pass(t.Context(), c, behind)
		}
	}()
	return g
}

func (g *gate) pass(ctx context.Context, c net.Conn, behind string) {
	defer c.Close()
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
	case <-ctx.Done():
		return
	}
	up, err := (&net.Dialer{}).DialContext(ctx, "unix", behind)
	if err != nil {
		return
	}
	defer up.Close()
	g.mu.Lock()
	g.conns[c] = struct{}{}
	g.mu.Unlock()
	go func() { _, _ = io.Copy(up, c); _ = up.Close() }()
	_, _ = io.Copy(c, up)
	g.mu.Lock()
	delete(g.conns, c)
	g.mu.Unlock()
}

// shut keeps legs from Envoy: they are on their way, until undo is called.
func shut(f *fleet) (undo func()) {
	g := f.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
	for c := range g.conns {
		_ = c.Close()
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		close(g.open)
	}
}

// requireBlameless holds that a request's attempts have charged nobody, and that a fresh
// one has avoided nobody.
func requireBlameless(f *fleet) {
	f.t.Helper()
	require.Empty(f.t, f.chargedSince(nil, blame.Row{}))
	for _, d := range f.attempts() {
		require.Empty(f.t, d.avoided())
	}
	require.Zero(f.t, f.setAside())
}

// TestWhatEnvoyKeepsFromAWorkerBlamesNobody: it has no host for the request.
func TestWhatEnvoyKeepsFromAWorkerBlamesNobody(t *testing.T) {
	t.Parallel()
	pair := layout{prefill: 1, decode: 1, prefillArgs: shortLease}
	for _, c := range []struct {
		leg blame.Leg
		l   layout
	}{
		{blame.Mirrored, layoutOf(pair, worker.SGLang)},
		{blame.First, layoutOf(pair, worker.VLLM)},
		{blame.Decode, layoutOf(pair, worker.VLLM)},
		{blame.Alone, layout{aggregated: 1}},
	} {
		cluster, header := "decode", "http_header_name: x-gateway-destination-endpoint"
		if c.leg.Prefill() {
			cluster, header = "prefill", "http_header_name: x-prefill-destination-endpoint"
		}
		c.l.patch = inCluster(cluster, header, "http_header_name: x-nowhere")
		t.Run(c.leg.String(), func(t *testing.T) {
			both(t, c.l, func(t *testing.T, f *fleet) {
				r := f.send(t.Context(), "/v1/completions", completion("it does not arrive", 4, false))
				require.Equal(t, http.StatusServiceUnavailable, r.status)
				f.awaitOutcomes(1, "failed")
				f.awaitSaw(c.leg, blame.NotSent)
				require.Len(t, f.attempts(), 3)
				requireBlameless(f)
			})
		})
	}
}

// TestAnEndThatNobodyTellsIsUnfinished: Envoy's access log does not say whose it is.
func TestAnEndThatNobodyTellsIsUnfinished(t *testing.T) {
	t.Parallel()
	mute := func(y string) string {
		return strings.Replace(y, "additional_request_headers_to_log: [x-attempt-id,", "additional_request_headers_to_log: [", 1)
	}
	for leg, l := range map[blame.Leg]layout{blame.Alone: {aggregated: 1}, blame.Decode: {prefill: 1, decode: 1}} {
		l.patch = mute
		t.Run(leg.String(), func(t *testing.T) {
			t.Parallel()
			both(t, l, func(t *testing.T, f *fleet) {
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("nobody tells", 4, false), "x-request-timeout-ms", "2000"), "nobody tells", 4)
				f.awaitOutcomes(1, "unfinished")
				f.awaitSaw(leg, blame.Unfinished)
				require.EqualValues(t, 1, f.saw(leg, blame.Unfinished))
				require.Len(t, f.attempts(), 1)
				for _, c := range f.chargedSince(nil, blame.Of(leg, blame.Served)) {
					require.Equal(t, f.attempts()[0].at(blame.Mirrored), c.worker, "prefill's own answer was whole; of decode's nobody knows")
				}
				requireBlameless(f)
			})
		})
	}
}

// standIn has a server of the test's own answer in a worker's place.
func standIn(t *testing.T, w *stack.Worker, answer func(http.ResponseWriter)) {
	t.Helper()
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return // a probe
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("content-type", "application/json")
		answer(w)
	}))
	t.Cleanup(at.Close)
	e, err := worker.ParseEndpoint(strings.TrimPrefix(at.URL, "http://"))
	require.NoError(t, err)
	w.Info.Endpoint = e
}

// TestAPrefillAnswerThatIsTooLongBlamesNobody: what a client asks to know of its prompt
// can be as long.
func TestAPrefillAnswerThatIsTooLongBlamesNobody(t *testing.T) {
	t.Parallel()
	long := append(append([]byte(`{"prompt_logprobs":"`), bytes.Repeat([]byte("x"), 33<<20)...), `"}`...)
	l := layoutOf(layout{prefill: 1, decode: 1}, worker.VLLM)
	l.describe = func(f *fleet) { standIn(f.t, f.prefill[0], func(w http.ResponseWriter) { _, _ = w.Write(long) }) }
	both(t, l, func(t *testing.T, f *fleet) {
		r := f.send(t.Context(), "/v1/completions", completion("how likely was each token", 4, false))
		requireError(t, r, http.StatusBadRequest, "prefill_answer_too_large")
		f.awaitOutcomes(1, "rejected")
		f.awaitSaw(blame.First, blame.TooLong)
		require.EqualValues(t, 1, f.saw(blame.First, blame.TooLong))
		require.Len(t, f.attempts(), 1)
		requireBlameless(f)
	})
}

// TestAPrefillThatEnvoysTimerEndsBlamesNobody: nobody else can be tried, so that it is
// waited for as long as a prefill may take. It is late once by then.
func TestAPrefillThatEnvoysTimerEndsBlamesNobody(t *testing.T) {
	t.Parallel()
	pair := layout{prefill: 1, decode: 1, prefillArgs: shortLease, config: "prefill: {timeout: 2s, orphan_grace: 200ms}\n"}
	for leg, engine := range map[blame.Leg]worker.Engine{blame.Mirrored: worker.SGLang, blame.First: worker.VLLM} {
		t.Run(leg.String(), func(t *testing.T) {
			t.Parallel()
			both(t, layoutOf(pair, engine), func(t *testing.T, f *fleet) {
				f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultHang})
				requireError(t, f.send(t.Context(), "/v1/completions", completion("it hangs", 4, false)), http.StatusServiceUnavailable, "prefill_failed")
				f.awaitOutcomes(1, "failed")
				f.awaitSaw(leg, blame.TimedOut)
				require.EqualValues(t, 1, f.saw(leg, blame.TimedOut))
				require.Len(t, f.attempts(), 1)
				requireBlameless(f)
			})
		})
	}
}

// TestAPrefillThatBreaksOffForNobodyBlamesNobody: its client has left.
func TestAPrefillThatBreaksOffForNobodyBlamesNobody(t *testing.T) {
	t.Parallel()
	l := layoutOf(layout{prefill: 1, decode: 1, prefillArgs: shortLease, config: "prefill: {overdue_base: 30s, orphan_grace: 10s}\n"}, worker.VLLM)
	both(t, l, func(t *testing.T, f *fleet) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid, DelayMS: 1500})
		c := f.begin(ask("it leaves", 4)[0])
		f.await("prefill to run", func() bool { return f.running(f.prefill) == 1 })
		f.leavesPrefill(c)
		f.awaitOutcomes(1, "client_left")
		f.await("the end of its prefill", func() bool { return f.saw(blame.First, blame.Ended) == 1 })
		require.Len(t, f.attempts(), 1)
		requireBlameless(f)
	})
}

// TestAPrefillAnswerThatCannotBeRead is the worker's fault: a mate serves.
func TestAPrefillAnswerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	l := layoutOf(layout{prefill: 2, decode: 1, config: everyTurn}, worker.SGLang)
	l.describe = func(f *fleet) {
		standIn(f.t, f.prefill[0], func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"text": "a half`) })
	}
	both(t, l, func(t *testing.T, f *fleet) {
		f.await("the one that cannot be read to be met", func() bool {
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("what does it say", 4, false)), "what does it say", 4)
			return f.saw(blame.Mirrored, blame.Unreadable) > 0
		})
		f.awaitOutcomes(int(f.sent.Load()), "ok")
		tried := f.attempts()
		require.Len(t, tried, 2)
		bad := tried[0].at(blame.Mirrored)
		require.Equal(t, f.prefill[0].Info.ID.String(), bad)
		require.Equal(t, []string{bad}, tried[1].avoided())
		require.Equal(t, []charge{{bad, "server_error"}}, f.chargedSince(nil, blame.Row{}))
	})
}

// TestAnAnswerThatEndsWithItsHeadIsDecodesFault: only Envoy's access log shows it.
func TestAnAnswerThatEndsWithItsHeadIsDecodesFault(t *testing.T) {
	t.Parallel()
	l := layoutOf(layout{prefill: 1, decode: 1, prefillArgs: shortLease}, worker.VLLM)
	l.describe = func(f *fleet) {
		standIn(f.t, f.decode[0], func(w http.ResponseWriter) { w.(http.Flusher).Flush() }) // it may go on, and does not
	}
	both(t, l, func(t *testing.T, f *fleet) {
		f.send(t.Context(), "/v1/completions", completion("nothing", 4, false))
		f.awaitOutcomes(1, "failed", `code="empty_answer"`)
		f.awaitSaw(blame.Decode, blame.Empty)
		require.EqualValues(t, 1, f.saw(blame.Decode, blame.Empty))
		tried := f.attempts()
		require.Len(t, tried, 1, "its head has gone to the client")
		require.Equal(t, []charge{{tried[0].at(blame.Decode), "server_error"}}, f.chargedSince(nil, blame.Row{}))
	})
}

// TestALegThatItsCarrierEndsBlamesNobody: the replica that carries it drains, and cuts
// what has not ended by then.
func TestALegThatItsCarrierEndsBlamesNobody(t *testing.T) {
	t.Parallel()
	for _, duplex := range []bool{false, true} {
		t.Run(fmt.Sprintf("full duplex %t", duplex), func(t *testing.T) {
			t.Parallel()
			f, carrier := newApart(t, duplex)
			f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultHang})
			done := make(chan *reply, 1)
			go func() {
				done <- f.send(t.Context(), "/v1/completions", completion("its carrier drains", 4, false), "x-request-timeout-ms", "4000")
			}()
			f.await("prefill to run", func() bool { return f.running(f.prefill) > 0 })
			require.NoError(t, carrier.Signal(syscall.SIGTERM))
			require.GreaterOrEqual(t, (<-done).status, 500)
			f.awaitSaw(blame.Mirrored, blame.Aborted)
			requireBlameless(f)
			f.faultAll(f.workers, enginesim.Fault{})
		})
	}
}
