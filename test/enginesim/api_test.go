package enginesim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func getBody(t testing.TB, url string) string {
	t.Helper()
	resp, err := httpClient.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	return string(b)
}

func TestChatAnswers(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, Models: []string{"m \"1\""}, PageSize: 4})
	const messages = `"model":"m \"1\"","messages":[{"role":"user","content":"one two three"}]`
	prompt := ChatTokens([]Message{{Role: "user", Content: "one two three"}}, true)
	url := s.URL() + "/v1/chat/completions"
	t.Run("whole", func(t *testing.T) {
		r := post(t.Context(), url, `{`+messages+`,"max_tokens":99,"max_completion_tokens":3}`)
		o := parseOAI(t, r)
		require.Equal(t, Answer(prompt, 3), o.Choices[0].Message.Content)
		require.Equal(t, "assistant", o.Choices[0].Message.Role)
		require.Equal(t, "length", o.Choices[0].FinishReason)
		require.Equal(t, len(prompt), o.Usage.PromptTokens)
		require.Equal(t, len(prompt)+3, o.Usage.TotalTokens)
		require.Zero(t, o.Usage.PromptTokensDetails.CachedTokens)
	})
	t.Run("streamed with usage, from the cache", func(t *testing.T) {
		r := post(t.Context(), url, `{`+messages+`,"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`)
		chunks := sse(t, r.body)
		require.Len(t, chunks, 1+3+1+1)
		var text strings.Builder
		for _, c := range chunks[:5] {
			require.Equal(t, "chat.completion.chunk", c.Object)
			require.Nil(t, c.Usage)
			text.WriteString(c.Choices[0].Delta.Content)
		}
		require.Equal(t, Answer(prompt, 3), text.String())
		require.Equal(t, "assistant", chunks[0].Choices[0].Delta.Role)
		require.Equal(t, "length", chunks[4].Choices[0].FinishReason)
		require.Empty(t, chunks[5].Choices)
		require.Equal(t, 3, chunks[5].Usage.CompletionTokens)
		require.Equal(t, 4, chunks[5].Usage.PromptTokensDetails.CachedTokens)
	})
	t.Run("the next turn finds prompt and answer in the cache", func(t *testing.T) {
		body, err := json.Marshal(map[string]any{"messages": []map[string]string{
			{"role": "user", "content": "one two three"},
			{"role": "assistant", "content": Answer(prompt, 3)},
			{"role": "user", "content": "four"},
		}})
		require.NoError(t, err)
		o := parseOAI(t, post(t.Context(), url, string(body)))
		require.Equal(t, (len(prompt)+3-1)/4*4, o.Usage.PromptTokensDetails.CachedTokens)
		require.Equal(t, "stop", o.Choices[0].FinishReason, "there was no limit")
		require.Equal(t, core.DefaultOutput, o.Usage.CompletionTokens)
	})
	require.Empty(t, s.State(false).Violations)
	t.Run("another model is served and recorded", func(t *testing.T) {
		require.Equal(t, 200, post(t.Context(), url, `{"model":"other","messages":[{"role":"user","content":"x"}]}`).status)
		require.Equal(t, "wrong_model", s.State(false).Violations[0].Kind)
	})
}

func TestCompletionStream(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, StreamInterval: 4})
	r := post(t.Context(), s.URL()+completions, `{"prompt":["a","b"],"max_tokens":10,"stream":true}`)
	texts := make([]string, 2)
	for _, c := range sse(t, r.body) {
		texts[c.Choices[0].Index] += c.Choices[0].Text
	}
	require.Equal(t, []string{Answer(Tokenize("a"), 10), Answer(Tokenize("b"), 10)}, texts)
	require.Len(t, sse(t, r.body), 2*3, "three chunks of up to four tokens each, the last with its end")
}

func TestGenerate(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated})
	type native struct {
		Text string
		Meta struct {
			ID     string
			Finish *struct {
				Type   string
				Length int
			} `json:"finish_reason"`
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		} `json:"meta_info"`
	}
	var one native
	r := post(t.Context(), s.URL()+"/generate", `{"rid":"r1","input_ids":[1,2,3],"sampling_params":{"max_new_tokens":2}}`)
	require.NoError(t, json.Unmarshal([]byte(r.body), &one), r.body)
	require.Equal(t, Answer([]uint32{1, 2, 3}, 2), one.Text)
	require.Equal(t, "r1", one.Meta.ID)
	require.Equal(t, "length", one.Meta.Finish.Type)
	require.Equal(t, 3, one.Meta.Prompt)

	var two []native
	r = post(t.Context(), s.URL()+"/generate", `{"text":["a","b"],"sampling_params":{"max_new_tokens":1}}`)
	require.NoError(t, json.Unmarshal([]byte(r.body), &two), r.body)
	require.Len(t, two, 2)

	r = post(t.Context(), s.URL()+"/generate", `{"text":"a","stream":true,"sampling_params":{"max_new_tokens":3}}`)
	events := strings.Split(strings.TrimSpace(r.body), "\n\n")
	require.Len(t, events, 4)
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(events[2], "data: ")), &one))
	require.Equal(t, Answer(Tokenize("a"), 3), one.Text, "the text is cumulative")
}

func TestLimits(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, MaxModelLen: 20, CapacityBlocks: 1})
	require.Contains(t, post(t.Context(), s.URL()+completions, `{"prompt":"a","max_tokens":20}`).body, "at most 20")
	require.Contains(t, post(t.Context(), s.URL()+completions, `{"prompt":"a","max_tokens":17}`).body, "needs 2 KV blocks")
	require.Equal(t, 400, post(t.Context(), s.URL()+completions, `{"prompt":"a","max_tokens":-1}`).status)
	require.Equal(t, 400, post(t.Context(), s.URL()+completions, `{"prompt":"a","max_tokens":0}`).status)
	require.Equal(t, 200, post(t.Context(), s.URL()+"/generate", `{"text":"a","sampling_params":{"max_new_tokens":0}}`).status)
	requireClean(t, s)
}

func TestWhatAWorkerTellsOfItself(t *testing.T) {
	p := start(t, Config{Role: worker.Prefill, ID: 1<<60 + 1, DPSize: 2, PageSize: 64, Topic: "kv"})
	var info map[string]any
	require.NoError(t, json.Unmarshal([]byte(getBody(t, p.URL()+"/server_info")), &info))
	require.Equal(t, "prefill", info["disaggregation_mode"])
	require.InDelta(t, core.PortOf(p.BootstrapAddr()), info["disaggregation_bootstrap_port"], 0)
	pub, replay := p.EventsAddr(0)
	require.Equal(t, map[string]any{
		"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": float64(core.PortOf(pub)), "topic": "kv",
		"block_size": 64.0, "dp_size": 2.0, "replay_endpoint_port_base": float64(core.PortOf(replay)),
	}, info["kv_events"])
	next, _ := p.EventsAddr(1)
	require.Equal(t, core.PortOf(pub)+1, core.PortOf(next), "rank r is r ports higher")
	require.Contains(t, getBody(t, p.URL()+"/get_server_info"), `"dp_size":2`)
	require.Contains(t, getBody(t, p.URL()+"/v1/models"), `"id":"sim"`)
	require.Contains(t, getBody(t, "http://"+p.BootstrapAddr()+"/route?prefill_dp_rank=-1"), `"follow_bootstrap_room":true`)

	id, err := json.Marshal(p.Identity())
	require.NoError(t, err)
	require.JSONEq(t, fmt.Sprintf(`{"id":1152921504606846977,"role":"prefill","engine":"sglang","models":["sim"],"endpoint":%q,
		"dp_size":2,"block_size":64,"capacity_blocks":65536,"bootstrap":{"host":"127.0.0.1","port":%d},
		"kv_events":{"host":"127.0.0.1","port":%d,"replay_port":%d,"topic":"kv"},"accepts_aggregated":false}`,
		p.Addr(), core.PortOf(p.BootstrapAddr()), core.PortOf(pub), core.PortOf(replay)), string(id))

	metrics := getBody(t, p.URL()+"/metrics")
	for _, want := range []string{
		`sglang:num_running_reqs{dp_rank="1",engine_type="prefill",model_name="sim",`, `sglang:page_size{dp_rank="0",`,
		`sglang:num_prefill_bootstrap_queue_reqs{engine_type="prefill",model_name="sim",`, `sglang:token_usage{`, `sglang:cache_hit_rate{`,
	} {
		require.Contains(t, metrics, want)
	}
	require.Contains(t, getBody(t, p.URL()+"/v1/loads"), `"prefill_bootstrap_queue_reqs":0`)
}

func TestAnotherStartIsAnotherProcess(t *testing.T) {
	started := regexp.MustCompile(`(?m)^process_start_time_seconds \d+\.\d+$`)
	seed := regexp.MustCompile(`"random_seed":\d+`)
	for path, mark := range map[string]*regexp.Regexp{"/metrics": started, "/server_info": seed} {
		engine := map[string]worker.Engine{"/metrics": worker.VLLM, "/server_info": worker.SGLang}[path] // the engine that serves this page
		c := Config{Role: worker.Decode, ID: 7, Engine: engine}
		a, b := start(t, c), start(t, c)
		first := mark.FindString(getBody(t, a.URL()+path))
		require.NotEmpty(t, first, path)
		require.Equal(t, first, mark.FindString(getBody(t, a.URL()+path)), "one process says one thing")
		require.NotEqual(t, first, mark.FindString(getBody(t, b.URL()+path)), path)
	}
}

func TestTheRequestLog(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, LogRequests: 3, LogBodyBytes: 40, LogTotalBytes: 70})
	ctl := Client{BaseURL: s.URL(), HTTP: httpClient}
	for i := range 4 {
		post(t.Context(), s.URL()+completions, fmt.Sprintf(`{"prompt":"p%d","max_tokens":1}`, i), "X-Request-Id", fmt.Sprint(i), "X-Two", "b")
	}
	rs, err := ctl.Requests(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, rs, 3)
	last := rs[2]
	require.Equal(t, uint64(4), last.Seq)
	require.Equal(t, `{"prompt":"p3","max_tokens":1}`, last.Body)
	require.Equal(t, []string{"3"}, last.Headers["X-Request-Id"])
	require.Equal(t, []string{s.Addr()}, last.Headers["Host"])
	require.Equal(t, OutcomeOK, last.Outcome)
	require.Equal(t, int64(-1), last.Room)
	require.Equal(t, 1, last.PromptTokens)
	require.Positive(t, last.TTFTMicros)
	require.False(t, last.Ended.Before(last.Started))
	require.True(t, rs[0].BodyTruncated, "only 70 bytes of bodies are kept")
	require.Empty(t, rs[0].Body)
	require.Equal(t, len(last.Body), rs[0].BodyBytes)

	post(t.Context(), s.URL()+completions, `{"prompt":"`+strings.Repeat("x", 100)+`"}`)
	rs, err = ctl.Requests(t.Context(), 4)
	require.NoError(t, err)
	require.Len(t, rs, 1)
	require.Len(t, rs[0].Body, 40)
	require.True(t, rs[0].BodyTruncated)

	require.NoError(t, ctl.Reset(t.Context()))
	rs, err = ctl.Requests(t.Context(), 0)
	require.NoError(t, err)
	require.Empty(t, rs)
	st, err := ctl.State(t.Context(), true)
	require.NoError(t, err)
	require.Zero(t, st.OK)
	require.NoError(t, ctl.FlushCache(t.Context()))
	post(t.Context(), s.URL()+completions, `{"prompt":"a"}`)
	require.Len(t, s.Requests(0), 1, "sequence numbers go on")
	require.Equal(t, uint64(6), s.Requests(0)[0].Seq)
	require.Error(t, ctl.SetFault(t.Context(), Fault{Mode: "x"}))
	require.NoError(t, ctl.DropEvents(t.Context(), 0, 1))
	require.Error(t, ctl.DropEvents(t.Context(), 5, 1))
}

// TestABodyOfAnotherTypeIsRefused as by vLLM and SGLang: curl sends that of a form unless it is
// told otherwise.
func TestABodyOfAnotherTypeIsRefused(t *testing.T) {
	for engine, paths := range map[worker.Engine][]string{
		worker.SGLang: {completions, "/v1/chat/completions", "/tokenize"},
		worker.VLLM:   {completions, "/v1/chat/completions", "/tokenize", "/v1/chat/completions/render"},
	} {
		s := start(t, Config{Engine: engine, Role: worker.Aggregated, ScaleOut: engine == worker.VLLM})
		for _, path := range paths {
			body := `{"model":"sim","prompt":"a","max_tokens":1}`
			if strings.Contains(path, "chat") {
				body = `{"model":"sim","messages":[{"role":"user","content":"a"}],"max_tokens":1}`
			}
			for _, kind := range []string{"application/x-www-form-urlencoded", "text/json", ""} {
				r := post(t.Context(), s.URL()+path, body, "Content-Type", kind)
				require.Equal(t, 400, r.status, "%s %s %q", engine, path, kind)
				require.Contains(t, r.body, "Only 'application/json' is allowed")
			}
			require.Equal(t, 200, post(t.Context(), s.URL()+path, body, "Content-Type", "Application/JSON; charset=utf-8").status, "%s %s", engine, path)
		}
	}
	s := start(t, Config{Role: worker.Aggregated})
	const generate = `{"text":"a","sampling_params":{"max_new_tokens":1}}`
	require.Equal(t, 400, post(t.Context(), s.URL()+"/generate", generate, "Content-Type", "application/x-www-form-urlencoded").status)
	require.Equal(t, 200, post(t.Context(), s.URL()+"/generate", generate, "Content-Type", "").status)
}

func TestFlushIsRefusedWhileBlocksAreHeld(t *testing.T) {
	p, _ := pair(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	pre := later(ctx, p.URL()+completions, pdBody(p, 1, "a", ""))
	Eventually(t, func() bool { return p.State(false).KVHeldBlocks > 0 }, "KV is held")
	require.Equal(t, 400, post(t.Context(), p.URL()+"/flush_cache", "").status)
	cancel()
	<-pre
	requireClean(t, p)
	require.Equal(t, 200, post(t.Context(), p.URL()+"/flush_cache", "").status)
}

func TestTwoThousandPairsInFlight(t *testing.T) {
	p, d := pair(t, Config{DPSize: 2, MaxRunning: 300})
	const pairs = 2000
	client := &http.Client{Transport: &http.Transport{DialContext: dialWithoutTimeWait}}
	defer client.CloseIdleConnections()
	ask := func(s *Sim, i int) (string, error) {
		prompt := fmt.Sprintf("question %d for the model", i)
		resp, err := client.Post(s.URL()+completions, "application/json", strings.NewReader(pdBody(p, int64(i), prompt, `,"max_tokens":3`)))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close() //nolint:errcheck // read to its end
		b, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != 200 || !strings.Contains(string(b), "d"+Digest(Tokenize(prompt)))) {
			err = errors.New(string(b))
		}
		return string(b), err
	}
	var wg sync.WaitGroup
	errs := make(chan error, 2*pairs)
	run := func(s *Sim) {
		for i := range pairs {
			wg.Go(func() {
				if _, err := ask(s, i); err != nil {
					errs <- fmt.Errorf("%s %d: %w", s.Identity().Role, i, err)
				}
			})
		}
	}
	run(d)
	Eventually(t, func() bool { st := d.State(false); return st.Running == pairs && st.Queued == pairs-600 }, "all decodes are in, most in the queue")
	run(p)
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	requireClean(t, p, d)
	require.Equal(t, uint64(pairs), d.State(false).OK)
}

// dialWithoutTimeWait makes connections that leave no port in TIME_WAIT, so that other
// tests can use the ports.
func dialWithoutTimeWait(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err == nil {
		err = c.(*net.TCPConn).SetLinger(0)
	}
	return c, err
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	for _, cfg := range []Config{
		{},
		{Role: worker.Decode, BootstrapListen: "127.0.0.1:0"},
		{Role: worker.Decode, Engine: "other"},
		{Role: worker.Decode, Listen: "nowhere"},
		{Role: worker.Decode, PageSize: -1},
		{Role: worker.Decode, KVEventsPort: 70000},
	} {
		_, err := New(cfg)
		require.Error(t, err)
	}
	s := start(t, Config{Role: worker.Decode})
	_, err := New(Config{Role: worker.Decode, Listen: s.Addr()})
	require.ErrorContains(t, err, "in use")
}

func BenchmarkAggregated(b *testing.B) {
	for _, size := range []int{2 << 10, 220 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			s := start(b, Config{Role: worker.Aggregated})
			word := "lorem ipsum dolor sit amet, "
			body := []byte(`{"model":"sim","max_tokens":8,"messages":[{"role":"user","content":"` + strings.Repeat(word, size/len(word)) + `"}]}`)
			h := s.Pages.Handler()
			b.ReportAllocs()
			for b.Loop() {
				r, _ := http.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(string(body)))
				h.ServeHTTP(discard{}, r)
			}
		})
	}
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
