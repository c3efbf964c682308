//go:build e2e

package envoytest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestMooncakesHalvesMeet: vLLM with MooncakeConnector gets both legs at once, and each
// its own part of the transfer.
func TestMooncakesHalvesMeet(t *testing.T) {
	t.Parallel()
	l := layoutOf(layout{prefill: 2, decode: 2, prefillArgs: []string{"--dp-size", "2"}}, worker.VLLMMooncake)
	both(t, l, func(t *testing.T, f *fleet) {
		for _, q := range ask("mooncake", 4) {
			q.require(t, f.send(t.Context(), q.path, q.body))
		}
		for _, w := range f.prefill {
			for _, r := range f.got(w) {
				require.Contains(t, r.Body, `"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"baton-`)
				require.Contains(t, r.Body, `"min_tokens":1`)
				require.Len(t, r.Headers["X-Data-Parallel-Rank"], 1)
			}
		}
		for _, w := range f.decode {
			for _, r := range f.got(w) {
				require.Contains(t, r.Body, `"remote_bootstrap_addr":"http://127.0.0.1:`)
			}
		}
		sum := f.ledger()
		require.EqualValues(t, len(ask("mooncake", 4)), sum.Taken)
		require.Zero(t, sum.Held)
	})
}

// TestMooncakesPrefillDoesNotEndTheAnswer: a prefill that ends by its first token would
// give its KV up, and decode would wait for it.
func TestMooncakesPrefillDoesNotEndTheAnswer(t *testing.T) {
	t.Parallel()
	both(t, layoutOf(layout{prefill: 1, decode: 1}, worker.VLLMMooncake), func(t *testing.T, f *fleet) {
		body := strings.TrimSuffix(completion("ends at once", 4, false), "}") + `,"logit_bias":{"2":100}}`
		r := f.send(t.Context(), "/v1/completions", body)
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Contains(t, r.body, `"finish_reason":"stop"`)
	})
}

// TestMooncakesParallelGenerationsAreServedByOneWorker, or by none.
func TestMooncakesParallelGenerationsAreServedByOneWorker(t *testing.T) {
	t.Parallel()
	two := strings.TrimSuffix(completion("two", 4, false), "}") + `,"n":2}`
	both(t, layoutOf(layout{prefill: 1, decode: 1}, worker.VLLMMooncake), func(t *testing.T, f *fleet) {
		r := f.send(t.Context(), "/v1/completions", two)
		require.Equal(t, http.StatusBadRequest, r.status, r.body)
		require.Contains(t, r.body, `"param":"n"`)
	})
	both(t, layoutOf(layout{prefill: 1, decode: 1, decodeArgs: []string{"--accepts-aggregated"}}, worker.VLLMMooncake), func(t *testing.T, f *fleet) {
		require.Equal(t, http.StatusOK, f.send(t.Context(), "/v1/completions", two).status)
		require.Empty(t, f.got(f.prefill[0]))
	})
}
