//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// streamers starts n streaming answers of some seconds each and returns once
// every one of them has begun at its worker and at its client, with the function
// that waits for their ends.
func (f *fleet) streamers(n, tokens int, headers ...string) (wait func() []*reply) {
	f.t.Helper()
	replies := make([]*reply, n)
	var wg sync.WaitGroup
	var read atomic.Int64 // the answers of which the client has a byte: before, the plugin is asked once more
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotFirstResponseByte: func() { read.Add(1) }})
	for i := range n {
		wg.Go(func() {
			replies[i] = f.send(ctx, "/v1/completions", completion(fmt.Sprintf("stream %d", i), tokens, true), headers...)
		})
	}
	f.await("every answer to have begun", func() bool {
		var running, met int
		for _, w := range f.decode {
			s, ok := f.state(w)
			if !ok {
				return false
			}
			running, met = running+s.Running-s.DecodeWaiting-s.Queued, met+s.DecodeWaiting
		}
		return running == n && met == 0 && read.Load() == int64(n)
	})
	return func() []*reply {
		wg.Wait()
		return replies
	}
}

var slowDecode = []string{"--decode-us-per-token", "40000"}

// TestThePluginDiesUnderStreamingAnswers: no answer that has begun is cut; in
// between new requests are refused with 503, and never reach an address that
// the client chose; a new plugin takes over. Answers stop half-way until the plugin
// is to end, so that it ends under each of them, on a busy machine too.
func TestThePluginDiesUnderStreamingAnswers(t *testing.T) {
	t.Parallel()
	const n, tokens = 200, 60
	for _, how := range []string{"SIGKILL", "SIGTERM"} {
		t.Run(how, func(t *testing.T) {
			both(t, layout{prefill: 2, decode: 2, decodeArgs: slowDecode}, func(t *testing.T, f *fleet) {
				f.faultAll(f.decode, enginesim.Fault{Mode: enginesim.FaultHold, When: enginesim.Mid})
				wait := f.streamers(n, tokens)
				// In full duplex an answer is safe once the plugin has left its
				// stream: it does so as soon as nothing depends on it.
				f.await("prefill to be over, and full-duplex streams to be left", func() bool {
					return f.metric("baton_streams_in_flight", `leg="prefill"`) == 0 &&
						(!f.fullDuplex || f.metric("baton_streams_in_flight", `leg="main"`) == 0)
				})
				old := f.plugin
				if how == "SIGKILL" {
					require.NoError(t, old.Kill())
					f.faultAll(f.decode, enginesim.Fault{})
				} else {
					f.faultAll(f.decode, enginesim.Fault{})
					require.NoError(t, old.Stop(10*time.Second))
					require.NoError(t, old.Err(), "it ends with exit code 0")
				}
				r := f.send(t.Context(), "/v1/completions", completion("in between", 4, false),
					"x-gateway-destination-endpoint", f.decode[0].Info.Endpoint.String())
				require.Equal(t, http.StatusServiceUnavailable, r.status)
				require.Contains(t, r.body, `"code":"router_unavailable"`)
				f.startPlugin()
				f.await("the new plugin to serve", func() bool {
					return f.send(t.Context(), "/v1/completions", completion("again", 1, false)).status == http.StatusOK
				})
				for i, r := range wait() {
					requireAnswer(t, r, fmt.Sprintf("stream %d", i), tokens)
				}
			})
		})
	}
}

// TestTwoThousandRequestsInFlight: no leg is lost without a word. Envoy's
// default limits would drop mirrors from about 500 requests in flight.
func TestTwoThousandRequestsInFlight(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.GreaterOrEqual(t, limit.Max, uint64(12000), "this test needs some 12,000 open files (ulimit -Hn)")
	n := 2000
	if raceEnabled {
		n = 500 // slower by an order: the machine must be able to have them all at once
	}
	both(t, layout{
		alone: true, prefill: 2, decode: 2, config: "tokens: {mode: estimate}\nprefill: {start_timeout: 200s, overdue_base: 200s}\nanswer: {overdue_base: 200s}\n", // a busy machine is slow, and loses nothing
		decodeArgs: []string{"--max-running", "4096"}, prefillArgs: []string{"--max-running", "4096"},
	}, func(t *testing.T, f *fleet) {
		f.faultAll(f.decode, enginesim.Fault{Mode: enginesim.FaultHold, When: enginesim.Mid}) // each has begun its answer
		var wg sync.WaitGroup
		var good atomic.Int64
		for i := range n {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
				defer cancel()
				prompt := fmt.Sprintf("one of many %d", i)
				if r := f.send(ctx, "/v1/completions", completion(prompt, 40, true)); r.status == http.StatusOK && r.err == nil {
					good.Add(1)
				} else {
					t.Errorf("request %d: %d %v %s", i, r.status, r.err, r.body)
				}
			})
		}
		peak := 0
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		require.NoError(t, stack.Await(ctx, "all of them to be in flight", func() bool {
			running := 0
			for _, w := range f.decode {
				s, _ := f.state(w)
				running += s.Running
			}
			peak = max(peak, running)
			return peak == n
		}))
		f.faultAll(f.decode, enginesim.Fault{}) // all of them end at once
		wg.Wait()
		dropped, err := f.envoy.Stat(t.Context(), "access_logs.grpc_access_log.logs_dropped")
		require.NoError(t, err)
		require.Zero(t, dropped, "an end that Envoy does not tell leaves decode booked")
		require.EqualValues(t, n, good.Load())
		var legs uint64
		for _, w := range f.prefill {
			legs += f.received(w)
		}
		require.Zero(t, f.metric("baton_fresh_picks_total"), "by reason: %s", regexp.MustCompile(`(?m)^baton_fresh_picks_total.*$`).FindAllString(f.adminGet("/metrics"), -1))
		require.EqualValues(t, n, legs, "each request had its prefill leg, once")
	})
}

// TestEndsWaitForAPluginThatIsStopped: Envoy keeps the ends of answers that a stopped
// plugin does not read, and tells them all when it goes on. A lost end would leave decode
// booked for minutes.
func TestEndsWaitForAPluginThatIsStopped(t *testing.T) {
	t.Parallel()
	const n, tokens = 100, 8
	agent := strings.Repeat("a", 16384) // is told with each end: together they are more than the connection takes unread
	both(t, layout{
		prefill: 1, decode: 2, config: "tokens: {mode: estimate}\n",
		decodeArgs: []string{"--max-running", "128"}, prefillArgs: []string{"--max-running", "128"},
	}, func(t *testing.T, f *fleet) {
		f.faultAll(f.decode, enginesim.Fault{Mode: enginesim.FaultHold, When: enginesim.Mid})
		wait := f.streamers(n, tokens, "user-agent", agent)
		f.await("streams on which nothing depends to be left", func() bool {
			return f.metric("baton_streams_in_flight", `leg="prefill"`) == 0 &&
				(!f.fullDuplex || f.metric("baton_streams_in_flight", `leg="main"`) == 0)
		})
		require.EqualValues(t, n, f.metric("baton_worker_decode_requests"))
		require.NoError(t, f.plugin.Signal(syscall.SIGSTOP))
		f.faultAll(f.decode, enginesim.Fault{})
		replies := wait()
		require.NoError(t, f.plugin.Signal(syscall.SIGCONT))
		for i, r := range replies {
			requireAnswer(t, r, fmt.Sprintf("stream %d", i), tokens)
		}
		f.await("every end to be told", func() bool { return f.metric("baton_worker_decode_requests") == 0 })
		dropped, err := f.envoy.Stat(t.Context(), "access_logs.grpc_access_log.logs_dropped")
		require.NoError(t, err)
		require.Zero(t, dropped)
	})
}
