//go:build real

package real

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// counted reads one of the engine's own counters.
func (s *scene) counted(e *Engine, name string, parts ...string) float64 {
	s.t.Helper()
	var v float64
	s.await(e.Name+" to tell "+name, func() bool {
		resp, err := http.Get(e.URL + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			return false
		}
		v, _ = stack.Metrics(page).Sum(name, parts...)
		return true
	})
	return v
}

// sums adds up a counter over the scene's engines of a role.
func (s *scene) sums(role worker.Role, name string, parts ...string) (sum float64) {
	for _, e := range s.engines {
		if e.Role == role {
			sum += s.counted(e, name, parts...)
		}
	}
	return sum
}

// sources are where prompt tokens came from, as vLLM counts them.
type sources struct{ computed, cached, transferred, prompt, expired float64 }

func (s *scene) sources(role worker.Role) sources {
	by := func(source string) float64 {
		return s.sums(role, "vllm:prompt_tokens_by_source_total", fmt.Sprintf("source=%q", source))
	}
	return sources{
		computed: by("local_compute"), cached: by("local_cache_hit"), transferred: by("external_kv_transfer"),
		prompt: s.sums(role, "vllm:prompt_tokens_total"), expired: s.sums(role, "vllm:nixl_num_kv_expired_reqs_total"),
	}
}

func (x sources) less(y sources) sources {
	return sources{x.computed - y.computed, x.cached - y.cached, x.transferred - y.transferred, x.prompt - y.prompt, x.expired - y.expired}
}

// idle waits until no engine runs a request or holds KV of one.
func (s *scene) idle() {
	s.t.Helper()
	s.await("the engines to be idle and to hold no KV", func() bool {
		for _, e := range s.engines {
			if s.counted(e, "vllm:num_requests_running")+s.counted(e, "vllm:num_requests_waiting")+s.counted(e, "vllm:kv_cache_usage_perc") != 0 {
				return false
			}
		}
		return true
	})
}

// TestVLLMApart: each prompt token is computed by prefill once, or cached; decode gets
// all of them by transfer or has them.
func TestVLLMApart(t *testing.T) {
	for _, names := range [][]string{{"vllm-p1", "vllm-d1"}, {"vllm-p1", "vllm-p2", "vllm-d1"}, {"vllm-p1", "vllm-d1", "vllm-d2"}} {
		t.Run(strings.Join(names, " "), func(t *testing.T) {
			s := newScene(t, "", names...)
			p, d := s.sources(worker.Prefill), s.sources(worker.Decode)
			const many = 12
			total := 0
			for i := range many {
				path, body := "/v1/completions", fields{"prompt": words(uint64(i/2), 200) + fmt.Sprint(t.Name(), i)}
				if i%3 == 0 {
					path, body = "/v1/chat/completions", fields{"messages": []fields{message("user", words(uint64(i/2), 200)+fmt.Sprint(t.Name(), i))}}
				}
				body["model"], body["max_tokens"], body["stream"] = "tiny", 6, i%2 == 0
				if i%2 == 0 {
					body["stream_options"] = fields{"include_usage": true}
				}
				a := s.ask(path, body)
				require.Equal(t, http.StatusOK, a.status, a.body)
				dec := s.last()
				require.NotNil(t, dec.Prefill, "served apart")
				require.Equal(t, a.usage.Prompt, dec.ISL, a.body)
				total += a.usage.Prompt
				s.heard()
			}
			p, d = s.sources(worker.Prefill).less(p), s.sources(worker.Decode).less(d)
			tellf(t, vllm, fmt.Sprintf("apart (NIXL over TCP), %d + %d", len(names)-decodes(names), decodes(names)),
				"of %d prompt tokens prefill computed %g and had %g cached; decode computed %g, had %g cached and got %g by transfer",
				total, p.computed, p.cached, d.computed, d.cached, d.transferred)
			require.EqualValues(t, total, p.computed+p.cached, "prefill has had each prompt token once")
			require.EqualValues(t, total, d.computed+d.cached+d.transferred)
			require.LessOrEqual(t, d.computed, float64(many), "decode computes the last token of a prompt at most")
			require.Zero(t, p.expired)
			s.idle()
		})
	}
}

// decodes counts the decode engines among names.
func decodes(names []string) (n int) {
	for _, name := range names {
		if specs[name].o.Role == worker.Decode {
			n++
		}
	}
	return n
}

// TestVLLMApartWhosePrefillStops: the first token is the last. The hand-off holds KV all
// the same.
func TestVLLMApartWhosePrefillStops(t *testing.T) {
	s := newScene(t, "", "vllm-p1", "vllm-d1")
	before := s.sources(worker.Prefill)
	for i := range 4 {
		a := s.ask("/v1/completions", fields{
			"model": "tiny", "prompt": words(uint64(600+i), 200), "max_tokens": 8, "stream": i%2 == 0, "temperature": 0,
			"logit_bias": fields{"2": 100}, // the end of the sequence
		})
		require.Equal(t, http.StatusOK, a.status, a.body)
	}
	s.idle()
	require.Zero(t, s.sources(worker.Prefill).less(before).expired)
	tellf(t, vllm, "apart: prefill's first token is the end", "4 of 4 are answered, no KV is held, none had to expire")
}

// spoiler stands before a prefill worker and changes its answers.
func spoiler(t *testing.T, e *Engine, change func(answer map[string]any)) *Engine {
	t.Helper()
	to, err := url.Parse(e.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ModifyResponse = func(r *http.Response) error {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		var answer map[string]any
		if json.Unmarshal(b, &answer) == nil && answer["kv_transfer_params"] != nil {
			change(answer)
			b, err = json.Marshal(answer)
			if err != nil {
				return err
			}
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		r.Header.Set("content-length", fmt.Sprint(len(b)))
		return nil
	}
	at := httptest.NewServer(proxy)
	t.Cleanup(at.Close)
	out := *e
	out.URL = at.URL
	return &out
}

// TestVLLMApartWithASpoiltHandOff: decode cannot get the KV, or is told nothing of it.
func TestVLLMApartWithASpoiltHandOff(t *testing.T) {
	var spoil atomic.Pointer[func(params map[string]any)]
	change := func(answer map[string]any) {
		if f := spoil.Load(); f != nil {
			(*f)(answer["kv_transfer_params"].(map[string]any))
		}
	}
	es := engines.use(t, "vllm-p1", "vllm-d1")
	s := newSceneOf(t, "", spoiler(t, es[0], change), es[1])
	ports, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	failed := 0
	for name, f := range map[string]func(map[string]any){
		"nobody at the side channel": func(p map[string]any) {
			p["remote_port"], p["remote_engine_id"] = ports[0], "99999999-0000-0000-0000-000000000000"
		},
		"another engine's blocks": func(p map[string]any) { p["remote_engine_id"] = "99999999-0000-0000-0000-000000000000" },
	} {
		for _, stream := range []bool{false, true} {
			spoil.Store(&f)
			began := time.Now()
			a := s.ask("/v1/completions", fields{"model": "tiny", "prompt": words(uint64(700+began.Nanosecond()), 200), "max_tokens": 6, "stream": stream})
			took := time.Since(began).Round(100 * time.Millisecond)
			require.True(t, a.status >= 500 || strings.HasPrefix(a.body, `data: {"error"`), "%d %s", a.status, a.body)
			s.await("it to be counted as failed", func() bool { return s.metric("baton_requests_total", `outcome="failed"`) == float64(failed+1) })
			failed++
			tellf(t, vllm, fmt.Sprintf("apart: %s, streamed %t", name, stream), "%d, an error in the engine's words, after %s; outcome `failed`", a.status, took)
			spoil.Store(nil)
			s.await("the pair to serve again", func() bool {
				return s.ask("/v1/completions", fields{"model": "tiny", "prompt": words(1, 100), "max_tokens": 2}).status == http.StatusOK
			})
		}
	}
	s.idle()
	tellf(t, vllm, "apart: KV of hand-offs that were spoilt", "is free again at prefill, after its lease of 30 s at the latest")
}
