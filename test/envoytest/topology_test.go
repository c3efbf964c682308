//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// zones puts the workers of each role into the zones in turn, and binds the KV of
// the prefill workers to them.
func zones(f *fleet, e worker.Enforcement, weight float64, prefill, decode string) {
	for _, side := range []struct {
		ws    []*stack.Worker
		zones string
	}{{f.prefill, prefill}, {f.decode, decode}} {
		for i, w := range side.ws {
			w.Info.TopologyDomains = map[string]string{"zone": string(side.zones[i%len(side.zones)])}
			if w.Info.Role == worker.Prefill {
				w.Info.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: e, Weight: weight}
			}
		}
	}
}

// crossings counts the requests that decode served in another zone than prefill.
func (f *fleet) crossings() (crossed, all int) {
	f.t.Helper()
	zone := map[string]string{}
	for _, w := range f.workers {
		zone[w.Info.ID.String()] = w.Info.TopologyDomains["zone"]
	}
	for _, w := range f.decode {
		for _, r := range f.got(w) {
			if all++; zone[r.Headers.Get("X-Prefill-Instance-Id")] != w.Info.TopologyDomains["zone"] {
				crossed++
			}
		}
	}
	return crossed, all
}

// TestNoKVLeavesADomainThatIsRequired is docs/behaviour.md#transfer-domain, for engines
// that meet and for those that prefill first.
func TestNoKVLeavesADomainThatIsRequired(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.VLLMMooncake} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			either(t, layout{
				prefill: 2, decode: 4, simArgs: []string{"--engine", string(engine)},
				describe: func(f *fleet) { zones(f, worker.Required, 0, "ab", "ab") },
			}, func(t *testing.T, f *fleet) {
				// Of two idle zones either may be picked: the other one has its turn some time.
				used := func() bool {
					return f.received(f.prefill[0]) > 0 && f.received(f.prefill[1]) > 0
				}
				n := 0
				for ; n < 12 || !used() && n < 200; n++ {
					prompt := fmt.Sprintf("%d in one zone", n)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 3, n%2 == 0)), prompt, 3)
				}
				crossed, all := f.crossings()
				require.Equal(t, n, all)
				require.Zero(t, crossed)
				require.True(t, used(), "both zones are used")
			})
		})
	}
}

// TestADomainWithoutADecodeWorkerFailsClosed is docs/behaviour.md#transfer-domain and
// #nobody-eligible.
func TestADomainWithoutADecodeWorkerFailsClosed(t *testing.T) {
	t.Parallel()
	either(t, layout{
		prefill: 1, decode: 2, simArgs: []string{"--accepts-aggregated"},
		describe: func(f *fleet) { zones(f, worker.Required, 0, "a", "b") },
	}, func(t *testing.T, f *fleet) {
		r := f.send(t.Context(), "/v1/completions", completion("nobody there", 3, false))
		requireError(t, r, 503, "no_worker_with_taint")
		require.Contains(t, r.body, `"required_taint":"dynamo.topology/zone=a"`)
		require.Equal(t, "1", r.header.Get("Retry-After"))
		require.Empty(t, f.gotAll(f.workers), "no worker has seen it, though one could have served it alone")

		f.decode[1].Info.TopologyDomains["zone"] = "a"
		f.publishAndWait(f.workers...)
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("somebody there", 3, false)), "somebody there", 3)
		require.Empty(t, f.got(f.decode[0]))
	})
}

// TestAPreferredDomainIsKeptToWhileItIsFree is the preferred form of
// docs/behaviour.md#transfer-domain.
func TestAPreferredDomainIsKeptToWhileItIsFree(t *testing.T) {
	t.Parallel()
	either(t, layout{
		prefill: 2, decode: 2, describe: func(f *fleet) { zones(f, worker.Preferred, 1, "ab", "ab") },
	}, func(t *testing.T, f *fleet) {
		for i := range 8 {
			prompt := fmt.Sprintf("%d rather in one zone", i)
			f.await("the answer before to be off the books", func() bool { return f.metric("baton_worker_decode_blocks") == 0 })
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 3, i%2 == 0)), prompt, 3)
		}
		crossed, all := f.crossings()
		require.Equal(t, 8, all)
		require.Zero(t, crossed, "one request at a time: nobody is busy")

		f.publishAndWait(append([]*stack.Worker{f.decode[0]}, f.prefill...)...)
		for i := range 8 {
			prompt := fmt.Sprintf("%d wherever", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 3, true)), prompt, 3)
		}
	})
}

// TestAClientMayAskForATaint is docs/behaviour.md#decode-pick and #transfer-domain.
func TestAClientMayAskForATaint(t *testing.T) {
	t.Parallel()
	either(t, layout{
		prefill: 2, decode: 2, describe: func(f *fleet) {
			for _, w := range []*stack.Worker{f.prefill[1], f.decode[0]} {
				w.Info.Taints = []string{"gpu=h200"}
			}
		},
	}, func(t *testing.T, f *fleet) {
		bind := func(taint string) *reply {
			body := strings.Replace(completion("on that one", 3, false), "{", `{"nvext":{"routing_constraints":{"required_taints":["`+taint+`"]}},`, 1)
			return f.send(t.Context(), "/v1/completions", body)
		}
		for range 4 {
			requireAnswer(t, bind("gpu=h200"), "on that one", 3)
		}
		require.Len(t, f.got(f.prefill[1]), 4)
		require.Len(t, f.got(f.decode[0]), 4)
		requireError(t, bind("gpu=none"), 503, "no_worker_with_taint")
	})
}

// answers has an answer run at decode until the test ends.
func (f *fleet) answers() {
	f.t.Helper()
	ctx, stop := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		f.send(ctx, "/v1/completions", completion(strings.Repeat("a long one that runs ", 8), 5000, true))
	})
	f.t.Cleanup(func() { stop(); wg.Wait() })
	f.await("it to run", func() bool { return f.metric("baton_worker_decode_requests") == 1 })
}

// TestAPromptThatDecodeStillHoldsIsServedThere is docs/behaviour.md#conditional.
func TestAPromptThatDecodeStillHoldsIsServedThere(t *testing.T) {
	t.Parallel()
	either(t, layout{
		prefill: 1, decode: 1, decodeArgs: []string{"--accepts-aggregated", "--decode-us-per-token", "20000"},
		config: "routing: {debug_header: true, conditional: {enabled: true}}\n",
	}, func(t *testing.T, f *fleet) {
		history := strings.Repeat("what was said before ", 60)
		f.knownAtDecode(history)
		f.answers()
		prefilled := len(f.gotAll(f.prefill))
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(history+"and a little", 3, true)), history+"and a little", 3)
		require.Len(t, f.gotAll(f.prefill), prefilled)

		other := strings.Repeat("nothing of this is known ", 60)
		r := f.send(t.Context(), "/v1/completions", completion(other, 3, false), "x-debug-decision", "1")
		requireAnswer(t, r, other, 3)
		require.Len(t, f.gotAll(f.prefill), prefilled+1, "its prompt would delay the answer that runs")
		require.Contains(t, r.header.Get("X-Baton-Decision"), `split="prefill apart`)
		require.NotZero(t, f.metric("baton_served_alone_total", `reason="lower_cost"`))
	})
}

// TestTargetsAreTold is docs/config.md#targets: by either header, and nobody is refused for one that cannot be kept.
func TestTargetsAreTold(t *testing.T) {
	t.Parallel()
	either(t, layout{prefill: 2, decode: 1}, func(t *testing.T, f *fleet) {
		for _, row := range []struct{ header, value, expected, result string }{
			{"x-ttft-target-ms", "3600000", "kept", "kept"},
			{"x-llm-d-slo-ttft-ms", "0.001", "missed", "missed"},
			{"x-ttft-target-ms", "soon", "", ""},
		} {
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("in time", 3, true), row.header, row.value), "in time", 3)
			if row.expected != "" {
				f.await("the target to be counted", func() bool {
					return f.metric("baton_ttft_targets_total", `expected="`+row.expected+`"`, `result="`+row.result+`"`) == 1
				})
			}
		}
		require.EqualValues(t, 2, f.metric("baton_ttft_targets_total"))
	})
}

// TestAFallbackIsTheOnlyWayToOneWorker is docs/behaviour.md#nobody-eligible; that
// without it nobody serves is TestADomainWithoutADecodeWorkerFailsClosed.
func TestAFallbackIsTheOnlyWayToOneWorker(t *testing.T) {
	t.Parallel()
	either(t, layout{
		prefill: 1, decode: 2, simArgs: []string{"--accepts-aggregated"}, config: "fallback: aggregated\n",
		describe: func(f *fleet) { zones(f, worker.Required, 0, "a", "b") },
	}, func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("all there is", 3, true)), "all there is", 3)
		require.Empty(t, f.gotAll(f.prefill))
		require.EqualValues(t, 1, f.metric("baton_served_alone_total", `reason="fallback"`))
	})
}
