//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// This file is for rules that meet: what is named, asked or served
// alone while something else binds the pick.

const asks = `"nvext":{"annotations":["query_instance_id:"]}`

// TestWhatIsNamedStaysInTheDomainThatIsRequired is docs/behaviour.md#named-workers with
// #transfer-domain: KV that is not to leave its domain does not leave it because a
// request says so.
func TestWhatIsNamedStaysInTheDomainThatIsRequired(t *testing.T) {
	t.Parallel()
	const d, p = "x-worker-instance-id", "x-prefill-instance-id"
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.VLLMMooncake} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			for _, routing := range []string{"prerouted", "direct"} {
				l := layoutOf(layout{
					prefill: 2, decode: 2, envoy: trusting(routing), config: "fallback: aggregated\n",
					decodeArgs: []string{"--accepts-aggregated"},
					describe:   func(f *fleet) { zones(f, worker.Required, 0, "ab", "ab") },
				}, engine)
				both(t, l, func(t *testing.T, f *fleet) {
					send := func(prompt string, headers ...string) *reply {
						return f.send(t.Context(), "/v1/completions", completion(prompt, 3, true), headers...)
					}
					r := send("from a to b", p, "100", d, "201")
					requireError(t, r, http.StatusServiceUnavailable, "no_worker_with_taint")
					require.Contains(t, r.body, `"required_taint":"dynamo.topology/zone=a"`)
					require.Equal(t, "1", r.header.Get("Retry-After"))
					require.Empty(t, f.gotAll(f.workers), "no worker has seen it, though one could have served it alone")
					requireAnswer(t, send("from a to a", p, "100", d, "200"), "from a to a", 3)
					requireAnswer(t, send("from b to b", p, "101", d, "201"), "from b to b", 3)
					if routing == "direct" {
						return
					}
					for i := range 8 { // the other one is picked so that it fits
						f.forget()
						prompt := fmt.Sprintf("%d with one named", i)
						name := [][]string{{d, "200"}, {d, "201"}, {p, "100"}, {p, "101"}}[i%4]
						requireAnswer(t, send(prompt, name...), prompt, 3)
						prefill, decode := f.served()
						require.Equal(t, prefill[2], decode[2], "%s > %s", prefill, decode)
						require.Contains(t, []string{prefill, decode}, name[1])
					}
				})
			}
		})
	}
}

// asked sends a question and returns which ids are in its answer.
func (f *fleet) asked(prompt string, headers ...string) map[string]json.Number {
	f.t.Helper()
	r := f.send(f.t.Context(), "/v1/completions", with(prompt, 3, asks), headers...)
	require.Equal(f.t, http.StatusOK, r.status, r.body)
	var got struct {
		NVExt struct {
			WorkerID map[string]json.Number `json:"worker_id"`
		}
	}
	require.NoError(f.t, json.Unmarshal([]byte(r.body), &got))
	return got.NVExt.WorkerID
}

// knownAtDecode serves a prompt by the only decode worker alone, and waits until
// the index knows of it.
func (f *fleet) knownAtDecode(prompt string) {
	f.t.Helper()
	f.publishAndWait(f.decode...)
	before := f.metric("baton_worker_index_blocks", `role="decode"`)
	requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion(prompt, 3, false)), prompt, 3)
	f.await("the index to know of it", func() bool { return f.metric("baton_worker_index_blocks", `role="decode"`) > before })
	f.publishAndWait(f.workers...)
}

var (
	aloneAt200 = map[string]json.Number{"decode_worker_id": "200", "decode_dp_rank": "0"}
	pairOf100  = map[string]json.Number{"prefill_worker_id": "100", "prefill_dp_rank": "0", "decode_worker_id": "200", "decode_dp_rank": "0"}
)

// TestAQuestionIsAnsweredWithOneWorkerWhereOneWouldServe is docs/behaviour.md#question
// with #conditional: nothing runs, and nothing is counted.
func TestAQuestionIsAnsweredWithOneWorkerWhereOneWouldServe(t *testing.T) {
	t.Parallel()
	both(t, layout{
		prefill: 1, decode: 1, decodeArgs: []string{"--accepts-aggregated", "--decode-us-per-token", "20000"}, envoy: trusting("prerouted"),
		config: "routing: {conditional: {enabled: true}}\n",
	}, func(t *testing.T, f *fleet) {
		history := strings.Repeat("what was said before ", 60)
		f.knownAtDecode(history)
		f.await("it to be off the books", func() bool { return f.metric("baton_worker_decode_requests") == 0 })
		f.answers()
		prefilled, alone := len(f.gotAll(f.prefill)), f.metric("baton_served_alone_total")
		decisions := f.metric("baton_decisions_total")
		require.Equal(t, aloneAt200, f.asked(history+"and a little"))
		require.Equal(t, pairOf100, f.asked(strings.Repeat("nothing of this is known ", 60)))
		require.Equal(t, pairOf100, f.asked(history+"and a little", "x-prefill-instance-id", "100"), "who names a worker is split")
		require.Equal(t, decisions, f.metric("baton_decisions_total"))
		require.Equal(t, alone, f.metric("baton_served_alone_total"))
		require.EqualValues(t, 1, f.metric("baton_worker_decode_requests"), "nothing else runs")
		// The request itself goes where the answer said.
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(history+"and a little", 3, true)), history+"and a little", 3)
		require.Len(t, f.gotAll(f.prefill), prefilled)
		require.Equal(t, alone+1, f.metric("baton_served_alone_total", `reason="lower_cost"`))
	})
}

// TestAQuestionIsAnsweredWithTheFallback is docs/behaviour.md#question with
// #nobody-eligible: one worker where that is configured, else the refusal that the
// request would get.
func TestAQuestionIsAnsweredWithTheFallback(t *testing.T) {
	t.Parallel()
	for _, fallback := range []string{"aggregated", "none"} {
		t.Run(fallback, func(t *testing.T) {
			t.Parallel()
			both(t, layout{
				prefill: 1, decode: 1, simArgs: []string{"--accepts-aggregated"}, config: "fallback: " + fallback + "\n", envoy: trusting("prerouted"),
				describe: func(f *fleet) { zones(f, worker.Required, 0, "a", "b") },
			}, func(t *testing.T, f *fleet) {
				if fallback == "none" {
					r := f.send(t.Context(), "/v1/completions", with("who?", 3, asks))
					requireError(t, r, http.StatusServiceUnavailable, "no_worker_with_taint")
				} else {
					require.Equal(t, aloneAt200, f.asked("who?"))
				}
				draining := *f.prefill[0].Info
				draining.Draining = true
				f.publishAndWait(&stack.Worker{Info: &draining}, f.decode[0])
				if fallback == "none" {
					r := f.send(t.Context(), "/v1/completions", with("who?", 3, asks))
					requireError(t, r, http.StatusServiceUnavailable, "no_prefill_worker")
				} else {
					require.Equal(t, aloneAt200, f.asked("who?"))
				}
				require.Empty(t, f.gotAll(f.workers), "nothing runs")
				require.Zero(t, f.metric("baton_served_alone_total"))
				require.Zero(t, f.metric("baton_decisions_total"))
			})
		})
	}
}
