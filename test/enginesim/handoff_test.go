package enginesim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sidechannel"
)

var engines = []worker.Engine{worker.VLLM, worker.TensorRTLLM}

var nextDisaggID = func() func() int64 {
	var mu sync.Mutex
	id := int64(1 << 42)
	return func() int64 {
		mu.Lock()
		defer mu.Unlock()
		id++
		return id
	}
}()

// prefillBody asks for one token and a hand-off.
func prefillBody(engine worker.Engine, prompt string) string {
	if engine == worker.VLLM {
		return fmt.Sprintf(`{"prompt":%q,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`, prompt)
	}
	return fmt.Sprintf(`{"prompt":%q,"max_tokens":1,"disaggregated_params":{"request_type":"context_only","disagg_request_id":%d}}`,
		prompt, nextDisaggID())
}

// decodeBody makes decode's body from prefill's answer.
func decodeBody(t testing.TB, engine worker.Engine, prompt, answer, extra string) string {
	t.Helper()
	if engine == worker.VLLM {
		m := nixlField.FindStringSubmatch(answer)
		require.NotNil(t, m, answer)
		return fmt.Sprintf(`{"prompt":%q,"kv_transfer_params":%s%s}`, prompt, m[1], extra)
	}
	m, ids := trtField.FindStringSubmatch(answer), trtIDs.FindStringSubmatch(answer)
	require.NotNil(t, m, answer)
	return fmt.Sprintf(`{"prompt":%s,"disaggregated_params":%s%s}`, ids[1], strings.Replace(m[1], "context_only", "generation_only", 1), extra)
}

func eachEngine(t *testing.T, f func(t *testing.T, e worker.Engine)) {
	for _, e := range engines {
		t.Run(string(e), func(t *testing.T) { f(t, e) })
	}
}

// prefillOnly runs prefill and returns decode's body.
func prefillOnly(t testing.TB, p *Sim, prompt, extra string) string {
	t.Helper()
	r := post(t.Context(), p.URL()+completions, prefillBody(p.Identity().Engine, prompt))
	require.Equal(t, 200, r.status, r.body)
	return decodeBody(t, p.Identity().Engine, prompt, r.body, extra)
}

func TestAHandOffGivesTheSameAnswerAsOneWorker(t *testing.T) {
	eachEngine(t, func(t *testing.T, e worker.Engine) {
		p, d := pair(t, Config{Engine: e, DPSize: 2, PageSize: 2})
		for range 3 { // so that every rank is used
			body := prefillOnly(t, p, "a b c", `,"max_tokens":4`)
			require.Equal(t, 1, p.State(false).Handoff.Held)
			require.Equal(t, 2, p.State(false).KVHeldBlocks)
			o := parseOAI(t, post(t.Context(), d.URL()+completions, body))
			require.Equal(t, Answer(Tokenize("a b c"), 4), o.Choices[0].Text)
			require.Equal(t, 4, o.Usage.CompletionTokens)
		}
		requireClean(t, p, d)
		require.Equal(t, uint64(3), d.State(false).Handoff.Pulled)
		pre, dec := p.Requests(0), d.Requests(0)
		require.Equal(t, "prefill", pre[0].Leg)
		require.Equal(t, "decode", dec[0].Leg)
		require.NotEmpty(t, pre[0].Handoff)
		require.Equal(t, pre[0].Handoff, dec[0].Handoff, "the log pairs them")
	})
}

func TestHeldBlocksAreNotEvicted(t *testing.T) {
	eachEngine(t, func(t *testing.T, e worker.Engine) {
		p, d := pair(t, Config{Engine: e, PageSize: 1, CapacityBlocks: 6})
		body := prefillOnly(t, p, "a b c d", `,"max_tokens":1`)
		second := later(t.Context(), p.URL()+completions, `{"prompt":"e f g","max_tokens":1}`)
		Eventually(t, func() bool { return p.State(false).Queued == 1 }, "there is no room beside what is held")
		require.Equal(t, 200, post(t.Context(), d.URL()+completions, body).status)
		require.Equal(t, 200, (<-second).status, "taken is freed")
		requireClean(t, p, d)
	})
}

// The client leaves at each phase. Afterwards nothing may be held except what the engine
// itself would hold, and that is Expired in the end.
func TestEveryDepartureOfAClient(t *testing.T) {
	eachEngine(t, func(t *testing.T, e worker.Engine) {
		t.Run("while prefill computes: nothing is held", func(t *testing.T) {
			p, d := pair(t, Config{Engine: e, PrefillBase: time.Hour})
			ctx, cancel := context.WithCancel(t.Context())
			out := later(ctx, p.URL()+completions, prefillBody(e, "a"))
			Eventually(t, func() bool { return p.State(false).KVHeldBlocks > 0 }, "it computes")
			cancel()
			require.Error(t, (<-out).err)
			requireClean(t, p, d)
			require.Zero(t, p.State(false).Handoff.Given)
		})
		t.Run("while decode queues: its prefill is told", func(t *testing.T) {
			p := start(t, Config{Engine: e, Role: worker.Prefill})
			d := start(t, Config{Engine: e, Role: worker.Decode, MaxRunning: 1, DecodePerToken: time.Hour})
			body := prefillOnly(t, p, "a", "")
			ctx, cancel := context.WithCancel(t.Context())
			first := later(ctx, d.URL()+completions, `{"prompt":"x"}`)
			Eventually(t, func() bool { return d.State(false).Ranks[0].Running == 1 }, "the slot is taken")
			ctx2, cancel2 := context.WithCancel(t.Context())
			second := later(ctx2, d.URL()+completions, body)
			Eventually(t, func() bool { return d.State(false).Queued == 1 }, "decode queues")
			require.Equal(t, 1, p.State(false).Handoff.Held)
			cancel2()
			require.Error(t, (<-second).err)
			Eventually(t, func() bool { return p.State(false).Handoff.Released == 1 }, "freed at prefill")
			cancel()
			<-first
			requireClean(t, p, d)
		})
		t.Run("while decode answers: the KV has been taken", func(t *testing.T) {
			p := start(t, Config{Engine: e, Role: worker.Prefill})
			d := start(t, Config{Engine: e, Role: worker.Decode, DecodePerToken: time.Hour})
			ctx, cancel := context.WithCancel(t.Context())
			out := later(ctx, d.URL()+completions, prefillOnly(t, p, "a", ""))
			Eventually(t, func() bool { return d.State(false).Handoff.Pulled == 1 }, "taken")
			cancel()
			require.Error(t, (<-out).err)
			requireClean(t, p, d)
		})
	})
}

// The other side accepts the connection and sends nothing.
func TestAPullThatHangs(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	body := fmt.Sprintf(`{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e","remote_request_id":"r",`+
		`"remote_host":"127.0.0.1","remote_port":%d,"remote_block_ids":[[1]]}}`, core.PortOf(ln.Addr().String()))
	t.Run("fails after the pull's time-out", func(t *testing.T) {
		d := start(t, Config{Engine: worker.VLLM, Role: worker.Decode, PullTimeout: 20 * time.Millisecond})
		r := post(t.Context(), d.URL()+completions, body)
		require.Equal(t, 500, r.status, r.body)
		require.Equal(t, map[string]uint64{"kv_load": 1}, d.State(false).Failed)
		requireClean(t, d)
	})
	t.Run("ends when the client leaves, and has the KV freed", func(t *testing.T) {
		asks := make(chan sidechannel.PullAsk, 4)
		stuck := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var ask sidechannel.PullAsk
			_ = json.NewDecoder(r.Body).Decode(&ask)
			asks <- ask
			if !ask.Drop {
				<-r.Context().Done()
			}
		}))
		t.Cleanup(stuck.Close)
		d := start(t, Config{Engine: worker.VLLM, Role: worker.Decode})
		ctx, cancel := context.WithCancel(t.Context())
		out := later(ctx, d.URL()+completions, strings.Replace(body, ln.Addr().String()[len("127.0.0.1:"):], stuck.URL[len("http://127.0.0.1:"):], 1))
		first := <-asks
		require.False(t, first.Drop)
		require.Equal(t, 1, d.State(false).DecodeWaiting)
		cancel()
		require.Error(t, (<-out).err)
		var second sidechannel.PullAsk
		Eventually(t, func() bool {
			select {
			case second = <-asks:
				return true
			default:
				return false
			}
		}, "the prefill worker is told")
		require.True(t, second.Drop)
		require.Equal(t, []string{first.ID, first.Engine, first.By}, []string{second.ID, second.Engine, second.By})
		requireClean(t, d)
		require.Equal(t, uint64(1), d.State(false).Canceled)
	})
}

func TestARecomputedPromptIsInTheCache(t *testing.T) {
	d := start(t, Config{Engine: worker.VLLM, Role: worker.Decode, KVLoadFailure: LoadRecompute, PageSize: 1})
	r := post(t.Context(), d.URL()+completions, `{"prompt":"a b c","max_tokens":1,"kv_transfer_params":{"do_remote_prefill":true,`+
		`"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1,"remote_block_ids":[[1]]}}`)
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, 3, d.State(false).Ranks[0].CachedBlocks)
	require.Equal(t, uint64(1), d.State(false).Handoff.Recomputed)
	requireClean(t, d)
}

func TestHeldKVTakesNoSlot(t *testing.T) {
	eachEngine(t, func(t *testing.T, e worker.Engine) {
		p, d := pair(t, Config{Engine: e, MaxRunning: 1})
		first, second := prefillOnly(t, p, "a", ""), prefillOnly(t, p, "b", "")
		require.Equal(t, 0, p.State(false).Ranks[0].Running)
		for _, body := range []string{second, first} {
			require.Equal(t, 200, post(t.Context(), d.URL()+completions, body).status)
		}
		requireClean(t, p, d)
	})
}

func TestResetForgetsCountsAndKeepsWhatIsHeld(t *testing.T) {
	p, d := pair(t, Config{Engine: worker.VLLM})
	require.Equal(t, 200, post(t.Context(), d.URL()+completions, prefillOnly(t, p, "a", "")).status)
	require.Equal(t, 200, post(t.Context(), d.URL()+completions, `{"prompt":"a"}`).status)
	body := prefillOnly(t, p, "a", "")
	p.Reset()
	d.Reset()
	require.Equal(t, HandoffState{Held: 1, HeldBlocks: 1, Given: 1}, p.State(false).Handoff)
	require.Equal(t, HandoffState{}, d.State(false).Handoff)
	require.Equal(t, 200, post(t.Context(), d.URL()+completions, body).status)
	requireClean(t, p, d)
}

func TestFaultsOfADecodeWithAHandOff(t *testing.T) {
	eachEngine(t, func(t *testing.T, e worker.Engine) {
		p, d := pair(t, Config{Engine: e, KVLease: time.Second})
		require.NoError(t, d.SetFault(Fault{Mode: FaultError, Status: 503, Count: 1}))
		body := prefillOnly(t, p, "a", "")
		require.Equal(t, 503, post(t.Context(), d.URL()+completions, body).status)
		require.Equal(t, uint64(0), d.State(false).Handoff.Pulled, "before the KV has changed hands")
		require.NoError(t, d.SetFault(Fault{Mode: FaultError, Status: 500, When: After, Count: 1}))
		require.Equal(t, 500, post(t.Context(), d.URL()+completions, prefillOnly(t, p, "a", "")).status)
		require.Equal(t, uint64(1), d.State(false).Handoff.Pulled)
		require.NoError(t, d.SetFault(Fault{Mode: FaultEarly200, Count: 1}))
		broken := strings.Replace(prefillOnly(t, p, "a", `,"stream":true`), `"prompt":`, `"prompt":[9],"was":`, 1)
		r := post(t.Context(), d.URL()+completions, broken)
		require.Equal(t, 200, r.status)
		require.Contains(t, r.body, `data: {"error":{`)
		require.NotContains(t, r.body, `{"error":{"error"`)
		Eventually(t, func() bool { return p.State(false).Handoff.Held == 0 }, "the leases end")
		require.Equal(t, uint64(2), p.State(false).Handoff.Expired)
		require.Equal(t, uint64(1), p.State(false).Handoff.Taken)
		require.NoError(t, p.SetFault(Fault{Mode: FaultError, When: Mid, Count: 1}))
		require.Equal(t, 500, post(t.Context(), p.URL()+completions, prefillBody(e, "a")).status)
		require.Equal(t, uint64(3), p.State(false).Handoff.Given, "half a prompt is not held")
	})
}

// Many requests run, and some clients leave at random. The lease frees the KV of those
// that never reach a decode worker.
func TestAFleetBalances(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	t.Logf("seed %d", seed)
	eachEngine(t, func(t *testing.T, e worker.Engine) {
		p, d := pair(t, Config{
			Engine: e, DPSize: 2, PageSize: 2, CapacityBlocks: 200, MaxRunning: 20, KVLease: 500 * time.Millisecond,
			PrefillPerToken: 100 * time.Microsecond, DecodePerToken: 100 * time.Microsecond,
		})
		const requests = 400
		var wg sync.WaitGroup
		gate := make(chan struct{}, 100)
		for i := range requests {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			wg.Go(func() {
				gate <- struct{}{}
				defer func() { <-gate }()
				prompt := fmt.Sprintf("question %d of %d for you", i, rng.IntN(9))
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(30))*time.Millisecond)
				defer cancel()
				r := post(t.Context(), p.URL()+completions, prefillBody(e, prompt))
				if r.status != 200 {
					t.Errorf("prefill: %d %s", r.status, r.body)
					return
				}
				body := decodeBody(t, e, prompt, r.body, `,"max_tokens":3`)
				if rng.IntN(2) == 0 {
					ctx = t.Context()
				}
				post(ctx, d.URL()+completions, body)
			})
		}
		wg.Wait()
		requireClean(t, p, d)
		h := p.State(false).Handoff
		require.Equal(t, uint64(requests), h.Given)
		require.Equal(t, h.Given, h.Taken+h.Released+h.Expired)
		require.Positive(t, h.Taken)
		require.Equal(t, uint64(0), d.State(false).Handoff.Local)
	})
}

func TestPagesOfEachEngine(t *testing.T) {
	v := start(t, Config{Engine: worker.VLLM, Role: worker.Prefill, DPSize: 2, PageSize: 8, CapacityBlocks: 99, KVLease: time.Millisecond})
	prefillOnly(t, v, "a b", "")
	Eventually(t, func() bool { return v.State(false).Handoff.Expired == 1 }, "the lease ends")
	page := getBody(t, v.URL()+"/metrics")
	require.Equal(t, uint64(1), v.State(false).Reads)
	for _, want := range []string{
		"vllm:num_requests_running{engine=\"1\",model_name=\"sim\"} 0\n", "vllm:num_requests_waiting{",
		"vllm:kv_cache_usage_perc{", "vllm:prefix_cache_hits_total{",
		"vllm:cache_config_info{block_size=\"8\",cache_dtype=\"auto\",effective_attention_block_size=\"8\",engine=\"1\",num_gpu_blocks=\"198\"} 1.0\n",
		"vllm:nixl_num_kv_expired_reqs_total{engine=\"0\",model_name=\"sim\"} 1\n", "vllm:nixl_num_failed_transfers_total{", "process_start_time_seconds ",
	} {
		require.Contains(t, page, want)
	}
	require.JSONEq(t, `{"version":"0.32.0"}`, getBody(t, v.URL()+"/version"))
	require.JSONEq(t, `{"server_load":0}`, getBody(t, v.URL()+"/load"))
	require.Contains(t, getBody(t, v.URL()+"/v1/models"), `"owned_by":"vllm"`)
	require.Contains(t, post(t.Context(), v.URL()+"/tokenize", `{"prompt":"a b"}`).body, `"count":2`)
	require.Equal(t, 404, post(t.Context(), v.URL()+"/generate", `{"text":"a"}`).status)
	require.Nil(t, v.Identity().Bootstrap)

	x := start(t, Config{Engine: worker.TensorRTLLM, Role: worker.Prefill, PageSize: 8, CapacityBlocks: 99})
	prefillOnly(t, x, "a b", "")
	require.JSONEq(t, `[{"iter":1,"numActiveRequests":0,"numQueuedRequests":0,"numCompletedRequests":1,"maxNumActiveRequests":2048,
		"kvCacheStats":{"maxNumBlocks":99,"freeNumBlocks":98,"usedNumBlocks":1,"tokensPerBlock":8,"cacheHitRate":0}}]`, getBody(t, x.URL()+"/metrics"))
	require.JSONEq(t, fmt.Sprintf(`{"disaggregated_params":{"ctx_dp_size":1,"ctx_info_endpoint":["tcp://%s"]}}`, x.SideAddrs()[0]),
		getBody(t, x.URL()+"/server_info"))
	require.Nil(t, x.Identity().KVEvents)
	for _, path := range []string{"/tokenize", "/generate"} {
		require.Equal(t, 404, post(t.Context(), x.URL()+path, `{"prompt":"a"}`).status, path)
	}
	d := start(t, Config{Engine: worker.TensorRTLLM, Role: worker.Decode})
	require.JSONEq(t, `{"disaggregated_params":{}}`, getBody(t, d.URL()+"/server_info"))
	require.Empty(t, d.SideAddrs())
}

func TestAVLLMWorkerPublishesItsBlocks(t *testing.T) {
	s := start(t, Config{Engine: worker.VLLM, Role: worker.Aggregated, PageSize: 2})
	sub := subscribe(t, s, 0, "")
	Eventually(t, func() bool {
		post(t.Context(), s.URL()+completions, fmt.Sprintf(`{"prompt":"a b c d %d","max_tokens":1}`, rand.Int()))
		return len(sub) > 0
	}, "the subscription stands")
	var batch []any
	frames := <-sub
	require.NoError(t, msgpack.Unmarshal(frames[2], &batch))
	e := batch[1].([]any)[0].(map[string]any)
	require.Equal(t, "BlockStored", e["type"])
	require.EqualValues(t, 0, e["group_idx"])
	require.Len(t, e["token_ids"], 2*len(e["block_hashes"].([]any)))
}

func TestConfigurationsOfOtherEnginesThatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		text string
	}{
		{Config{Role: worker.Prefill, SideChannelListen: "127.0.0.1:0"}, "side-channel-listen"},
		{Config{Role: worker.Decode, Engine: worker.VLLM, SideChannelListen: "127.0.0.1:0"}, "side-channel-listen"},
		{Config{Role: worker.Prefill, Engine: worker.VLLM, BootstrapListen: "127.0.0.1:0"}, "bootstrap-listen"},
		{Config{Role: worker.Prefill, Engine: worker.VLLM, SideChannelListen: "127.0.0.1:x"}, "port number"},
		{Config{Role: worker.Decode, Engine: worker.VLLM, HeaderOverrides: true}, "header-overrides"},
		{Config{Role: worker.Decode, Engine: worker.TensorRTLLM, KVLoadFailure: LoadRecompute}, "kv-load-failure"},
		{Config{Role: worker.Decode, Engine: worker.VLLM, KVLoadFailure: "x"}, "kv-load-failure"},
		{Config{Role: worker.Decode, Engine: worker.TensorRTLLM, NullOnStop: true}, "null-on-stop"},
		{Config{Role: worker.Decode, Engine: worker.TensorRTLLM, KVEventsPort: 7}, "kv-events-port"},
		{Config{Role: worker.Decode, Engine: worker.VLLM, KVLease: -1}, "kv-lease"},
	} {
		_, err := New(tc.cfg)
		require.ErrorContains(t, err, tc.text)
	}
	for _, f := range []Fault{{Mode: FaultFinish, Reason: "abort"}, {Mode: FaultBadHandoff, Form: "x"}} {
		require.Error(t, f.Validate())
	}
}

// With min_tokens the engine must not end an answer before so many tokens. That is also
// true for the one token of a prefill.
func TestAFloorOfTokensForbidsTheEnd(t *testing.T) {
	eachEngine(t, func(t *testing.T, e worker.Engine) {
		p := start(t, Config{Engine: e, Role: worker.Prefill})
		require.NoError(t, p.SetFault(Fault{Mode: FaultFinish, Reason: "stop"}))
		for floor, over := range map[string]bool{"": true, `,"min_tokens":0`: true, `,"min_tokens":1`: false} {
			body := strings.TrimSuffix(prefillBody(e, "a"), "}") + floor + "}"
			o := parseOAI(t, post(t.Context(), p.URL()+completions, body))
			require.Equal(t, over, o.Choices[0].FinishReason == "stop", "%s: %s", floor, o.Choices[0].FinishReason)
		}
	})
}

// TestALateDecodeReadsAnothersKV is vllm #52234, where the simulator is asked for it: the lease has run
// out, nobody notices, and the answer is another prompt's, with 200.
func TestALateDecodeReadsAnothersKV(t *testing.T) {
	p, d := pair(t, Config{Engine: worker.VLLM, KVLease: time.Millisecond, KVLoadFailure: LoadUnseen})
	body := prefillOnly(t, p, "a b", `,"max_tokens":4`)
	Eventually(t, func() bool { return p.State(false).Handoff.Expired == 1 }, "the lease ends")
	r := post(t.Context(), d.URL()+completions, body)
	require.Equal(t, 200, r.status, r.body)
	require.NotContains(t, r.body, strings.TrimSpace(Answer(Tokenize("a b"), 4)))
	require.Equal(t, "read_after_lease", d.State(false).Violations[0].Kind)
	require.EqualValues(t, 1, p.State(false).Handoff.Late)
	require.Contains(t, getBody(t, p.URL()+"/metrics"), "vllm:nixl_num_notifications_after_expiry_total{engine=\"0\",model_name=\"sim\"} 1\n")
}
