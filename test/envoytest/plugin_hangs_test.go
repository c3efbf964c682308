//go:build e2e

package envoytest

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// impatient is a pair whose Envoy finds out in less time than the shipped one that its
// plugin hangs.
var impatient = layout{
	prefill: 1, decode: 1, config: "tokens: {mode: estimate}\n",
	patch: func(config string) string {
		return strings.NewReplacer(
			"connection_keepalive: {interval: 5s, timeout: 5s}", "connection_keepalive: {interval: 1s, timeout: 2s}",
			"message_timeout: 5s", "message_timeout: 2s",
		).Replace(config)
	},
}

// serves waits until a request is served, its workers are idle, and nothing is booked.
func (f *fleet) serves() {
	f.t.Helper()
	f.await("the plugin to serve", func() bool {
		return f.send(f.t.Context(), "/v1/completions", completion("again", 1, false)).status == http.StatusOK
	})
	f.settled()
	f.awaitLong("ends that were lost with Envoy's connection to be given up", func() bool {
		return f.metric("baton_worker_decode_requests") == 0
	})
	f.checkIdle()
}

// TestAPluginThatHangsIsNotWaitedFor: of a plugin that neither answers nor dies Envoy
// gives up what it has asked. When the plugin goes on, nothing of that is booked or
// charged.
func TestAPluginThatHangsIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	both(t, impatient, func(t *testing.T, f *fleet) {
		f.serves()
		f.forget()
		require.NoError(t, f.plugin.Signal(syscall.SIGSTOP))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		r := f.send(ctx, "/v1/completions", completion("nobody decides", 4, false))
		require.NoError(t, f.plugin.Signal(syscall.SIGCONT))
		requireUnavailable(t, r)
		require.Empty(t, f.gotAll(f.workers), "no worker is asked without a decision")
		f.serves()
		require.Zero(t, f.setAside())
	})
}

// TestAPluginThatHangsHoldsNoAnswerForLong: an answer whose head waits for the plugin's
// word goes on or ends soon after the request's deadline.
func TestAPluginThatHangsHoldsNoAnswerForLong(t *testing.T) {
	t.Parallel()
	both(t, impatient, func(t *testing.T, f *fleet) {
		f.serves()
		prefilled := f.received(f.prefill[0])
		goOn := f.hold(f.decode[0], enginesim.Before)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		got := make(chan *reply, 1)
		q := ask("its head waits", 4)[0]
		go func() { got <- f.send(ctx, q.path, q.body, "x-request-timeout-ms", "4000") }()
		// A leg that the plugin had not let through yet would fail without it.
		f.await("both workers to be asked", func() bool {
			return f.running(f.decode) == 1 && f.received(f.prefill[0]) == prefilled+1
		})
		require.NoError(t, f.plugin.Signal(syscall.SIGSTOP))
		goOn()
		r := <-got
		require.NoError(t, f.plugin.Signal(syscall.SIGCONT))
		require.NoError(t, r.err)
		require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, r.status, r.body)
		f.serves()
	})
}
